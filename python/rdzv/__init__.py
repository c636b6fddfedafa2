"""Control plane of distributed training.

The package contains stores, process groups, a launcher, elastic agents and remote calls. Importing it loads none of
torch, numpy, asyncio and typing. Its submodules are loaded on first use.
"""

from rdzv._errors import (
    CollectiveError,
    CollectiveTimeout,
    Deadline,
    Error,
    LaunchTimeout,
    PeerLost,
    QueueEmpty,
    RankLost,
    RemoteError,
    RpcError,
    StoreError,
    StoreTimeout,
    WorkerGroupFailed,
)
from rdzv._rdzv import (
    FileStore,
    HashStore,
    PrefixStore,
    Store,
    StoreServer,
    TCPStore,
    __version__,
)

# Type checkers treat this name as true. Importing `typing` would cost more than the rest of this
# module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    # `import NAME as NAME` marks a public name for type checkers.
    from rdzv import elastic as elastic
    from rdzv import rendezvous as rendezvous
    from rdzv import rpc as rpc
    from rdzv import testing as testing
    from rdzv import worker as worker
    from rdzv._group import Group, Work, premul_sum
    from rdzv._launch import launch
    from rdzv._program import find_rdzv_bin
    from rdzv._resilient import Job, Regroup, resilient

__all__ = [
    "CollectiveError",
    "CollectiveTimeout",
    "Deadline",
    "Error",
    "FileStore",
    "Group",
    "HashStore",
    "Job",
    "LaunchTimeout",
    "PeerLost",
    "PrefixStore",
    "QueueEmpty",
    "RankLost",
    "Regroup",
    "RemoteError",
    "RpcError",
    "Store",
    "StoreError",
    "StoreServer",
    "StoreTimeout",
    "TCPStore",
    "Work",
    "WorkerGroupFailed",
    "__version__",
    "find_rdzv_bin",
    "launch",
    "premul_sum",
    "resilient",
]

if not TYPE_CHECKING:
    # Attribute -> module that has it. An attribute that is itself a module maps to that module.
    _LAZY = {
        "Group": "rdzv._group",
        "Job": "rdzv._resilient",
        "Regroup": "rdzv._resilient",
        "Work": "rdzv._group",
        "elastic": "rdzv.elastic",
        "find_rdzv_bin": "rdzv._program",
        "launch": "rdzv._launch",
        "premul_sum": "rdzv._group",
        "rendezvous": "rdzv.rendezvous",
        "resilient": "rdzv._resilient",
        "rpc": "rdzv.rpc",
        "testing": "rdzv.testing",
        "torch": "rdzv.torch",
        "worker": "rdzv.worker",
    }

    def __getattr__(name):
        module = _LAZY.get(name)
        if module is None:
            raise AttributeError(f"module 'rdzv' has no attribute {name!r}")
        from importlib import import_module

        try:
            loaded = import_module(module)
        except ImportError as error:
            if name != "torch":
                raise
            # `hasattr` and other introspection expect this class.
            raise AttributeError(f"module 'rdzv' has no attribute 'torch': {error}") from error
        value = loaded if module == f"rdzv.{name}" else getattr(loaded, name)
        globals()[name] = value
        return value

    def __dir__():
        # Introspection reads every attribute, and `rdzv.torch` loads torch.
        return sorted(set(globals()) | set(__all__) | set(_LAZY) - {"torch"})
