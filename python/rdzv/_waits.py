"""Waiting for store keys in coroutines."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta

    from rdzv._rdzv import Store


async def wait(
    store: Store, wanted: str, keys: list[str], timeout: float | timedelta | None
) -> bytes | None:
    """Waits for keys, a value or a queue item without blocking the event loop.

    ``wanted`` selects what to wait for.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    future: asyncio.Future[bytes | None] = loop.create_future()

    def finish(value: bytes | None, error: BaseException | None) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)
        elif wanted == "item" and value is not None:
            # The coroutine was cancelled after the store had taken the item from the queue.
            store.queue_push(keys[0], value)

    def done(value: bytes | None, error: BaseException | None) -> None:
        try:
            loop.call_soon_threadsafe(finish, value, error)
        except RuntimeError:
            # The event loop is closed, so no coroutine waits any more.
            if wanted == "item" and value is not None:
                store.queue_push(keys[0], value)

    number = store._begin_wait(wanted, keys, timeout, done)
    try:
        return await future
    except asyncio.CancelledError:
        store._cancel_wait(number)
        raise
