"""Names of torch that :mod:`rdzv.torch.rpc` replaces.

The module also checks that the installed torch has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.autograd as autograd
import torch.distributed.rpc as torch_rpc
from torch.distributed.rpc import api, backend_registry, internal
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable

# Names by module. All of them are looked up at their use, except types and names that a program has
# imported by name before.
_API = (
    "_cleanup_python_rpc_handler",
    "_delete_all_user_and_unforked_owner_rrefs",
    "_destroy_rref_context",
    "_get_current_rpc_agent",
    "_invoke_remote_builtin",
    "_invoke_remote_python_udf",
    "_invoke_remote_torchscript",
    "_invoke_rpc",
    "_invoke_rpc_builtin",
    "_invoke_rpc_python_udf",
    "_invoke_rpc_torchscript",
    "_is_current_rpc_agent_set",
    "_reset_current_rpc_agent",
    "_set_and_start_rpc_agent",
    "_wait_all_workers",
    "get_rpc_timeout",
)
_PACKAGE = (
    "_get_current_rpc_agent",
    "_is_current_rpc_agent_set",
    "_rref_context_get_debug_info",
    "_set_rpc_timeout",
    "get_rpc_timeout",
    "BackendType",
    "PyRRef",
    "RRef",
)
_AUTOGRAD = (
    "_current_context",
    "_get_debug_info",
    "_get_max_id",
    "_is_valid_context",
    "_new_context",
    "_release_context",
    "_retrieve_context",
    "backward",
    "get_gradients",
)
# The reducer gets no gradients from a distributed backward pass.
_PARALLEL = ("_pre_forward",)
_NEEDED = (
    (autograd, "torch.distributed.autograd", _AUTOGRAD),
    (DistributedDataParallel, "torch.nn.parallel.DistributedDataParallel", _PARALLEL),
    (
        api,
        "torch.distributed.rpc.api",
        (
            *_API,
            "RPCExecMode",
            "WorkerInfo",
            "_default_pickler",
            "_init_rpc_states",
            "_require_initialized",
            "_to_worker_info",
        ),
    ),
    (torch_rpc, "torch.distributed.rpc", (*_PACKAGE, "TensorPipeRpcBackendOptions", "RpcBackendOptions")),
    (
        internal,
        "torch.distributed.rpc.internal",
        (
            "PythonUDF",
            "RemoteException",
            "_InternalRPCPickler",
            "_get_current_rpc_agent",
            "_handle_exception",
            "_internal_rpc_pickler",
            "_run_function",
        ),
    ),
    (backend_registry, "torch.distributed.rpc.backend_registry", ("BackendType", "register_backend")),
)


def _check() -> None:
    """Raises an error if the installed torch lacks one of the names."""
    for module, name, wanted in _NEEDED:
        missing = [one for one in wanted if not hasattr(module, one)]
        if missing:
            raise ImportError(
                f"rdzv.torch.rpc does not fit torch {torch.__version__}: {name} has no {', '.join(missing)}; "
                "use rdzv.rpc, which needs no torch"
            )


_check()

original: dict[tuple[Any, str], Any] = {
    (module, name): getattr(module, name)
    for module, names in (
        (api, _API),
        (torch_rpc, _PACKAGE),
        (internal, ("_get_current_rpc_agent",)),
        (autograd, _AUTOGRAD),
        (DistributedDataParallel, _PARALLEL),
    )
    for name in names
}

# These functions check themselves which agent is in use.
_ALWAYS = {"_invoke_rpc", "_is_current_rpc_agent_set", "_set_and_start_rpc_agent", "PyRRef", "RRef"}

# Replacements that TorchScript knows by their address, which no other object may get.
_registered: list[Any] = []


def install(ours: dict[str, Any], is_in_use: Callable[[], bool]) -> None:
    """Redirects each name to `ours` while an agent of rdzv is in use.

    Otherwise the name leads to torch's own object.
    """
    for (module, name), torchs in original.items():
        if name == "BackendType":
            continue
        replacement = ours[name] if name in _ALWAYS else _dispatcher(name, torchs, ours[name], is_in_use)
        operation = torch.jit._builtins._find_builtin(torchs)
        if operation is not None:
            # The distributed optimizer of older releases compiles a call of `get_gradients`.
            torch.jit._builtins._register_builtin(replacement, operation)
            _registered.append(replacement)
        setattr(module, name, replacement)


def _dispatcher(name: str, torchs: Any, ours: Any, is_in_use: Callable[[], bool]) -> Any:
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        return (ours if is_in_use() else torchs)(*args, **kwargs)

    dispatch.__name__ = dispatch.__qualname__ = name
    dispatch.__doc__ = torchs.__doc__
    return dispatch


def put_back() -> None:
    for (module, name), torchs in original.items():
        if name != "BackendType":
            setattr(module, name, torchs)
