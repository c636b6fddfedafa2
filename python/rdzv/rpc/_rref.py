"""References to values that stay on their worker."""

from __future__ import annotations

from typing import Generic, TypeVar

from rdzv.rpc import _agent, _devices, _functions, _serving, _values
from rdzv.rpc._agent import UNSET, WorkerInfo
from rdzv.rpc._future import Future

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rdzv._rdzv import RpcReference

T = TypeVar("T")


class RRef(Generic[T]):
    """Reference to a value on some worker.

    Arguments and results of any call can contain references. The owner keeps the value until its
    last reference is dropped.

    Args:
        value (object): a value of this worker.
        type_hint (type | None): ignored; for compatibility with torch.

    Raises:
        RuntimeError: this process has no agent.

    Example:
        >>> from rdzv import StoreServer, TCPStore, rpc
        >>> server = StoreServer()
        >>> rpc.init_rpc("alone", rank=0, world_size=1, store=TCPStore(server.host, server.port))
        >>> rpc.RRef([1, 2]).to_here()
        [1, 2]
        >>> rpc.shutdown()
        >>> server.close()
    """

    _rdzv_reference: RpcReference

    def __init__(self, value: T, type_hint: type | None = None) -> None:
        native = _agent.current()._native
        _devices.settle(native)
        self._rdzv_reference = native.own(value)

    @classmethod
    def _of(cls, native: RpcReference) -> RRef[Any]:
        rref: RRef[Any] = object.__new__(cls)
        rref._rdzv_reference = native
        return rref

    def is_owner(self) -> bool:
        """Returns True if the value is on this worker.

        Returns:
            bool: True on the owner.
        """
        return self._rdzv_reference.is_owner

    def owner(self) -> WorkerInfo:
        """Returns the worker that has the value.

        Returns:
            WorkerInfo: name and rank of the worker.
        """
        return WorkerInfo(*self._rdzv_reference.owner)

    def owner_name(self) -> str:
        """Returns the name of the worker that has the value.

        Returns:
            str: the name.
        """
        return self._rdzv_reference.owner[0]

    def confirmed_by_owner(self) -> bool:
        """Returns True if the owner knows this reference.

        Returns:
            bool: always True on the owner.
        """
        return self._rdzv_reference.confirmed_by_owner

    def to_here(self, timeout: float = UNSET) -> T:
        """Waits for the value; returns a copy or, on the owner, the value.

        Args:
            timeout (float): timeout in seconds. Default: the agent's timeout.

        Returns:
            object: the value.

        Raises:
            Exception: the exception of the function that should have created the value.
            Deadline: the value did not arrive in time.
            PeerLost: the owner is lost.
        """
        limit = _agent._timeout(timeout)
        if self._rdzv_reference.is_owner:
            return self._value(self._limit(limit))
        return self._fetch(timeout).wait()

    def _fetch(self, timeout: float = UNSET) -> Future[T]:
        agent = _agent.current()
        call = agent._native.fetch(self._rdzv_reference, _agent._timeout(timeout), _agent._request.get())
        return Future._of(call, agent._watch)

    def _limit(self, limit: float | None) -> float:
        return _agent.current()._native.timeout if limit is None else limit

    def local_value(self) -> T:
        """Waits for the value, and returns it on its owner.

        Returns:
            object: the value.

        Raises:
            RpcError: this worker is not the owner.
            Deadline: the value did not exist within the agent's timeout.
            Exception: the exception of the function that should have created the value.
        """
        return self._value(self._limit(None))

    def _value(self, limit: float) -> T:
        value = _serving.blocked(self._rdzv_reference.local_value, limit)
        _devices.follow(_agent.current()._native)
        return value  # type: ignore[no-any-return]

    def rpc_sync(self, timeout: float = UNSET) -> Any:
        """Returns a proxy whose methods run on the owner, and return results.

        Args:
            timeout (float): timeout for each call, in seconds. Default: the agent's timeout.

        Returns:
            object: a proxy with the methods of the value.

        Example:
            >>> from rdzv import rpc
            >>> def size(rref: rpc.RRef) -> int:
            ...     return rref.rpc_sync().size()
        """
        return _Proxy(self, _agent.RdzvAgent.call_sync, timeout)

    def rpc_async(self, timeout: float = UNSET) -> Any:
        """Returns a proxy whose methods run on the owner, and return futures.

        Args:
            timeout (float): timeout for each call, in seconds. Default: the agent's timeout.

        Returns:
            object: a proxy with the methods of the value.

        Example:
            >>> from rdzv import rpc
            >>> def push(rref: rpc.RRef, gradient: object) -> rpc.Future:
            ...     return rref.rpc_async().push(gradient)
        """
        return _Proxy(self, _agent.RdzvAgent.call_async, timeout)

    def remote(self, timeout: float = UNSET) -> Any:
        """Returns a proxy whose methods run on the owner, and return references.

        Args:
            timeout (float): seconds for each method, as in :func:`rdzv.rpc.remote`. Default: as
                there.

        Returns:
            object: a proxy with the methods of the value.

        Example:
            >>> from rdzv import rpc
            >>> def layer(rref: rpc.RRef) -> rpc.RRef:
            ...     return rref.remote().layer(0)
        """
        return _Proxy(self, remote, timeout)

    def __repr__(self) -> str:
        return repr(self._rdzv_reference)

    def __reduce__(self) -> Any:
        raise TypeError("a reference can only be sent in calls: it cannot be pickled elsewhere")


RRef.__module__ = "rdzv.rpc"
_values.reference_class = RRef


def remote(agent: _agent.RdzvAgent, *call: Any) -> RRef[Any]:
    """Returns a reference to the result of a call; the callee keeps it."""
    return RRef._of(agent.call_remote(*call))


class _Proxy:
    def __init__(self, rref: RRef[Any], call: Callable[..., Any], timeout: float) -> None:
        self._rref, self._call, self._timeout = rref, call, timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ("__reduce_ex__", "__getstate__", "__setstate__", "_rdzv_reference"):
            raise AttributeError(name)

        def method(*args: object, **kwargs: object) -> Any:
            rref = self._rref
            return self._call(
                _agent.current(), rref.owner_name(), _invoke, (rref, name, args, kwargs), None, self._timeout
            )

        return method


@_functions.function(name="rdzv.rpc.method")
def _invoke(rref: RRef[Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not rref.is_owner():
        raise ValueError("the reference belongs to a value of another worker")
    found = _functions.method(rref.local_value(), name)
    result = found(*args, **kwargs)
    if _functions.is_async_execution(found):
        return result.wait()
    return result
