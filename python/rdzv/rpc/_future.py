"""Futures: results that may not have arrived yet."""

from __future__ import annotations

import collections
import contextvars
import logging
import threading
from typing import Generic, TypeVar

from rdzv._errors import Deadline, RpcError
from rdzv.rpc import _devices, _serving, _values

TYPE_CHECKING = False
if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Callable, Generator
    from typing import Any

    from rdzv._rdzv import RpcFuture

T = TypeVar("T")
U = TypeVar("U")

_logger = logging.getLogger("rdzv.rpc")


# A chain of futures completes callback inside callback. Python limits the depth of calls.
_MOST_NESTED = 32


class _Running(threading.local):
    """Callbacks that this thread runs."""

    def __init__(self) -> None:
        self.depth = 0
        self.later: collections.deque[tuple[Future[Any], contextvars.Context, Callable[[Future[Any]], object]]] = (
            collections.deque()
        )


_running = _Running()


class Future(Generic[T]):
    """Future result of a call; any asyncio event loop can await it.

    A future without a call gets its result from :meth:`set_result`. It is for functions with
    :func:`rdzv.rpc.functions.async_execution`.

    Example:
        >>> from rdzv import rpc
        >>> future = rpc.Future()
        >>> doubled = future.then(lambda done: 2 * done.value())
        >>> future.set_result(21)
        >>> doubled.wait()
        42
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._asked = False
        self._callbacks: list[tuple[contextvars.Context, Callable[[Future[T]], object]]] = []
        self._waiters: list[threading.Lock] = []
        # Ends of the work that creates the tensors of the value on devices.
        self._marks: list[Any] = []
        # Attributes of a call.
        self._call: RpcFuture | None = None
        self._watched: Callable[[], None] | None = None

    @classmethod
    def _of(cls, call: RpcFuture, watched: Callable[[], None]) -> Future[Any]:
        """Makes the future of a call.

        `watched` is called before a thread must report the completion for the first time.
        """
        future: Future[Any] = cls()
        future._call, future._watched = call, watched
        return future

    def wait(self, timeout: float | None = None) -> T:
        """Waits for the result.

        Args:
            timeout (float | None): maximum time to wait in seconds; the call continues afterwards.
                Default: until the call ends, at the latest when it times out.

        Returns:
            object: the result.

        Raises:
            Deadline: the result did not arrive in time.
            Exception: the exception of the call.

        Example:
            >>> from rdzv import rpc
            >>> future = rpc.Future()
            >>> future.set_result("ready")
            >>> future.wait()
            'ready'
        """
        if not self._is_done:
            call = self._call
            if call is not None:
                if not _serving.blocked(call.wait, timeout):
                    raise self._late(timeout)
                self._settle()
            else:
                _serving.blocked(self._block, timeout)
        try:
            return self.value()
        finally:
            # The exception, which this future has, refers to this frame. Without a cycle it is
            # dropped with its last user.
            del self

    def _block(self, timeout: float | None) -> None:
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if self._is_done:
                return
            self._waiters.append(waiter)
        if not waiter.acquire(timeout=-1 if timeout is None else timeout):
            raise self._late(timeout)

    def _late(self, timeout: float | None) -> Deadline:
        return Deadline(f"the result did not arrive within {timeout} s; wait again, or longer", kind="Deadline")

    def done(self) -> bool:
        """Returns True if the call has completed.

        Returns:
            bool: True after success and after failure.

        Example:
            >>> from rdzv import rpc
            >>> rpc.Future().done()
            False
        """
        return self._is_done or (self._call is not None and self._call.is_done)

    def value(self) -> T:
        """Returns the result; the call must have completed.

        Returns:
            object: the result.

        Raises:
            RuntimeError: the result has not arrived.
            Exception: the exception of the call.

        Example:
            >>> from rdzv import rpc
            >>> future = rpc.Future()
            >>> future.set_result(1)
            >>> future.value()
            1
        """
        if not self._is_done:
            if self._call is None or not self._call.is_done:
                raise RuntimeError("the result is not available yet: call wait() first")
            self._settle()
        self._asked = True
        for mark in self._marks:
            _devices.framework.join(mark)
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self
        return self._value  # type: ignore[no-any-return]

    def exception(self) -> BaseException | None:
        """Waits until the call has completed, and returns its exception.

        Returns:
            BaseException | None: the exception; None if the call has succeeded.

        Example:
            >>> from rdzv import rpc
            >>> future = rpc.Future()
            >>> future.set_exception(KeyError("weights"))
            >>> future.exception()
            KeyError('weights')
        """
        try:
            self.wait()
        except BaseException as error:  # noqa: BLE001, it is the result
            if not self._is_done or error is not self._error:
                raise
        return self._error

    def then(self, callback: Callable[[Future[T]], U]) -> Future[U]:
        """Calls a function with this future as soon as the result has arrived.

        Args:
            callback (callable): function that gets this future, which has completed. It runs on a
                thread of the agent, or on the thread that waits for or sets the result. If the
                result was already read or set, it runs immediately.

        Returns:
            Future: the future of the return value or exception of the callback.

        Example:
            >>> from rdzv import rpc
            >>> future = rpc.Future()
            >>> future.set_result(2)
            >>> future.then(lambda done: done.value() + 1).wait()
            3
        """
        after: Future[U] = Future()

        def run(done: Future[T]) -> None:
            try:
                value = callback(done)
            except BaseException as error:  # noqa: BLE001, it is the result
                after._finish(None, error)
            else:
                after._finish(value, None)

        self.add_done_callback(run)
        return after

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """Registers a function to call when the result has arrived.

        Its exceptions are logged.

        Args:
            callback (callable): function that gets this future. It runs in a copy of the current
                context, on a thread of the agent, or on the thread that waits for or sets the
                result. If the result was already read or set, it runs immediately.

        Example:
            >>> from rdzv import rpc
            >>> future = rpc.Future()
            >>> future.add_done_callback(lambda done: print(done.value()))
            >>> future.set_result("ready")
            ready
        """
        watch = False
        with self._lock:
            if not self._is_done:
                watch = self._call is not None and not self._callbacks
                self._callbacks.append((contextvars.copy_context(), callback))
                callback = None  # type: ignore[assignment]
        if callback is not None:
            self._run(contextvars.copy_context(), callback)
        elif watch and self._call is not None:
            if self._watched is not None:
                self._watched()
            self._call.watch(self._settle)

    def _run_all(self, callbacks: list[tuple[contextvars.Context, Callable[[Future[T]], object]]]) -> None:
        """Runs the callbacks, or leaves them to the outermost callback."""
        if _running.depth == _MOST_NESTED:
            _running.later.extend((self, *callback) for callback in callbacks)
            return
        _running.depth += 1
        try:
            for context, callback in callbacks:
                self._run(context, callback)
            while _running.depth == 1 and _running.later:
                future, context, callback = _running.later.popleft()
                future._run(context, callback)
        finally:
            _running.depth -= 1

    def _run(self, context: contextvars.Context, callback: Callable[[Future[T]], object]) -> None:
        try:
            context.run(callback, self)
        except Exception:
            _logger.exception("a callback of a future failed")

    def set_result(self, result: T) -> None:
        """Sets the result of a future without a call.

        Args:
            result (object): the result.

        Raises:
            RuntimeError: the future has a result, or belongs to a call.

        Example:
            >>> from rdzv import rpc
            >>> future = rpc.Future()
            >>> future.set_result(5)
        """
        self._set(result, None)

    def set_exception(self, exception: BaseException) -> None:
        """Sets the exception of a future without a call.

        Args:
            exception (BaseException): the exception.

        Raises:
            RuntimeError: the future has a result, or belongs to a call.

        Example:
            >>> from rdzv import rpc
            >>> future = rpc.Future()
            >>> future.set_exception(ValueError("no weights"))
        """
        if not isinstance(exception, BaseException):
            raise TypeError(f"{exception!r} is not an exception")
        self._set(None, exception)

    def _set(self, value: Any, error: BaseException | None) -> None:
        if self._call is not None:
            raise RuntimeError("this future belongs to a call, which sets the result")
        agent = _serving.agent.get()
        if agent is not None:
            self._marks = [_devices.framework.mark(index) for index in agent.devices]
        if not self._finish(value, error):
            raise RuntimeError("the future already has a result")

    def _finish(self, value: Any, error: BaseException | None) -> bool:
        with self._lock:
            if self._is_done:
                return False
            return self._finish_locked(value, error)

    def _finish_locked(self, value: Any, error: BaseException | None) -> bool:
        self._value, self._error = value, error
        self._is_done = True
        callbacks, self._callbacks = self._callbacks, []
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()
        if callbacks:
            self._lock.release()
            try:
                self._run_all(callbacks)
            finally:
                self._lock.acquire()
        return True

    def _settle(self) -> None:
        """Takes the result of the call, which has ended."""
        with self._lock:
            if self._is_done or self._call is None:
                return
            try:
                content = self._call.take()
                value = None if content is None else _values.load(*content)
                if content is not None and content[1]:
                    self._marks = [_devices.framework.mark(index) for index in _devices.indices(content[1])]
            except BaseException as error:  # noqa: BLE001, it is the result
                # A traceback with this frame would be a cycle.
                self._finish_locked(None, error.with_traceback(None))
            else:
                self._finish_locked(value, None)

    def cancel(self) -> bool:
        """Cancels the call.

        A running function is notified, and a function that has not started never runs.

        Returns:
            bool: True if the future had no result.

        Example:
            >>> from rdzv import rpc
            >>> rpc.Future().cancel()
            True
        """
        if self._call is not None:
            was_done = self._call.is_done
            self._call.cancel()
            return not was_done
        return self._finish(None, RpcError("the future was cancelled", kind="Cancelled"))

    def future(self) -> concurrent.futures.Future[T]:
        """Returns a future of ``concurrent.futures`` with the same result.

        Returns:
            concurrent.futures.Future: a future with the same result or exception.

        Example:
            >>> from rdzv import rpc
            >>> future = rpc.Future()
            >>> future.set_result(1)
            >>> future.future().result()
            1
        """
        import concurrent.futures

        other: concurrent.futures.Future[T] = concurrent.futures.Future()

        def end(done: Future[T]) -> None:
            if not other.set_running_or_notify_cancel():
                return
            error = done.exception()
            if error is not None:
                done._asked = True
                other.set_exception(error)
            else:
                other.set_result(done.value())

        self.add_done_callback(end)
        return other

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        loop = asyncio.get_running_loop()
        arrived: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not arrived.done():
                arrived.set_result(None)

        def notify(_: object) -> None:
            try:
                loop.call_soon_threadsafe(end)
            except RuntimeError:
                # The loop was closed, and no coroutine waits any more.
                pass

        self.add_done_callback(notify)
        try:
            yield from arrived.__await__()
        except asyncio.CancelledError:
            self.cancel()
            raise
        return self.value()

    def __del__(self) -> None:
        # During the end of the interpreter, or after a failed __init__, attributes may be missing.
        try:
            call = self._call
            if call is None or self._asked:
                return
            error = self._error
            if error is None and not self._is_done and call.is_done and call.has_failed:
                try:
                    call.take()
                except BaseException as failed:  # noqa: BLE001, it is reported
                    error = failed
            if error is not None:
                _logger.error("a call failed, and no code has read its result: %s", error)
        except Exception:  # noqa: BLE001, S110
            pass

    def __repr__(self) -> str:
        return f"<rdzv.rpc.Future, {'done' if self.done() else 'not done'}>"


Future.__module__ = "rdzv.rpc"
