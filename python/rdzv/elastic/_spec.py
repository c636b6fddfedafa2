"""Description of the workers on a node: specification, worker, group."""

import os
from collections.abc import Callable

from rdzv._result import WorkerState
from rdzv.rendezvous._parameters import RendezvousParameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rdzv._rdzv import Agent, Store


class WorkerSpec:
    """Specification of the workers on one node, with one role and entry point.

    Args:
        role (str): label of all workers.
        local_world_size (int): number of workers on this node, at least 1.
        rdzv_handler (RendezvousHandler): handler of the rendezvous between the nodes.
        fn (callable | None): former name of ``entrypoint``.
        entrypoint (callable | str | None): the function that each worker calls, or a program.
        args (tuple): arguments of the entry point.
        max_restarts (int): maximum number of restarts after failures. Default 3.
        monitor_interval (float): seconds between two calls to ``_monitor_workers``. Default 0.1. Only
            :class:`SimpleElasticAgent` uses it.
        master_port (int | None): port of the workers' store; ``None``: rdzv or the handler chooses
            it. Only :class:`SimpleElasticAgent` accepts it.
        master_addr (str | None): host of the workers' store; ``None``: rdzv or the handler chooses
            it. Only :class:`SimpleElasticAgent` accepts it.
        local_addr (str | None): address at which the other nodes reach this node; ``None``: rdzv finds it.
        event_log_handler (str): ``"null"``, ``"console"`` or ``"dynamic_rendezvous"``.
        numa_options (object | None): torch's ``NumaOptions``; :class:`LocalElasticAgent` uses its
            ``affinity_mode``.
        duplicate_stdout_filters (list[str] | None): texts; :class:`LocalElasticAgent` copies teed
            lines that contain one of them to one file.
        duplicate_stderr_filters (list[str] | None): the same for stderr.
        virtual_local_rank (bool): with :class:`LocalElasticAgent`, gives every worker local rank 0,
            and makes only the worker's own device visible.

    Raises:
        ValueError: a number is out of range, or there is no entry point.

    Example:
        >>> from rdzv.elastic import WorkerSpec
        >>> from rdzv.rendezvous import RendezvousParameters, get_rendezvous_handler
        >>> handler = get_rendezvous_handler(RendezvousParameters("c10d", "", "job", 1, 1))
        >>> WorkerSpec("trainer", 2, handler, entrypoint=print).get_entrypoint_name()
        'print'
    """

    def __init__(
        self,
        role: str,
        local_world_size: int,
        rdzv_handler: object,
        fn: "Callable[..., object] | None" = None,
        entrypoint: "Callable[..., object] | str | None" = None,
        args: "tuple[object, ...]" = (),
        max_restarts: int = 3,
        monitor_interval: float = 0.1,
        master_port: "int | None" = None,
        master_addr: "str | None" = None,
        local_addr: "str | None" = None,
        event_log_handler: str = "null",
        numa_options: object = None,
        duplicate_stdout_filters: "list[str] | None" = None,
        duplicate_stderr_filters: "list[str] | None" = None,
        virtual_local_rank: bool = False,
    ):
        if local_world_size < 1:
            raise ValueError(f"local_world_size is {local_world_size}: a node has at least one worker")
        if not monitor_interval > 0:
            raise ValueError(f"monitor_interval is {monitor_interval} s: it must be positive")
        if max_restarts < 0:
            raise ValueError(f"max_restarts is {max_restarts}: it must not be negative")
        entrypoint = fn if fn is not None else entrypoint
        if not entrypoint:
            raise ValueError("entrypoint is missing: pass a function or a program")
        self.role, self.local_world_size, self.rdzv_handler = role, local_world_size, rdzv_handler
        self.fn, self.entrypoint, self.args, self.max_restarts = fn, entrypoint, args, max_restarts
        self.monitor_interval, self.master_port, self.master_addr = monitor_interval, master_port, master_addr
        self.local_addr, self.event_log_handler, self.numa_options = local_addr, event_log_handler, numa_options
        self.duplicate_stdout_filters = duplicate_stdout_filters
        self.duplicate_stderr_filters = duplicate_stderr_filters
        self.virtual_local_rank = virtual_local_rank

    def get_entrypoint_name(self) -> str:
        """Returns the name of the entry point in reports.

        Returns:
            str: the qualified name of the function, or the last part of the program's path.

        Example:
            >>> from rdzv.elastic import WorkerSpec
            >>> WorkerSpec("trainer", 1, None, entrypoint="/bin/true").get_entrypoint_name()
            'true'
        """
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        return str(getattr(self.entrypoint, "__qualname__", type(self.entrypoint).__qualname__))


class Worker:
    """Worker from the point of view of its agent.

    Unknown values are -1. With a :class:`LocalElasticAgent`, ``role_world_size`` is always -1.

    Args:
        local_rank (int): the worker's rank within its node.
        global_rank (int): the worker's rank in the job.
        role_rank (int): the worker's rank among the workers with its role.
        world_size (int): number of workers in the job.
        role_world_size (int): number of workers with this worker's role.

    Attributes:
        id (object): the id that ``_start_workers`` returned for this worker, or its process id with
            a :class:`LocalElasticAgent`; None before that.
        environment (dict[str, str]): the worker's environment variables (``RANK``, ``MASTER_ADDR`` and so on), for
            subclasses of :class:`SimpleElasticAgent`; empty before a rendezvous.

    Example:
        >>> from rdzv.elastic import Worker
        >>> Worker(1).global_rank
        -1
    """

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ):
        self.id: object = None
        self.local_rank, self.global_rank, self.role_rank = local_rank, global_rank, role_rank
        self.world_size, self.role_world_size = world_size, role_world_size
        self.environment: "dict[str, str]" = {}

    def __repr__(self) -> str:
        return (
            f"Worker(id={self.id!r}, local_rank={self.local_rank}, global_rank={self.global_rank},"
            f" role_rank={self.role_rank}, world_size={self.world_size}, role_world_size={self.role_world_size})"
        )


class WorkerGroup:
    """Workers of one agent, which change state together.

    Args:
        spec (WorkerSpec): specification of the workers.

    Attributes:
        workers (list[Worker]): the workers by local rank.
        group_rank (int | None): rank of the agent in the round.
        group_world_size (int | None): number of agents in the round.
        master_addr (str | None): host of the workers' store.
        master_port (int | None): port of the workers' store.
        restart_count (int): number of restarts of this node.
        state (WorkerState): state of the group.

    Example:
        >>> from rdzv.elastic import WorkerGroup, WorkerSpec
        >>> len(WorkerGroup(WorkerSpec("trainer", 3, None, entrypoint=print)).workers)
        3
    """

    def __init__(self, spec: WorkerSpec):
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        # The native agent, which has the store of the round; None if the agent is another process.
        self._native: "Agent | None" = None
        # Store of a round that a handler of the user has made.
        self._store: "Any" = None
        self.group_rank: "int | None" = None
        self.group_world_size: "int | None" = None
        self.master_addr: "str | None" = None
        self.master_port: "int | None" = None
        self.restart_count = 0
        self.state = WorkerState.INIT

    @property
    def store(self) -> "Store | None":
        """Store | None: the store that the agents of the round share.

        Each round has separate keys and a separate object, which connects on first use. The object
        ends with the round, except on a single node without an endpoint. The store is None before
        the first round. For a :class:`LocalElasticAgent` it is always None, because the native
        agent is another process.

        Raises:
            StoreError: the server of the round cannot be reached.
        """
        if self._store is not None or self._native is None:
            return self._store  # type: ignore[no-any-return]
        return self._native.store()

    @store.setter
    def store(self, store: "Any") -> None:
        self._store = store

    def _update(self, snapshot: "tuple[Any, ...]") -> None:
        """Copies the state of the native agent into the group.

        Workers keep their ids.
        """
        state, self.group_rank, self.group_world_size, self.restart_count, *store, places = snapshot
        self.state, (self.master_addr, self.master_port) = WorkerState(state), store
        for worker, place in zip(self.workers, places):
            _, worker.global_rank, worker.role_rank, worker.world_size, worker.role_world_size = place

    def __repr__(self) -> str:
        return f"WorkerGroup(role={self.spec.role!r}, state={self.state}, workers={self.workers!r})"


def rendezvous_settings(handler: object, remedy: str) -> RendezvousParameters:
    """Parameters of a handler of ``rdzv.rendezvous``; refuses other handlers."""
    from rdzv.rendezvous import NativeRendezvousHandler

    if isinstance(handler, NativeRendezvousHandler):
        return handler.params
    raise TypeError(
        f"rdzv_handler must come from rdzv.rendezvous.get_rendezvous_handler, not {type(handler).__qualname__}: {remedy}"
    )


for _class in (WorkerSpec, Worker, WorkerGroup):
    _class.__module__ = "rdzv.elastic"
