"""Decorators of functions for calls."""

from __future__ import annotations

import functools

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import ParamSpec, TypeVar

    from rdzv.rpc._future import Future

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = ["async_execution"]


def async_execution(fn: Callable[P, Future[R]]) -> Callable[P, R]:
    """Marks a function that returns a :class:`rdzv.rpc.Future`.

    The caller gets the result of that future. No thread waits for it, except for a method that is called
    through a reference. Put this decorator below ``@rpc.function``, and below ``@staticmethod`` or
    ``@classmethod``.

    Args:
        fn (callable): a function that returns a future.

    Returns:
        callable: the marked function. A local call to it still returns a future.

    Example:
        >>> from rdzv import rpc
        >>> @rpc.functions.async_execution
        ... def later(number):
        ...     future = rpc.Future()
        ...     future.set_result(number + 1)
        ...     return future
        >>> later(1).wait()
        2
    """

    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        return fn(*args, **kwargs)  # type: ignore[return-value]

    wrapper._rdzv_async_execution = True  # type: ignore[attr-defined]
    return wrapper
