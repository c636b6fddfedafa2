"""Backends by name, as in ``torch.distributed.rpc.backend_registry``.

``BackendType`` is one class for the lifetime of the process, so members stay valid when
a program registers other backends. It is not an ``enum.Enum``, because an ``Enum`` cannot grow.
"""

from __future__ import annotations

import threading

from rdzv.rpc._agent import Agent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import MappingProxyType
    from typing import Any, NamedTuple

    class BackendValue(NamedTuple):
        construct_rpc_backend_options_handler: Callable[..., Any]
        init_backend_handler: Callable[..., Any]

else:
    from collections import namedtuple
    from types import MappingProxyType

    BackendValue = namedtuple("BackendValue", ["construct_rpc_backend_options_handler", "init_backend_handler"])
    BackendValue.__doc__ = """Functions of a backend.

    Args:
        construct_rpc_backend_options_handler (callable): creates options.
        init_backend_handler (callable): creates an agent.

    Example:
        >>> from rdzv.rpc.backend_registry import BackendType
        >>> BackendType.RDZV.value._fields
        ('construct_rpc_backend_options_handler', 'init_backend_handler')
    """

__all__ = [
    "BackendType",
    "BackendValue",
    "backend_registered",
    "construct_rpc_backend_options",
    "init_backend",
    "register_backend",
]

_lock = threading.Lock()
_members: dict[str, BackendType] = {}


class _Members(type):
    """Metaclass: backends are attributes; iteration starts with the newest."""

    def __getattr__(cls, name: str) -> BackendType:
        member = _members.get(name)
        if member is None:
            raise AttributeError(f"backend {name!r} does not exist; the backends are {', '.join(_members)}")
        return member

    def __getitem__(cls, name: str) -> BackendType:
        return _members[name]

    def __iter__(cls) -> Iterator[BackendType]:
        return iter(list(_members.values())[::-1])

    def __len__(cls) -> int:
        return len(_members)

    def __contains__(cls, member: object) -> bool:
        return is_member(member)

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *_members]

    @property
    def __members__(cls) -> MappingProxyType[str, BackendType]:
        return MappingProxyType(_members)


class BackendType(metaclass=_Members):
    """Backends: ``BackendType.RDZV``, ``BackendType["RDZV"]``, iteration.

    ``len`` and ``in`` also work.

    Example:
        >>> from rdzv.rpc.backend_registry import BackendType
        >>> BackendType.RDZV, BackendType["RDZV"] is BackendType.RDZV, BackendType.RDZV in BackendType
        (BackendType.RDZV, True, True)
    """

    __slots__ = ("_name", "_value")
    if TYPE_CHECKING:
        RDZV: BackendType
        TENSORPIPE: BackendType

    def __new__(cls) -> BackendType:
        raise TypeError("backends are created by register_backend")

    @property
    def name(self) -> str:
        """str: name under which it was registered."""
        return self._name

    @property
    def value(self) -> BackendValue:
        """BackendValue: functions of the backend."""
        return self._value

    _name: str
    _value: BackendValue

    def __repr__(self) -> str:
        return f"BackendType.{self._name}"

    def __reduce__(self) -> tuple[object, ...]:
        return _named, (self._name,)


def _named(name: str) -> BackendType:
    return BackendType[name]


def is_member(value: object) -> bool:
    return isinstance(value, BackendType)


def backend_registered(backend_name: str) -> bool:
    """Returns True if a backend has this name.

    Args:
        backend_name (str): the name, which is case-sensitive.

    Returns:
        bool: True if it is registered.

    Example:
        >>> from rdzv.rpc.backend_registry import backend_registered
        >>> backend_registered("RDZV"), backend_registered("rdzv")
        (True, False)
    """
    return backend_name in _members


def register_backend(
    backend_name: str,
    construct_rpc_backend_options_handler: Callable[..., Any],
    init_backend_handler: Callable[..., Any],
) -> BackendType:
    """Registers a backend, which creates agents.

    Args:
        backend_name (str): name of the backend.
        construct_rpc_backend_options_handler (callable): function ``(rpc_timeout, init_method,
            **kwargs)`` that returns options.
        init_backend_handler (callable): function that returns a :class:`rdzv.rpc.Agent`. It gets
            the keywords ``store``, ``name``, ``rank``, ``world_size`` and ``rpc_backend_options``.

    Returns:
        BackendType: the new member.

    Raises:
        RuntimeError: a backend with this name is registered.

    Example:
        >>> from rdzv.rpc.backend_registry import register_backend
        >>> register_backend("RDZV", dict, dict)
        Traceback (most recent call last):
        RuntimeError: RPC backend RDZV: already registered
    """
    member = object.__new__(BackendType)
    member._name = backend_name
    member._value = BackendValue(construct_rpc_backend_options_handler, init_backend_handler)
    with _lock:
        if backend_name in _members:
            raise RuntimeError(f"RPC backend {backend_name}: already registered")
        _members[backend_name] = member
    return member


def construct_rpc_backend_options(
    backend: BackendType, rpc_timeout: float = 60.0, init_method: str = "env://", **kwargs: Any
) -> Any:
    """Creates the options of a backend.

    Args:
        backend (BackendType): the backend.
        rpc_timeout (float): timeout for calls, in seconds. Default 60.
        init_method (str): URL of the store. Default ``env://``.
        **kwargs (object): further options of the backend.

    Returns:
        object: the options.

    Raises:
        TypeError: the backend does not support a keyword. ``TENSORPIPE`` drops it with a warning.

    Example:
        >>> from rdzv.rpc.backend_registry import BackendType, construct_rpc_backend_options
        >>> construct_rpc_backend_options(BackendType.RDZV, num_worker_threads=4).num_worker_threads
        4
    """
    return backend.value.construct_rpc_backend_options_handler(rpc_timeout, init_method, **kwargs)


def init_backend(backend: BackendType, *args: Any, **kwargs: Any) -> Any:
    """Creates an agent with a backend.

    Args:
        backend (BackendType): the backend.
        *args (object): passed to the backend.
        **kwargs (object): passed to the backend.

    Returns:
        Agent: the agent that the backend returns.

    Example:
        >>> from rdzv.rpc.backend_registry import init_backend, register_backend
        >>> echo = register_backend("ECHO", dict, lambda **keywords: keywords)
        >>> init_backend(echo, name="worker")
        {'name': 'worker'}
    """
    return backend.value.init_backend_handler(*args, **kwargs)


def check_agent(agent: object) -> None:
    """Refuses the result of an init handler if it is not an agent."""
    if isinstance(agent, Agent):
        return
    missing = [name for name in sorted(Agent.__abstractmethods__) if not callable(getattr(agent, name, None))]
    if missing:
        raise TypeError(f"the backend created a {type(agent).__name__}, which is not an agent: it has no {', '.join(missing)}")
