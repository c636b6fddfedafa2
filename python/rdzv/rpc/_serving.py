"""Call that a thread executes, and waits inside it."""

from __future__ import annotations

import contextvars
import threading
from typing import TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rdzv._rdzv import RpcAgent, RpcRequest

T = TypeVar("T")

# Call that this thread, task or callback executes.
request: contextvars.ContextVar[RpcRequest | None] = contextvars.ContextVar("rdzv.rpc.request", default=None)

# Agent that executes the call.
agent: contextvars.ContextVar[RpcAgent | None] = contextvars.ContextVar("rdzv.rpc.agent", default=None)

# `on` is set on the threads for calls.
thread = threading.local()


def blocked(wait: Callable[..., T], *args: Any) -> T:
    """Waits inside a call. Nested calls to this worker get further threads."""
    inside, native = request.get(), agent.get()
    if inside is None or native is None:
        return wait(*args)
    on_thread = hasattr(thread, "on")
    native.begin_wait(inside, on_thread)
    try:
        return wait(*args)
    finally:
        native.end_wait(inside, on_thread)


def pending() -> Callable[[], None]:
    """Begins a wait of unknown length, and returns the function that ends it."""
    inside, native = request.get(), agent.get()
    if inside is None or native is None:
        return _nothing
    native.begin_wait(inside, False)
    return lambda: native.end_wait(inside, False)


def _nothing() -> None:
    pass
