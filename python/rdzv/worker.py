"""Data and functions for workers: ranks, the job's store, heartbeats.

They work inside a worker of ``rdzv run``, ``rdzv.launch`` or ``torchrun``. All data comes from the
environment, so a program may use them at any time, without initialisation. In a process that is no
worker, functions that need a rank, a size or the store raise a :class:`RuntimeError` that names the
missing variable.
"""

import os

__all__ = [
    "group_rank",
    "heartbeat",
    "is_worker",
    "local_rank",
    "local_world_size",
    "rank",
    "report_error",
    "restart_count",
    "role_rank",
    "run_id",
    "store",
    "world_size",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdzv import PrefixStore

# Each with the id of its process.
_store: "tuple[int, PrefixStore] | None" = None
_pipe: "tuple[int, int] | None" = None


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise RuntimeError(f"this process is no worker: {name} is not set; start it with rdzv run or rdzv.launch")
    return value


def _number(name: str) -> int:
    value = _variable(name)
    try:
        return int(value)
    except ValueError:
        raise RuntimeError(f"{name} is {value!r}, which is no number") from None


def is_worker() -> bool:
    """Returns True if this process is a worker.

    Returns:
        bool: True if ``RANK`` and ``WORLD_SIZE`` are set.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:is_worker", nprocs=1)[0], rdzv.worker.is_worker()
        (True, False)
    """
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def rank() -> int:
    """Returns the number of this worker among all workers of the job.

    Returns:
        int: from 0 to ``world_size() - 1``.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:rank", nprocs=2).return_values
        {0: 0, 1: 1}
    """
    return _number("RANK")


def local_rank() -> int:
    """Returns the number of this worker among those of its node.

    With ``--virtual-local-rank`` it is 0 for all workers.

    Returns:
        int: from 0 to ``local_world_size() - 1``.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:local_rank", nprocs=2).return_values
        {0: 0, 1: 1}
    """
    return _number("LOCAL_RANK")


def world_size() -> int:
    """Returns the number of workers of the job.

    Returns:
        int: at least 1.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:world_size", nprocs=2)[1]
        2
    """
    return _number("WORLD_SIZE")


def local_world_size() -> int:
    """Returns the number of workers of this node.

    Returns:
        int: at least 1.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:local_world_size", nprocs=2)[1]
        2
    """
    return _number("LOCAL_WORLD_SIZE")


def group_rank() -> int:
    """Returns the number of this node's agent in the round.

    Returns:
        int: the number, from 0.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:group_rank", nprocs=1)[0]
        0
    """
    return _number("GROUP_RANK")


def role_rank() -> int:
    """Returns the number of this worker among the workers of its role.

    Returns:
        int: the number, from 0.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:role_rank", nprocs=2)[1]
        1
    """
    return _number("ROLE_RANK")


def restart_count() -> int:
    """Returns the number of restarts by this node's agent until now.

    Returns:
        int: 0 in the first attempt.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:restart_count", nprocs=1)[0]
        0
    """
    return _number("TORCHELASTIC_RESTART_COUNT")


def run_id() -> str:
    """Returns the name of the job, the same on all its nodes.

    Returns:
        str: the value of ``--rdzv-id``, or a random UUID on a single node.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:run_id", nprocs=2, rdzv_id="example")[0]
        'example'
    """
    return _variable("TORCHELASTIC_RUN_ID")


def store() -> "PrefixStore":
    """Returns the store that the workers of the job share.

    It is a client of the server at ``MASTER_ADDR`` and ``MASTER_PORT``. There is one per process,
    connected by the first call; after a fork the child makes a separate one. Its keys are below
    ``worker/``, apart from those of process groups. The store is empty at the beginning of every
    attempt. In a job with a token or certificates, the client uses them.

    Returns:
        PrefixStore: a store with a timeout of 300 s.

    Raises:
        StoreError: the server cannot be reached.

    Example:
        >>> import rdzv
        >>> def count():
        ...     return rdzv.worker.store().add("arrived", 1)
        >>> sorted(rdzv.launch(count, nprocs=2, start="pickle").values())
        [1, 2]
    """
    global _store
    if _store is None or _store[0] != os.getpid():
        from rdzv import PrefixStore, TCPStore, _secret

        host, port = _variable("MASTER_ADDR"), _number("MASTER_PORT")
        client = TCPStore(host, port, token=_secret.token(), tls=_secret.tls())
        _store = (os.getpid(), PrefixStore("worker", client))
    return _store[1]


def heartbeat(step: "int | None" = None) -> None:
    """Reports to the launcher that this worker is alive: one line to its pipe.

    Does nothing unless the job was launched with ``heartbeat_timeout`` (``--heartbeat-timeout``).
    With it, the limit of the phase ``step`` starts at the first call. ``hang_action`` specifies the
    action for a worker that exceeds the limit.

    Args:
        step (int | None): number of the training step, for messages about this worker.

    Raises:
        OSError: the pipe cannot be written.

    Example:
        >>> import rdzv
        >>> rdzv.worker.heartbeat(step=100)
    """
    global _pipe
    path = os.environ.get("RDZV_HEARTBEAT")
    if not path:
        return
    if _pipe is None or _pipe[0] != os.getpid():
        _pipe = (os.getpid(), os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    os.write(_pipe[1], b"step\n" if step is None else b"step %d\n" % step)


def report_error(exception: BaseException) -> None:
    """Stores an exception for the launcher, as the cause if this worker fails.

    It writes the file that ``TORCHELASTIC_ERROR_FILE`` names, in the form of
    ``torch.distributed.elastic``. Without that variable it does nothing. Functions of
    :func:`rdzv.launch` and functions with :func:`rdzv.elastic.record` need no call.

    Args:
        exception (BaseException): the exception, with its traceback.

    Raises:
        OSError: the file cannot be written.

    Example:
        >>> import rdzv
        >>> try:
        ...     raise ValueError("no data")
        ... except ValueError as error:
        ...     rdzv.worker.report_error(error)
    """
    from rdzv import _entry

    _entry.write_error_file(_entry.failure(exception))
