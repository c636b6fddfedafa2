"""Tests of rdzv's client on PyTorch's servers, compared with PyTorch's client."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import TorchServer, connect
from our_store import OurStore, StoreError


@pytest.fixture
def ours(torch_server):
    with OurStore.connected(torch_server, "--no-wait") as store:
        yield store


@pytest.fixture
def theirs(torch_server):
    return connect(torch_server)


@pytest.fixture
def libuv():
    server = TorchServer(libuv=True)
    yield server
    server.stop()


@pytest.mark.parametrize("value", [b"text", b"", bytes(range(256)), b"x" * 200_000])
def test_values_go_both_ways(ours, theirs, value):
    ours.set("from us", value)
    # The server has answered this client once, so all its earlier requests have arrived.
    assert ours.check(["from us"])
    assert theirs.get("from us") == value
    theirs.set("from them", value)
    assert theirs.check(["from them"])
    assert ours.get("from them") == value


def test_ours_waits_for_theirs(ours, theirs):
    ours.begin("get", "late")
    theirs.set("late", "here")
    assert ours.collect() == b"here".hex()


def test_theirs_waits_for_ours(ours, theirs):
    with ThreadPoolExecutor(max_workers=1) as pool:
        found = pool.submit(theirs.multi_get, ["a", "b"])
        ours.multi_set(["a", "b"], ["1", "2"])
        assert found.result(30) == [b"1", b"2"]


def test_a_timeout_names_what_was_missing_the_peer_and_the_time(torch_server, ours):
    ours.set("here", "")
    with pytest.raises(StoreError) as error:
        ours.wait(["here", "gone"], 200)
    text = str(error.value)
    assert re.search(r"timeout after ([2-9]\d\d|\d{4})ms", text), text
    assert "missing: gone" in text and str(torch_server.port) in text, text


def test_our_client_lives_on_after_a_timeout(ours, theirs):
    for _ in range(3):
        with pytest.raises(StoreError):
            ours.wait(["gone"], 20)
    theirs.set("key", "value")
    assert ours.get("key") == b"value"


def test_the_rest_of_the_calls(ours, theirs):
    assert ours.add("n", 5) == 5 and theirs.add("n", -7) == -2 and ours.add("n", 0) == -2
    assert ours.compare_set("key", "", "new") == b"new"
    assert ours.compare_set("key", "other", "newer") == b"new"
    assert ours.compare_set("absent", "expected", "newer") == b"expected"
    assert theirs.get("key") == b"new"
    ours.append("log", "one ")
    assert ours.check(["log"]) and not ours.check(["log", "absent"]) and ours.check([])
    theirs.append("log", "two")
    assert theirs.check(["log"])
    assert ours.multi_get(["log", "key", "log"]) == [b"one two", b"new", b"one two"]
    assert ours.num_keys() == 3 == theirs.num_keys()
    assert ours.list_keys() == ["key", "log", "n"] == sorted(theirs.list_keys())
    assert ours.delete_key("key") and not ours.delete_key("key")
    assert not theirs.check(["key"])


def test_keys_of_any_text(ours, theirs):
    for key in ["", "/", "a b", "ünï", "100%", "a/b//c"]:
        ours.set(key, key)
        assert ours.check([key])
        assert theirs.get(key) == key.encode()
    assert ours.list_keys() == sorted(theirs.list_keys())


def test_a_barrier_of_both(torch_server, ours):
    others = [connect(torch_server) for _ in range(3)]
    with ThreadPoolExecutor(max_workers=3) as pool:
        arrivals = [pool.submit(other.barrier, "gate", 4) for other in others]
        ours.barrier("gate", 4)
        for arrival in arrivals:
            arrival.result(30)


def test_a_clone_of_ours_is_a_connection_of_its_own(ours, theirs):
    ours.set("key", "value")
    ours.use_clone()
    assert theirs.get("key") == b"value" == ours.get("key")


def test_prefixes_are_those_of_their_prefix_store(torch_server, theirs):
    with OurStore.connected(
        torch_server, "--no-wait", "--prefix", "inner", "--prefix", "outer"
    ) as ours:
        ours.set("key", "value")
        assert ours.list_keys() == ["key"]
    assert theirs.get("inner/outer/key") == b"value"


def test_joining_counts_us_among_the_workers(torch_server, theirs):
    with OurStore.connected(torch_server, "--world-size", 2):
        assert theirs.num_keys() == 1
        assert theirs.list_keys() == []


def test_queues(libuv):
    theirs = connect(libuv)
    with OurStore.connected(libuv, "--no-wait") as ours:
        ours.queue_push("q", "one")
        assert ours.queue_len("q") == 1 == theirs.queue_len("q")
        assert theirs.queue_pop("q") == b"one"
        with pytest.raises(StoreError, match="empty"):
            ours.queue_pop("q", block=False)
        ours.begin("queue_pop", "q")
        theirs.queue_push("q", "two")
        assert ours.collect() == b"two".hex()


def test_a_big_value_both_ways(ours, theirs):
    value = bytes(range(256)) * (4 << 12)
    ours.set("big", value)
    assert ours.check(["big"])
    assert theirs.get("big") == value
    assert ours.get("big") == value


def test_a_server_that_goes_is_an_error_with_its_address():
    server = TorchServer(libuv=True)
    with OurStore.connected(server, "--no-wait") as ours:
        ours.set("key", "value")
        assert ours.get("key") == b"value"
        ours.begin("get", "never")
        server.stop()
        with pytest.raises(StoreError) as error:
            ours.collect()
        assert str(server.port) in str(error.value)


def test_nobody_there_is_an_error_with_the_address():
    server = TorchServer(libuv=True)
    port = server.port
    server.stop()
    with pytest.raises(StoreError, match=f"{port}"):
        OurStore(f"tcp://127.0.0.1:{port}", "--timeout-ms", 300)


def test_what_the_older_server_cannot_is_an_error_and_no_hang():
    server = TorchServer(libuv=False)
    with OurStore.connected(server, "--no-wait") as ours:
        with pytest.raises(StoreError):
            ours.queue_len("q")
    server.stop()
