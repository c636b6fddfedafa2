"""Conversion between failed calls and exceptions."""

from __future__ import annotations

import pickle
import traceback

from rdzv._errors import Deadline, PeerLost, RemoteError, RpcError
from rdzv.rpc import _values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdzv._rdzv import RpcRequest

_CLASSES = {"Deadline": Deadline, "PeerLost": PeerLost}
# Maximum number of nested causes.
_DEPTH = 16
# Beginning of the note with the traceback of the callee.
_NOTE = "raised on worker "
# Maximum length of a traceback. Each worker of a chain of nested calls adds to it.
_STACK = 1 << 16


class Refused(Exception):
    """Refusal of a call; the caller gets an error of this kind."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def made(
    kind: str,
    message: str,
    worker: tuple[str, int] | None,
    method: str | None,
    retryable: bool,
    remote: tuple[str, str, list[str], bytes] | None,
) -> BaseException:
    """Returns the exception for a failed call. The extension calls it."""
    name = worker[0] if worker else None
    where = f"worker {name} (rank {worker[1]})" if worker else "a worker"
    if remote is None:
        text = f"{where}: {message}" if worker else message
        cls = _CLASSES.get(kind, RpcError)
        return cls(text, kind=kind, worker=name, method=method, retryable=retryable)
    type_name, text, causes, details = remote
    stack, chain = _details(details)
    error: BaseException | None = None
    for pickled in reversed(chain):
        raised = _exception(pickled)
        if raised is None:
            error = None
            continue
        raised.__cause__ = error
        error = raised
    if error is not None and chain and chain[0]:
        error.add_note(f"raised on {where}:\n{stack.rstrip()}")
        return error
    shown = f"{type_name}: {text}" if text else type_name
    for cause in causes:
        shown += f"\n  caused by: {cause}"
    return RemoteError(
        f"on {where}: {shown}" + (f"\n\n{stack.rstrip()}" if stack else ""),
        worker=name,
        method=method,
        type_name=type_name,
        remote_text=text,
        traceback=stack,
        causes=tuple(causes),
    )


def _details(details: bytes) -> tuple[str, list[bytes]]:
    """Returns the traceback, and the pickles of the exception and its causes."""
    if not details:
        return "", []
    try:
        stack, chain = _values.load_plain(details)
        if isinstance(stack, str) and all(isinstance(one, bytes) for one in chain):
            return stack, list(chain)
    except Exception:  # noqa: BLE001, it comes from another process
        pass
    return "", []


def _exception(pickled: bytes) -> BaseException | None:
    try:
        error = _values.load(pickled, [], [])
    except Exception:  # noqa: BLE001, it comes from another process
        return None
    return error if isinstance(error, Exception) else None


def fail(request: RpcRequest, error: BaseException) -> None:
    """Answers a call with an exception."""
    if isinstance(error, Refused):
        request.fail(error.kind, "", str(error), [], b"")
        if error.kind == "Protocol":
            # A worker that sends such a message may send more of them.
            request.hang_up(str(error))
        return
    stack = "".join(traceback.format_exception(error))
    if len(stack) > _STACK:
        stack = f"{stack[: _STACK // 2]}\n[...]\n{stack[-_STACK // 2 :]}"
    chain: list[bytes] = []
    causes: list[str] = []
    at: BaseException | None = error
    while at is not None and len(chain) < _DEPTH:
        chain.append(_pickled(at))
        if at is not error:
            causes.append(f"{type(at).__name__}: {at}")
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    details = pickle.dumps((stack, chain), protocol=5)
    request.fail("Remote", name, _text(error), causes, details)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001, of a class of the user's
        return f"<its text cannot be made: {broken!r}>"


def _pickled(error: BaseException) -> bytes:
    """Returns the exception without its traceback.

    The result is empty if the exception cannot be pickled and unpickled.
    """
    if not isinstance(error, Exception):
        return b""
    notes = getattr(error, "__notes__", [])
    try:
        if notes:
            # The traceback of this worker contains those of the workers that it called.
            error.__notes__ = [note for note in notes if not note.startswith(_NOTE)]
        pickled = _values.dump_whole(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001, of a class of the user's
        return b""
    finally:
        if notes:
            error.__notes__ = notes
    return pickled
