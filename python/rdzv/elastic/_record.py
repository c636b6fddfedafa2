"""Decorator that writes the error file of a worker."""

import json
import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from rdzv._errors import WorkerGroupFailed

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ErrorHandler:
    """Writer of a process's error file; other handlers need the same methods.

    Example:
        >>> from rdzv.elastic import ErrorHandler
        >>> ErrorHandler().initialize()
    """

    def initialize(self) -> None:
        """Makes a fatal signal print the stacks of all threads to stderr.

        :func:`record` calls this method before the function.

        Example:
            >>> from rdzv.elastic import ErrorHandler
            >>> ErrorHandler().initialize()
        """
        import faulthandler

        try:
            faulthandler.enable(all_threads=True)
        except (OSError, ValueError, AttributeError, RuntimeError):
            # `sys.stderr` has no descriptor.
            pass

    def record_exception(self, e: BaseException) -> None:
        """Writes an exception to the file that ``TORCHELASTIC_ERROR_FILE`` names.

        Args:
            e (BaseException): the exception.

        Raises:
            OSError: the file cannot be written.

        Example:
            >>> from rdzv.elastic import ErrorHandler
            >>> ErrorHandler().record_exception(ValueError("no data"))
        """
        from rdzv.worker import report_error

        report_error(e)

    def record_failure(self, failure: "Any") -> None:
        """Writes a worker's error and exit code to the error file of this process.

        Args:
            failure (ProcessFailure): the failure.

        Raises:
            OSError: the file cannot be written.

        Example:
            >>> from rdzv.elastic import ErrorHandler, ProcessFailure
            >>> ErrorHandler().record_failure(ProcessFailure(0, 1, 7, "<N/A>"))
        """
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if not path:
            return
        content = json.loads(json.dumps(failure.error_file_data))
        message = content.get("message")
        if failure.error_file == "<N/A>":
            extra = {"py_callstack": failure.traceback or failure.cause, "timestamp": str(failure.timestamp)}
            message = content["message"] = {"message": failure.cause, "extraInfo": extra}
        if isinstance(message, dict) and failure.exitcode:
            message["errorCode"] = failure.exitcode
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)


def record(fn: "Callable[_P, _R]", error_handler: "ErrorHandler | None" = None) -> "Callable[_P, _R | None]":
    """Decorates the main function of a worker so that its exceptions are reported.

    The launcher shows the exception as the cause of the worker's failure.

    Args:
        fn (callable): the function.
        error_handler (ErrorHandler | None): writes the error file; ``None``: a new :class:`ErrorHandler`.

    Returns:
        callable: the function. It raises the same exceptions. It first writes each ``Exception`` to
        the file that ``TORCHELASTIC_ERROR_FILE`` names, in torch's format. For a
        :class:`ChildFailedError` it writes the first failure. ``sys.exit(0)`` in the function makes
        it return None.

    Example:
        >>> from rdzv.elastic import record
        >>> @record
        ... def main():
        ...     return "done"
        >>> main()
        'done'
    """
    handler = ErrorHandler() if error_handler is None else error_handler

    @wraps(fn)
    def recorded(*args: "_P.args", **kwargs: "_P.kwargs") -> "_R | None":
        handler.initialize()
        try:
            return fn(*args, **kwargs)
        except SystemExit as end:
            if end.code == 0:
                return None
            raise
        except WorkerGroupFailed as failed:
            handler.record_failure(failed.first)
            raise
        except Exception as error:
            handler.record_exception(error)
            raise

    return recorded


for _public in (ErrorHandler, record):
    _public.__module__ = "rdzv.elastic"
