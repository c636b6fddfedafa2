"""Recovery of a worker in its process (``rdzv run --in-process``)."""

import ctypes
import functools
import json
import os
import socket
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from typing import Any

# Seconds between two checks for a request to leave the round.
_LOOK = 0.1


class Regroup(BaseException):
    """Request to leave the function, because the job forms its next round.

    :func:`rdzv.resilient` raises it in the main thread and handles it. It is no ``Exception``, so ``except Exception``
    does not swallow it. ``reason`` (str) is the reason, ``dead`` (list[int]) has the ranks that exited, and ``node``
    (str) is the node of these ranks.
    """

    reason = ""
    dead: "list[int]" = []
    node = ""

    def __str__(self) -> str:
        ranks = ", ".join(map(str, self.dead))
        plural = "s" if len(self.dead) > 1 else ""
        return f"rank{plural} {ranks} on {self.node} exited: {self.reason}" if ranks else self.reason


class _Control:
    """Connection to the agent, shared by the main thread and the reader."""

    def __init__(self, path: str, abort: "Callable[[Job], None] | None") -> None:
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.round = int(os.environ["RDZV_ROUND"])
        self.main = threading.get_ident()
        self.abort = abort
        self.job: "Job | None" = None
        self.running = self.raised = self.stopped = False
        # Open atomic contexts of this call. A context of an earlier call has another list.
        self.atomic: "list[None]" = []
        self.aborted: "dict[str, Any] | None" = None
        self.next: "dict[str, Any] | None" = None
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.send(type="hello", v=1, local_rank=int(os.environ["LOCAL_RANK"]), pid=os.getpid())
        threading.Thread(target=self._read, name="rdzv recovery", daemon=True).start()

    def send(self, **message: "Any") -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def _read(self) -> None:
        try:
            for line in self.socket.makefile():
                self._receive(json.loads(line))
        finally:
            # If the user's ``abort`` raises, no thread receives the next round.
            with self.changed:
                self.stopped = True
                self.changed.notify_all()

    def _receive(self, message: "dict[str, Any]") -> None:
        with self.changed:
            if message["type"] == "abort" and message["round"] == self.round:
                self.aborted = message
                Regroup.reason, Regroup.dead, Regroup.node = message["reason"], message["dead"], message["node"]
                self.changed.notify_all()
                self.changed.wait_for(lambda: not self.atomic)
                self._interrupt()
            elif message["type"] == "go":
                # An abort of the new round can arrive before the main thread wakes up.
                self.next, self.aborted, self.round = message, None, message["round"]
            elif message["type"] == "stop":
                self.stopped = True
            self.changed.notify_all()

    def _interrupt(self) -> None:
        if not self.running or self.raised:
            return
        self.raised = True
        assert self.job is not None
        self.break_group(self.job)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.main), ctypes.py_object(Regroup))
        # A group that is being made opens further connections.
        while self.abort is None and not self.changed.wait_for(lambda: not self.running, _LOOK):
            self.break_group(self.job)

    def break_group(self, job: "Job") -> None:
        """Ends the collectives that are in flight."""
        if self.abort is not None:
            self.abort(job)
        elif "torch.distributed" in sys.modules:
            from rdzv.torch import abort

            abort(job)

    def check(self) -> None:
        if self.aborted is not None:
            raise Regroup

    def enter(self) -> None:
        with self.changed:
            self.check()
            self.running, self.raised = True, False

    def leave(self) -> None:
        # The exception may have come between taking the lock and the block that releases it.
        while self.lock._is_owned():  # type: ignore[attr-defined]
            self.lock.release()
        with self.changed:
            self.running, self.atomic = False, []
            self.changed.notify_all()
            # The exception may be pending although the function has ended.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.main), None)

    def wait(self) -> "dict[str, Any] | None":
        """Waits for the next round; None if there is none."""
        with self.changed:
            self.changed.wait_for(lambda: self.next is not None or self.stopped)
            message, self.next = self.next, None
            return message


class Job:
    """State of a job in the current round, for a resilient function.

    Attributes:
        round (int): number of the round.
        rank (int): rank of this worker.
        local_rank (int): rank within the node.
        world_size (int): number of workers.
        kept (list[int]): ranks whose process ran the function in an earlier round, and has state in memory.
        replaced (list[int]): ranks with a new process; empty if no rank has kept its process.
        reason (str): reason for the end of the previous round; empty in the first round of this process.
        state (dict): objects of this process that the next call of the function finds again.

    Example:
        >>> import rdzv
        >>> @rdzv.resilient
        ... def work(job):
        ...     return job.rank, job.world_size, job.kept
        >>> work()
        (0, 1, [])
    """

    def __init__(self) -> None:
        self.kept: "list[int]" = []
        self.replaced: "list[int]" = []
        self.reason = ""
        self.state: "dict[str, Any]" = {}
        self._control: "_Control | None" = None
        self._calls = 0
        self._step = -1
        # Round, source, its steps and need of the last decision of broadcast_state.
        self._source: "tuple[int, int, int, bool] | None" = None
        # Number of exchanges under each name in this round.
        self._exchanges: "dict[str, int]" = {}
        # Backend and endpoint of a group that can be reconfigured.
        self._group: "tuple[str, str] | None" = None
        # Connections of all groups; true for those to a group's store.
        self._sockets: "dict[tuple[int, str], bool]" = {}
        # Connections that have been shut down, and are open until the next group has been made.
        self._held: "list[Any]" = []
        # Sockets before the groups that are being made, and whether an abort has ended that.
        self._before: "dict[int, str] | None" = None
        self._is_cut = False
        self._load()

    def _load(self) -> None:
        self.round = int(os.environ.get("RDZV_ROUND", "0"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self._exchanges = {}

    @property
    def is_replacement(self) -> bool:
        """bool: True if this process is new and other ranks have state in memory."""
        return self.rank in self.replaced

    def step(self, n: int) -> None:
        """Records the number of finished steps.

        A recovery finds the newest state by it.

        Args:
            n (int): number of finished steps.
        """
        self._step = n

    def atomic(self) -> "AbstractContextManager[None]":
        """Returns a context that a recovery does not interrupt.

        The agent kills a process whose context delays a recovery for too long
        (``--abort-timeout``).

        Returns:
            AbstractContextManager: the context.
        """
        from contextlib import contextmanager

        @contextmanager
        def context() -> "Iterator[None]":
            control = self._control
            if control is None:
                yield
                return
            with control.changed:
                if not control.atomic:
                    control.check()
                opened = control.atomic
                opened.append(None)
            try:
                yield
            finally:
                with control.changed:
                    opened.pop()
                    control.changed.notify_all()

        return context()

    def regroup(self, make: "Callable[[Job], None]") -> None:
        """Calls a function that makes groups whose collectives a recovery can end.

        A recovery does not restore the groups of ``new_group``. So the function of :func:`resilient` calls this method
        in each round, after :meth:`init_process_group`.

        Args:
            make (Callable): function that is called with the job.
        """
        if self._control is None:
            make(self)
            return
        from rdzv.torch import _recovery

        _recovery.recorded(self, lambda: make(self))

    def init_process_group(self, backend: str = "gloo", **options: "Any") -> None:
        """Makes the default process group of torch, or changes its members.

        The group is changed in place if all members can reconfigure it, and made again otherwise.

        Args:
            backend (str): backend of the group.
            **options: further arguments of ``torch.distributed.init_process_group``.

        Raises:
            RuntimeError: the members cannot connect.
        """
        from rdzv.torch import _recovery

        _recovery.init_process_group(self, backend, options)

    def exchange(self, name: str, value: str) -> "list[str]":
        """Returns the values that all workers of the round pass under the same name.

        Args:
            name (str): name of the exchange. All workers exchange values in the same order.
            value (str): value of this worker.

        Returns:
            list[str]: the values in the order of ranks. Without ``--in-process``, only the value of this worker.
        """
        if self._control is None:
            return [value]
        import rdzv

        store = rdzv.worker.store()
        number = self._exchanges[name] = self._exchanges.get(name, 0) + 1
        keys = [f"recovery/{self.round}/{name}/{number}/{rank}" for rank in range(self.world_size)]
        store.set(keys[self.rank], value)
        while True:
            self._control.check()
            try:
                store.wait(keys, _LOOK)
            except rdzv.StoreTimeout:
                continue
            return [found.decode() for found in store.multi_get(keys)]

    def _enter(self) -> None:
        """Learns which ranks kept their process."""
        kept = self.exchange("kept", "1" if self._calls else "")
        self.kept = [rank for rank, value in enumerate(kept) if value]
        self.replaced = [rank for rank, value in enumerate(kept) if self.kept and not value]
        self._calls += 1


def resilient(
    function: "Callable[..., Any] | None" = None,
    *,
    abort: "Callable[[Job], None] | None" = None,
    finalize: "Callable[[Job], None] | None" = None,
    health_check: "Callable[[Job], None] | None" = None,
    max_recoveries: "int | None" = None,
) -> "Callable[..., Any]":
    """Decorates a function that runs again in its process after a loss.

    The function gets a :class:`Job` as its first argument. Without ``rdzv run --in-process``, the decorator only calls
    the function. docs/recovery.md describes what the function must satisfy.

    Args:
        function (Callable): the function.
        abort (Callable): ends the collectives in flight; default :func:`rdzv.torch.abort`. It runs
            on another thread to interrupt the function, and on the main thread after the function
            was left.
        finalize (Callable): called after the function was left, before the worker is ready for the next round.
        health_check (Callable): called before each further call of the function; an exception ends the process.
        max_recoveries (int): maximum number of recoveries of this process. One more raises :class:`RuntimeError` in
            place of a call of the function. Default: no limit.

    Returns:
        Callable: the decorated function, without the parameter for the job. It raises :class:`RuntimeError` if it is
        called outside the main thread of a worker that can recover.

    Example:
        >>> import rdzv
        >>> @rdzv.resilient
        ... def train(job, steps):
        ...     for step in range(steps):
        ...         job.step(step + 1)
        ...     return steps
        >>> train(3)
        3
    """
    if function is None:
        return functools.partial(
            resilient, abort=abort, finalize=finalize, health_check=health_check, max_recoveries=max_recoveries
        )

    @functools.wraps(function)
    def call(*args: "Any", **kwargs: "Any") -> "Any":
        job = Job()
        path = os.environ.get("RDZV_CONTROL")
        if not path:
            return function(job, *args, **kwargs)
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a function with rdzv.resilient must be called in the main thread")
        control = job._control = _Control(path, abort)
        control.job = job
        recoveries = 0
        while True:
            error: "Exception | None" = None
            try:
                try:
                    control.enter()
                    job._enter()
                    result = function(job, *args, **kwargs)
                    control.leave()
                    return result
                except Regroup:
                    pass
                except Exception as raised:
                    error = raised
                control.leave()
            except Regroup:
                # It arrived between the lines above, and arrives only once in a round.
                control.leave()
            _recover(control, job, error, finalize)
            error = None
            recoveries += 1
            if max_recoveries is not None and recoveries > max_recoveries:
                raise RuntimeError(f"this process needs more than {max_recoveries} recoveries (max_recoveries)")
            if health_check is not None:
                health_check(job)

    return call


def _recover(
    control: _Control, job: Job, error: "Exception | None", finalize: "Callable[[Job], None] | None"
) -> None:
    """Leaves the round, and waits for the next one."""
    control.break_group(job)
    if "torch.distributed" in sys.modules:
        from rdzv.torch import _recovery

        _recovery.leave(job)
    if finalize is not None:
        finalize(job)
    if error is None or control.aborted is not None:
        control.send(type="ready", round=control.round)
    else:
        control.send(type="failed", round=control.round, error=f"{type(error).__name__}: {error}")
    message = control.wait()
    if message is None:
        if error is not None and control.aborted is not None:
            error.add_note(str(Regroup()))
        raise error or SystemExit(1)
    os.environ.update(message["env"])
    from rdzv import worker

    worker._store = None
    job.reason = str(Regroup())
    job._load()


Job.__module__ = Regroup.__module__ = resilient.__module__ = "rdzv"
