"""Tests of ends: of a callee, a caller, a process, or an interpreter.

They include signals, forks, and a great number of calls.
"""

import os
import signal
import sys
import threading
import time
import traceback

import numpy
import pytest
from ranks import CALLS, Program, resident
from rpc import served
from rpc.peers import group, wait_for

import rdzv
from rdzv import rpc

ALONE = """
    import os, signal, sys, threading, time
    import rdzv
    from rdzv import rpc

    server = rdzv.StoreServer()
    rpc.init_rpc("alone", rank=0, world_size=1, store=rdzv.TCPStore(server.host, server.port))

    @rpc.function
    def slow(seconds):
        time.sleep(seconds)

    @rpc.function
    def nothing():
        pass
"""


@pytest.mark.accident(rounds=2)
def test_a_callee_that_is_killed_ends_its_calls_at_once():
    def caller():
        futures = [rpc.rpc_async("w1", served.slow, args=(60,)) for _ in range(5)]
        kept = rpc.remote("w1", served.Counter)
        wait_for(kept.confirmed_by_owner, "the reference does not come")
        begun = time.monotonic()
        with pytest.raises(rpc.PeerLost, match="w1") as raised:
            rpc.rpc_sync("w1", served.die)
        assert raised.value.retryable and isinstance(raised.value, ConnectionError)
        for future in futures:
            with pytest.raises(rpc.PeerLost):
                future.wait()
        with pytest.raises(rpc.RpcError):
            kept.to_here(timeout=5)
        assert time.monotonic() - begun < 10

    group([caller, lambda: time.sleep(60)], graceful=False, expect={1})


@pytest.mark.accident(rounds=2)
def test_references_of_a_dead_worker_are_given_back():
    def owner():
        wait_for(lambda: served.counters()["served"] >= 20, "no value is kept")
        wait_for(lambda: served.counters()["num_owner_rrefs"] == 0, "the references of the dead stay", 60)

    def holder():
        wait_for(lambda: rpc._agent.current().get_worker_infos()[0].name == "w0", "the owner does not come")
        kept = [rpc.remote("w0", served.Counter, args=(number,)) for number in range(20)]
        wait_for(lambda: all(rref.confirmed_by_owner() for rref in kept), "they are not confirmed")
        assert rpc.rpc_sync("w0", served.counters)["num_owner_rrefs"] >= 20
        os._exit(9)

    group([owner, holder], world_size=0, options={"lease": 0.5}, graceful=False, expect={1})


@pytest.mark.accident(rounds=2)
@pytest.mark.parametrize(
    "in_flight",
    [
        "rpc.rpc_async('alone', slow, args=(60,))",
        "threading.Thread(target=rpc.rpc_sync, args=('alone', slow, (60,)), daemon=True).start(); time.sleep(0.05)",
        "kept = [rpc.remote('alone', nothing), rpc.rpc_async('alone', nothing).then(lambda done: time.sleep(60))]",
        "rpc.rpc_sync('alone', nothing); sys.exit(0)",
        "rpc.shutdown()",
    ],
)
def test_the_interpreter_ends_with_calls_in_flight(in_flight):
    with Program(ALONE + f"\n    print('begins', flush=True)\n    {in_flight}\n    begun = time.monotonic()\n") as program:
        assert program.line() == "begins"
        begun = time.monotonic()
        code, out, err = program.end()
        assert code == 0, err
        assert time.monotonic() - begun < 5
        assert "Fatal" not in err and "panic" not in err, err


@pytest.mark.accident(rounds=2)
def test_the_interpreter_ends_while_threads_call():
    source = ALONE + """
    def calls(one):
        begun.release()
        while True:
            try:
                one()
            except RuntimeError:
                pass

    def failing():
        try:
            rpc.rpc_sync("alone", slow, args=("x",))
        except TypeError:
            pass

    agent = rpc._agent.current()._native
    future = rpc.rpc_async("alone", nothing)
    begun = threading.Semaphore(0)
    kinds = [lambda: rpc.rpc_sync("alone", nothing), agent.traffic, future._call.cancel, failing,
             lambda: rpc.remote("alone", nothing), lambda: rpc.rpc_async("alone", nothing).then(lambda done: failing())]
    for kind in kinds:
        threading.Thread(target=calls, args=(kind,), daemon=True).start()
    for kind in kinds:
        begun.acquire()
    time.sleep(0.05)
    """
    with Program(source) as program:
        code, out, err = program.end()
        assert code == 0, (code, err)
        assert "Fatal" not in err and "panic" not in err, err


@pytest.mark.accident(rounds=2)
@pytest.mark.parametrize(
    "wait",
    [
        "rpc.rpc_sync('alone', slow, args=(60,))",
        "rpc.rpc_async('alone', slow, args=(60,)).wait()",
        "rpc.remote('alone', slow, args=(60,)).to_here()",
        "rpc.Future().wait()",
    ],
)
def test_control_c_ends_a_wait(wait):
    source = ALONE + f"""
    try:
        print(os.getpid(), flush=True)
        {wait}
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    rpc.rpc_sync("alone", nothing)
    print("good", flush=True)
    """
    with Program(source) as program:
        pid = int(program.line())
        time.sleep(0.1)
        os.kill(pid, signal.SIGINT)
        begun = time.monotonic()
        assert program.line() == "interrupted", program.end()
        assert time.monotonic() - begun < 2
        assert program.line() == "good", program.end()
        code, _, err = program.end()
        assert code == 0 and "Fatal" not in err, err


@pytest.mark.accident(rounds=2)
def test_a_forked_child_leaves_the_agent_alone():
    def caller():
        rref = rpc.remote("w1", served.Counter)
        future = rpc.rpc_async("w1", served.slow, args=(0.2,))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with pytest.raises(RuntimeError, match="has not been initialized"):
                    rpc.rpc_sync("w1", served.nothing)
                with pytest.raises(RuntimeError, match="does not cross a fork"):
                    future.wait()
                del rref, future
                with rdzv.StoreServer() as server:
                    store = rdzv.TCPStore(server.host, server.port)
                    rpc.init_rpc("child", rank=0, world_size=1, store=store)
                    assert rpc.rpc_sync("child", served.add, args=(1, 2)) == 3
                    rpc.shutdown()
                code = 0
            except BaseException:  # noqa: BLE001, shown with the failure of the test
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "see the traceback of the child"
        assert future.wait() == "slept" and rref.rpc_sync().add(1) == 1

    group([caller, lambda: None])


def test_a_child_that_a_function_forks_answers_no_call():
    def caller():
        array = numpy.arange(1 << 17)
        for _ in range(3):
            code, back = rpc.rpc_sync("w1", served.forks, args=(array,))
            assert code == 0 and (back == array).all()

    group([caller, lambda: None])


def test_calls_do_not_make_a_worker_grow():
    def caller():
        array = numpy.ones(1 << 10)

        def some(count):
            for number in range(count // 4):
                rpc.rpc_sync("w1", served.nothing)
                rpc.rpc_async("w1", served.add, args=(number, 1)).wait()
                rpc.rpc_sync("w1", served.echo, args=(array,))
                rpc.remote("w1", served.nothing).to_here()

        some(4000)
        wait_for(lambda: rpc.rpc_sync("w1", served.counters)["num_owner_rrefs"] == 0, "references stay")
        before = resident(os.getpid()), resident(rpc.rpc_sync("w1", served.pid))
        some(CALLS)
        wait_for(lambda: rpc.rpc_sync("w1", served.counters)["num_owner_rrefs"] == 0, "references stay")
        after = resident(os.getpid()), resident(rpc.rpc_sync("w1", served.pid))
        return before, after

    before, after = group([caller, lambda: None])[0]
    for early, late in zip(before, after):
        assert late - early < 8 << 20, f"{early} bytes became {late} in {CALLS} calls"


def test_many_threads_call_at_once():
    def caller():
        failed = []

        def some():
            try:
                for number in range(200):
                    assert rpc.rpc_sync("w1", served.add, args=(number, 1)) == number + 1
            except BaseException as error:  # noqa: BLE001, raised below
                failed.append(error)

        threads = [threading.Thread(target=some) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed, failed

    group([caller, lambda: None])


def test_more_than_may_be_in_flight_waits_for_room():
    def caller():
        futures = [rpc.rpc_async("w1", served.slow, args=(0.01,)) for _ in range(600)]
        assert {future.wait() for future in futures} == {"slept"}

    group([caller, lambda: None])


def test_a_graceful_shutdown_waits_for_what_is_in_flight():
    def caller():
        future = rpc.rpc_async("w1", served.slow, args=(0.5,))
        rpc.shutdown()
        assert future.wait() == "slept"
        with rdzv.StoreServer() as server:
            rpc.init_rpc("w0", rank=0, world_size=1, store=rdzv.TCPStore(server.host, server.port))
            rpc.shutdown()

    group([caller, lambda: None])


def test_a_failed_future_that_nobody_waits_for_is_logged(caplog):
    with rdzv.StoreServer() as server:
        rpc.init_rpc("w0", rank=0, world_size=1, store=rdzv.TCPStore(server.host, server.port))
        try:
            future = rpc.rpc_async("w0", served.fail, args=("value", "unheard"))
            wait_for(future.done, "it does not end")
            del future
            assert "no code has read its result: unheard" in caplog.text
        finally:
            rpc.shutdown()
