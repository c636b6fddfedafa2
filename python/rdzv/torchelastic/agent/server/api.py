"""Agents of the first version of torchelastic.

The native agent does the same as for :class:`rdzv.elastic.SimpleElasticAgent`. The classes differ from those of
:mod:`rdzv.elastic` in these points:

- ``WorkerSpec`` has ``fn`` and ``args`` before ``rdzv_handler``, and the defaults of the first
  version.
- ``WorkerState`` has the values 0 to 32.
- ``_monitor_workers`` returns a ``MonitorResult`` with exceptions, and a subclass needs no
  ``_shutdown``.
- ``run`` returns the values by global rank, or raises ``WorkerGroupFailureException``.
"""

import signal
import socket
from collections.abc import Callable
from enum import Enum

from rdzv import Error, elastic
from rdzv.elastic import ElasticAgent, ProcessFailure, RunResult, Worker
from rdzv.rendezvous import RendezvousInfo, RendezvousStoreInfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "DEFAULT_ROLE",
    "ElasticAgent",
    "MonitorResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerGroupFailureException",
    "WorkerSpec",
    "WorkerState",
]

DEFAULT_ROLE = "default"


class WorkerState(Enum):
    """State of a worker group, with numbers as values."""

    UNKNOWN = 0
    INIT = 1
    HEALTHY = 2
    UNHEALTHY = 4
    STOPPED = 8
    SUCCEEDED = 16
    FAILED = 32

    @staticmethod
    def is_running(state: "WorkerState") -> bool:
        """Returns True for HEALTHY and UNHEALTHY."""
        return elastic.WorkerState.is_running(elastic.WorkerState[state.name])


class WorkerSpec(elastic.WorkerSpec):
    """Specification of the workers of one node."""

    def __init__(
        self,
        role: str,
        local_world_size: int,
        fn: "Callable[..., object]",
        args: "tuple[object, ...]",
        rdzv_handler: object,
        max_restarts: int = 100,
        monitor_interval: float = 5.0,
        master_port: "int | None" = None,
    ):
        super().__init__(
            role,
            local_world_size,
            rdzv_handler,
            fn=fn,
            args=args,
            max_restarts=max_restarts,
            monitor_interval=monitor_interval,
            master_port=master_port,
        )


class WorkerGroup(elastic.WorkerGroup):
    """Workers of one agent."""

    @property
    def state(self) -> WorkerState:  # type: ignore[override]
        """WorkerState: state of the group."""
        return self._state

    @state.setter
    def state(self, state: "WorkerState | elastic.WorkerState") -> None:
        self._state = WorkerState[state.name]


class MonitorResult:
    """State of the workers, with values or exceptions by global rank."""

    def __init__(
        self,
        state: WorkerState,
        ret_vals: "dict[int, Any] | None" = None,
        exceptions: "dict[int, BaseException] | None" = None,
    ):
        self.state, self.ret_vals, self.exceptions = state, ret_vals, exceptions


class WorkerGroupFailureException(Exception):
    """Failure of workers after the last restart."""

    def __init__(self, msg: str, worker_excs: "dict[int, BaseException]"):
        super().__init__(msg, worker_excs)
        self._worker_excs = worker_excs

    def __str__(self) -> str:
        return str(self.args[0])

    def get_worker_exceptions(self) -> "dict[int, BaseException]":
        """Returns the exceptions by global rank."""
        return self._worker_excs


class SimpleElasticAgent(elastic.SimpleElasticAgent):
    """Agent whose subclass has three methods for the workers."""

    _group_class = WorkerGroup

    def _read(self, found: object) -> RunResult:
        """Converts the result of ``_monitor_workers``."""
        if not isinstance(found, MonitorResult):
            raise TypeError(f"_monitor_workers returned {found!r}: it must be a MonitorResult")
        failures = {}
        workers = {worker.global_rank: worker for worker in self._worker_group.workers}
        for rank, exception in (found.exceptions or {}).items():
            local_rank = workers[rank].local_rank if rank in workers else 0
            failures[rank] = ProcessFailure(local_rank, 0, 1, "<N/A>")
            failures[rank].exception, failures[rank].cause = exception, f"{type(exception).__name__}: {exception}"
        return RunResult(elastic.WorkerState[found.state.name], found.ret_vals, failures)

    def _next_round(self) -> RendezvousInfo:
        """Joins a round; rank 0 chooses the endpoint of the workers' store."""
        spec = self._worker_group.spec
        found = spec.rdzv_handler.next_rendezvous()  # type: ignore[attr-defined]
        if not isinstance(found, tuple):
            return found  # type: ignore[no-any-return]
        store, rank, world_size = found
        if rank == 0:
            port = spec.master_port
            if port is None:
                with socket.create_server(("", 0)) as free:
                    port = free.getsockname()[1]
            store.set("MASTER_ADDR", socket.getfqdn())
            store.set("MASTER_PORT", str(port))
        info = RendezvousStoreInfo(store.get("MASTER_ADDR").decode(), int(store.get("MASTER_PORT")))
        return RendezvousInfo(store, rank, world_size, info)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        if self._found is None or self._found.state is not elastic.WorkerState.SUCCEEDED:
            self._stop_workers(self._worker_group)

    def run(self, role: str = DEFAULT_ROLE) -> "dict[int, Any]":  # type: ignore[override]
        """Runs the workers until they end.

        Args:
            role (str): role of the workers, or the default.

        Returns:
            dict[int, object]: the return values by global rank.

        Raises:
            WorkerGroupFailureException: workers failed, and no restart was left.
        """
        result = super().run(role)
        if not result.is_failed():
            return result.return_values
        spec = self._worker_group.spec
        exceptions = {
            rank: Error(failure.cause) if failure.exception is None else failure.exception
            for rank, failure in result.failures.items()
        }
        raise WorkerGroupFailureException(f"[{spec.role}] exceeded max_restarts={spec.max_restarts}", exceptions)
