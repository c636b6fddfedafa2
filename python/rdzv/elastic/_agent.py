"""Agents: the abstract class, and one with user-defined methods for workers."""

import signal
from abc import ABC, abstractmethod

from rdzv._result import ProcessFailure, RunResult, WorkerState
from rdzv.elastic._spec import Worker, WorkerGroup, WorkerSpec, rendezvous_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rdzv._rdzv import Agent


class ElasticAgent(ABC):
    """Manager of the workers of one node during a run.

    Derive a class from it to write a complete agent. :class:`SimpleElasticAgent` is a simpler base: it does everything
    except starting, watching and stopping workers.

    Example:
        >>> from rdzv.elastic import ElasticAgent
        >>> sorted(ElasticAgent.__abstractmethods__)
        ['get_worker_group', 'run']
    """

    @abstractmethod
    def run(self, role: str = "default") -> RunResult:
        """Runs the workers to their end.

        Args:
            role (str): role of the workers.

        Returns:
            RunResult: their return values, or their failures, by global rank.

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
            WorkerGroup: its present state.

        Example:
            >>> from rdzv.elastic import ElasticAgent
            >>> callable(ElasticAgent.get_worker_group)
            True
        """


class SimpleElasticAgent(ElasticAgent):
    """Agent whose subclass starts, watches and stops the workers in four methods.

    The native agent does the rest: rendezvous, ranks, restarts and the exit barrier. The thread that calls :meth:`run`
    calls the methods, one at a time:

    ``_start_workers(worker_group) -> dict[int, object]``
        Starts all workers of an attempt. Returns an id for each worker, by local rank.
    ``_monitor_workers(worker_group) -> RunResult``
        Reports the state of the workers: HEALTHY while they run, SUCCEEDED with their values, or FAILED with their
        failures by global rank. The agent calls it every ``monitor_interval``. It must not wait.
    ``_stop_workers(worker_group)``
        Ends all workers that still run, and returns after they have ended.
    ``_shutdown(death_sig=SIGTERM, timeout=30)``
        Is the last call of every run.

    An exception in one of them ends the run. The group gets the state UNKNOWN, the agent calls ``_shutdown``, and
    :meth:`run` raises the exception.

    Args:
        spec (WorkerSpec): specification of the workers.
        exit_barrier_timeout (float): seconds for which a node with succeeded workers waits for the other nodes.
        shutdown_timeout (int): argument ``timeout`` of ``_shutdown``, in seconds.

    Raises:
        TypeError: ``spec.rdzv_handler`` is not a handler of :mod:`rdzv.rendezvous`.
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

    def __init__(self, spec: WorkerSpec, exit_barrier_timeout: float = 300, shutdown_timeout: int = 30):
        self._worker_group = WorkerGroup(spec)
        self._exit_barrier_timeout, self._shutdown_timeout = exit_barrier_timeout, shutdown_timeout
        self._found: "RunResult | None" = None
        self._failed: "dict[int, ProcessFailure]" = {}
        self._native = self._worker_group._native = self._make_native()
        self._ran = False

    def _make_native(self) -> "Agent":
        from rdzv._rdzv import Agent

        spec = self._worker_group.spec
        params = rendezvous_settings(spec.rdzv_handler, "make one with get_rendezvous_handler(RendezvousParameters(...))")
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
                "local_addr": spec.local_addr or params.local_addr,
                "event_log_handler": spec.event_log_handler,
                "rdzv_backend": params.backend,
                "rdzv_endpoint": params.endpoint,
                "run_id": params.run_id,
                "min_nodes": params.min_nodes,
                "max_nodes": params.max_nodes,
                "rdzv_config": {key: str(value) for key, value in params.config.items()},
            }
        )

    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """Returns the group of the workers, also for other threads during :meth:`run`.

        Args:
            role (str): role of the workers, or the default.

        Returns:
            WorkerGroup: the only group of this agent, with its present state.

        Raises:
            ValueError: the agent has workers of another role.
        """
        self._check_role(role)
        if self._worker_group.state is not WorkerState.UNKNOWN:
            self._worker_group._update(self._native.snapshot())
        return self._worker_group

    def _check_role(self, role: str) -> None:
        has = self._worker_group.spec.role
        if role not in ("default", has):
            raise ValueError(f"this agent has workers of role {has!r}, none of role {role!r}")

    def run(self, role: str = "default") -> RunResult:
        """Runs the workers until they end. A later call starts a new run.

        Args:
            role (str): role of the workers, or the default.

        Returns:
            RunResult: the values from ``_monitor_workers``, or the failures if no restart was left.

        Raises:
            ValueError: the agent has workers of another role.
            Error: the agent could not continue, or ``_monitor_workers`` returned the state UNKNOWN. Failures of the
                rendezvous raise the classes of :mod:`rdzv.rendezvous`.
            Exception: the exception of one of the four methods.
            KeyboardInterrupt: Ctrl-C was pressed, and the workers have been stopped.
        """
        self._check_role(role)
        if self._ran:
            self._native = self._worker_group._native = self._make_native()
        self._ran = True
        self._worker_group.state = WorkerState.INIT
        self._found, self._failed = None, {}
        try:
            state, first, failures = self._native.run(_Methods(self))
        except BaseException:
            self._worker_group.state = WorkerState.UNKNOWN
            raise
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

        If ``_monitor_workers`` reported failures, the result has only those.
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

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> "dict[int, object]": ...

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None: ...

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult: ...

    @abstractmethod
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None: ...


class _Methods:
    """Adapter through which the native agent calls the four methods of an agent."""

    def __init__(self, agent: SimpleElasticAgent):
        self.agent = agent

    def start(
        self, snapshot: "tuple[Any, ...]", places: "list[tuple[int, int, int, int, int, dict[str, str]]]"
    ) -> "dict[int, str]":
        group = self.agent._worker_group
        group._update(snapshot)
        group.workers = []
        for *ranks, environment in places:
            worker = Worker(*ranks)  # type: ignore[arg-type]
            worker.environment = environment  # type: ignore[assignment]
            group.workers.append(worker)
        ids = self.agent._start_workers(group)
        if not isinstance(ids, dict):
            raise TypeError(f"_start_workers returned {ids!r}: it must be a dict of ids by local rank")
        for worker in group.workers:
            worker.id = ids.get(worker.local_rank)
        return {local_rank: str(worker) for local_rank, worker in ids.items()}

    def monitor(self, snapshot: "tuple[Any, ...]") -> "tuple[str, list[tuple[int, int, int, float, str]]]":
        group = self.agent._worker_group
        group._update(snapshot)
        found = self.agent._monitor_workers(group)
        if not isinstance(getattr(found, "state", None), str):
            raise TypeError(f"_monitor_workers returned {found!r}: it must be a RunResult")
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
        return state.value, failures

    def stop(self, snapshot: "tuple[Any, ...]") -> None:
        group = self.agent._worker_group
        group._update(snapshot)
        self.agent._stop_workers(group)

    def shutdown(self, number: int, timeout: float) -> None:
        self.agent._shutdown(signal.Signals(number), timeout=int(timeout))


for _class in (ElasticAgent, SimpleElasticAgent):
    _class.__module__ = "rdzv.elastic"
