"""``torchrun --rdzv-backend rdzv``: torchrun uses the native rendezvous.

The entry point ``torchrun.handlers`` names :func:`handler`, so a program needs no import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RdzvRendezvousHandler", "handler"]


def handler() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Returns the creator of handlers: the entry point of torchrun.

    Returns:
        callable: a function that creates an :class:`RdzvRendezvousHandler` from torch's parameters.

    Example:
        >>> from rdzv.torch.elastic import handler
        >>> handler().__name__
        'create'
    """
    return create


def create(params: RendezvousParameters) -> RendezvousHandler:
    """Creates a handler. Args: params (RendezvousParameters)."""
    return RdzvRendezvousHandler(params)


# This import calls `handler`, so `handler` is above it.
from torch.distributed.elastic.rendezvous import (  # noqa: E402
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

import rdzv.rendezvous  # noqa: E402
from rdzv import _secret  # noqa: E402
from rdzv._rdzv import Rendezvous  # noqa: E402
from rdzv.torch._store import PyStore  # noqa: E402

# torch's agent catches only torch's classes.
_CLASSES = {
    rdzv.rendezvous.RendezvousClosedError: RendezvousClosedError,
    rdzv.rendezvous.RendezvousConnectionError: RendezvousConnectionError,
    rdzv.rendezvous.RendezvousGracefulExitError: RendezvousGracefulExitError,
    rdzv.rendezvous.RendezvousStateError: RendezvousStateError,
    rdzv.rendezvous.RendezvousTimeoutError: RendezvousTimeoutError,
}


class RdzvRendezvousHandler(RendezvousHandler):
    """torch rendezvous handler that uses rdzv's native backend ``c10d``.

    Args:
        params (RendezvousParameters): torch's parameters from ``torchrun``: endpoint, run, numbers
            of nodes, and the options of ``--rdzv-conf``. These are the options of ``rdzv run``, but
            ``rank`` and ``timeout`` are ignored. A job token and certificates come from the
            variables RDZV_JOB_TOKEN_FILE, RDZV_TLS_CERT, RDZV_TLS_KEY and RDZV_TLS_CA.

    Raises:
        ValueError: the run id is empty, or an option has an invalid value.
    """

    def __init__(self, params: RendezvousParameters) -> None:
        if not params.run_id:
            raise ValueError("the run id is empty: specify it with --rdzv-id")
        self._run_id, self._backend = params.run_id, params.backend
        config = {key: str(value) for key, value in params.config.items() if value is not None}
        # Options of the static rendezvous, which torchrun passes to every backend.
        for name in ("rank", "timeout"):
            config.pop(name, None)
        self._native = Rendezvous(
            "c10d",
            params.endpoint,
            params.run_id,
            params.min_nodes,
            params.max_nodes,
            params.local_addr,
            config,
            token=_secret.token(),
            tls=_secret.tls(),
        )

    def get_backend(self) -> str:
        return self._backend

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        _, rank, world_size, host, port = self._run(self._native.join)
        # Agents of `rdzv run` in the round use its store in the same way.
        store = PyStore(self._native.store())
        return RendezvousInfo(store, rank, world_size, RendezvousStoreInfo(host, port))

    def is_closed(self) -> bool:
        return bool(self._run(self._native.is_closed))

    def set_closed(self) -> None:
        self._run(self._native.set_closed)

    def num_nodes_waiting(self) -> int:
        return int(self._run(self._native.num_nodes_waiting))

    def shutdown(self) -> bool:
        return bool(self._run(self._native.shutdown))

    def _run(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except rdzv.rendezvous.RendezvousError as error:
            raise _CLASSES.get(type(error), RendezvousError)(str(error)) from None
