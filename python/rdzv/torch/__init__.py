"""PyTorch support of rdzv.

Importing this package registers the scheme ``rdzv://`` for
``torch.distributed.init_process_group``.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("rdzv.torch needs torch: pip install rdzv[torch]") from error

from rdzv.torch import _rendezvous as _rendezvous
from rdzv.torch._recovery import abort, broadcast_state
from rdzv.torch._store import PyStore, store

__all__ = ["PyStore", "abort", "broadcast_state", "store"]
