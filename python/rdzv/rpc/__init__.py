"""Calls between workers, with the names of ``torch.distributed.rpc``.

A worker registers functions with :func:`function`, and other workers call them with
:func:`rpc_sync`, :func:`rpc_async` and :func:`remote`. Data from another worker cannot refer to
other code, unless the options permit it.
"""

from __future__ import annotations

from rdzv._errors import Deadline, PeerLost, RemoteError, RpcError
from rdzv.rpc import backend_registry as backend_registry
from rdzv.rpc import functions as functions
from rdzv.rpc._agent import UNSET as UNSET
from rdzv.rpc._agent import Agent, RpcOptions, WorkerInfo
from rdzv.rpc._api import (
    call,
    caller,
    get_rpc_timeout,
    get_worker_info,
    init_rpc,
    is_cancelled,
    remote,
    rpc_async,
    rpc_sync,
    set_rpc_timeout,
    shutdown,
)
from rdzv.rpc._arena import Arena
from rdzv.rpc._functions import function
from rdzv.rpc._future import Future
from rdzv.rpc._rref import RRef
from rdzv.rpc.backend_registry import BackendType

__all__ = [
    "Agent",
    "Arena",
    "BackendType",
    "Deadline",
    "Future",
    "PeerLost",
    "RRef",
    "RemoteError",
    "RpcError",
    "RpcOptions",
    "WorkerInfo",
    "call",
    "caller",
    "function",
    "get_rpc_timeout",
    "get_worker_info",
    "init_rpc",
    "is_cancelled",
    "remote",
    "rpc_async",
    "rpc_sync",
    "set_rpc_timeout",
    "shutdown",
]

for _public in (Agent, RpcOptions, WorkerInfo):
    _public.__module__ = "rdzv.rpc"
