"""Rendezvous of workers and agents, with the names of ``torch.distributed``.

The module has URLs for workers, and parameters, handlers and backends for agents. The native agent uses a handler
from :func:`get_rendezvous_handler`. Other handlers derive from :class:`RendezvousHandler`.
"""

from rdzv._errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rdzv.rendezvous._c10d import C10dRendezvousBackend, RendezvousBackend, create_backend
from rdzv.rendezvous._handler import (
    NativeRendezvousHandler,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)
from rdzv.rendezvous._parameters import RendezvousParameters
from rdzv.rendezvous._registry import RendezvousHandlerRegistry, get_rendezvous_handler, rendezvous_handler_registry
from rdzv.rendezvous._url import register_rendezvous_handler, rendezvous

__all__ = [
    "C10dRendezvousBackend",
    "NativeRendezvousHandler",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "create_backend",
    "get_rendezvous_handler",
    "register_rendezvous_handler",
    "rendezvous",
    "rendezvous_handler_registry",
]
