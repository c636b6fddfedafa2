"""Tests of each call of PyTorch's TCPStore client, on both servers."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from conftest import connect

SHORT = timedelta(milliseconds=200)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(max_workers=16) as pool:
        yield pool


@pytest.mark.parametrize("value", ["text", "", b"\x00\xff\x00 bytes", "ünïcödé", "x" * 100_000])
def test_a_value_comes_back_as_it_was_set(client, value):
    client.set("key", value)
    assert client.get("key") == (value if isinstance(value, bytes) else value.encode())


def test_the_last_value_set_wins(client):
    client.set("key", "first")
    client.set("key", "second")
    assert client.get("key") == b"second"


def test_the_empty_key_is_a_key(client):
    client.set("", "nameless")
    assert client.get("") == b"nameless"
    assert client.list_keys() == [""]


def test_get_waits_for_another_client_to_set(server, client, pool):
    found = pool.submit(client.get, "late")
    other = connect(server)
    # The result is the same whether `get` or `set` arrives first.
    other.set("late", "here")
    assert found.result(30) == b"here"


def test_get_of_a_key_that_never_comes_names_it(server):
    client = connect(server, timeout=SHORT)
    with pytest.raises(dist.DistStoreError, match=r"wait timeout after 200ms, keys: /never"):
        client.get("never")


def test_wait_names_all_awaited_keys(client):
    client.set("here", "")
    with pytest.raises(dist.DistStoreError, match=r"wait timeout after 200ms, keys: /here, /gone"):
        client.wait(["here", "gone"], SHORT)


def test_a_client_lives_on_after_a_timeout(client):
    for _ in range(3):
        with pytest.raises(dist.DistStoreError):
            client.wait(["gone"], timedelta(milliseconds=20))
    client.set("key", "value")
    assert client.get("key") == b"value"


def test_a_timeout_of_nothing_looks_once(client):
    with pytest.raises(dist.DistStoreError, match="wait timeout after 0ms"):
        client.wait(["gone"], timedelta(0))


def test_set_timeout_is_what_get_obeys(client):
    client.set_timeout(SHORT)
    assert client.timeout == SHORT
    with pytest.raises(dist.DistStoreError, match="wait timeout after 200ms"):
        client.get("gone")


def test_wait_returns_when_the_last_of_many_is_set(server, client, pool):
    keys = [f"key {n}" for n in range(50)]
    done = pool.submit(client.wait, keys)
    setter = connect(server)
    for key in keys[:-1]:
        setter.set(key, "x")
    assert setter.num_keys() == 49 and not done.done()
    setter.set(keys[-1], "x")
    done.result(30)


@pytest.mark.parametrize(
    ("stored", "expected", "desired", "answer", "after"),
    [
        (None, "", "new", b"new", b"new"),
        (None, "old", "new", b"old", None),
        ("old", "old", "new", b"new", b"new"),
        ("other", "old", "new", b"other", b"other"),
        ("", "", "new", b"new", b"new"),
        ("old", "", "new", b"old", b"old"),
    ],
)
def test_compare_set(client, stored, expected, desired, answer, after):
    if stored is not None:
        client.set("key", stored)
    assert client.compare_set("key", expected, desired) == answer
    assert client.check(["key"]) == (after is not None)
    if after is not None:
        assert client.get("key") == after


def test_one_of_many_writers_wins_a_compare_set(server, pool):
    clients = [connect(server) for _ in range(8)]
    answers = pool.map(lambda n: clients[n].compare_set("key", "", f"writer {n}"), range(8))
    assert len(set(answers)) == 1


@pytest.mark.parametrize(
    ("stored", "delta", "sum_"),
    [(None, 0, 0), (None, -2, -2), ("41", 1, 42), (" \t+42", 1, 43), ("12abc", -2, 10)],
)
def test_add(client, stored, delta, sum_):
    if stored is not None:
        client.set("counter", stored)
    assert client.add("counter", delta) == sum_
    assert client.get("counter") == str(sum_).encode()


@pytest.mark.parametrize("stored", ["abc", "", "9223372036854775808"])
def test_add_to_no_number_costs_the_connection_and_nothing_else(server, client, stored):
    client.set("counter", stored)
    with pytest.raises(dist.DistNetworkError):
        client.add("counter", 1)
    assert connect(server).get("counter") == stored.encode()


def test_add_counts_every_client_once(server, pool):
    clients = [connect(server) for _ in range(16)]
    sums = list(pool.map(lambda client: [client.add("n", 1) for _ in range(50)], clients))
    assert sorted(number for part in sums for number in part) == list(range(1, 801))


def test_check_is_about_all_keys(client):
    client.multi_set(["a", "b"], ["1", "2"])
    assert client.check(["a", "b"])
    assert not client.check(["a", "c"])
    assert client.check([])


def test_delete_key_says_whether_it_was_there(client):
    client.set("key", "value")
    assert client.delete_key("key")
    assert not client.delete_key("key")
    assert not client.check(["key"])


def test_keys_are_counted_and_listed(client):
    client.multi_set(["a", "b", "c/d"], ["1", "2", "3"])
    client.add("e", 1)
    assert client.num_keys() == 4
    assert sorted(client.list_keys()) == ["a", "b", "c/d", "e"]


def test_append_creates_and_extends(client):
    client.append("log", "one ")
    client.append("log", "two")
    assert client.get("log") == b"one two"
    assert client.has_extended_api()


def test_multi_get_answers_in_order_and_repeats(client):
    client.multi_set(["a", "b", "empty"], ["1", "2", ""])
    assert client.multi_get(["b", "empty", "a", "b"]) == [b"2", b"", b"1", b"2"]
    assert client.multi_get([]) == []
    client.multi_set([], [])


def test_multi_get_waits_for_multi_set(server, client, pool):
    found = pool.submit(client.multi_get, ["x", "y"])
    connect(server).multi_set(["x", "y"], ["1", "2"])
    assert found.result(30) == [b"1", b"2"]


def test_multi_set_of_unequal_lists_is_refused(client):
    with pytest.raises(dist.DistStoreError, match="must be of same size"):
        client.multi_set(["a"], ["1", "2"])


def test_a_queue_is_first_in_first_out(client):
    assert client.queue_len("q") == 0
    for n in range(5):
        client.queue_push("q", f"item {n}")
    assert client.queue_len("q") == 5
    assert [client.queue_pop("q") for _ in range(5)] == [f"item {n}".encode() for n in range(5)]
    assert client.queue_len("q") == 0


def test_an_empty_queue_says_so(client):
    with pytest.raises(dist.QueueEmptyError, match="queue is empty"):
        client.queue_pop("q", block=False)


def test_a_blocking_pop_waits_for_a_push(server, client, pool):
    item = pool.submit(client.queue_pop, "q")
    connect(server).queue_push("q", "here")
    assert item.result(30) == b"here"


def test_a_queue_and_a_key_of_one_name_are_apart(client):
    client.queue_push("name", "queued")
    client.set("name", "set")
    assert client.get("name") == b"set"
    assert client.queue_pop("name") == b"queued"
    assert client.num_keys() == 1


def test_a_blocking_pop_gives_up_in_time(server):
    client = connect(server, timeout=SHORT)
    with pytest.raises(dist.DistStoreError, match="wait timeout after 200ms, keys: /q"):
        client.queue_pop("q")


def test_a_barrier_opens_for_the_last(server, pool):
    clients = [connect(server) for _ in range(8)]
    early = [pool.submit(client.barrier, "gate", 8) for client in clients[:-1]]
    clients[-1].barrier("gate", 8)
    for arrival in early:
        arrival.result(30)
    assert clients[0].get("gate") == b"8"


def test_a_barrier_that_lacks_one_gives_up_in_time(client):
    with pytest.raises(dist.DistStoreError, match="barrier timeout after 200ms, key: gate"):
        client.barrier("gate", 2, SHORT)


def test_a_used_barrier_lets_everybody_through(client):
    client.barrier("gate", 1)
    client.barrier("gate", 1)


def test_a_clone_is_a_second_connection(client, pool):
    clone = client.clone()
    blocked = pool.submit(client.get, "late")
    clone.set("late", "from the clone")
    assert blocked.result(30) == b"from the clone"


def test_joining_counts_the_workers(server):
    before = connect(server)
    connect(server, world_size=3, wait_for_workers=True)
    connect(server, world_size=3, wait_for_workers=True)
    assert before.num_keys() == 1  # `init/`, which is not in the list
    assert before.list_keys() == []


@pytest.mark.parametrize("size", [4096, 1 << 20, (8 << 20) - 1, 8 << 20])
def test_big_values(client, size):
    value = bytes(range(256)) * (size // 256) + b"!" * (size % 256)
    client.set("big", value)
    assert client.get("big") == value


def test_many_big_values_at_once(client):
    keys = [f"big {n}" for n in range(16)]
    values = [bytes([n]) * (1 << 20) for n in range(16)]
    client.multi_set(keys, values)
    assert client.multi_get(keys) == values


def test_a_prefix_store_on_top(client):
    outer = dist.PrefixStore("outer", dist.PrefixStore("inner", client))
    outer.set("key", "value")
    outer.queue_push("q", "item")
    assert client.get("inner/outer/key") == b"value"
    assert client.queue_pop("inner/outer/q") == b"item"
    assert outer.add("n", 3) == 3
    assert outer.compare_set("key", "value", "new") == b"new"
    assert sorted(outer.list_keys()) == ["key", "n"]
    outer.barrier("gate", 1)


def test_many_clients_meet(server, pool):
    # PyTorch's server resolves the name of every client, which can take seconds for each one.
    count = 64 if server.make == "rdzv" else 16
    clients = [connect(server) for _ in range(count)]
    for n, client in enumerate(clients):
        client.set(f"rank {n}", str(n))
    values = clients[0].multi_get([f"rank {n}" for n in range(count)])
    assert values == [str(n).encode() for n in range(count)]
    keys = [f"rank {n}" for n in range(count)]
    assert all(pool.map(lambda client: client.check(keys), clients))
