"""Agent API, with the names of ``torch.distributed.elastic``.

``elastic_launch`` is the shortest way to run a function. A :class:`LocalElasticAgent` runs processes on this node.
:class:`SimpleElasticAgent` supports other kinds of workers. New programs can use :func:`rdzv.launch` instead.
"""

from rdzv._config import DefaultLogsSpecs, LaunchConfig, LogsSpecs, Std
from rdzv._errors import WorkerGroupFailed
from rdzv._result import MonitorResult, ProcessFailure, RunResult, WorkerState
from rdzv.elastic._agent import ElasticAgent, SimpleElasticAgent
from rdzv.elastic._local import LocalElasticAgent, elastic_launch, launch_agent
from rdzv.elastic._record import ErrorHandler, record
from rdzv.elastic._spec import Worker, WorkerGroup, WorkerSpec

ChildFailedError = WorkerGroupFailed
WorkerGroupFailureException = WorkerGroupFailed

__all__ = [
    "ChildFailedError",
    "DefaultLogsSpecs",
    "ElasticAgent",
    "ErrorHandler",
    "LaunchConfig",
    "LocalElasticAgent",
    "LogsSpecs",
    "MonitorResult",
    "ProcessFailure",
    "RunResult",
    "SimpleElasticAgent",
    "Std",
    "Worker",
    "WorkerGroup",
    "WorkerGroupFailureException",
    "WorkerSpec",
    "WorkerState",
    "elastic_launch",
    "launch_agent",
    "record",
]
