"""Functions that other workers may call, by name."""

from __future__ import annotations

import inspect
import sys

from rdzv.rpc import _values
from rdzv.rpc._errors import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar, overload

    F = TypeVar("F", bound=Callable[..., object])


class Entry:
    """Function, and the way to run it."""

    __slots__ = ("call", "is_coroutine", "blocking", "is_raw")

    def __init__(self, call: Callable[..., Any], blocking: bool = True, is_raw: bool = False) -> None:
        self.call = call
        self.blocking = blocking
        self.is_coroutine = inspect.iscoroutinefunction(call)
        # The function itself reads the message of the call, and writes the message of its result.
        self.is_raw = is_raw


_entries: dict[str, Entry] = {}
# By identity, because some callables cannot be hashed. `name_of` checks that the function is the
# same.
_names: dict[int, str] = {}
_classes: set[tuple[str, str]] = set()


def _is_registered_class(module: str, name: str) -> bool:
    return (module, name) in _classes


_values._is_registered_class = _is_registered_class

if TYPE_CHECKING:

    @overload
    def function(f: F) -> F: ...
    @overload
    def function(f: None = None, *, name: str | None = None, blocking: bool = True) -> Callable[[F], F]: ...


def function(f: Any = None, *, name: str | None = None, blocking: bool = True) -> Any:
    """Registers a function for calls, or a class for its instances, by name.

    Args:
        f (callable | type): a function, an ``async def``, or a class. Other workers can call the
            constructor of a class. Through a reference, they can call all methods whose names do
            not begin with ``_``. Arguments and results can contain its instances.
        name (str | None): name by which workers call it. Default: module and qualified name.
        blocking (bool): False for a short function that never waits: it runs on the thread of the
            event loop. Default True.

    Returns:
        callable: the same function or class. Without ``f``: a decorator.

    Raises:
        ValueError: another function has this name, or a lambda or local function has no ``name``.

    Example:
        >>> from rdzv import rpc
        >>> @rpc.function(name="example.double")
        ... def double(number: float) -> float:
        ...     return 2 * number
        >>> double(21)
        42
    """
    if f is None:
        return lambda g: function(g, name=name, blocking=blocking)
    if not callable(f):
        raise TypeError(f"{f!r} is not callable: pass a function or a class")
    if name is None:
        module, qualname = getattr(f, "__module__", None), getattr(f, "__qualname__", None)
        if not module or not qualname or "<" in qualname:
            raise ValueError(f"{f!r} cannot be found by its module: specify a name, as in @rpc.function(name=\"...\")")
        name = f"{module}:{qualname}"
    known = _entries.get(name)
    # A module that is loaded again provides a new object of the same function.
    if known is not None and known.call is not f and getattr(known.call, "__qualname__", 0) != getattr(f, "__qualname__", 1):
        raise ValueError(f"the name {name} is already used by {known.call!r}")
    _entries[name] = Entry(f, blocking)
    _names[id(f)] = name
    if isinstance(f, type):
        _classes.add((f.__module__, f.__qualname__))
    return f


def raw(name: str, f: Callable[[Any, list[Any], list[Any]], tuple[bytes, list[Any], list[Any]]]) -> None:
    """Registers a function that reads and writes messages itself."""
    _entries[name] = Entry(f, is_raw=True)


def name_of(f: Any) -> str | None:
    """Returns the name by which a worker finds the function; None without a name."""
    name = _names.get(id(f))
    if name is not None and _entries[name].call is f:
        return name
    module, qualname = getattr(f, "__module__", None), getattr(f, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        return None
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    # A bound method, for example, is a new object each time.
    return f"{module}:{qualname}" if found is f else None


def resolve(name: str) -> Entry:
    """Returns the function with this name, if peers may call it."""
    entry = _entries.get(name)
    if entry is not None:
        return entry
    module, _, qualname = name.partition(":")
    policy = _values.policy
    importable = policy.mode == "importable" and policy.covers(module)
    if policy.mode != "any" and not importable:
        raise Refused(
            "NoSuchMethod",
            f"the function {name} is not registered there: decorate it with @rpc.function, in a module that the "
            "callee has imported",
        )
    try:
        __import__(module)
        found: Any = sys.modules[module]
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, KeyError, ValueError) as error:
        raise Refused(
            "NoSuchMethod",
            f"the function {qualname} of the module {module} does not exist there ({error}): it must be defined on caller "
            "and callee",
        ) from None
    if importable and not policy.covers(getattr(found, "__module__", None)):
        raise Refused("NoSuchMethod", f"{name} is not in the packages {', '.join(policy.packages)}")
    entry = Entry(found)
    _entries.setdefault(name, entry) if policy.mode == "any" else None
    return entry


def method(value: object, name: str) -> Callable[..., Any]:
    """Returns a method of a value, if peers may call it through a reference."""
    found: Any = getattr(value, name)
    if _values.policy.mode == "any":
        return found  # type: ignore[no-any-return]
    cls = type(value)
    admitted = not name.startswith("_") and any((base.__module__, base.__qualname__) in _classes for base in cls.__mro__)
    if not admitted and _values.policy.mode == "importable":
        admitted = not name.startswith("_") and _values.policy.covers(cls.__module__)
    if not admitted:
        raise Refused(
            "NoSuchMethod",
            f"the method {name} of {cls.__module__}.{cls.__qualname__} is not allowed: decorate the class with "
            "@rpc.function; the name must not begin with an underscore",
        )
    return found  # type: ignore[no-any-return]


def is_async_execution(f: Any) -> bool:
    return bool(getattr(f, "_rdzv_async_execution", False) or getattr(f, "_wrapped_async_rpc_function", False))
