"""Ranks, store and heartbeats of a worker.

The functions work in a worker of ``rdzv run``, ``rdzv.launch`` or ``torchrun``. They read environment variables, so a
program can call them at any time without initialisation. In any other process, :func:`is_worker` returns False,
:func:`heartbeat`, :func:`step` and :func:`report_error` do nothing, and all other functions raise
:class:`RuntimeError` with the name of the missing variable.
"""

import os
import time

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
    "step",
    "store",
    "world_size",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rdzv import PrefixStore

# Each has the id of the process that opened it, so that a forked child opens another one.
_store: "tuple[int, PrefixStore] | None" = None
_pipe: "tuple[int, int] | None" = None


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise RuntimeError(f"this process is not a worker: {name} is not set; start it with rdzv run or rdzv.launch")
    return value


def _number(name: str) -> int:
    value = _variable(name)
    try:
        return int(value)
    except ValueError:
        raise RuntimeError(f"{name} is {value!r}, which is not a number") from None


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
    """Rank of this worker among all workers in the job.

    Returns:
        int: from 0 to ``world_size() - 1``.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:rank", nprocs=2).return_values
        {0: 0, 1: 1}
    """
    return _number("RANK")


def local_rank() -> int:
    """Rank of this worker among the workers on its node.

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
    """Number of workers in the job.

    Returns:
        int: at least 1.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:world_size", nprocs=2)[1]
        2
    """
    return _number("WORLD_SIZE")


def local_world_size() -> int:
    """Number of workers on this node.

    Returns:
        int: at least 1.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:local_world_size", nprocs=2)[1]
        2
    """
    return _number("LOCAL_WORLD_SIZE")


def group_rank() -> int:
    """Rank of this node's agent in the round.

    Returns:
        int: the rank, from 0.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:group_rank", nprocs=1)[0]
        0
    """
    return _number("GROUP_RANK")


def role_rank() -> int:
    """Rank of this worker among the workers with its role.

    Returns:
        int: the rank, from 0.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:role_rank", nprocs=2)[1]
        1
    """
    return _number("ROLE_RANK")


def restart_count() -> int:
    """Number of restarts that this node's agent has used.

    Returns:
        int: 0 in the first attempt.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:restart_count", nprocs=1)[0]
        0
    """
    return _number("TORCHELASTIC_RESTART_COUNT")


def run_id() -> str:
    """Run id of the job, the same on all nodes.

    Returns:
        str: the value of ``--rdzv-id``. Its default is a random UUID if no other node can join, and
            otherwise ``none`` or, in a Slurm step, a value from ``SLURM_JOB_ID``.

    Example:
        >>> import rdzv
        >>> rdzv.launch("rdzv.worker:run_id", nprocs=2, rdzv_id="example")[0]
        'example'
    """
    return _variable("TORCHELASTIC_RUN_ID")


def store() -> "PrefixStore":
    """Store that all workers of the job share.

    The store is a client of the server at ``MASTER_ADDR`` and ``MASTER_PORT``. The first call in a process connects
    it; a forked child gets a separate client. All keys have the prefix ``worker/``, which separates them from keys of
    process groups. Under rdzv, the store is empty at the beginning of every attempt, except with static rendezvous on
    several nodes. The client uses the token and the certificates of the job, if it has any.

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
    """Sends a heartbeat to the launcher: one line through a pipe.

    The function does nothing unless the job was launched with ``heartbeat_timeout`` (``--heartbeat-timeout``) or
    ``stragglers`` (``--stragglers``). With ``heartbeat_timeout``, the time limit of the phase ``step`` applies from
    the first call on. If the worker exceeds it, the launcher takes the action ``hang_action``.

    Args:
        step (int | None): number of the training step. None is the step after the previous one.

    Raises:
        OSError: the pipe cannot be opened or written.

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
    os.write(_pipe[1], b"step\n" if step is None else b"step %d %.6f\n" % (step, time.monotonic()))


def step(number: int) -> None:
    """Reports a training step of this worker to the launcher.

    With ``stragglers`` (``--stragglers``), the launcher compares the times of equal steps. Call the function in each
    step before the first collective: before ``loss.backward()`` with ``DistributedDataParallel``, and not at the start
    of the loop. Ranks leave a collective together, so a call after it has the same time on all ranks, and shows no slow
    rank. The call is also a :func:`heartbeat`.

    Args:
        number (int): number of the step, the same on all ranks.

    Raises:
        OSError: the pipe cannot be opened or written.

    Example:
        >>> import rdzv
        >>> rdzv.worker.step(100)
    """
    heartbeat(number)


def report_error(exception: BaseException) -> None:
    """Reports an exception to the launcher as the cause of this worker's failure.

    The launcher shows the exception if this worker then fails. The function writes the file that
    ``TORCHELASTIC_ERROR_FILE`` names, in the format of ``torch.distributed.elastic``. Without that variable it does
    nothing. Functions of :func:`rdzv.launch`, and functions with the decorator :func:`rdzv.elastic.record`, report
    their exceptions automatically.

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
