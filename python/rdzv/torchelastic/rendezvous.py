"""Handlers of the first version of torchelastic.

The other names are those of :mod:`rdzv.rendezvous`. A handler of this version returns ``(store, rank, world_size)``
from ``next_rendezvous``. The result of a handler of rdzv unpacks to these three.
"""

from abc import abstractmethod

from rdzv import rendezvous as _now
from rdzv.rendezvous import RendezvousParameters, get_rendezvous_handler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "RendezvousClosedException",
    "RendezvousException",
    "RendezvousHandler",
    "RendezvousHandlerFactory",
    "RendezvousNonRetryableError",
    "RendezvousParameters",
    "RendezvousTimeoutException",
    "get_rendezvous_handler",
]

RendezvousException = _now.RendezvousError
RendezvousClosedException = _now.RendezvousClosedError
RendezvousTimeoutException = _now.RendezvousTimeoutError
RendezvousHandlerFactory = _now.RendezvousHandlerRegistry


class RendezvousNonRetryableError(RendezvousException):
    """Failure of a rendezvous that this process must not try again."""


class RendezvousHandler(_now.RendezvousHandler):
    """Base class of handlers."""

    @abstractmethod
    def next_rendezvous(self) -> "tuple[Any, int, int]":  # type: ignore[override]
        """Waits for the next round.

        Returns its store, the rank and the number of agents.
        """

    def shutdown(self) -> bool:
        """Frees the resources of the handler; here, there are none."""
        return True
