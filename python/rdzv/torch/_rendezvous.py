"""Scheme ``rdzv://`` for ``torch.distributed.init_process_group``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist

import rdzv.rendezvous
from rdzv.torch._store import store as store_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# This process may host the store of a rendezvous, for the lifetime of this object.
_met: list[rdzv.Store] = []


def _handler(url: str, timeout: Any = None, **kwargs: object) -> Iterator[tuple[dist.Store, int, int]]:
    store, rank, world_size = next(rdzv.rendezvous.rendezvous(url, timeout=timeout))
    _met.append(store)
    yield store_of(store), rank, world_size
    raise RuntimeError("Unable to perform re-rendezvous using rdzv:// method")


dist.register_rendezvous_handler("rdzv", _handler)
