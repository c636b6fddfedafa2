"""Functions of ``rdzv.rpc``."""

from __future__ import annotations

import warnings
from typing import overload

from rdzv.rpc import _agent, _rref, backend_registry
from rdzv.rpc._agent import NO_AGENT, UNSET, Agent, RpcOptions, WorkerInfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any, TypeVar

    from rdzv._rdzv import Store
    from rdzv.rpc._future import Future
    from rdzv.rpc._rref import RRef

    R = TypeVar("R")


def init_rpc(
    name: str,
    backend: backend_registry.BackendType | None = None,
    rank: int = -1,
    world_size: int | None = None,
    rpc_backend_options: Any = None,
    *,
    store: Store | None = None,
) -> None:
    """Makes this process a worker that makes calls and serves calls.

    With a world size, this function returns when all workers have joined. In a dynamic group, it
    returns when all live members know this worker.

    Args:
        name (str): name of the worker: 1 to 127 letters, digits, ``-``, ``_`` and ``:``. It must be
            unique.
        backend (BackendType | None): backend that creates the agent. Default: the backend of the
            options, or ``RDZV``.
        rank (int): rank of the worker, which is its id. Default: the rank from the init method, for
            example ``RANK`` with ``env://``. With ``store``, a rank is required.
        world_size (int | None): number of workers in a static group. Default and 0: a dynamic
            group.
        rpc_backend_options (RpcOptions | None): options of the backend.
        store (Store | None): store through which the workers find each other. Default: the store of
            ``init_method``.

    Raises:
        TypeError: ``backend`` is not a member of ``BackendType``, or the options have an unknown
            type.
        RuntimeError: this process already has an agent.
        RpcError: the name, the rank or an option is invalid, the name is taken, or the group could not
            be formed. No agent is running in this case.
        Deadline: workers did not join in time; the text names them.

    Example:
        >>> from rdzv import StoreServer, TCPStore, rpc
        >>> server = StoreServer()
        >>> rpc.init_rpc("alone", rank=0, world_size=1, store=TCPStore(server.host, server.port))
        >>> rpc.get_worker_info()
        WorkerInfo(id=0, name=alone)
        >>> rpc.shutdown()
        >>> server.close()
    """
    options = rpc_backend_options
    if backend is not None and not backend_registry.is_member(backend):
        raise TypeError("Argument backend must be a member of BackendType")
    if backend is None and options is not None:
        backend = _inferred(options)
    if backend is None:
        backend = backend_registry.BackendType.RDZV
    if options is None:
        options = backend_registry.construct_rpc_backend_options(backend)
    if not isinstance(name, str):
        raise TypeError(f"name must be a str, not {type(name).__name__}")
    if world_size is not None and (isinstance(world_size, bool) or not isinstance(world_size, int)):
        raise TypeError(f"world_size must be an int, not {type(world_size).__name__}")
    if not _agent._starting.acquire(blocking=False):
        raise RuntimeError("RPC is already initialized")
    try:
        if _agent.any_agent() is not None:
            raise RuntimeError("RPC is already initialized")
        agent = backend_registry.init_backend(
            backend, store=store, name=name, rank=rank, world_size=world_size, rpc_backend_options=options
        )
        backend_registry.check_agent(agent)
        _agent.install(agent)
        agent.start()
    finally:
        _agent._starting.release()


def _inferred(options: object) -> backend_registry.BackendType:
    for backend in backend_registry.BackendType:
        try:
            default = backend_registry.construct_rpc_backend_options(backend)
        except Exception:
            # A backend without default options can be chosen only by its name.
            continue
        if isinstance(options, type(default)):
            if backend.name != "RDZV":
                warnings.warn(f"the backend {backend.name} was chosen because these are its options", stacklevel=3)
            return backend
    raise TypeError(f"Could not infer backend for options {options}")


def shutdown(graceful: bool = True, timeout: float = 0) -> None:
    """Shuts down the agent of this process.

    Args:
        graceful (bool): True: wait until this worker's calls have ended and, in a static group,
            until all workers shut down. False: stop immediately; calls in flight fail.
        timeout (float): maximum time to wait in seconds; 0 for no limit.

    Raises:
        Deadline: calls did not end, or workers did not shut down, in time; the text names them. The
            agent has stopped even then.
        RuntimeError: this process has no agent.

    Example:
        >>> from rdzv import rpc
        >>> rpc.shutdown()
        Traceback (most recent call last):
        RuntimeError: RPC has not been initialized. Call rdzv.rpc.init_rpc first.
    """
    agent = _agent.any_agent()
    if agent is None:
        raise RuntimeError(NO_AGENT)
    try:
        if graceful:
            agent.join(shutdown=True, timeout=timeout)
    finally:
        try:
            agent.shutdown()
        finally:
            _agent.install(None)


def _anybody() -> Agent:
    agent = _agent.any_agent()
    if agent is None:
        raise RuntimeError(NO_AGENT)
    return agent


def get_worker_info(name: str | int | WorkerInfo | None = None) -> WorkerInfo:
    """Returns a worker of the group.

    Args:
        name (str | int | None): name or rank of the worker. Default: this worker.

    Returns:
        WorkerInfo: name and rank.

    Raises:
        RpcError: no worker has this name; the text lists the workers.

    Example:
        >>> from rdzv import rpc
        >>> def rank_of(name: str) -> int:
        ...     return rpc.get_worker_info(name).id
    """
    return _anybody().get_worker_info(name)


@overload
def rpc_sync(
    to: str | int | WorkerInfo,
    func: Callable[..., Coroutine[Any, Any, R]],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> R: ...
@overload
def rpc_sync(
    to: str | int | WorkerInfo,
    func: Callable[..., R],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> R: ...
def rpc_sync(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Any:
    """Calls a function on a worker and waits for its result.

    Large arrays and tensors in arguments and results are not copied into the message. Do not modify
    them until the result has arrived.

    Args:
        to (str | int | WorkerInfo): the worker, by name or rank.
        func (callable): the function; by default, the callee must have registered it under the same
            name.
        args (tuple): arguments of the function.
        kwargs (dict | None): keyword arguments of the function.
        timeout (float): timeout in seconds; ``math.inf``: none. Default: the agent's timeout.

    Returns:
        object: the return value of the function.

    Raises:
        Exception: the exception that the function raised, with the callee's traceback as a note.
        RemoteError: the function raised an exception that this process cannot re-raise.
        Deadline: the result did not arrive in time.
        PeerLost: the worker is lost.
        RpcError: the worker has no such function, or refused the call; ``kind`` is the reason.
        TypeError or ValueError: an argument cannot be sent; nothing was sent.

    Example:
        >>> from rdzv import StoreServer, TCPStore, rpc
        >>> server = StoreServer()
        >>> rpc.init_rpc("alone", rank=0, world_size=1, store=TCPStore(server.host, server.port))
        >>> add = rpc.function(lambda a, b: a + b, name="example.add")
        >>> rpc.rpc_sync("alone", add, args=(1, 2))
        3
        >>> rpc.shutdown()
        >>> server.close()
    """
    agent = _agent._agent
    if type(agent) is _agent.RdzvAgent:
        return agent.call_sync(to, func, args, kwargs, timeout)
    return rpc_async(to, func, args, kwargs, timeout).wait()


@overload
def rpc_async(
    to: str | int | WorkerInfo,
    func: Callable[..., Coroutine[Any, Any, R]],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Future[R]: ...
@overload
def rpc_async(
    to: str | int | WorkerInfo,
    func: Callable[..., R],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Future[R]: ...
def rpc_async(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Any:
    """Calls a function on a worker, without waiting for its result.

    If too many calls to the worker are in flight, the function first waits until one of them ends.

    Args:
        to (str | int | WorkerInfo): the worker, by name or rank.
        func (callable): the function.
        args (tuple): arguments of the function.
        kwargs (dict | None): keyword arguments of the function.
        timeout (float): timeout in seconds; ``math.inf``: none. Default: the agent's timeout.

    Returns:
        Future: the future of the result; it can be awaited.

    Raises:
        TypeError or ValueError: an argument cannot be sent; nothing was sent.

    Example:
        >>> from rdzv import StoreServer, TCPStore, rpc
        >>> server = StoreServer()
        >>> rpc.init_rpc("alone", rank=0, world_size=1, store=TCPStore(server.host, server.port))
        >>> multiply = rpc.function(lambda a, b: a * b, name="example.multiply")
        >>> rpc.rpc_async("alone", multiply, args=(6, 7)).wait()
        42
        >>> rpc.shutdown()
        >>> server.close()
    """
    agent = _anybody()
    if isinstance(agent, _agent.RdzvAgent):
        return agent.call_async(to, func, args, kwargs, timeout)
    return agent.send(agent.get_worker_info(to), (func, tuple(args or ()), dict(kwargs or {})), timeout)


@overload
def remote(
    to: str | int | WorkerInfo,
    func: Callable[..., Coroutine[Any, Any, R]],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> RRef[R]: ...
@overload
def remote(
    to: str | int | WorkerInfo,
    func: Callable[..., R],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> RRef[R]: ...
def remote(
    to: str | int | WorkerInfo,
    func: Callable[..., Any],
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float = UNSET,
) -> Any:
    """Calls a function on a worker, and leaves the result there.

    Args:
        to (str | int | WorkerInfo): the worker, by name or rank.
        func (callable): the function, or a class.
        args (tuple): arguments of the function.
        kwargs (dict | None): keyword arguments of the function.
        timeout (float): seconds for the function, as in PyTorch; then the reference raises
            ``Deadline``. Default: the agent's, until the worker has accepted the call; the function
            has no limit.

    Returns:
        RRef: a reference to the result, which need not exist yet. Its methods raise the errors of
            the call.

    Raises:
        RpcError: no worker has this name or rank, or the worker is lost.
        TypeError or ValueError: an argument cannot be sent; nothing was sent.

    Example:
        >>> from rdzv import StoreServer, TCPStore, rpc
        >>> server = StoreServer()
        >>> rpc.init_rpc("alone", rank=0, world_size=1, store=TCPStore(server.host, server.port))
        >>> square = rpc.function(lambda a: a * a, name="example.square")
        >>> rpc.remote("alone", square, args=(3,)).to_here()
        9
        >>> rpc.shutdown()
        >>> server.close()
    """
    return _rref.remote(_agent.current(), to, func, args, kwargs, timeout)


@overload
async def call(
    to: str | int | WorkerInfo,
    func: Callable[..., Coroutine[Any, Any, R]],
    *args: Any,
    timeout: float = UNSET,
    **kwargs: Any,
) -> R: ...
@overload
async def call(
    to: str | int | WorkerInfo, func: Callable[..., R], *args: Any, timeout: float = UNSET, **kwargs: Any
) -> R: ...
async def call(
    to: str | int | WorkerInfo, func: Callable[..., Any], *args: Any, timeout: float = UNSET, **kwargs: Any
) -> Any:
    """Calls a function on a worker, from a coroutine.

    Args:
        to (str | int | WorkerInfo): the worker, by name or rank.
        func (callable): the function.
        *args (object): arguments of the function.
        timeout (float): timeout in seconds; ``math.inf``: none. Default: the agent's timeout.
        **kwargs (object): keyword arguments of the function.

    Returns:
        object: the return value of the function.

    Raises:
        Exception: the exceptions of :func:`rpc_sync`.

    Example:
        >>> import asyncio
        >>> from rdzv import StoreServer, TCPStore, rpc
        >>> server = StoreServer()
        >>> rpc.init_rpc("alone", rank=0, world_size=1, store=TCPStore(server.host, server.port))
        >>> subtract = rpc.function(lambda a, b: a - b, name="example.subtract")
        >>> asyncio.run(rpc.call("alone", subtract, 3, b=1, timeout=5.0))
        2
        >>> rpc.shutdown()
        >>> server.close()
    """
    return await rpc_async(to, func, args, kwargs, timeout)


def get_rpc_timeout() -> float:
    """Returns the default timeout for calls.

    Returns:
        float: seconds; ``math.inf`` if there is none.
    """
    return _agent.current()._native.timeout


def set_rpc_timeout(timeout: float) -> None:
    """Sets the default timeout for later calls.

    Args:
        timeout (float): timeout in seconds; ``math.inf``: none.

    Raises:
        ValueError: the timeout is not positive.

    Example:
        >>> from rdzv import rpc
        >>> def be_quick() -> None:
        ...     rpc.set_rpc_timeout(1.0)
    """
    _agent.current()._native.set_timeout(timeout)


def caller() -> WorkerInfo | None:
    """Returns the worker whose call this thread, task or callback runs.

    Returns:
        WorkerInfo | None: the caller; None outside a call.

    Example:
        >>> from rdzv import rpc
        >>> print(rpc.caller())
        None
    """
    request = _agent._request.get()
    return None if request is None else WorkerInfo(*request.caller)


def is_cancelled() -> bool:
    """Returns True if the caller no longer waits for the result of this call.

    The call has timed out, the caller has cancelled it, or the connection to the caller has ended.
    Of a call by :func:`remote`, only the timeout counts.

    Returns:
        bool: always False outside a call.

    Example:
        >>> from rdzv import rpc
        >>> rpc.is_cancelled()
        False
    """
    request = _agent._request.get()
    return request is not None and request.is_cancelled


def _construct(rpc_timeout: float, init_method: str, **kwargs: Any) -> RpcOptions:
    return RpcOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _construct_like_torch(rpc_timeout: float, init_method: str, **kwargs: Any) -> RpcOptions:
    """Creates options without unknown keywords, as PyTorch for TENSORPIPE."""
    known = RpcOptions.__init__.__kwdefaults__
    dropped = [name for name, value in kwargs.items() if name not in known and value is not None]
    if dropped:
        text = f"rdzv.rpc does not use these options of TENSORPIPE: {', '.join(dropped)}"
        warnings.warn(text, UserWarning, stacklevel=3)
    return _construct(rpc_timeout, init_method, **{name: value for name, value in kwargs.items() if name in known})


def _init(store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any) -> Agent:
    if not isinstance(rpc_backend_options, RpcOptions):
        raise TypeError(f"`rpc_backend_options` must be an RpcOptions, not {type(rpc_backend_options).__name__}")
    return _agent.RdzvAgent(
        name, None if rank < 0 else rank, world_size or None, store, rpc_backend_options
    )


backend_registry.register_backend("TENSORPIPE", _construct_like_torch, _init)
backend_registry.register_backend("RDZV", _construct, _init)
