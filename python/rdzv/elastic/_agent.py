"""Agents: the abstract class, and a base class for other kinds of workers."""

import signal
from abc import ABC, abstractmethod

from rdzv._rdzv import Agent
from rdzv._result import ProcessFailure, RunResult, WorkerState
from rdzv.elastic._spec import Worker, WorkerGroup, WorkerSpec, rendezvous_settings
from rdzv.rendezvous import NativeRendezvousHandler, RendezvousInfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rdzv._rdzv import Reply

    _Given = list[tuple[int, int, int, int, int, dict[str, str]]]

# Methods that a handler of the user needs.
_OF_HANDLER = ("get_backend", "get_run_id", "is_closed", "next_rendezvous", "num_nodes_waiting", "set_closed")


class ElasticAgent(ABC):
    """Manager of the workers on one node during a run.

    Derive a class from it to write a complete agent. :class:`SimpleElasticAgent` is a simpler base class: it does
    everything except start, watch and stop workers.

    Example:
        >>> from rdzv.elastic import ElasticAgent
        >>> sorted(ElasticAgent.__abstractmethods__)
        ['get_worker_group', 'run']
    """

    @abstractmethod
    def run(self, role: str = "default") -> RunResult:
        """Runs the workers until they exit.

        Args:
            role (str): role of the workers.

        Returns:
            RunResult: return values or failures of the workers, by global rank.

        Example:
            >>> from rdzv.elastic import ElasticAgent
            >>> callable(ElasticAgent.run)
            True
        """

    @abstractmethod
    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """Returns the group of the workers.

        Args:
            role (str): role of the workers.

        Returns:
            WorkerGroup: the group with its current state.

        Example:
            >>> from rdzv.elastic import ElasticAgent
            >>> callable(ElasticAgent.get_worker_group)
            True
        """


class SimpleElasticAgent(ElasticAgent):
    """Agent whose subclass starts, watches and stops the workers in four methods.

    The native agent handles rendezvous, ranks, restarts and the exit barrier. It calls the methods one at a time, on
    the thread that called :meth:`run`:

    ``_start_workers(worker_group) -> dict[int, object]``
        Starts all workers of an attempt. Returns an id for each worker, by local rank.
    ``_monitor_workers(worker_group) -> RunResult``
        Reports the state of the workers: HEALTHY while they run, SUCCEEDED with their values, or FAILED with their
        failures by global rank. The agent calls it every ``monitor_interval``. The method must not block.
    ``_stop_workers(worker_group)``
        Stops all workers that still run, and returns after they have exited.
    ``_shutdown(death_sig=SIGTERM, timeout=30)``
        Cleans up. This is the last call of every run.

    Four more methods can be overridden. They have the names and meanings of torchelastic's:

    ``_initialize_workers(worker_group)``
        Begins the first attempt: ``_rendezvous``, then ``_start_workers``.
    ``_restart_workers(worker_group)``
        Begins a later attempt: ``_stop_workers``, unless the native agent has called it, then ``_initialize_workers``.
    ``_rendezvous(worker_group)``
        Meets the other agents, and stores the round and the workers' ranks in the group.
    ``_assign_worker_ranks(store, group_rank, group_world_size, spec) -> list[Worker]``
        Returns the workers with their ranks. The ranks of a node are consecutive.

    The native agent decides when an attempt begins or ends. With a handler of rdzv it has already joined the round and
    assigned the ranks when it calls ``_initialize_workers`` or ``_restart_workers``. With a handler of the user, which
    derives from :class:`rdzv.rendezvous.RendezvousHandler` or has the same methods, ``_rendezvous`` calls
    ``next_rendezvous``. While the workers are HEALTHY, the agent calls ``num_nodes_waiting`` every
    ``monitor_interval``, and restarts them if nodes wait. The handler is the caller's: no run closes it or shuts it
    down.

    An exception in one of the methods ends the run. The group gets the state UNKNOWN, the agent calls ``_shutdown``,
    and :meth:`run` raises the exception.

    Args:
        spec (WorkerSpec): specification of the workers.
        exit_barrier_timeout (float): seconds that a node whose workers have succeeded waits for the other nodes.
        shutdown_timeout (int): argument ``timeout`` of ``_shutdown``, in seconds.

    Raises:
        TypeError: ``spec.rdzv_handler`` lacks a method that the agent needs, for example ``next_rendezvous``.
        ValueError: the specification has an invalid value.

    Example:
        >>> from rdzv.elastic import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
        >>> from rdzv.rendezvous import RendezvousParameters, get_rendezvous_handler
        >>> class Calls(SimpleElasticAgent):
        ...     def _start_workers(self, worker_group):
        ...         spec = worker_group.spec
        ...         self.values = {w.global_rank: spec.entrypoint(*spec.args) for w in worker_group.workers}
        ...         return {w.local_rank: f"call {w.local_rank}" for w in worker_group.workers}
        ...     def _monitor_workers(self, worker_group):
        ...         return RunResult(WorkerState.SUCCEEDED, self.values)
        ...     def _stop_workers(self, worker_group):
        ...         pass
        ...     def _shutdown(self, death_sig=15, timeout=30):
        ...         pass
        >>> handler = get_rendezvous_handler(RendezvousParameters("c10d", "", "job", 1, 1))
        >>> Calls(WorkerSpec("adder", 2, handler, entrypoint=sum, args=([1, 2],))).run().return_values
        {0: 3, 1: 3}
    """

    _group_class = WorkerGroup

    def __init__(self, spec: WorkerSpec, exit_barrier_timeout: float = 300, shutdown_timeout: int = 30):
        self._worker_group = self._group_class(spec)
        self._exit_barrier_timeout, self._shutdown_timeout = exit_barrier_timeout, shutdown_timeout
        self._found: "RunResult | None" = None
        self._failed: "dict[int, ProcessFailure]" = {}
        # The adapter of the current run.
        self._methods: "_Methods | None" = None
        self._native = self._worker_group._native = self._make_native()
        self._ran = False

    @property
    def _remaining_restarts(self) -> int:
        """Number of restarts that this node has not used."""
        return self._worker_group.spec.max_restarts - self._worker_group.restart_count

    def _make_native(self) -> Agent:
        spec = self._worker_group.spec
        handler = spec.rdzv_handler
        if isinstance(handler, NativeRendezvousHandler):
            params = rendezvous_settings(handler, "")
            local_addr = spec.local_addr or params.local_addr
            rendezvous: "dict[str, object]" = {
                "rdzv_backend": params.backend,
                "rdzv_endpoint": params.endpoint,
                "run_id": params.run_id,
                "min_nodes": params.min_nodes,
                "max_nodes": params.max_nodes,
                "rdzv_config": {key: str(value) for key, value in params.config.items()},
            }
        else:
            missing = [name for name in _OF_HANDLER if not callable(getattr(handler, name, None))]
            if missing:
                raise TypeError(
                    f"rdzv_handler is a {type(handler).__qualname__} without {', '.join(missing)}: make one with"
                    " get_rendezvous_handler(RendezvousParameters(...)), or derive one from RendezvousHandler"
                )
            local_addr = spec.local_addr
            rendezvous = {
                "rdzv_backend": str(handler.get_backend()) or "own",  # type: ignore[attr-defined]
                "run_id": str(handler.get_run_id()) or "none",  # type: ignore[attr-defined]
                "use_agent_store": bool(getattr(handler, "use_agent_store", False)),
            }
        return Agent(
            {
                "name": spec.get_entrypoint_name(),
                "role": spec.role,
                "local_world_size": spec.local_world_size,
                "max_restarts": spec.max_restarts,
                "monitor_interval": float(spec.monitor_interval),
                "shutdown_timeout": float(self._shutdown_timeout),
                "exit_barrier_timeout": float(self._exit_barrier_timeout),
                "master_addr": spec.master_addr,
                "master_port": spec.master_port,
                "local_addr": local_addr,
                "event_log_handler": spec.event_log_handler,
                **rendezvous,
            }
        )

    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """Returns the group of the workers; any thread can call it during a run.

        Args:
            role (str): role of the workers, or the default.

        Returns:
            WorkerGroup: the only group of this agent, with its current state.

        Raises:
            ValueError: the agent has workers of another role.
        """
        self._check_role(role)
        if self._ran and self._worker_group.state.name != "UNKNOWN":
            self._worker_group._update(self._native.snapshot())
        return self._worker_group

    def _check_role(self, role: str) -> None:
        has = self._worker_group.spec.role
        if role not in ("default", has):
            raise ValueError(f"this agent has workers of role {has!r}, none of role {role!r}")

    def run(self, role: str = "default") -> RunResult:
        """Runs the workers until they exit. A later call starts a new run.

        Args:
            role (str): role of the workers, or the default.

        Returns:
            RunResult: the values from ``_monitor_workers``, or the failures if no restart was left.

        Raises:
            ValueError: the agent has workers of another role.
            Error: the agent could not continue, or ``_monitor_workers`` returned the state UNKNOWN,
                INIT or STOPPED, or FAILED without failures. Failures of the rendezvous raise the
                classes of :mod:`rdzv.rendezvous`.
            Exception: an exception that one of the methods of the subclass raised.
            KeyboardInterrupt: Ctrl-C was pressed, and the workers have been stopped.
        """
        self._check_role(role)
        if self._ran:
            self._native = self._worker_group._native = self._make_native()
        self._ran = True
        self._worker_group.state, self._worker_group.store = WorkerState.INIT, None
        self._found, self._failed = None, {}
        self._methods = _Methods(self)
        try:
            state, first, failures = self._native.run(self._methods)
        except BaseException:
            self._worker_group.state = WorkerState.UNKNOWN
            raise
        finally:
            self._methods = None
        self._worker_group._update(self._native.snapshot())
        if state == "SUCCEEDED":
            found = self._found
            result = RunResult(WorkerState.SUCCEEDED, None if found is None else found.return_values)
        else:
            result = RunResult(WorkerState(state), {}, self._failures(first, failures))
        result.restarts = self._worker_group.restart_count
        return result

    def _failures(
        self, first: "int | None", rows: "list[tuple[int, int, int, str]]"
    ) -> "dict[int, ProcessFailure]":
        """Failures by global rank, the first failure first.

        If ``_monitor_workers`` reported failures, the result contains only those failures.
        """
        failures: "dict[int, ProcessFailure]" = {}
        for rank, local_rank, exitcode, cause in sorted(rows, key=lambda row: row[0] != first):
            failure = self._failed.get(rank)
            if failure is None and self._failed:
                # The agent stopped this worker because another one failed.
                continue
            if failure is None:
                failure = ProcessFailure(local_rank, 0, exitcode, "<N/A>")
                failure.cause = cause
            failure.rank = rank
            failures[rank] = failure
        return failures

    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        self._rendezvous(worker_group)
        ids = self._start_workers(worker_group)
        if not isinstance(ids, dict):
            raise TypeError(f"_start_workers returned {ids!r}: it must be a dict of ids by local rank")
        for worker in worker_group.workers:
            worker.id = ids.get(worker.local_rank)
        worker_group.state = WorkerState.HEALTHY

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self._methods is None or not self._methods.are_stopped:
            self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        spec, methods = worker_group.spec, self._methods
        if methods is None or methods.given is None:
            info = self._next_round()
            worker_group.store, worker_group.group_rank, worker_group.group_world_size = info.store, info.rank, info.world_size
            worker_group.master_addr = spec.master_addr or info.bootstrap_store_info.master_addr
            worker_group.master_port = spec.master_port or info.bootstrap_store_info.master_port
            store = info.store
        else:
            # The native agent has joined the round. Reading its store connects to a server, which
            # only an override needs.
            overridden = type(self)._assign_worker_ranks is not SimpleElasticAgent._assign_worker_ranks
            store = worker_group.store if overridden else None
        rank, world_size = worker_group.group_rank, worker_group.group_world_size
        assert rank is not None and world_size is not None
        worker_group.workers = self._assign_worker_ranks(store, rank, world_size, spec)
        if methods is not None:
            methods.join_with_ranks()

    def _next_round(self) -> RendezvousInfo:
        return self._worker_group.spec.rdzv_handler.next_rendezvous()  # type: ignore[attr-defined, no-any-return]

    def _read(self, found: object) -> RunResult:
        """Checks the result of ``_monitor_workers``."""
        if not isinstance(getattr(found, "state", None), str):
            raise TypeError(f"_monitor_workers returned {found!r}: it must be a RunResult")
        return found  # type: ignore[return-value]

    def _assign_worker_ranks(
        self, store: "Any", group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> "list[Worker]":
        if self._methods is not None and self._methods.given is not None:
            return [Worker(*ranks[:5]) for ranks in self._methods.given]
        base, world_size, base_role, role_world_size = Agent.exchange_ranks(
            store, spec.role, group_rank, spec.local_world_size, group_world_size
        )
        return [
            Worker(local_rank, base + local_rank, base_role + local_rank, world_size, role_world_size)
            for local_rank in range(spec.local_world_size)
        ]

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> "dict[int, object]": ...

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None: ...

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult: ...

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None: ...


class _Ended(Exception):
    """The native agent ended the run while a method waited for it."""


class _Methods:
    """Adapter through which the native agent calls methods in Python."""

    def __init__(self, agent: SimpleElasticAgent):
        self.agent, self.group = agent, agent._worker_group
        handler = self.group.spec.rdzv_handler
        self.handler: "Any" = None if isinstance(handler, NativeRendezvousHandler) else handler
        # Ranks and environments of the attempt that begins, from the native agent.
        self.given: "_Given | None" = None
        self.are_stopped = self.has_begun = self.is_beginning = False
        # Replies that the native agent waits for.
        self.joining: "Reply | None" = None
        self.starting: "Reply | None" = None

    def join(self, reply: "Reply") -> None:
        self.joining = reply
        self.begin()

    def start(self, snapshot: "tuple[Any, ...]", given: "_Given", reply: "Reply") -> None:
        self.group._update(snapshot)
        self.given, self.starting = given, reply
        if not self.is_beginning:
            self.begin()

    def begin(self) -> None:
        """Begins an attempt, and replies with the workers' ids."""
        agent, group = self.agent, self.group
        hook = agent._restart_workers if self.has_begun else agent._initialize_workers
        self.is_beginning = self.has_begun = True
        try:
            hook(group)
            # An override of `_rendezvous` need not have done this.
            self.join_with_ranks()
            assert self.starting is not None
            self.starting({worker.local_rank: str(worker.id) for worker in group.workers if worker.id is not None})
        except _Ended:
            pass
        except BaseException as error:
            for reply in (self.joining, self.starting):
                if reply is not None:
                    reply.refuse(str(error))
            raise
        finally:
            self.is_beginning = self.are_stopped = False
            self.given = self.joining = self.starting = None

    def join_with_ranks(self) -> None:
        """Replies with the round in the group, and waits for the start."""
        group, agent = self.group, self.agent
        workers = group.workers
        ranks = [(worker.global_rank, worker.role_rank, worker.world_size, worker.role_world_size) for worker in workers]
        first = ranks[0] if ranks else (0, 0, 0, 0)
        wanted = [(first[0] + rank, first[1] + rank, *first[2:]) for rank in range(group.spec.local_world_size)]
        if ranks != wanted:
            raise ValueError(f"_assign_worker_ranks returned {workers!r}: a node has consecutive ranks, one for each worker")
        if self.joining is not None:
            assigned = (first[0], first[2], first[1], first[3])
            self.joining((group.store, group.group_rank, group.group_world_size, group.master_addr, group.master_port, assigned))
            self.joining = None
            while self.given is None:
                if not agent._native.pump(self):
                    raise _Ended
        assert self.given is not None
        for worker, start in zip(workers, self.given):
            if worker.global_rank != start[1]:
                raise ValueError(f"_assign_worker_ranks returned {worker!r}: the native agent has assigned rank {start[1]}")
            worker.environment = start[5]

    def is_closed(self, reply: "Reply") -> None:
        reply(self.handler.is_closed())

    def set_closed(self, reply: "Reply") -> None:
        self.handler.set_closed()
        reply(None)

    def num_nodes_waiting(self, reply: "Reply") -> None:
        reply(self.handler.num_nodes_waiting())

    def monitor(self, snapshot: "tuple[Any, ...]") -> "tuple[str, list[tuple[int, int, int, float, str]], int]":
        group = self.group
        group._update(snapshot)
        found = self.agent._read(self.agent._monitor_workers(group))
        state = WorkerState(found.state)
        self.agent._found = found
        failures = []
        if state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self.agent._failed = dict(found.failures)
            by_rank = {worker.global_rank: worker.local_rank for worker in group.workers}
            for rank, failure in found.failures.items():
                if rank not in by_rank:
                    raise ValueError(f"_monitor_workers found a failure of rank {rank}, which is not on this node")
                cause = str(getattr(failure, "cause", ""))
                failures.append((rank, by_rank[rank], failure.exitcode, float(failure.timestamp), cause))
        waiting = 0
        if self.handler is not None and state is WorkerState.HEALTHY:
            waiting = max(0, self.handler.num_nodes_waiting())
        return state.value, failures, waiting

    def stop(self, snapshot: "tuple[Any, ...]") -> None:
        self.group._update(snapshot)
        self.agent._stop_workers(self.group)
        self.are_stopped = True

    def shutdown(self, number: int, timeout: float) -> None:
        self.agent._shutdown(signal.Signals(number), timeout=int(timeout))


for _class in (ElasticAgent, SimpleElasticAgent):
    _class.__module__ = "rdzv.elastic"
