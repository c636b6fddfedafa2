"""Tools for tests of programs with several ranks.

With pytest, :func:`run_workers` is also the fixture ``rdzv_workers``, which needs no import.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any

__all__ = ["run_workers"]


def run_workers(
    fn: "Callable[..., object] | str",
    n: int,
    args: "tuple[object, ...]" = (),
    timeout: "float | timedelta | None" = 60.0,
    start: str = "pickle",
) -> "list[Any]":
    """Runs a function in ``n`` processes on this host, which share a new store.

    Args:
        fn (callable | str): the function, or ``"module:function"``; it gets its rank from :func:`rdzv.worker.rank`.
            Local functions and lambdas are allowed.
        n (int): number of processes, at least 1.
        args (tuple): arguments, which are pickled.
        timeout (float | timedelta | None): time limit for the whole run, in seconds. Default 60.
        start (str): ``"pickle"`` or ``"import"``, as in :func:`rdzv.launch`.

    Returns:
        list: return values by rank. None for a process that exited with 0 before the function returned.

    Raises:
        Exception: the exception of the first rank that failed, of the same type. Notes contain the rank and the
            traceback.
        WorkerGroupFailed: a process failed without an exception, or its exception cannot be pickled.
        LaunchTimeout: the run took longer than ``timeout``. As in all other cases, all processes have exited.

    Example:
        >>> from rdzv.testing import run_workers
        >>> import rdzv
        >>> run_workers(lambda: rdzv.worker.rank() + 1, 2)
        [1, 2]
    """
    from rdzv import WorkerGroupFailed
    from rdzv._launch import _count, _seconds, run

    if _count("n", n) == 0:
        raise ValueError("n is 0: there must be at least one process")
    settings: "dict[str, object]" = {"nproc_per_node": n, "nnodes": 1, "max_restarts": 0, "scheduler": "none", "shutdown_timeout": 5}
    try:
        result = run(fn, args, settings, start=start, timeout=_seconds(timeout))
    except WorkerGroupFailed as failed:
        error = failed.__cause__
        if error is None:
            raise
        error.add_note(f"rank {failed.first.rank} of {n}, in {failed.name}")
        raise error from None
    return [result.get(rank) for rank in range(n)]
