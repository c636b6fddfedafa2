"""``BackendType.RDZV`` for programs that use ``torch.distributed.rpc``.

A program only needs to import this module and to pass ``backend=rpc.BackendType.RDZV``. torch's
agents cannot be implemented in Python, so this module replaces the torch functions that call the
agent directly. The replacements check which agent is in use. With an rdzv agent they call rdzv, and
otherwise torch's own functions. ``uninstall()`` restores torch's functions.

Import it before ``from torch.distributed.rpc import RRef``. As in torch, function names and values
of peers are trusted (``functions="any"``). A job token, or Unix sockets, keep unknown peers out.
"""

from __future__ import annotations

import logging
import math
import pickle
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.distributed as dist
import torch.distributed.rpc as torch_rpc
from torch.distributed.rpc import api, backend_registry, internal
from torch.nn.parallel import DistributedDataParallel

import rdzv
from rdzv.rpc import _agent, _devices, _functions, _serving, _values
from rdzv.rpc._agent import RdzvAgent, RpcOptions
from rdzv.rpc._errors import Refused
from rdzv.rpc._future import Future
from rdzv.torch import _autograd, _backward, _replaced

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RdzvRpcBackendOptions", "uninstall"]

T = TypeVar("T")
_logger = logging.getLogger("rdzv.rpc")

# `api` keeps its own classes: the methods of torch's references look them up there.
_native_rref: Any = _replaced.original[torch_rpc, "PyRRef"]
_native_generic_rref: Any = _replaced.original[torch_rpc, "RRef"]

UNSET = -1.0


class RdzvRpcBackendOptions(torch_rpc.TensorPipeRpcBackendOptions):  # type: ignore[misc]
    """Options for ``BackendType.RDZV``, in addition to torch's options.

    ``_transports`` and ``_channels`` are ignored.

    Args:
        token (str | None): secret that all workers share, at least 16 bytes.
        tls (dict | None): files ``certificate``, ``key`` and ``authorities``, in PEM.
        address (str | None): IP address at which other workers reach this host.
        lease (float | None): maximum silence of a member of a dynamic group, in seconds.
        cuda_pool (int | None): maximum memory on each CUDA device for tensors on the way to workers on
            this host, in bytes; 0: all tensors go through host memory.
        **torch_options (object): options of ``TensorPipeRpcBackendOptions``.

    Example:
        >>> from rdzv.torch.rpc import RdzvRpcBackendOptions
        >>> RdzvRpcBackendOptions(num_worker_threads=4).num_worker_threads
        4
    """

    def __init__(
        self,
        *,
        token: str | None = None,
        tls: dict[str, str] | None = None,
        address: str | None = None,
        lease: float | None = None,
        cuda_pool: int | None = None,
        **torch_options: Any,
    ) -> None:
        super().__init__(**torch_options)
        self.rdzv = {"token": token, "tls": tls, "address": address, "lease": lease, "cuda_pool": cuda_pool}


class TorchAgent:
    """Agent for torch's functions."""

    def __init__(self, inner: RdzvAgent, store: Any) -> None:
        self.inner, self.store = inner, store
        self.is_static_group = inner._native.is_static
        self.device_maps: dict[str, dict[Any, Any]] = {}

    def get_worker_info(self, which: Any = None) -> Any:
        if isinstance(which, api.WorkerInfo):
            which = which.id
        try:
            found = self.inner.get_worker_info(which)
        except rdzv.RpcError as error:
            raise RuntimeError(str(error)) from None
        return api.WorkerInfo(found.name, found.id)

    def get_worker_infos(self) -> list[Any]:
        return [api.WorkerInfo(worker.name, worker.id) for worker in self.inner.get_worker_infos()]

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        self.inner.join(shutdown, timeout)

    def sync(self) -> None:
        pass

    def shutdown(self) -> None:
        self.inner.shutdown()

    def get_debug_info(self) -> dict[str, str]:
        return self.inner.get_debug_info()

    def get_metrics(self) -> dict[str, str]:
        return self.inner.get_metrics()

    def _get_device_map(self, worker: Any) -> dict[Any, Any]:
        return self.device_maps.get(worker.name, {})


_current: TorchAgent | None = None


def _ours() -> TorchAgent:
    if _current is None:
        raise RuntimeError("RPC has not been initialized. Call torch.distributed.rpc.init_rpc first.")
    return _current


def _limit(timeout: float) -> float:
    """Converts a timeout of torch.

    -1 means the agent's timeout, and 0 means no timeout. Other negative values expire immediately.
    """
    if timeout == 0:
        return math.inf
    return timeout if timeout == UNSET or timeout > 0 else 1e-6


def _text(error: rdzv.RpcError) -> str:
    """Returns the text of an error, with the options of torch."""
    return str(error).replace("`RpcOptions`", "`TensorPipeRpcBackendOptions`")


def _error(error: BaseException, timeout: float) -> BaseException:
    """Returns a failure with the texts of torch."""
    if isinstance(error, rdzv.Deadline):
        seconds = _ours().inner._native.timeout if timeout == UNSET else timeout
        text = (
            f"RPCErr:1:RPC ran for more than set timeout ({seconds * 1000:.0f} ms) and will now be marked with an error"
        )
        return RuntimeError(text)
    if isinstance(error, rdzv.RpcError):
        return RuntimeError(_text(error))
    if isinstance(error, TypeError) and "cannot be sent" in str(error):
        return RuntimeError(str(error))
    return error


# References
# --------------------------------------------------------------------------------------------------

_thread = threading.local()
_live: weakref.WeakSet[PyRRef] = weakref.WeakSet()


class _Kind(type(Generic)):  # type: ignore[misc]
    """Metaclass of references.

    References of torch and of rdzv are instances. A new one belongs to the agent in use.
    """

    _torch: Any = None

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or isinstance(instance, cls._torch)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return super().__subclasscheck__(subclass) or (cls._torch is not None and issubclass(subclass, cls._torch))

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if _current is None:
            return cls._torch(*args, **kwargs)
        return super().__call__(*args, **kwargs)


def _local(native: Any, limit: float) -> Any:
    """Returns the value of a reference on its owner; current streams wait for it."""
    value = _serving.blocked(native.local_value, limit)
    _devices.follow(_ours().inner._native)
    return value


class PyRRef(metaclass=_Kind):
    """Reference with torch's interface."""

    _torch = _native_rref

    def __init__(self, value: Any, type_hint: Any = None) -> None:
        native = _ours().inner._native
        _devices.settle(native)
        self._rdzv_reference = native.own(value)
        _live.add(self)

    @classmethod
    def _of(cls, native: Any) -> Any:
        rref = object.__new__(RRef)
        rref._rdzv_reference = native
        _live.add(rref)
        return rref

    @property
    def _reference(self) -> Any:
        return self._used("Cannot use it after deletion.")

    def _used(self, deleted: str) -> Any:
        native = self._rdzv_reference
        if native is None:
            raise RuntimeError(f"the RRef was deleted by shutdown(). {deleted}")
        return native

    def is_owner(self) -> bool:
        return self._reference.is_owner

    def confirmed_by_owner(self) -> bool:
        return self._reference.confirmed_by_owner

    def owner(self) -> Any:
        return api.WorkerInfo(*self._reference.owner)

    def owner_name(self) -> str:
        return self._reference.owner[0]

    def to_here(self, timeout: float = UNSET) -> Any:
        native = self._used("Cannot call to_here() on it after deletion.")
        inner, limit = _ours().inner, _limit(timeout)
        try:
            if native.is_owner:
                return _local(native, inner._native.timeout if limit == UNSET else limit)
            context = _autograd.current()
            if context is not None:
                owner = native.owner[1]
                seconds = inner._native.timeout if limit == UNSET else limit
                message = (_Carried(native), seconds, context.send(owner, []))
                return _unpacked(inner.call_async(owner, _fetch, message, None, limit).wait())
            call = inner._native.fetch(native, _agent._timeout(limit), _agent._request.get())
            return Future._of(call, inner._watch).wait()
        except BaseException as error:
            raised = _error(error, timeout)
            if raised is error:
                raise
            raise raised from None

    def local_value(self) -> Any:
        if not self.is_owner():
            name = repr(self._reference).replace("RRefId = ", "rref_id=").replace("ForkId = ", "fork_id=")
            me = _ours().get_worker_info()
            raise RuntimeError(f"For {name}, can't call localValue() on user {me}. Call it on owner {self.owner()}")
        try:
            return _local(self._reference, _ours().inner._native.timeout)
        except rdzv.RpcError as error:
            raise RuntimeError(str(error)) from None

    def rpc_sync(self, timeout: float = UNSET) -> Any:
        return self._proxy(torch_rpc.rpc_sync, timeout)

    def rpc_async(self, timeout: float = UNSET) -> Any:
        return self._proxy(torch_rpc.rpc_async, timeout)

    def remote(self, timeout: float = UNSET) -> Any:
        return self._proxy(torch_rpc.remote, timeout)

    def _proxy(self, call: Any, timeout: float) -> Any:
        from torch.distributed.rpc.rref_proxy import RRefProxy

        return RRefProxy(self, call, timeout)

    def _get_type(self, timeout: float = UNSET, blocking: bool = True) -> Any:
        if self.is_owner():
            return api._rref_typeof_on_owner(self, blocking)
        return api._rref_typeof_on_user(self, timeout, blocking)

    def _get_future(self) -> Any:
        """Returns the future of the owner's acceptance."""
        future: Any = torch.futures.Future()
        if self.is_owner():
            future.set_result(None)
            return future
        try:
            return _call(self.owner(), _nothing, (_Carried(self._reference),), UNSET, lambda result: result)
        except RuntimeError as error:
            future.set_exception(_error(error, UNSET))
            return future

    def _set_profiling_future(self, future: Any) -> None:
        self._profiling = future

    def _get_profiling_future(self, on_owner: bool = False) -> Any:
        return self._profiling

    def backward(self, dist_autograd_ctx_id: int = -1, retain_graph: bool = False) -> None:
        native = self._reference
        if native.is_owner:
            _backward_from(native, dist_autograd_ctx_id, retain_graph)
            return
        if dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        arguments = (_Carried(native), dist_autograd_ctx_id, retain_graph)
        try:
            _ours().inner.call_sync(native.owner[1], _backward_at_owner, arguments, None, math.inf)
        except rdzv.RpcError as error:
            raise RuntimeError(str(error)) from None

    def _serialize(self) -> tuple[str, int]:
        """Puts the reference into a slot of the thread, for the next call."""
        if not hasattr(_thread, "sending"):
            _thread.sending, _thread.number = {}, 0
        _thread.number += 1
        _thread.sending[_thread.number] = self._used("Cannot call fork an UserRRef after deletion.")
        return "rdzv", _thread.number

    @staticmethod
    def _deserialize(data: Any) -> Any:
        if not (isinstance(data, tuple) and len(data) == 2 and data[0] == "rdzv"):
            return _native_rref._deserialize(data)
        return PyRRef._of(_thread.received[data[1]])

    def __repr__(self) -> str:
        return repr(self._reference)

    __str__ = __repr__

    def __reduce__(self) -> Any:
        raise RuntimeError(
            "Can not pickle rref in python pickler, rref can only be pickled when using RPC"
        )


class RRef(PyRRef, Generic[T]):
    """Reference with torch's interface."""

    _torch = _native_generic_rref

    def __class_getitem__(cls, item: Any) -> Any:
        # TorchScript supports this type in annotations.
        return _native_generic_rref[item]


for _class in (PyRRef, RRef):
    _class.__module__ = "torch.distributed.rpc"


class _Carried:
    """Reference in the arguments of a call."""

    __slots__ = ("_rdzv_reference",)

    def __init__(self, native: Any) -> None:
        self._rdzv_reference = native


def _taken() -> tuple[list[int], list[_Carried]]:
    """Returns the references that torch's pickler found since the last call."""
    sending = getattr(_thread, "sending", None)
    if not sending:
        return [], []
    _thread.sending = {}
    return list(sending), [_Carried(native) for native in sending.values()]


def _deserialize(
    pickled: bytes, tensors: list[Any], numbers: list[int], carried: list[Any], mark: _autograd.Mark | None = None
) -> Any:
    tensors = _autograd.received(mark, tensors)
    before = getattr(_thread, "received", None)
    _thread.received = {number: rref._rdzv_reference for number, rref in zip(numbers, carried)}
    try:
        return internal._internal_rpc_pickler.deserialize(pickled, tensors)
    finally:
        _thread.received = before


# Calls
# --------------------------------------------------------------------------------------------------


def _check_policy() -> None:
    """Refuses calls unless the policy is ``any``.

    torch's pickles may refer to any function or class.
    """
    if _values.policy.mode != "any":
        raise Refused("NoSuchMethod", "this worker does not take calls of torch.distributed.rpc")


def _run(*message: Any) -> Any:
    _check_policy()
    with _autograd.inside(_autograd.joined(_mark(message))):
        return internal._run_function(_deserialize(*message))


def _mark(message: tuple[Any, ...]) -> _autograd.Mark | None:
    return message[4] if len(message) > 4 else None


def _message(to: Any, pickled: bytes, tensors: list[Any]) -> tuple[Any, ...]:
    """Returns a call in torch's pickle.

    The message has a mark if the call is made in a context of distributed autograd.
    """
    context = _autograd.current()
    mark = () if context is None else (context.send(to.id, tensors),)
    return pickled, tensors, *_taken(), *mark


class _Packer:
    """Maker of the message of a result.

    The caller called in a context of distributed autograd or in none.
    """

    def __init__(self, mark: _autograd.Mark | None) -> None:
        self.context = _autograd.joined(mark)
        request = _agent._request.get()
        self.caller = request.caller[1] if request is not None else -1

    def __call__(self, result: Any) -> tuple[Any, ...]:
        _taken()
        pickled, tensors = api._default_pickler.serialize(result)
        mark = () if self.context is None else (self.context.reply(self.caller, tensors),)
        return pickled, tensors, *_taken(), *mark


_packed = _Packer(None)


def _unpacked(packed: tuple[Any, ...]) -> Any:
    result = _deserialize(*packed)
    internal._handle_exception(result)
    return result


@_functions.function(name="rdzv.torch.udf")
def _udf(*message: Any) -> tuple[Any, ...]:
    pack = _Packer(_mark(message))
    return pack(_run(*message))


def _future_of(result: Any) -> Any:
    if not isinstance(result, torch._C.Future):
        kind = type(result)
        raise RuntimeError(
            "Functions decorated with @rpc.async_function must return a torch.futures.Future object, but got "
            f"{kind.__module__}.{kind.__qualname__}"
        )
    return result


def _async(finish: Callable[[Any], Any], message: tuple[Any, ...]) -> Future[Any]:
    """Runs a function that returns a future, and continues with its result."""
    after: Future[Any] = Future()
    result = _run(*message)
    if isinstance(result, internal.RemoteException):
        after._finish(*_outcome(finish, lambda: result))
        return after
    _future_of(result).add_done_callback(lambda done: after._finish(*_outcome(finish, done.value)))
    return after


def _outcome(finish: Callable[[Any], Any], value: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return finish(value()), None
    except BaseException as error:  # noqa: BLE001, it is the result
        return None, error


@_functions.function(name="rdzv.torch.udf_async")
def _udf_async(*message: Any) -> Any:
    return _async(_Packer(_mark(message)), message)


_udf_async._rdzv_async_execution = True  # type: ignore[attr-defined]


def _checked(result: Any) -> Any:
    internal._handle_exception(result)
    return result


@_functions.function(name="rdzv.torch.kept_udf")
def _kept_udf(*message: Any) -> Any:
    return _checked(_run(*message))


@_functions.function(name="rdzv.torch.kept_udf_async")
def _kept_udf_async(*message: Any) -> Any:
    return _async(_checked, message)


_kept_udf_async._rdzv_async_execution = True  # type: ignore[attr-defined]


@_functions.function(name="rdzv.torch.fetch")
def _fetch(reference: Any, seconds: float, mark: _autograd.Mark) -> Future[Any]:
    """Answers with the value of a reference, as a message of autograd."""
    _check_policy()
    native, pack = reference._rdzv_reference, _Packer(mark)
    after: Future[Any] = Future()

    def answer(timeout: float) -> None:
        after._finish(*_outcome(pack, lambda: native.local_value(timeout)))

    try:
        native.local_value(1e-6)
    except rdzv.Deadline:
        # The call that creates the value may need this thread.
        threading.Thread(target=answer, args=(seconds,), daemon=True).start()
    except Exception:  # noqa: BLE001, it is the answer too
        answer(seconds)
    else:
        answer(seconds)
    return after


_fetch._rdzv_async_execution = True  # type: ignore[attr-defined]


def _backward_from(native: Any, context_id: int, retain_graph: bool) -> None:
    root = _local(native, _ours().inner._native.timeout)
    if not isinstance(root, torch.Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if context_id == -1:
        torch.autograd.backward([root], retain_graph=retain_graph)
    else:
        backward(context_id, [root], retain_graph)


@_functions.function(name="rdzv.torch.backward")
def _backward_at_owner(reference: Any, context_id: int, retain_graph: bool) -> None:
    _backward_from(reference._rdzv_reference, context_id, retain_graph)


@_functions.function(name="rdzv.torch.nothing")
def _nothing(_: object) -> None:
    pass


@_functions.function(name="rdzv.torch.builtin")
def _operate(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _check_policy()
    operation, _ = torch._C._jit_get_operation(name)
    return operation(*args, **kwargs)


def _torch_future(future: Future[Any], timeout: float, read: Callable[[Any], Any]) -> Any:
    """Converts the future of a call to one of torch."""
    used = _ours().inner._native.devices
    devices = _devices.framework.of_future(used) if used else None
    other: Any = torch.futures.Future(devices=devices)
    context = _autograd.current()
    # Futures of torch wait outside Python.
    ended = _serving.pending()

    def end(done: Future[Any]) -> None:
        ended()
        if not used:
            deliver(done)
            return
        # The future records the end of the work of these streams.
        with _devices.framework.streams(used):
            deliver(done)

    def deliver(done: Future[Any]) -> None:
        try:
            result = read(done.value())
        except BaseException as error:  # noqa: BLE001, it is the result
            failed = _error(error, timeout)
            # torch supports only exceptions.
            set_outcome, outcome = other.set_exception, failed if isinstance(failed, Exception) else RuntimeError(repr(failed))
        else:
            set_outcome, outcome = other.set_result, result
        # The callbacks of the future run in this call, in the context of the caller.
        with _autograd.inside(context):
            set_outcome(outcome)

    future.add_done_callback(end)
    return other


def _call(to: Any, function: Any, args: tuple[Any, ...], timeout: float, read: Callable[[Any], Any]) -> Any:
    try:
        future = _ours().inner.call_async(to.id, function, args, None, _limit(timeout))
    except rdzv.RpcError as error:
        raise RuntimeError(_text(error)) from None
    return _torch_future(future, timeout, read)


# Calls that wait. Their thread waits for the result itself, while a future of torch needs another
# thread to report the result. Their message is one pickle. Calls that need more of torch use
# torch's functions: its profiler, another pickler, futures of the callee, and values that our
# pickler refuses.

_SYNC = api.RPCExecMode.SYNC
_torch_invoke = _replaced.original[api, "_invoke_rpc"]
_is_profiled = torch.autograd._profiler_enabled
_CALL = "rdzv.torch.call"


class _Arrived:
    """Result for `rpc_sync`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def wait(self) -> Any:
        return self.value


class _Long(tuple):  # type: ignore[type-arg]
    """Result in the form of torch's pickler."""

    __slots__ = ()


def _invoke_rpc(
    to: Any, func: Any, rpc_type: Any, args: Any = None, kwargs: Any = None, rpc_timeout: float = UNSET
) -> Any:
    current = _current
    if current is None or rpc_type is not _SYNC or _needs_torch(func):
        return _torch_invoke(to, func if current is None else _uncompiled(func), rpc_type, args, kwargs, rpc_timeout)
    args, kwargs = args or (), kwargs or {}
    operation = torch.jit._builtins._find_builtin(func)
    if _autograd.current() is not None:
        return _invoke_in_context(current, to, func, operation, args, kwargs, rpc_timeout)
    message = None if operation is not None else _short(func, args, kwargs)
    if operation is None and message is None:
        return _torch_invoke(to, func, rpc_type, args, kwargs, rpc_timeout)
    if isinstance(to, api.WorkerInfo):
        to = to.id
    try:
        if message is None:
            return _Arrived(current.inner.call_sync(to, _operate, (operation, args, kwargs), None, _limit(rpc_timeout)))
        result = _read(*current.inner.call_raw(to, _CALL, *message, _agent._timeout(_limit(rpc_timeout))))
    except BaseException as error:
        raised = _error(error, rpc_timeout)
        if raised is error:
            raise
        raise raised from None
    kind = type(result)
    if kind is internal.RemoteException:
        internal._handle_exception(result)
    return _Arrived(_unpacked(result) if kind is _Long else result)


def _uncompiled(func: Any) -> Any:
    """Returns the function to call instead of `func`.

    The distributed optimizer of older releases compiles functions with TorchScript, which
    cannot call rdzv. The results are equal without it.
    """
    optimizer = sys.modules.get("torch.distributed.optim.optimizer")
    if func is getattr(optimizer, "_new_script_local_optimizer", _new_optimizer):
        return _new_optimizer
    if func is getattr(optimizer, "_script_local_optimizer_step", _new_optimizer):
        return optimizer._local_optimizer_step  # type: ignore[union-attr]
    return func


def _new_optimizer(kind: Any, parameters: list[Any], *args: Any, **kwargs: Any) -> Any:
    from torch.distributed.optim import optimizer

    made: Any = optimizer._ScriptLocalOptimizer  # type: ignore[attr-defined]
    return torch_rpc.RRef(made(kind, parameters, *args, **kwargs))


def _needs_torch(func: Any) -> bool:
    return (
        not callable(func)
        or hasattr(func, "_wrapped_async_rpc_function")
        or isinstance(func, torch.jit.ScriptFunction)
        or api._default_pickler is not internal._internal_rpc_pickler
        or _is_profiled()
    )


def _invoke_in_context(
    current: TorchAgent, to: Any, func: Any, operation: str | None, args: Any, kwargs: Any, timeout: float
) -> _Arrived:
    """Makes a call in a context of distributed autograd.

    It uses torch's pickle, whose table has the tensors.
    """
    to = api._to_worker_info(to)
    if operation is not None:
        message = _operation(to, operation, args, kwargs)
    else:
        message = _message(to, *internal._internal_rpc_pickler.serialize(internal.PythonUDF(func, args, kwargs)))
    try:
        packed = current.inner.call_sync(to.id, _udf, message, None, _limit(timeout))
    except BaseException as error:
        raised = _error(error, timeout)
        if raised is error:
            raise
        raise raised from None
    return _Arrived(_unpacked(packed))


def _short(func: Any, args: Any, kwargs: Any) -> tuple[bytes, list[Any], list[Any]] | None:
    """Returns the message of a call; None if it needs torch's pickler."""
    try:
        if not args and not kwargs:
            return pickle.dumps((func, (), {}), 5), [], []
        return _values.dump((func, args, kwargs))
    except Exception:  # noqa: BLE001, torch's pickler may do better, and has its own texts
        return None


def _read(body: Any, parts: list[Any], references: list[Any]) -> Any:
    try:
        return _values.load(body, parts, references)
    except AttributeError as error:
        # The text is that of torch's pickler.
        missing = AttributeError(
            f"{error} Default RPC pickler does not serialize function code. Ensure that UDFs are defined on both caller "
            "and callee modules."
        )
        missing.__cause__ = error
        return missing


def _served(body: Any, parts: list[Any], references: list[Any]) -> tuple[bytes, list[Any], list[Any]]:
    """Answers a call of a waiting thread."""
    _check_policy()
    call = _read(body, parts, references)
    result = internal._run_function(call if isinstance(call, AttributeError) else internal.PythonUDF(*call))
    try:
        return _values.dump(result)
    except Exception:  # noqa: BLE001, as for the message of the call
        return _values.dump(_Long(_packed(result)))


_functions.raw(_CALL, _served)


def _invoke_rpc_python_udf(to: Any, pickled: bytes, tensors: list[Any], timeout: float, is_async: bool) -> Any:
    message = _message(to, pickled, tensors)
    return _call(to, _udf_async if is_async else _udf, message, timeout, _unpacked)


# A plain pickle would copy `Parameter`s. This pickler sends them as tensors, which operations
# accept.
_operands = internal._InternalRPCPickler()
_operands._register_reducer(torch.nn.Parameter, _operands._tensor_reducer)


def _operation(to: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the message of a torch operation in a context of autograd."""
    return _message(to, *_operands.serialize(internal.PythonUDF(_operate, (name, args, kwargs), {})))


def _invoke_rpc_builtin(to: Any, name: str, timeout: float, *args: Any, **kwargs: Any) -> Any:
    if _autograd.current() is not None:
        return _call(to, _udf, _operation(to, name, args, kwargs), timeout, _unpacked)
    return _call(to, _operate, (name, args, kwargs), timeout, lambda result: result)


def _remote(to: Any, function: Any, args: tuple[Any, ...], timeout: float) -> Any:
    try:
        made = _ours().inner.call_remote(to.id, function, args, None, _limit(timeout))
    except rdzv.RpcError as error:
        raise RuntimeError(_text(error)) from None
    return PyRRef._of(made)


def _invoke_remote_python_udf(to: Any, pickled: bytes, tensors: list[Any], timeout: float, is_async: bool) -> Any:
    message = _message(to, pickled, tensors)
    return _remote(to, _kept_udf_async if is_async else _kept_udf, message, timeout)


def _invoke_remote_builtin(to: Any, name: str, timeout: float, *args: Any, **kwargs: Any) -> Any:
    if _autograd.current() is not None:
        return _remote(to, _kept_udf, _operation(to, name, args, kwargs), timeout)
    return _remote(to, _operate, (name, args, kwargs), timeout)


def _not_offered(what: str) -> NotImplementedError:
    return NotImplementedError(f"{what} is not offered by BackendType.RDZV; use BackendType.TENSORPIPE for it")


def _invoke_rpc_torchscript(*_: Any, **__: Any) -> Any:
    raise _not_offered("calling TorchScript functions")


_invoke_remote_torchscript = _invoke_rpc_torchscript


# Distributed autograd
# -------------------------------------------------------------------------------------------------

def backward(context_id: int, roots: list[torch.Tensor], retain_graph: bool = False) -> None:
    try:
        _backward.backward(context_id, roots, retain_graph)
    except rdzv.RpcError as error:
        raise RuntimeError(str(error)) from None


def _pre_forward(module: Any, *inputs: Any, **kwargs: Any) -> Any:
    if _autograd.current() is not None and torch.is_grad_enabled():
        raise _not_offered("DistributedDataParallel in a context of distributed autograd")
    return _replaced.original[DistributedDataParallel, "_pre_forward"](module, *inputs, **kwargs)


# The agent
# --------------------------------------------------------------------------------------------------


def torch_is_set() -> bool:
    return bool(_replaced.original[api, "_is_current_rpc_agent_set"]())


def _is_current_rpc_agent_set() -> bool:
    return _current is not None or torch_is_set()


def _get_current_rpc_agent() -> Any:
    return _current


def _set_and_start_rpc_agent(agent: Any) -> None:
    if not isinstance(agent, TorchAgent):
        _replaced.original[api, "_set_and_start_rpc_agent"](agent)
        return
    global _current
    _current = agent
    agent.inner.start()


def _reset_current_rpc_agent() -> None:
    global _current
    _current = None
    _autograd.stop()
    _agent.install(None)
    _values.reference_class = rdzv.rpc.RRef


def _delete_all_user_and_unforked_owner_rrefs(*_: Any) -> None:
    for rref in list(_live):
        rref._rdzv_reference = None


def _destroy_rref_context(ignore_leak: bool) -> None:
    _delete_all_user_and_unforked_owner_rrefs()


def _cleanup_python_rpc_handler() -> None:
    pass


def get_rpc_timeout() -> float:
    timeout = _ours().inner._native.timeout
    return 0.0 if math.isinf(timeout) else timeout


def _set_rpc_timeout(timeout: float) -> None:
    _ours().inner._native.set_timeout(_limit(timeout))


def _wait_all_workers(timeout: float = 0) -> None:
    # A dynamic group has no list of workers that all workers know.
    if _ours().is_static_group:
        _replaced.original[api, "_wait_all_workers"](timeout)


def _rref_context_get_debug_info() -> dict[str, str]:
    traffic = _ours().inner._native.traffic()
    names = ("num_owner_rrefs", "num_forks", "num_pending_users", "num_pending_futures")
    return {name: str(traffic.get(name, 0)) for name in names}


def _install() -> None:
    _replaced.install({**vars(_autograd), **vars(_backward), **globals()}, lambda: _current is not None)
    # torch's own references stay registered in its pickler.
    pickler = internal._internal_rpc_pickler
    for kind in (_native_rref, _native_generic_rref):
        pickler._register_reducer(kind, pickler._py_rref_reducer)


def uninstall() -> None:
    """Restores torch's own functions.

    The backend stays registered, but can no longer be used.

    Raises:
        RuntimeError: an agent of rdzv is in use; call ``shutdown()`` first.

    Example:
        >>> import rdzv.torch.rpc
        >>> import torch.distributed.rpc as rpc
        >>> rpc.BackendType.RDZV.name
        'RDZV'
    """
    if _current is not None:
        raise RuntimeError("an agent of rdzv is in use: shutdown() first")
    _replaced.put_back()


def _store(store: Any) -> rdzv.Store:
    """Returns an rdzv store for a torch store.

    For a store with a server, the result is a separate client.
    """
    if isinstance(store, rdzv.Store):
        return store
    if isinstance(store, dist.PrefixStore):
        return rdzv.PrefixStore(_prefix(store), _store(store.underlying_store))
    if isinstance(store, dist.TCPStore):
        return rdzv.TCPStore(store.host, store.port)
    if isinstance(store, dist.FileStore):
        return rdzv.FileStore(store.path)
    return rdzv.Store.of(store)


def _prefix(store: Any) -> str:
    prefix = getattr(store, "prefix", None)
    # The prefix may be a method or missing. The counter has the same value on all workers.
    return prefix if isinstance(prefix, str) else f"rdzv_rpc_{torch_rpc._init_counter}"


def _construct(rpc_timeout: float, init_method: str, **kwargs: Any) -> RdzvRpcBackendOptions:
    return RdzvRpcBackendOptions(rpc_timeout=rpc_timeout, init_method=init_method, **kwargs)


def _device_maps(options: Any) -> dict[str, dict[str, str]]:
    maps = options.device_maps or {}
    return {to: {_named(source): _named(target) for source, target in one.items()} for to, one in maps.items()}


def _named(device: torch.device) -> str:
    return f"cuda:{device.index}" if device.type == _devices.framework.type else str(device)


def _init(store: Any, name: str, rank: int, world_size: int | None, rpc_backend_options: Any) -> TorchAgent:
    options = rpc_backend_options
    if not isinstance(options, torch_rpc.TensorPipeRpcBackendOptions):
        raise TypeError(
            f"`rpc_backend_options` must be a `TensorPipeRpcBackendOptions`, but got {type(options).__name__}"
        )
    if not isinstance(store, dist.Store):
        raise TypeError(f"`store` must be a c10d::Store. {store}")
    ours = {key: value for key, value in getattr(options, "rdzv", {}).items() if value is not None}
    inner = _agent_of(
        name,
        rank,
        world_size or None,
        _store(store),
        RpcOptions(
            num_worker_threads=options.num_worker_threads,
            rpc_timeout=math.inf if options.rpc_timeout == 0 else options.rpc_timeout,
            init_method=options.init_method,
            device_maps=_device_maps(options),
            devices=[_named(device) for device in options.devices or []],
            functions="any",
            **ours,
        ),
    )
    _agent.install(inner)
    _autograd.start(inner)
    _values.reference_class = PyRRef
    agent = TorchAgent(inner, store)
    agent.device_maps = dict(options.device_maps or {})
    return agent


def _agent_of(*arguments: Any) -> RdzvAgent:
    try:
        return RdzvAgent(*arguments)
    except rdzv.RpcError as error:
        if error.kind not in ("DeviceMap", "InvalidArgument"):
            raise
        # torch has this type for a wrong device map.
        raise ValueError(str(error)) from None


_install()
if not backend_registry.backend_registered("RDZV"):
    backend_registry.register_backend("RDZV", _construct, _init)
    # torch makes a new enumeration, and keeps the old one here.
    torch_rpc.BackendType = backend_registry.BackendType  # type: ignore[misc]
