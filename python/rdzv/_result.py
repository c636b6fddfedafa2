"""Result of a run: state, values by rank, failures by rank."""

from collections.abc import Mapping
from enum import Enum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


class WorkerState(str, Enum):
    """State of a worker group, with the names of torchelastic.

    ``number`` is its value in the first version of torchelastic: 0, 1, 2, 4, 8, 16, 32.

    Example:
        >>> from rdzv.elastic import WorkerState
        >>> WorkerState.is_running(WorkerState.HEALTHY), WorkerState.SUCCEEDED.number
        (True, 16)
    """

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: "WorkerState") -> bool:
        """Returns True if workers run in this state.

        Args:
            state (WorkerState): a state.

        Returns:
            bool: True for HEALTHY and UNHEALTHY.

        Example:
            >>> from rdzv.elastic import WorkerState
            >>> WorkerState.is_running(WorkerState.INIT)
            False
        """
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)

    @property
    def number(self) -> int:
        """int: value in the first version of torchelastic: 0, 1, 2, 4, 8, 16 or 32."""
        position = list(WorkerState).index(self)
        return 0 if position == 0 else 1 << (position - 1)


class ProcessFailure:
    """Failure of a worker.

    Args:
        local_rank (int): the worker's rank within its node.
        pid (int): the worker's process id.
        exitcode (int): the worker's exit code; minus the signal number if a signal terminated it.
        error_file (str): path of the worker's error file, which need not exist. ``"<N/A>"`` if there is none.

    Attributes:
        error_file_data (dict): content of the error file; ``{"message": "<NONE>"}`` if there is none.
        message (str | dict): the error in one line, or torchelastic's object form with the traceback.
        timestamp (int): time in the error file, in seconds since 1970; without a file, the time at
            which this object was created.
        rank (int): the worker's rank in the job; -1 if unknown.
        node (str): the worker's host; empty if unknown.
        cause (str): the reason in one line, as ``rdzv run`` prints it.
        traceback (str | None): the traceback of the worker's exception.
        exception (BaseException | None): the exception that the worker raised, if this node has it.

    Example:
        >>> from rdzv.elastic import ProcessFailure
        >>> ProcessFailure(local_rank=0, pid=4242, exitcode=-9, error_file="<N/A>").signal_name()
        'SIGKILL'
    """

    def __init__(self, local_rank: int, pid: int, exitcode: int, error_file: str):
        import json
        import time

        self.local_rank, self.pid, self.exitcode, self.error_file = local_rank, pid, exitcode, error_file
        self.rank, self.node = -1, ""
        self.traceback: "str | None" = None
        self.exception: "BaseException | None" = None
        self.error_file_data: "dict[str, object]" = {"message": "<NONE>"}
        self.message: "str | dict[str, object]" = ""
        self.timestamp = int(time.time())
        try:
            with open(error_file, encoding="utf-8") as file:
                data = json.load(file)
            message = data["message"]
            timestamp = message["extraInfo"]["timestamp"] if isinstance(message, dict) else data["timestamp"]
            self.error_file_data, self.message, self.timestamp = data, message, int(timestamp)
            if isinstance(message, dict):
                self.traceback = message["extraInfo"].get("py_callstack")
        except (OSError, ValueError, KeyError, TypeError):
            # There is no file, or its format is unknown.
            self.error_file = "<N/A>"
        if not self.message:
            if exitcode < 0:
                self.message = f"Signal {-exitcode} ({self.signal_name()}) received by PID {pid}"
            else:
                self.message = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        self.cause = self._words()

    def __getstate__(self) -> "dict[str, object]":
        # An exception may refuse to be pickled a second time.
        return {**self.__dict__, "exception": None}

    def _words(self) -> str:
        message = self.message
        if isinstance(message, dict):
            return str(message.get("message", ""))
        return message if self.exitcode < 0 or self.error_file != "<N/A>" else f"exit code {self.exitcode}"

    @classmethod
    def _of_report(cls, failure: "dict[str, object]") -> "ProcessFailure":
        """Creates a failure from an entry of the report of ``rdzv run``."""
        number = failure.get("exit_code")
        made = cls(
            failure.get("local_rank") or 0,  # type: ignore[arg-type]
            failure.get("pid") or 0,  # type: ignore[arg-type]
            number if isinstance(number, int) else 1,
            str(failure.get("error_file") or "<N/A>"),
        )
        rank = failure.get("rank")
        made.rank = rank if isinstance(rank, int) else -1
        made.node = str(failure.get("host") or "")
        cause = failure.get("cause")
        if isinstance(cause, dict):
            made.cause = str(cause.get("text"))
        if made.traceback is None and isinstance(failure.get("traceback"), str):
            made.traceback = str(failure["traceback"])
        return made

    def signal_name(self) -> str:
        """Name of the signal that terminated the worker.

        Returns:
            str: such as ``"SIGKILL"``; ``"<N/A>"`` without a signal.

        Example:
            >>> from rdzv.elastic import ProcessFailure
            >>> ProcessFailure(0, 1, 7, "<N/A>").signal_name()
            '<N/A>'
        """
        if self.exitcode >= 0:
            return "<N/A>"
        import signal

        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return "<Invalid>"

    def timestamp_isoformat(self) -> str:
        """Time of the failure as text.

        Returns:
            str: local time without a zone, ``YYYY-MM-DD_HH:MM:SS``.

        Example:
            >>> from rdzv.elastic import ProcessFailure
            >>> len(ProcessFailure(0, 1, 7, "<N/A>").timestamp_isoformat())
            19
        """
        from datetime import datetime

        return datetime.fromtimestamp(self.timestamp).isoformat(sep="_")

    def __repr__(self) -> str:
        return (
            f"ProcessFailure(rank={self.rank}, local_rank={self.local_rank}, pid={self.pid},"
            f" exitcode={self.exitcode}, cause={self.cause!r})"
        )


class RunResult(Mapping[int, "Any"]):
    """Result of a run: a mapping from global ranks to return values.

    Args:
        state (WorkerState): state of the worker group at the end.
        return_values (dict[int, object]): return values of this node's workers, by global rank.
        failures (dict[int, ProcessFailure]): failures by global rank.

    Attributes:
        report (dict): the report of the run, with the keys of ``rdzv run --report``; empty if there is none.
        restarts (int): number of restarts that this node used.

    If a function exits its process instead of returning, its rank has no return value. The value of a command is
    None.

    Example:
        >>> from rdzv.elastic import RunResult, WorkerState
        >>> RunResult(WorkerState.SUCCEEDED, {0: "done"})[0]
        'done'
    """

    def __init__(
        self,
        state: WorkerState,
        return_values: "dict[int, Any] | None" = None,
        failures: "dict[int, ProcessFailure] | None" = None,
    ):
        self.state = state
        self.return_values: "dict[int, Any]" = {} if return_values is None else return_values
        self.failures: "dict[int, ProcessFailure]" = {} if failures is None else failures
        self.report: "dict[str, Any]" = {}
        self.restarts = 0

    def is_failed(self) -> bool:
        """Returns True if workers failed.

        Returns:
            bool: True if the state is FAILED or UNHEALTHY. In torchelastic, only FAILED counts.

        Example:
            >>> from rdzv.elastic import RunResult, WorkerState
            >>> RunResult(WorkerState.FAILED).is_failed()
            True
        """
        return self.state in (WorkerState.FAILED, WorkerState.UNHEALTHY)

    def exceptions(self) -> "dict[int, str]":
        """Failures with one line each, as in the first version of torchelastic.

        Returns:
            dict[int, str]: cause by global rank.

        Example:
            >>> from rdzv.elastic import RunResult, WorkerState
            >>> RunResult(WorkerState.SUCCEEDED).exceptions()
            {}
        """
        return {rank: failure.cause for rank, failure in self.failures.items()}

    def __getitem__(self, rank: int) -> "Any":
        return self.return_values[rank]

    def __iter__(self) -> "Iterator[int]":
        return iter(self.return_values)

    def __len__(self) -> int:
        return len(self.return_values)

    def __repr__(self) -> str:
        return (
            f"RunResult(state={self.state}, return_values={self.return_values!r}, failures={self.failures!r})"
        )


MonitorResult = RunResult

for _class in (WorkerState, ProcessFailure, RunResult):
    _class.__module__ = "rdzv.elastic"
