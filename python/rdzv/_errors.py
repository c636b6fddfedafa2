"""Exceptions of rdzv, which users find in ``rdzv``."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdzv._result import ProcessFailure, RunResult


class Error(RuntimeError):
    """Base of all errors of rdzv except those for wrong arguments."""


class StoreError(Error):
    """Failure of a store: unreachable, refused, or interrupted."""


class StoreTimeout(StoreError, TimeoutError):
    """Keys, or members of a barrier, did not arrive in time."""


class QueueEmpty(StoreError):
    """An empty queue, if the caller did not want to wait."""


class LaunchTimeout(Error, TimeoutError):
    """A run that exceeded the ``timeout`` of :func:`rdzv.launch`.

    Its workers have been stopped.
    """


class WorkerGroupFailed(Error):
    """Failure of workers after the last restart.

    Args:
        name (str): name of the program of the workers.
        failures (dict[int, ProcessFailure]): failures by global rank; at least one.

    Attributes:
        first (ProcessFailure): the first failure of the job, with ``rank``, ``cause`` and ``traceback``.
        result (RunResult | None): the result of the run, with its report.

    ``__cause__`` is the exception that the worker raised, if it could be pickled.

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
        # Equal times keep the order of the dict, which begins with the first failure.
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
        """Returns the first failure.

        Returns:
            tuple[int, ProcessFailure]: its global rank, and the failure.

        Example:
            >>> from rdzv.elastic import ChildFailedError, ProcessFailure
            >>> ChildFailedError("train", {3: ProcessFailure(1, 4242, 7, "<N/A>")}).get_first_failure()[0]
            3
        """
        rank = next(rank for rank, failure in self.failures.items() if failure is self.first)
        return rank, self.first

    def get_worker_exceptions(self) -> "dict[int, str]":
        """Returns each failure as one line, in the form of the first torchelastic.

        Returns:
            dict[int, str]: cause by global rank.

        Example:
            >>> from rdzv.elastic import ChildFailedError, ProcessFailure
            >>> ChildFailedError("train", {3: ProcessFailure(1, 4242, 7, "<N/A>")}).get_worker_exceptions()
            {3: 'exit code 7'}
        """
        return {rank: failure.cause for rank, failure in self.failures.items()}

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Returns the failures as a report of several lines.

        Args:
            boarder_delim (str): one character, for the line around the report.
            section_delim (str): one character, for the line between its parts.

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
    """Failure of a rendezvous.

    The classes below have the names of ``torch.distributed``.
    """


class RendezvousClosedError(RendezvousError):
    """A run that has ended, so no node can join it any more."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """Too few nodes arrived in time."""


class RendezvousConnectionError(RendezvousError, ConnectionError):
    """An unreachable endpoint, or a lost connection to it."""


class RendezvousStateError(RendezvousError):
    """Content of the endpoint that is no state of a rendezvous."""


class RendezvousGracefulExitError(RendezvousError):
    """A job that has ended successfully without this node."""


for _class in (Error, StoreError, StoreTimeout, QueueEmpty, LaunchTimeout, WorkerGroupFailed):
    _class.__module__ = "rdzv"
for _class in RendezvousError.__subclasses__() + [RendezvousError]:
    _class.__module__ = "rdzv.rendezvous"


class CollectiveError(Error):
    """Failure of an operation of a process group, or of making the group.

    Attributes:
        rank (int | None): rank of this process.
        peer (int | None): rank at fault, if known.
        peers (tuple[int, ...]): all missing ranks, if more than one is known.
        operation (str | None): the call, e.g. ``"all_reduce"``.
        cause (str | None): ``mismatch``, ``timeout``, ``lost``, ``refused``, ``interrupted``, ``broken``, ``store``,
            ``system``, ``object`` or ``other``.
        elapsed (float | None): seconds since the operation began, if known.
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
    """A rank that did not do its part in time. The group is broken."""


class RankLost(CollectiveError, ConnectionError):
    """A rank that ended or left the group during an operation.

    The group is broken.
    """


for _of_group in (CollectiveError, CollectiveTimeout, RankLost):
    _of_group.__module__ = "rdzv"


class RpcError(Error):
    """Failure of a call, a reference or a group of workers.

    Attributes:
        kind (str): e.g. ``"NoSuchMethod"``, ``"PeerLost"``, ``"Deadline"``, ``"Protocol"``, ``"Remote"``.
        worker (str | None): name of the worker concerned.
        method (str | None): name of the called function.
        retryable (bool): True if the same call may succeed when it is repeated.
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
    """Expired time of a call, or of forming or leaving a group."""


class PeerLost(RpcError, ConnectionError):
    """A lost or impossible connection to a worker. A retry may help."""


class RemoteError(RpcError):
    """Failure of a called function whose exception cannot be raised here.

    Attributes:
        type_name (str): class of the exception, with its module.
        text (str): text of the exception.
        traceback (str): traceback on the callee; empty if there is none.
        causes (tuple[str, ...]): texts of its causes, the nearest first.
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
