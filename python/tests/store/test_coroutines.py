"""Waits of coroutines: many at the same time, on one thread."""

import asyncio
import os
import threading
import time

import pytest

import rdzv


@pytest.fixture(params=["tcp", "prefix", "hash", "file"])
def store(request, server, tmp_path):
    if request.param == "tcp":
        return rdzv.TCPStore(server.host, server.port, timeout=30.0)
    if request.param == "prefix":
        return rdzv.TCPStore(server.host, server.port, timeout=30.0).prefix("a").prefix("b")
    if request.param == "file":
        return rdzv.FileStore(tmp_path / "store")
    return rdzv.HashStore()


def test_a_coroutine_waits_and_others_run(store):
    async def main():
        waiting = asyncio.create_task(store.aget("key"))
        await asyncio.sleep(0)
        store.set("key", "value")
        return await asyncio.wait_for(waiting, 30)

    assert asyncio.run(main()) == b"value"


def threads_of_waits():
    """Number of threads for all waits.

    A thread that it starts for a wait also has its name at first, until it sets another one.
    """
    tasks = [f"/proc/self/task/{task}/comm" for task in os.listdir("/proc/self/task")]
    names = [open(path).read().strip() for path in tasks if os.path.exists(path)]
    return names.count("rdzv-waits")


def test_many_waits_end_as_their_keys_come(store):
    count = 50

    async def main():
        values = [asyncio.create_task(store.aget(f"key {n}")) for n in range(count)]
        all_keys = asyncio.create_task(store.await_keys([f"key {n}" for n in range(count)]))
        until = time.monotonic() + 30
        while threads_of_waits() != 1 and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert threads_of_waits() == 1
        for n in reversed(range(count)):
            store.set(f"key {n}", str(n))
        await asyncio.wait_for(all_keys, 30)
        return await asyncio.wait_for(asyncio.gather(*values), 30)

    assert asyncio.run(main()) == [str(n).encode() for n in range(count)]


def test_a_timeout_names_the_key(store):
    async def main():
        began = time.monotonic()
        with pytest.raises(rdzv.StoreTimeout, match="never"):
            await store.aget("never", timeout=0.1)
        with pytest.raises(TimeoutError, match="gone"):
            await store.await_keys(["gone"], 0.1)
        assert time.monotonic() - began < 30
        with pytest.raises(ValueError, match="timeout is"):
            await store.aget("never", timeout=0)
        with pytest.raises(TypeError, match="list of str"):
            await store.await_keys("never")

    asyncio.run(main())


@pytest.mark.parametrize("store", ["tcp", "prefix", "hash"], indirect=True)
def test_items_of_a_queue_come_to_those_who_wait(store):
    async def main():
        waiting = [asyncio.create_task(store.aqueue_pop("q")) for _ in range(5)]
        await asyncio.sleep(0.01)
        for n in range(5):
            store.queue_push("q", str(n))
        return await asyncio.wait_for(asyncio.gather(*waiting), 30)

    assert sorted(asyncio.run(main())) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("store", ["tcp", "hash"], indirect=True)
def test_a_cancelled_wait_takes_no_item(store):
    async def main():
        waiting = asyncio.create_task(store.aqueue_pop("q"))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # An item that the store took before the cancellation returns to the queue.
        store.queue_push("q", "item")
        return await asyncio.wait_for(store.aqueue_pop("q"), 30)

    assert asyncio.run(main()) == b"item"


def test_a_server_that_ends_ends_the_wait(server):
    store = rdzv.TCPStore(server.host, server.port)

    async def main():
        waiting = asyncio.create_task(store.aget("never"))
        await asyncio.sleep(0.05)
        server.close()
        with pytest.raises(rdzv.StoreError, match=str(server.port)):
            await asyncio.wait_for(waiting, 30)

    asyncio.run(main())


def test_each_loop_gets_its_own(store):
    """Two event loops in two threads share the waiting thread."""
    found = []

    async def awaited(key):
        return await store.aget(key, timeout=30.0)

    threads = [threading.Thread(target=lambda key=key: found.append(asyncio.run(awaited(key)))) for key in "ab"]
    for thread in threads:
        thread.start()
    store.set("a", "1")
    store.set("b", "2")
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [b"1", b"2"]
