"""Tests of failures of groups: the named rank, the exception, and no hangs."""

import signal
import time

import numpy as np
import pytest
from ranks import Program, threads

import rdzv

RANK = """
    import sys, time, signal, threading, numpy as np, rdzv
    port, rank, world = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    group = rdzv.Group(rdzv.TCPStore("127.0.0.1", port), rank, world, timeout=30)
    group.barrier()
    print("joined", flush=True)
    # No rank continues before all ranks have arrived.
    sys.stdin.readline()
"""


def test_calls_that_differ_name_both():
    def rank(group):
        with pytest.raises(rdzv.CollectiveError) as caught:
            if group.rank == 0:
                group.all_reduce(np.zeros(3, "f4"))
            else:
                group.all_reduce(np.zeros(4, "f8"))
        with pytest.raises(rdzv.CollectiveError, match="can no longer be used"):
            group.barrier()
        return caught.value.cause, caught.value.peer, str(caught.value)

    results = threads(2, rank)
    assert [result[:2] for result in results] == [("mismatch", 1), ("mismatch", 0)]
    # The rank that first receives the other's call names both calls.
    assert any("3 x f32" in text and "4 x f64" in text for _, _, text in results)


def test_splits_that_do_not_meet_name_the_rank():
    def rank(group):
        mine = [1, 1] if group.rank == 0 else [2, 1]
        with pytest.raises(rdzv.CollectiveError) as caught:
            group.all_to_all(np.zeros(2), np.zeros(sum(mine)), [1, 1], mine)
        return caught.value.cause

    assert threads(2, rank) == ["mismatch", "mismatch"]


def test_a_rank_that_never_calls_is_named():
    def rank(group):
        if group.rank == 1:
            time.sleep(0.8)
            return None
        with pytest.raises(rdzv.CollectiveTimeout) as caught:
            group.all_reduce(np.zeros(1), timeout=0.3)
        error = caught.value
        assert (error.rank, error.peer, error.operation, error.cause) == (0, 1, "all_reduce", "timeout")
        assert 0.2 < error.elapsed < 5 and "rank 1" in str(error)
        return True

    assert threads(2, rank)[0]


def test_a_monitored_barrier_names_all_that_are_missing():
    def rank(group):
        group.barrier()
        if group.rank in (1, 3):
            time.sleep(1.0)
            return None
        with pytest.raises(rdzv.CollectiveError) as caught:
            group.monitored_barrier(timeout=0.3)
        return caught.value.peers

    results = threads(4, rank)
    assert results[0] == (1, 3) and results[2] == (1,)


def test_joining_names_what_is_missing_and_what_is_taken():
    store = rdzv.HashStore()
    with pytest.raises(rdzv.CollectiveTimeout, match="ranks 1, 2 of 3") as caught:
        rdzv.Group(store, 0, 3, timeout=0.3)
    assert caught.value.peers == (1, 2)
    with pytest.raises(rdzv.CollectiveError, match="rank 0") as caught:
        rdzv.Group(store, 0, 3, timeout=0.3)
    assert caught.value.cause == "mismatch"


@pytest.mark.accident
@pytest.mark.parametrize("operation", ["group.all_reduce(np.zeros(100_000))", "group.recv(np.zeros(1), source=1)"])
def test_a_rank_that_dies_is_named_within_a_second(server, operation):
    waits = RANK + f"""
    try:
        {operation}
    except rdzv.RankLost as error:
        print("lost", error.peer, error.operation, flush=True)
"""
    sleeps = RANK + "    time.sleep(60)"
    with Program(waits, server.port, 0, 2) as first, Program(sleeps, server.port, 1, 2) as second:
        assert first.line() == second.line() == "joined"
        first.go()
        time.sleep(0.2)
        second.process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        assert first.line().startswith("lost 1")
        assert time.monotonic() - killed < 1


BLOCKING = {
    "all_reduce": "group.all_reduce(np.zeros(10))",
    "large": "group.all_reduce(np.zeros(1_000_000))",
    "recv": "group.recv(np.zeros(1), source=1)",
    "any": "group.recv(np.zeros(1))",
    "send": "group.send(np.zeros(1_000_000), to=1)",
    "work": "group.barrier(async_=True).wait()",
    "queued": "group.barrier(async_=True); group.barrier()",
    "objects": "group.all_gather_objects(1)",
    "monitored": "group.monitored_barrier()",
    "join": "rdzv.Group(rdzv.TCPStore('127.0.0.1', port), rank, world, name='second')",
}


@pytest.mark.accident
@pytest.mark.parametrize("call", BLOCKING)
def test_ctrl_c_ends_every_blocking_call(server, call):
    waits = RANK + f"""
    print("calls", flush=True)
    try:
        {BLOCKING[call]}
    except KeyboardInterrupt:
        print("interrupted", time.monotonic(), flush=True)
"""
    sleeps = RANK + "    time.sleep(60)"
    with Program(waits, server.port, 0, 2) as first, Program(sleeps, server.port, 1, 2) as second:
        assert first.line() == second.line() == "joined"
        first.go()
        assert first.line() == "calls"
        time.sleep(0.3)
        first.process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        word, when = first.line().split()
        assert word == "interrupted" and float(when) - sent < 0.5
        assert first.end()[0] == 0


def test_the_group_is_broken_after_ctrl_c_in_an_operation(server):
    waits = RANK + """
    try:
        group.barrier()
    except KeyboardInterrupt:
        pass
    try:
        group.barrier()
    except rdzv.CollectiveError as error:
        print(error.cause, flush=True)
"""
    sleeps = RANK + "    time.sleep(60)"
    with Program(waits, server.port, 0, 2) as first, Program(sleeps, server.port, 1, 2) as second:
        assert first.line() == second.line() == "joined"
        first.go()
        time.sleep(0.3)
        first.process.send_signal(signal.SIGINT)
        assert first.line() == "broken"


@pytest.mark.accident
@pytest.mark.parametrize(
    "call",
    [
        "group.barrier(async_=True)",
        "works = [group.all_reduce(np.zeros(100_000), async_=True) for _ in range(3)]",
        "threading.Thread(target=group.barrier, daemon=True).start(); time.sleep(0.2)",
        "threading.Thread(target=group.barrier(async_=True).wait, daemon=True).start(); time.sleep(0.2)",
        "group.recv(np.zeros(1), async_=True)",
        "group.barrier(async_=True).add_done_callback(print)",
    ],
)
def test_exit_with_operations_in_flight(server, call):
    exits = RANK + f"    {call}"
    sleeps = RANK + "    time.sleep(60)"
    with Program(exits, server.port, 0, 2) as first, Program(sleeps, server.port, 1, 2) as second:
        assert first.line() == second.line() == "joined"
        first.go()
        begun = time.monotonic()
        code, _, err = first.end()
        assert code == 0, err
        assert time.monotonic() - begun < 3
        assert err.count("RuntimeWarning") <= 1, err
