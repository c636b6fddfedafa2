"""Exceptions of rdzv; import them from ``rdzv``."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdzv._result import ProcessFailure, RunResult


class Error(RuntimeError):
    """Base class of the errors that rdzv defines."""


class StoreError(Error):
    """A store could not be reached, or an operation on it failed."""


class StoreTimeout(StoreError, TimeoutError):
    """A key, a queue item, a caller of a barrier or an answer was late."""


class QueueEmpty(StoreError):
    """A queue was empty, and the call had ``block=False``."""


class LaunchTimeout(Error, TimeoutError):
    """A run took longer than the ``timeout`` of :func:`rdzv.launch`.

    The launcher has stopped its workers.
    """


class WorkerGroupFailed(Error):
    """Failure of workers after the last restart.

    Args:
        name (str): name of the function or command that the workers ran.
        failures (dict[int, ProcessFailure]): failures by global rank; at least one.

    Attributes:
        first (ProcessFailure): the first failure of the job, with ``rank``, ``cause`` and ``traceback``.
        result (RunResult | None): the result of the run, with its report.

    ``__cause__`` is the exception that the worker raised, if the worker ran on this node and the
    exception could be pickled.

    Example:
        >>> import rdzv
        >>> try:
        ...     rdzv.launch("math:factorial", args=(-1,), nprocs=1)
        ... except rdzv.WorkerGroupFailed as failed:
        ...     print(failed.first.rank, failed.first.cause)
        0 ValueError: factorial() not defined for negative values
    """

    def __init__(self, name: str, failures: "dict[int, ProcessFailure]"):
        if not failures:
            raise ValueError("a failure needs a worker that has failed: failures is empty")
        self.name, self.failures = name, failures
        self.result: "RunResult | None" = None
        # `min` takes the first of equal times, and the dict has the first failure first.
        self.first: "ProcessFailure" = min(failures.values(), key=lambda failure: failure.timestamp)
        super().__init__()

    def __str__(self) -> str:
        first = self.first
        ended = f"exit code {first.exitcode}" if first.exitcode >= 0 else f"signal {-first.exitcode}"
        text = f"{self.name} failed: rank {first.rank} (local rank {first.local_rank}, pid {first.pid}, {ended})"
        text += f" on {first.node}" if first.node else ""
        text += f": {first.cause}" if first.cause != ended else ""
        others = len(self.failures) - 1
        text += f"; {others} more failed" if others else ""
        return text + (f"\n\n{first.traceback.rstrip()}" if first.traceback else "")

    def get_first_failure(self) -> "tuple[int, ProcessFailure]":
        """First failure of the job, with its rank.

        Returns:
            tuple[int, ProcessFailure]: global rank of the worker, and the failure.

        Example:
            >>> from rdzv.elastic import ChildFailedError, ProcessFailure
            >>> ChildFailedError("train", {3: ProcessFailure(1, 4242, 7, "<N/A>")}).get_first_failure()[0]
            3
        """
        rank = next(rank for rank, failure in self.failures.items() if failure is self.first)
        return rank, self.first

    def get_worker_exceptions(self) -> "dict[int, BaseException]":
        """Exceptions of the workers by global rank.

        Returns:
            dict[int, BaseException]: exception by global rank. It is the exception that the worker raised, if the
            worker ran on this node and the exception could be pickled; otherwise an :class:`Error` with the cause.

        Example:
            >>> from rdzv.elastic import ChildFailedError, ProcessFailure
            >>> ChildFailedError("train", {3: ProcessFailure(1, 4242, 7, "<N/A>")}).get_worker_exceptions()
            {3: Error('exit code 7')}
        """
        return {
            rank: Error(failure.cause) if failure.exception is None else failure.exception
            for rank, failure in self.failures.items()
        }

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Failures as a report with several lines.

        Args:
            boarder_delim (str): character of the lines around the report.
            section_delim (str): character of the lines between its parts.

        Returns:
            str: the title, the root cause, and the other failures.

        Example:
            >>> from rdzv.elastic import ChildFailedError, ProcessFailure
            >>> report = ChildFailedError("train", {3: ProcessFailure(1, 4242, 7, "<N/A>")}).format_msg()
            >>> report.splitlines()[1]
            'train FAILED'
        """
        rows: "list[str]" = []
        for rank, failure in self.failures.items():
            traceback = f"\n  traceback : {failure.traceback.rstrip()}" if failure.traceback else ""
            rows.append(
                f"[{len(rows)}]:\n  time      : {failure.timestamp_isoformat()}\n  host      : {failure.node}\n"
                f"  rank      : {rank} (local_rank: {failure.local_rank})\n"
                f"  exitcode  : {failure.exitcode} (pid: {failure.pid})\n  error_file: {failure.error_file}\n"
                f"  cause     : {failure.cause}" + traceback.replace("\n", "\n  ")
            )
        first = rows.pop(list(self.failures.values()).index(self.first))
        border, section = boarder_delim * 60, section_delim * 60
        others = "\n".join(rows) or "  <NO_OTHER_FAILURES>"
        return (
            f"{border}\n{self.name} FAILED\n{section}\nFailures:\n{others}\n{section}\n"
            f"Root Cause (first observed failure):\n{first}\n{border}"
        )

    def __reduce__(self) -> "tuple[object, ...]":
        return type(self), (self.name, self.failures), {"first": self.first, "result": self.result}


class RendezvousError(Error):
    """The nodes could not find one another.

    The subclasses have the names of the exceptions of ``torch.distributed``.
    """


class RendezvousClosedError(RendezvousError):
    """The run is closed, or it belongs to another job with the same run id."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """Too few nodes joined in time, or rank 0 sent no endpoint."""


class RendezvousConnectionError(RendezvousError, ConnectionError):
    """The endpoint is unreachable, or the connection to it was lost."""


class RendezvousStateError(RendezvousError):
    """The data at the endpoint is not the state of a rendezvous."""


class RendezvousGracefulExitError(RendezvousError):
    """The job has succeeded without this node."""


for _class in (Error, StoreError, StoreTimeout, QueueEmpty, LaunchTimeout, WorkerGroupFailed):
    _class.__module__ = "rdzv"
for _class in RendezvousError.__subclasses__() + [RendezvousError]:
    _class.__module__ = "rdzv.rendezvous"


class CollectiveError(Error):
    """An operation of a process group failed, or the group could not be formed.

    Attributes:
        rank (int | None): the rank of this process.
        peer (int | None): the rank at fault, if it is known; with several ranks, the first of ``peers``.
        peers (tuple[int, ...]): the known ranks at fault, for example all missing ranks.
        operation (str | None): the call, e.g. ``"all_reduce"``.
        cause (str | None): ``mismatch``, ``timeout``, ``lost``, ``refused``, ``interrupted``, ``broken``, ``store``,
            ``system``, ``object`` or ``other``.
        elapsed (float | None): seconds since the operation began, if they are known.
    """

    def __init__(
        self,
        text: str = "",
        *,
        rank: int | None = None,
        peer: int | None = None,
        peers: tuple[int, ...] = (),
        operation: str | None = None,
        cause: str | None = None,
        elapsed: float | None = None,
    ) -> None:
        super().__init__(text)
        self.rank = rank
        self.peer = peer
        self.peers = peers
        self.operation = operation
        self.cause = cause
        self.elapsed = elapsed


class CollectiveTimeout(CollectiveError, TimeoutError):
    """An operation did not end in time.

    The group is broken, unless the timeout was that of :meth:`Work.wait`; then the operation continues.
    """


class RankLost(CollectiveError, ConnectionError):
    """A rank that an operation waited for has left the group, which is now broken.

    The connection to that rank is lost. Its process has probably exited, or has closed its group.
    """


for _of_group in (CollectiveError, CollectiveTimeout, RankLost):
    _of_group.__module__ = "rdzv"


class RpcError(Error):
    """Failure of a call, a reference or a group of workers.

    Attributes:
        kind (str): e.g. ``"NoSuchMethod"``, ``"PeerLost"``, ``"Deadline"``, ``"Protocol"``, ``"Remote"``.
        worker (str | None): name of the remote worker.
        method (str | None): the function that was called.
        retryable (bool): True if the same call may succeed on a retry.
    """

    def __init__(
        self,
        text: str = "",
        *,
        kind: str = "Internal",
        worker: str | None = None,
        method: str | None = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.worker = worker
        self.method = method
        self.retryable = retryable


class Deadline(RpcError, TimeoutError):
    """A call, or the formation or shutdown of a group, has timed out."""


class PeerLost(RpcError, ConnectionError):
    """The connection to a worker was lost, or could not be established.

    A later attempt may succeed.
    """


class RemoteError(RpcError):
    """The function raised an exception that this process cannot re-raise.

    Attributes:
        type_name (str): class of the exception, with its module.
        text (str): text of the exception.
        traceback (str): the traceback on the callee; empty if there is none.
        causes (tuple[str, ...]): texts of the exceptions that caused it, the direct cause first.
    """

    def __init__(
        self,
        text: str = "",
        *,
        kind: str = "Remote",
        worker: str | None = None,
        method: str | None = None,
        retryable: bool = False,
        type_name: str = "",
        remote_text: str = "",
        traceback: str = "",
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(text, kind=kind, worker=worker, method=method, retryable=retryable)
        self.type_name = type_name
        self.text = remote_text
        self.traceback = traceback
        self.causes = causes


for _of_rpc in (RpcError, Deadline, PeerLost, RemoteError):
    _of_rpc.__module__ = "rdzv"
