"""Tests of the operations of every store."""

import math
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

import rdzv

KINDS = ["tcp", "file", "hash", "prefix", "foreign"]
QUEUES = ["tcp", "hash", "prefix", "foreign"]


@pytest.fixture
def make(request, server, tmp_path):
    """Creates further clients of one store."""
    kind = request.param

    def tcp():
        return rdzv.TCPStore(server.host, server.port, timeout=30.0)

    if kind == "tcp":
        return tcp
    if kind == "file":
        return lambda: rdzv.FileStore(tmp_path / "store")
    if kind == "prefix":
        return lambda: rdzv.PrefixStore("job", tcp())
    if kind == "foreign":
        import torch.distributed as dist

        return lambda: rdzv.Store.of(
            dist.TCPStore(server.host, server.port, wait_for_workers=False, timeout=timedelta(seconds=30))
        )
    store = rdzv.HashStore()
    return store.clone


@pytest.fixture
def store(make):
    return make()


every = pytest.mark.parametrize("make", KINDS, indirect=True)
with_queues = pytest.mark.parametrize("make", QUEUES, indirect=True)


@every
def test_a_value_comes_back_as_bytes(store):
    store.set("text", "ünïcödé")
    store.set("bytes", b"\x00\xff\x00")
    store.set("", "nameless")
    assert store.get("text") == "ünïcödé".encode()
    assert store.get("bytes") == b"\x00\xff\x00"
    assert store.get("") == b"nameless"


@every
def test_get_waits_for_another_client(make, store):
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(store.get, "late")
        make().set("late", "here")
        assert found.result(30) == b"here"


@every
def test_a_key_that_does_not_come_is_named_with_the_time(store):
    with pytest.raises(rdzv.StoreTimeout, match=r"never.*0\.1\d* s"):
        store.get("never", timeout=0.1)
    store.set("here", "x")
    with pytest.raises(TimeoutError, match="gone"):
        store.wait(["here", "gone"], timedelta(milliseconds=50))
    # The store is still usable afterwards.
    assert store.get("here") == b"x"


@every
def test_counting(make, store):
    assert store.add("n", 2) == 2
    assert make().add("n", -5) == -3
    assert store.get("n") == b"-3"


@every
def test_compare_set(store):
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "other", "second") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"
    assert store.compare_set("absent", "some", "second") == b"some"
    assert not store.check(["absent"])


@every
def test_many_keys_at_once(store):
    store.multi_set(["a", "b"], ["1", b"2"])
    assert store.multi_get(["b", "a"]) == [b"2", b"1"]
    assert store.check(["a", "b"]) and not store.check(["a", "c"])
    assert sorted(store.list_keys()) == ["a", "b"]
    assert store.num_keys() >= 2
    assert store.delete_key("a")
    assert not store.check(["a"])


@every
def test_append_creates_and_extends(store):
    store.append("log", "one ")
    store.append("log", "two")
    assert store.get("log") == b"one two"
    assert store.has_extended_api() or isinstance(store, rdzv.FileStore)


@with_queues
def test_a_queue_is_first_in_first_out(make, store):
    for item in range(3):
        store.queue_push("q", str(item))
    assert store.queue_len("q") == 3
    assert [make().queue_pop("q") for _ in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(rdzv.QueueEmpty, match="q"):
        store.queue_pop("q", block=False)


@with_queues
def test_a_blocking_pop_waits_for_a_push(make, store):
    with ThreadPoolExecutor(1) as pool:
        item = pool.submit(store.queue_pop, "q")
        make().queue_push("q", "here")
        assert item.result(30) == b"here"


@pytest.mark.parametrize("make", ["file"], indirect=True)
def test_a_file_store_has_no_queues(store):
    with pytest.raises(rdzv.StoreError, match="queue"):
        store.queue_push("q", "x")


@every
def test_a_barrier_opens_for_the_last(make, store):
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(make().barrier, "gate", 4) for _ in range(3)]
        store.barrier("gate", 4, 30.0)
        for arrival in early:
            arrival.result(30)


@every
def test_a_barrier_says_how_many_came(store):
    with pytest.raises(rdzv.StoreTimeout, match="1 of 3"):
        store.barrier("gate", 3, 0.1)


@every
def test_a_prefix_is_a_key_space_of_its_own(store):
    inner = store.prefix("part")
    assert isinstance(inner, rdzv.PrefixStore)
    inner.set("key", "value")
    assert store.get("part/key") == b"value"
    assert inner.list_keys() == ["key"]
    assert inner.underlying_store is store


@every
def test_a_clone_is_of_the_same_class_and_waits_apart(store):
    clone = store.clone()
    assert type(clone) is type(store)
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(store.get, "late")
        clone.set("late", "from the clone")
        assert blocked.result(30) == b"from the clone"


@every
def test_the_timeout_is_a_property(store):
    store.timeout = 5
    assert store.timeout == timedelta(seconds=5)
    store.set_timeout(timedelta(milliseconds=50))
    assert store.timeout == timedelta(milliseconds=50)
    with pytest.raises(rdzv.StoreTimeout):
        store.get("never")


def test_no_end_is_a_timeout(client):
    client.timeout = math.inf
    client.set("key", "value")
    assert client.get("key", timeout=math.inf) == b"value"
    assert client.timeout > timedelta(days=10_000)


def test_each_store_has_a_text_of_its_own(client, tmp_path):
    assert repr(client.prefix("p")) == f"PrefixStore('p', TCPStore('127.0.0.1', {client.port}))"
    assert repr(rdzv.FileStore(tmp_path / "f", 2)) == f"FileStore('{tmp_path}/f', 2)"
    assert client.host == "127.0.0.1"


def test_a_file_is_removed_by_the_last_of_its_objects(tmp_path):
    path = tmp_path / "store"
    with rdzv.FileStore(path, 1) as store:
        store.set("key", "value")
        assert path.exists() and store.path == str(path)
    assert not path.exists()


def test_a_store_of_ours_is_its_own_foreign_one():
    store = rdzv.HashStore()
    assert rdzv.Store.of(store) is store
    with pytest.raises(TypeError, match="list has no set"):
        rdzv.Store.of([])
