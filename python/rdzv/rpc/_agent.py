"""Agent of a process: its threads, and its incoming and outgoing calls."""

from __future__ import annotations

import abc
import json
import logging
import math
import os
import pickle
import threading

from rdzv import _rdzv
from rdzv._errors import RpcError
from rdzv.rpc import _devices, _errors, _functions, _serving, _values
from rdzv.rpc._future import Future

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable
    from typing import Any

    from rdzv._rdzv import RpcReference, RpcRequest, Store

_logger = logging.getLogger("rdzv.rpc")

# Value for the agent's own timeout, as in torch.
UNSET = -1.0

_request = _serving.request

NO_AGENT = "RPC has not been initialized. Call rdzv.rpc.init_rpc first."


class WorkerInfo:
    """Worker in a group.

    Args:
        name (str): name of the worker.
        id (int): rank of the worker.

    Example:
        >>> from rdzv import rpc
        >>> rpc.WorkerInfo("trainer", 1)
        WorkerInfo(id=1, name=trainer)
    """

    __slots__ = ("_name", "_id")

    def __init__(self, name: str, id: int) -> None:
        self._name, self._id = name, id

    @property
    def name(self) -> str:
        """str: name of the worker."""
        return self._name

    @property
    def id(self) -> int:
        """int: rank of the worker."""
        return self._id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerInfo) and (self._name, self._id) == (other._name, other._id)

    def __hash__(self) -> int:
        return self._id

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self._id}, name={self._name})"

    def __reduce__(self) -> tuple[object, ...]:
        return WorkerInfo, (self._name, self._id)


class RpcOptions:
    """Options of the agent of a worker. Times are in seconds.

    Args:
        num_worker_threads (int): maximum number of functions that run on threads at the same time.
            Default 16. Calls that come back to a worker while its function waits for them do not
            count. Together with such calls, at most 16 times this number, or 256 if that is more,
            run on threads at the same time.
        rpc_timeout (float): default timeout for calls; ``math.inf``: no timeout. Default 60.
        init_method (str): URL of the store through which the workers find each other. Default
            ``env://``.
        device_maps (dict | None): maps from CUDA devices of this worker to those of other workers,
            by the name of the worker, as in PyTorch: ``{"trainer": {0: 1}}``.
        devices (list | None): CUDA devices of this worker. Default: those in the maps.
        functions (str): policy for calls and values from other workers: ``"registered"``,
            ``"importable"`` (then with ``packages``) or ``"any"``.
        packages (list of str): packages whose functions and classes other workers may refer to.
        token (str | bytes | None): secret that all workers share, at least 16 bytes. Default: the
            secret of the job, if it has one.
        tls (dict | None): files ``certificate``, ``key`` and ``authorities``, in PEM. Default: no
            TLS.
        address (str | None): IP address at which other workers reach this host. Default: the
            address from which this host reaches the store.
        cuda_pool (int): maximum memory on each CUDA device for tensors on the way to workers on this
            host, in bytes. Default 1 GiB; 0: all tensors go through host memory.
        message_limit (int | None): maximum size of a message in bytes, at least 64 KiB. Default 4
            GiB. Use the same limit on all workers.
        heartbeat_limit (float | None): maximum silence of another host. Default 5.
        lease (float | None): maximum silence of a member of a dynamic group. Default 5. Use the
            same lease on all workers.
        init_deadline (float | None): time limit for forming or joining the group. Default 300.

    Raises:
        TypeError: an option is unknown, or has a wrong type.
        ValueError: an option has an invalid value. ``init_rpc`` checks further options, and raises ``RpcError``.

    Example:
        >>> from rdzv import rpc
        >>> rpc.RpcOptions(rpc_timeout=5.0).rpc_timeout
        5.0
    """

    def __init__(
        self,
        *,
        num_worker_threads: int = 16,
        rpc_timeout: float = 60.0,
        init_method: str = "env://",
        device_maps: dict[str, Any] | None = None,
        devices: list[Any] | None = None,
        functions: str = "registered",
        packages: Iterable[str] = (),
        token: str | bytes | None = None,
        tls: dict[str, str] | None = None,
        address: str | None = None,
        cuda_pool: int = 1 << 30,
        message_limit: int | None = None,
        heartbeat_limit: float | None = None,
        lease: float | None = None,
        init_deadline: float | None = None,
    ) -> None:
        if functions not in ("registered", "importable", "any"):
            raise ValueError(f'functions is {functions!r}: pass "registered", "importable" or "any"')
        packages = [packages] if isinstance(packages, str) else list(packages)
        if (functions == "importable") != bool(packages):
            raise ValueError('packages lists what functions="importable" can import: pass both, or neither')
        if isinstance(rpc_timeout, bool) or not isinstance(rpc_timeout, (int, float)):
            raise TypeError(f"rpc_timeout must be a number of seconds, not {type(rpc_timeout).__name__}")
        if not rpc_timeout > 0:
            raise ValueError(f"rpc_timeout is {rpc_timeout}: pass a positive number of seconds, or math.inf for no limit")
        self.num_worker_threads = num_worker_threads
        self.rpc_timeout = rpc_timeout
        self.init_method = init_method
        self.device_maps = device_maps or {}
        self.devices = devices or []
        self.functions = functions
        self.packages = packages
        self.token = token.decode() if isinstance(token, bytes) else token
        self.tls = tls
        self.address = address
        if not isinstance(cuda_pool, int) or not 0 <= cuda_pool < 1 << 48:
            raise ValueError(f"cuda_pool is {cuda_pool!r}: pass a number of bytes, or 0 for no pool")
        self.cuda_pool = cuda_pool
        self.message_limit = message_limit
        self.heartbeat_limit = heartbeat_limit
        self.lease = lease
        self.init_deadline = init_deadline

    def _words(self) -> str:
        """Returns the options in the form of the extension module."""
        words: dict[str, object] = {
            "num_worker_threads": self.num_worker_threads,
            "rpc_timeout": None if math.isinf(self.rpc_timeout) else self.rpc_timeout,
            "init_method": self.init_method,
            "device_maps": self.device_maps,
            "devices": self.devices,
            "tls": self.tls and {key: os.fspath(file) for key, file in self.tls.items()},
        }
        optional = ("token", "address", "message_limit", "heartbeat_limit", "lease", "init_deadline")
        words.update((key, value) for key in optional if (value := getattr(self, key)) is not None)
        return json.dumps(words)

    def __repr__(self) -> str:
        shown = {key: value for key, value in vars(self).items() if value and key != "token"}
        return f"RpcOptions({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


class Agent(abc.ABC):
    """Agent that an init handler of :mod:`rdzv.rpc.backend_registry` returns."""

    @abc.abstractmethod
    def get_worker_info(self, name_or_id: str | int | WorkerInfo | None = None) -> WorkerInfo:
        """Returns a worker of the group.

        Args:
            name_or_id (str | int | WorkerInfo | None): name or rank of the worker. Default: this
                worker.

        Returns:
            WorkerInfo: name and rank.
        """

    @abc.abstractmethod
    def get_worker_infos(self) -> list[WorkerInfo]:
        """Returns all workers of the group.

        Returns:
            list[WorkerInfo]: names and ranks.
        """

    @abc.abstractmethod
    def send(
        self, to: WorkerInfo, message: tuple[Any, tuple[Any, ...], dict[str, Any]], timeout: float
    ) -> Future[Any]:
        """Calls a function on a worker.

        Args:
            to (WorkerInfo): the worker.
            message (tuple): function, arguments and keyword arguments.
            timeout (float): time limit in seconds; ``UNSET`` for the limit of the agent.

        Returns:
            Future: the future of the result.
        """

    @abc.abstractmethod
    def start(self) -> None:
        """Starts to serve calls. ``init_rpc`` calls it once."""

    @abc.abstractmethod
    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Waits until all workers have finished their calls.

        Args:
            shutdown (bool): True to shut the agent down afterwards.
            timeout (float): maximum time to wait in seconds; 0 for no limit.
        """

    @abc.abstractmethod
    def sync(self) -> None:
        """Waits for the calls that this agent has made."""

    @abc.abstractmethod
    def shutdown(self) -> None:
        """Stops the agent immediately; does nothing if it has stopped."""

    @abc.abstractmethod
    def get_metrics(self) -> dict[str, str]:
        """Returns the metrics of the agent.

        Returns:
            dict[str, str]: values by name.
        """

    @abc.abstractmethod
    def get_debug_info(self) -> dict[str, str]:
        """Returns information for debugging.

        Returns:
            dict[str, str]: values by name.
        """


def _timeout(timeout: float | None) -> float | None:
    """Returns a timeout in the form of the extension; None is the agent's own."""
    if timeout is None:
        raise ValueError("timeout is None: pass seconds, pass math.inf for no limit, or omit it")
    return None if timeout == UNSET else timeout


class RdzvAgent(Agent):
    """Agent of the built-in backend."""

    def __init__(
        self, name: str, rank: int | None, world_size: int | None, store: Store | None, options: RpcOptions
    ) -> None:
        self.options = options
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._threads = 0
        self._most_threads = _rdzv.RpcAgent.most_threads(options.num_worker_threads)
        self._done_threads = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._native = _rdzv.RpcAgent(name, rank, world_size, store, options._words(), (_devices.count(options), options.cuda_pool))
        self._me = WorkerInfo(*self._native.me)

    # Threads
    # ----------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        """Starts another thread for calls, unless the limit is reached."""
        with self._lock:
            # One thread waits for calls that come back while all others are inside a call.
            if self._threads >= self._most_threads:
                return
            self._threads += 1
            number = self._threads
        name = f"rpc:{self._me.name}:{number}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        # No frame of the extension is below this one, so the end of the interpreter may stop it
        # anywhere.
        native, serve = self._native, self._serve
        _serving.thread.on = True
        _serving.agent.set(native)
        is_plain = False
        try:
            while (taken := native.next_request(is_plain)) is not None:
                request, is_plain, is_last = taken
                if is_last:
                    self._spawn()
                serve(request)
                del request, taken
        except RuntimeError:
            # The agent was shut down, or the interpreter ends.
            pass

    def _watch(self) -> None:
        """Ensures that a thread can report the end of a watched future."""
        if not self._done_threads:
            self._spawn_done()

    def _spawn_done(self) -> None:
        with self._lock:
            # A callback that waits for another future must not delay the report of that future.
            if self._done_threads >= max(self.options.num_worker_threads, 2):
                return
            self._done_threads += 1
            number = self._done_threads
        name = f"rpc:{self._me.name}:done:{number}"
        threading.Thread(target=self._tell, name=name, daemon=True).start()

    def _tell(self) -> None:
        native = self._native
        try:
            while (taken := native.next_done()) is not None:
                settle, is_last = taken
                if is_last:
                    self._spawn_done()
                try:
                    settle()
                except Exception:
                    _logger.exception("the callback for the end of a call failed")
                del settle, taken
        except RuntimeError:
            pass

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """Returns the event loop for coroutines and short functions.

        It has a separate thread.
        """
        with self._lock:
            if self._loop is None:
                import asyncio

                loop = self._loop = asyncio.new_event_loop()
                name = f"rpc:{self._me.name}:loop"
                threading.Thread(target=loop.run_forever, name=name, daemon=True).start()
            return self._loop

    # Incoming calls
    # ----------------------------------------------------------------------------------------------

    def _serve(self, request: RpcRequest) -> None:
        before = _request.set(request)
        streams = None
        try:
            if request.sends:
                self._answer(request, request.value)
                return
            if request.is_cancelled:
                raise _errors.Refused("Cancelled", "the caller no longer waits for the call")
            entry = _functions.resolve(request.function) if request.function else None
            content = request.take()
            # The event loop runs its functions with the default streams.
            if content[1] and (entry is None or (entry.blocking and not entry.is_coroutine)):
                streams = _devices.entered(content[1])
            if entry is not None and entry.is_raw:
                request.reply(*entry.call(*content))
                return
            if not content[0]:
                message: list[Any] = [(), {}]
            else:
                try:
                    loaded = _values.load(*content)
                except (pickle.UnpicklingError, ValueError) as error:
                    if _values.policy.mode == "any":
                        raise
                    _logger.warning("a call of %s was refused: %s", request.caller[0], error)
                    raise _errors.Refused("Protocol", str(error)) from None
                if entry is None:
                    call, *message = loaded
                    if _values.policy.mode != "any" or not callable(call):
                        raise _errors.Refused("NoSuchMethod", 'only functions="any" admits callables without a name')
                    entry = _functions.Entry(call)
                else:
                    message = list(loaded)
                del loaded
            del content
            if entry is None:
                raise _errors.Refused("NoSuchMethod", "the call specifies no function")
            if entry.is_coroutine:
                self._run_coroutine(request, entry, *message)
                return
            if not entry.blocking:
                self._event_loop().call_soon_threadsafe(self._run, request, entry, message)
                return
            self._run(request, entry, message)
        except BaseException as error:  # noqa: BLE001, it is the result
            _errors.fail(request, error)
        finally:
            if streams is not None:
                streams.close()
            _request.reset(before)

    def _run(self, request: RpcRequest, entry: _functions.Entry, message: list[Any]) -> None:
        try:
            # The arguments are dropped before the caller gets its answer, because the next call
            # needs their memory.
            args, kwargs = message
            message.clear()
            result = entry.call(*args, **kwargs)
            del args, kwargs
            if _functions.is_async_execution(entry.call):
                self._answer_later(request, result)
            else:
                self._answer(request, result)
        except BaseException as error:  # noqa: BLE001, it is the result
            _errors.fail(request, error)

    def _run_coroutine(self, request: RpcRequest, entry: _functions.Entry, args: Any, kwargs: Any) -> None:
        import asyncio

        def end(done: Any) -> None:
            try:
                self._answer(request, done.result())
            except BaseException as error:  # noqa: BLE001, it is the result
                _errors.fail(request, error)

        asyncio.run_coroutine_threadsafe(entry.call(*args, **kwargs), self._event_loop()).add_done_callback(end)

    def _answer_later(self, request: RpcRequest, future: Any) -> None:
        if not callable(getattr(future, "add_done_callback", None)):
            kind = type(future)
            raise TypeError(
                "Functions decorated with @rpc.functions.async_execution must return a rdzv.rpc.Future object, but got "
                f"{kind.__module__}.{kind.__qualname__}"
            )

        def end(done: Any) -> None:
            try:
                self._answer(request, done.value() if hasattr(done, "value") else done.result())
            except BaseException as error:  # noqa: BLE001, it is the result
                _errors.fail(request, error)

        future.add_done_callback(end)

    def _answer(self, request: RpcRequest, result: object) -> None:
        if request.keeps:
            # Otherwise two owners would keep the value of a reference.
            _devices.settle(self._native)
            request.keep(result)
            return
        try:
            content = _values.dump(result)
        except Exception as error:
            kind = type(result)
            name = request.function or "the value of a reference"
            text = f"the result of {name}, a {kind.__module__}.{kind.__qualname__}, cannot be sent: {error}"
            raise TypeError(text) from error
        request.reply(*content)

    # Outgoing calls
    # --------------------------------------------------------------------------------------------

    def _outgoing(self, func: Any, args: Any, kwargs: Any) -> tuple[str, bytes, list[Any], list[RpcReference]]:
        if not callable(func):
            raise TypeError("function should be callable.")
        name = _functions.name_of(func)
        args = () if args is None else tuple(args)
        kwargs = kwargs or {}
        if name is not None and not args and not kwargs:
            return name, b"", [], []
        message = (args, kwargs) if name is not None else (func, args, kwargs)
        try:
            return (name or "", *_values.dump(message))
        except Exception as error:
            raise _not_sent(func, name, args, kwargs, error) from error

    def _to(self, to: str | int | WorkerInfo) -> str | int:
        if isinstance(to, WorkerInfo):
            return to.id
        if isinstance(to, (str, int)) and not isinstance(to, bool):
            if isinstance(to, int) and not 0 <= to < 1 << 32:
                raise RpcError(f"could not find destination id {to}: ids are ranks (0 or more)", kind="UnknownWorker")
            return to
        raise ValueError(f"Cannot get WorkerInfo from name {to}")

    def call_sync(self, to: str | int | WorkerInfo, func: Any, args: Any, kwargs: Any, timeout: float | None) -> Any:
        name, body, parts, references = self._outgoing(func, args, kwargs)
        return _values.load(*self.call_raw(to, name, body, parts, references, _timeout(timeout)))

    def call_raw(
        self,
        to: str | int | WorkerInfo,
        name: str,
        body: bytes,
        parts: list[Any],
        references: list[RpcReference],
        timeout: float | None,
    ) -> tuple[Any, list[Any], list[RpcReference]]:
        """Sends a message to a function by name, and returns its result message."""
        request = _request.get()
        if request is None:
            return self._native.call_sync(self._to(to), name, body, parts, references, timeout, None)
        return _serving.blocked(self._native.call_sync, self._to(to), name, body, parts, references, timeout, request)

    def call_async(
        self, to: str | int | WorkerInfo, func: Any, args: Any, kwargs: Any, timeout: float | None
    ) -> Future[Any]:
        name, body, parts, references = self._outgoing(func, args, kwargs)
        call = self._native.call_async(
            self._to(to), name, body, parts, references, _timeout(timeout), _request.get()
        )
        return Future._of(call, self._watch)

    def call_remote(
        self, to: str | int | WorkerInfo, func: Any, args: Any, kwargs: Any, timeout: float | None
    ) -> RpcReference:
        name, body, parts, references = self._outgoing(func, args, kwargs)
        return self._native.remote(
            self._to(to), name, body, parts, references, _timeout(timeout), _request.get()
        )

    # Methods of `Agent`
    # ------------------------------------------------------------------------------------------

    def get_worker_info(self, name_or_id: str | int | WorkerInfo | None = None) -> WorkerInfo:
        if name_or_id is None:
            return self._me
        if isinstance(name_or_id, WorkerInfo):
            name_or_id = name_or_id.id
        return WorkerInfo(*self._native.worker(self._to(name_or_id)))

    def get_worker_infos(self) -> list[WorkerInfo]:
        return [WorkerInfo(*worker) for worker in self._native.workers()]

    def send(self, to: WorkerInfo, message: tuple[Any, tuple[Any, ...], dict[str, Any]], timeout: float) -> Future[Any]:
        return self.call_async(to, *message, timeout)

    def start(self) -> None:
        """Starts to serve calls.

        Earlier calls wait until then, so that their functions find the process's agent.
        """
        self._spawn()

    def sync(self) -> None:
        pass

    def join(self, shutdown: bool = False, timeout: float = 0) -> None:
        """Waits until no call is in flight and the group can shut down.

        Afterwards the agent has stopped.
        """
        try:
            self._native.shutdown(True, math.inf if timeout == 0 else timeout)
        finally:
            self._end_loop()

    def shutdown(self) -> None:
        try:
            self._native.shutdown(False, None)
        except RuntimeError:
            # The agent has already ended.
            pass
        self._end_loop()

    def _end_loop(self) -> None:
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def get_metrics(self) -> dict[str, str]:
        traffic = self._native.traffic()
        return {f"agent.{key}": str(value) for key, value in traffic.items() if key not in ("peers", "devices")}

    def get_debug_info(self) -> dict[str, str]:
        traffic = self._native.traffic()
        info = {f"agent.{key}": str(value) for key, value in traffic.items() if key not in ("peers", "devices")}
        info.update((f"agent.{name}", value) for name, value in traffic["devices"])
        info["agent.thread_pool_size"] = str(self.options.num_worker_threads)
        for name, (transport, reason, _) in traffic["peers"].items():
            info[f"agent.transport.{name}"] = f"{transport}: {reason}"
        return info


def _not_sent(func: Any, name: str | None, args: Any, kwargs: Any, error: Exception) -> Exception:
    """Returns the error that names the argument which cannot be sent."""
    if isinstance(error, ValueError):
        return type(error)(str(error))
    if name is None:
        try:
            _values.dump(func)
        except Exception as failed:
            return TypeError(
                f"{func!r} cannot be sent: functions are sent by name, so it must be defined in a module, or registered "
                f"with @rpc.function(name=...) ({failed})"
            )
    where = _path([("args", args), ("kwargs", kwargs)])
    return TypeError(f"{where} cannot be sent: {error}")


def _path(items: list[tuple[str, Any]]) -> str:
    """Returns the path to the innermost part that cannot be pickled."""
    for path, value in items:
        try:
            _values.dump(value)
        except Exception:
            inner: list[tuple[str, Any]] = []
            if isinstance(value, (list, tuple)):
                inner = [(f"{path}[{index}]", one) for index, one in enumerate(value)]
            elif isinstance(value, dict):
                inner = [(f"{path}[{key!r}]", one) for key, one in value.items()]
            return _path(inner) or path
    return ""


_agent: Agent | None = None
_starting = threading.Lock()


def current() -> RdzvAgent:
    agent = _agent
    if not isinstance(agent, RdzvAgent):
        raise RuntimeError(NO_AGENT)
    return agent


def install(agent: Agent | None) -> None:
    global _agent
    _agent = agent
    _devices.agent = agent._native if isinstance(agent, RdzvAgent) else None
    if isinstance(agent, RdzvAgent):
        _values.policy = _values.Policy(agent.options.functions, agent.options.packages)


def any_agent() -> Agent | None:
    return _agent


def _after_fork() -> None:
    # The parent owns the agent; the child may make another one.
    global _agent, _starting
    _left.append(_agent)
    _agent = _devices.agent = None
    _starting = threading.Lock()


# Agents that a child has from its parent. They are not dropped.
_left: list[Agent | None] = []

os.register_at_fork(after_in_child=_after_fork)


def _at_exit() -> None:
    agent = _agent
    if isinstance(agent, RdzvAgent):
        try:
            agent._native.close_queues()
        except RuntimeError:
            pass


def _register_exit() -> None:
    import atexit

    atexit.register(_at_exit)


_register_exit()
