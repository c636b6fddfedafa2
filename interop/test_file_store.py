"""Tests of one file that PyTorch's FileStore and rdzv use at the same time."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from our_store import OurStore, StoreError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def open_ours(path, *options):
    return OurStore(f"file://{path}", "--timeout-ms", 30_000, *options)


def open_theirs(path, world_size=-1):
    store = dist.FileStore(str(path), world_size)
    store.set_timeout(timedelta(seconds=30))
    return store


@pytest.fixture
def both(path):
    theirs = open_theirs(path)
    with open_ours(path) as ours:
        yield ours, theirs


@pytest.mark.parametrize("value", [b"text", b"", bytes(range(256)), b"x" * 100_000])
def test_values_go_both_ways(both, value):
    ours, theirs = both
    ours.set("from us", value)
    assert theirs.get("from us") == value
    theirs.set("from them", value)
    assert ours.get("from them") == value
    theirs.set("from us", b"changed")
    assert ours.get("from us") == b"changed"


def test_each_waits_for_the_other(both):
    ours, theirs = both
    ours.begin("get", "late")
    theirs.set("late", "here")
    assert ours.collect() == b"here".hex()
    with ThreadPoolExecutor(max_workers=1) as pool:
        done = pool.submit(theirs.wait, ["x", "y"])
        ours.set("x", "1")
        ours.set("y", "2")
        done.result(30)


def test_counters_are_shared(both):
    ours, theirs = both
    for n in range(0, 20, 2):
        assert ours.add("n", 1) == n + 1
        assert theirs.add("n", 1) == n + 2
    assert theirs.get("n") == b"20" == ours.get("n")


def test_counters_survive_a_race(path):
    def count_theirs():
        store = open_theirs(path)
        for _ in range(50):
            store.add("n", 1)

    with ThreadPoolExecutor(max_workers=2) as pool, open_ours(path) as first:
        with open_ours(path) as second:
            theirs = [pool.submit(count_theirs) for _ in range(2)]
            for store in (first, second):
                for _ in range(50):
                    store.begin("add", "n", 1)
            sums = {int(store.collect()) for store in (first, second) for _ in range(50)}
            for counted in theirs:
                counted.result(60)
            assert len(sums) == 100
            assert first.add("n", 0) == 200


def test_compare_set_has_one_winner(both):
    ours, theirs = both
    assert ours.compare_set("key", "", "ours") == b"ours"
    assert theirs.compare_set("key", "", "theirs") == b"ours"
    assert theirs.compare_set("key", "ours", "theirs") == b"theirs"
    assert ours.compare_set("key", "ours", "again") == b"theirs"
    assert ours.compare_set("absent", "expected", "x") == b"expected"
    assert not theirs.check(["absent"])


def test_deletion_is_seen_by_the_other(both):
    ours, theirs = both
    ours.set("a", "1")
    theirs.set("b", "2")
    assert theirs.delete_key("a")
    assert ours.delete_key("b")
    assert not ours.check(["a"]) and not theirs.check(["b"])
    ours.set("a", "again")
    assert theirs.get("a") == b"again"


def test_keys_that_look_like_the_stores_own(both):
    ours, theirs = both
    for key in ["", "-", "-/x", "refcount/", "/", "a/b"]:
        ours.set(key, "x" + key)
        assert theirs.get(key) == ("x" + key).encode()
        theirs.set(key, "y" + key)
        assert ours.get(key) == ("y" + key).encode()
    assert ours.num_keys() == theirs.num_keys()


def test_a_barrier_of_both(both):
    ours, theirs = both
    with ThreadPoolExecutor(max_workers=1) as pool:
        arrival = pool.submit(theirs.barrier, "gate", 2)
        ours.barrier("gate", 2)
        arrival.result(30)


def test_lists_in_one_call(both):
    ours, theirs = both
    ours.multi_set(["a", "b"], ["1", "2"])
    assert theirs.multi_get(["b", "a"]) == [b"2", b"1"]
    theirs.append("a", "+")
    ours.append("a", "-")
    assert ours.multi_get(["a"]) == [b"1+-"]


def test_a_timeout_names_the_key_and_the_file(path, both):
    ours, _ = both
    ours.set_timeout(200)
    with pytest.raises(StoreError) as error:
        ours.get("gone")
    assert "gone" in str(error.value) and path.name in str(error.value)


@pytest.mark.parametrize("last", ["ours", "theirs"])
def test_the_last_to_close_removes_the_file(path, last):
    theirs = open_theirs(path, 2)
    ours = open_ours(path, "--world-size", 2)
    ours.set("key", "value")
    assert theirs.get("key") == b"value"
    if last == "ours":
        del theirs
        assert path.exists()
        ours.close()
    else:
        ours.close()
        assert path.exists()
        del theirs
    assert not path.exists()


def test_a_member_that_was_killed_keeps_the_file_there(path):
    theirs = open_theirs(path, 2)
    ours = open_ours(path, "--world-size", 2)
    ours.set("key", "value")
    ours.kill()
    del theirs
    assert path.exists()


def test_without_a_size_the_file_stays(path):
    ours = open_ours(path)
    ours.set("key", "value")
    ours.close()
    assert open_theirs(path).get("key") == b"value"


def test_a_record_torn_by_a_dead_writer_hangs_nobody_of_ours(path):
    """Tests only rdzv, because PyTorch's reader never returns for such a file."""
    with open_ours(path) as ours:
        ours.set("before", "1")
        whole = path.read_bytes()
        path.write_bytes(whole + b"\x05\x00\x00\x00/t")
        assert ours.get("before") == b"1"
    with open_ours(path) as fresh:
        assert fresh.get("before") == b"1"
