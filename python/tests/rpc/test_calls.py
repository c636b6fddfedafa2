"""Tests of calls: values, errors, references, futures, policies."""

import asyncio
import math
import pickle
import time

import numpy
import pytest
import torch
from ports import free_port
from rpc import served
from rpc.peers import group, wait_for

import rdzv
from rdzv import rpc


def idle():
    return None


def test_values_go_there_and_back():
    def caller():
        values = [
            None, 1, 2.5, "text", b"bytes", "é", [1, [2, {"a": (3,)}]], {1, 2}, complex(1, 2), 1 << 100,
            served.Point(1.0, 2.0), "x" * (1 << 20), bytes(1 << 20), math.inf,
        ]
        for value in values:
            assert rpc.rpc_sync("w1", served.echo, args=(value,)) == value
        assert rpc.rpc_sync("w1", served.add, args=(1,), kwargs={"b": 2}) == 3
        assert rpc.rpc_sync(1, served.nothing) is None
        assert rpc.rpc_sync(rpc.get_worker_info("w1"), served.who) == ("w0", "w1")
        assert rpc.rpc_sync("w0", served.who) == ("w0", "w0")
        assert rpc.rpc_sync("w1", served.chain, args=(["w0", "w1", "w1", "w0"],)) == ["w1", "w0", "w1", "w1", "w0"]
        assert rpc.caller() is None

    group([caller, idle])


def test_tensors_whose_elements_share_memory_arrive_equal():
    def caller():
        column, row = torch.tensor([1.0, 2.0, 3.0]).unsqueeze(1), torch.arange(200.0)
        tensors = [
            column.expand(3, 4), column.expand(3, 4).t(), torch.ones(1).expand(2, 3), row.unfold(0, 3, 1),
            row.as_strided((2, 2, 2), (100, 0, 1)), row.as_strided((2, 2, 2), (3, 1, 1)),
            row.as_strided((5, 1, 3), (4, 7, 1)), row.view(20, 10).t()[::2],
        ]  # fmt: skip
        for tensor in tensors:
            back = rpc.rpc_sync("w1", served.echo, args=(tensor,))
            assert torch.equal(back, tensor), (tensor.shape, tensor.stride())
        array = numpy.broadcast_to(numpy.arange(3.0)[:, None], (3, 4))
        assert (rpc.rpc_sync("w1", served.echo, args=(array,)) == array).all()

    group([caller, idle])


@pytest.mark.parametrize("count", [0, 1, 10, 5000, 1 << 18, 1 << 22])
def test_arrays_and_tensors_travel_beside_the_pickle(count):
    def caller():
        from rdzv.rpc import _values

        array = numpy.arange(count, dtype=numpy.float32)
        tensor = torch.arange(count, dtype=torch.float64)
        body, parts, _ = _values.dump([array, tensor])
        assert len(body) < 1000 and len(parts) == (2 if count else len(parts))
        back = rpc.rpc_sync("w1", served.double, args=(array,))
        assert back.dtype == array.dtype and (back == array * 2).all()
        back = rpc.rpc_sync("w1", served.double, args=(tensor,))
        assert back.dtype == tensor.dtype and torch.equal(back, tensor * 2)
        # Both are separate memory of the receiver, which it may write.
        back[:] = 1
        assert (rpc.rpc_sync("w1", served.fill, args=(array, 7)) == 7).all()
        assert (array == numpy.arange(count)).all()

    group([caller, idle])


def test_tensors_keep_what_they_are():
    def caller():
        tensors = [
            torch.tensor(3.0),
            torch.arange(12).reshape(3, 4).t(),
            torch.arange(24).reshape(2, 3, 4)[:, ::2, 1:3],
            torch.rand(3, requires_grad=True),
            torch.nn.Parameter(torch.rand(2, 2)),
            torch.tensor([True, False]),
            torch.rand(4).to(torch.bfloat16),
            torch.rand(4, dtype=torch.complex64).conj(),
            torch.zeros(0, 5),
        ]
        for tensor in tensors:
            back = rpc.rpc_sync("w1", served.echo, args=(tensor,))
            assert back.shape == tensor.shape and back.dtype == tensor.dtype and torch.equal(back, tensor), tensor
            assert back.requires_grad == tensor.requires_grad and type(back) is type(tensor)
        assert rpc.rpc_sync("w1", served.echo, args=(tensors[1],)).stride() == tensors[1].stride()
        sparse = torch.eye(4).to_sparse()
        back = rpc.rpc_sync("w1", served.echo, args=(sparse,))
        assert back.layout is torch.sparse_coo and torch.equal(back.to_dense(), sparse.to_dense())
        rows = torch.eye(4).to_sparse_csr()
        back = rpc.rpc_sync("w1", served.echo, args=(rows,))
        assert back.layout is torch.sparse_csr and torch.equal(back.to_dense(), rows.to_dense())
        with pytest.raises(ValueError, match="meta"):
            rpc.rpc_sync("w1", served.echo, args=(torch.empty(3, device="meta"),))
        fortran = numpy.asfortranarray(numpy.arange(6).reshape(2, 3))
        assert rpc.rpc_sync("w1", served.echo, args=(fortran,)).flags.f_contiguous
        gaps = numpy.arange(10)[::3]
        assert (rpc.rpc_sync("w1", served.echo, args=(gaps,)) == gaps).all()

    group([caller, idle])


def test_errors_have_type_text_traceback_and_causes():
    def caller():
        with pytest.raises(ValueError, match="^naïve") as raised:
            rpc.rpc_sync("w1", served.fail, args=("value", "naïve"))
        assert str(raised.value) == "naïve"
        assert "worker w1" in raised.value.__notes__[0] and "in fail" in raised.value.__notes__[0]
        with pytest.raises(ValueError, match="cannot load") as raised:
            rpc.rpc_sync("w1", served.fail_because)
        assert isinstance(raised.value.__cause__, KeyError)
        with pytest.raises(rpc.RemoteError) as raised:
            rpc.rpc_sync("w1", served.fail, args=("own", "of another class"))
        error = raised.value
        assert error.type_name.endswith("served.Own") and error.text == "of another class" and error.worker == "w1"
        assert "in fail" in error.traceback and isinstance(error, RuntimeError)
        with pytest.raises(rpc.RemoteError, match="SystemExit"):
            rpc.rpc_sync("w1", served.fail, args=("exit", "7"))
        with pytest.raises(TypeError, match=r"the result of .*unpicklable.*lock"):
            rpc.rpc_sync("w1", served.unpicklable)
        with pytest.raises(TypeError, match=r"args\[1\]\['loader'\]"):
            rpc.rpc_sync("w1", served.add, args=(1, {"loader": open(__file__)}))
        with pytest.raises(TypeError, match="functions are sent by name"):
            rpc.rpc_sync("w1", lambda: 1)
        with pytest.raises(TypeError, match="function should be callable"):
            rpc.rpc_sync("w1", "text")
        with pytest.raises(ValueError, match="Cannot get WorkerInfo from name"):
            rpc.rpc_sync(1.5, served.nothing)
        with pytest.raises(rpc.RpcError, match="could not find destination name w7.*w0, w1") as raised:
            rpc.rpc_sync("w7", served.nothing)
        assert raised.value.kind == "UnknownWorker"
        with pytest.raises(TypeError, match="must return a rdzv.rpc.Future object, but got builtins.int"):
            rpc.rpc_sync("w1", served.no_future)
        assert rpc.rpc_sync("w1", served.add, args=(1, 1)) == 2

    group([caller, idle])


def test_timeouts():
    def caller():
        begun = time.monotonic()
        with pytest.raises(rpc.Deadline, match="w1") as raised:
            rpc.rpc_sync("w1", served.wait_for_release, timeout=0.2)
        assert time.monotonic() - begun < 5 and isinstance(raised.value, TimeoutError)
        wait_for(lambda: rpc.rpc_sync("w1", served.flag, args=("cancelled",)), "the function was not told")
        for bad in (0, -2.0, math.nan, None):
            with pytest.raises(ValueError, match="timeout"):
                rpc.rpc_sync("w1", served.nothing, timeout=bad)
        assert rpc.get_rpc_timeout() == 60.0
        rpc.set_rpc_timeout(0.2)
        with pytest.raises(rpc.Deadline):
            rpc.rpc_sync("w1", served.wait_for_release)
        rpc.rpc_sync("w1", served.release, timeout=30)
        assert rpc.rpc_sync("w1", served.slow, args=(0.3,), timeout=math.inf) == "slept"
        future = rpc.rpc_async("w1", served.slow, args=(0.3,), timeout=30)
        with pytest.raises(rpc.Deadline, match="did not arrive within 0.05 s"):
            future.wait(0.05)
        assert future.wait() == "slept"

    group([caller, idle])


def test_a_call_whose_caller_no_longer_waits_does_not_begin():
    def caller():
        # The only thread of the callee is busy.
        busy = rpc.rpc_async("w1", served.slow, args=(1.0,))
        with pytest.raises(rpc.Deadline):
            rpc.rpc_sync("w1", served.mark, timeout=0.2)
        late = rpc.rpc_async("w1", served.mark)
        assert late.cancel()
        assert busy.wait() == "slept"
        assert rpc.rpc_sync("w1", served.flag, args=("marked",)) is None
        rpc.rpc_sync("w1", served.mark)
        assert rpc.rpc_sync("w1", served.flag, args=("marked",)) is True

    group([caller, idle], options={"num_worker_threads": 1})


def test_a_chain_of_futures_has_any_length():
    first = last = rpc.Future()
    for _ in range(10_000):
        last = last.then(lambda done: done.value() + 1)
    first.set_result(0)
    assert last.wait(30) == 10_000


def test_futures():
    def caller():
        futures = [rpc.rpc_async("w1", served.add, args=(number, 1)) for number in range(500)]
        assert [future.wait() for future in futures] == list(range(1, 501))
        assert futures[0].value() == 1 and futures[0].done()
        after = rpc.rpc_async("w1", served.add, args=(1, 2)).then(lambda done: done.value() * 10)
        assert after.wait() == 30
        with pytest.raises(ZeroDivisionError):
            rpc.rpc_async("w1", served.nothing).then(lambda done: 1 / 0).wait()
        with pytest.raises(ValueError, match="text"):
            rpc.rpc_async("w1", served.fail, args=("value", "text")).wait()
        assert isinstance(rpc.rpc_async("w1", served.fail, args=("value", "text")).exception(), ValueError)
        assert rpc.rpc_async("w1", served.add, args=(1, 1)).future().result(30) == 2
        future = rpc.rpc_async("w1", served.slow, args=(30,))
        assert future.cancel()
        with pytest.raises(rpc.RpcError) as raised:
            future.wait()
        assert raised.value.kind == "Cancelled"
        with pytest.raises(RuntimeError, match="which sets the result"):
            futures[0].set_result(1)

        async def many():
            results = await asyncio.gather(*(rpc.call("w1", served.later, number, timeout=30) for number in range(50)))
            assert results == list(range(50))
            with pytest.raises(ValueError):
                await rpc.call("w1", served.fail, "value", "text")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(rpc.call("w1", served.slow, 30), 0.05)

        asyncio.run(many())
        asyncio.run(many())

    group([caller, idle])


def test_functions_that_wait_take_no_thread():
    def caller():
        assert rpc.rpc_sync("w1", served.later, args=("x",)) == "x"
        assert rpc.rpc_sync("w1", served.calls_on, args=("w0", 5)) == 5
        # There are more calls than threads, and each waits for a call of the other side.
        futures = [rpc.rpc_async("w1", served.add_elsewhere, args=("w0", number, 0)) for number in range(100)]
        assert [future.wait() for future in futures] == [number + 1000 for number in range(100)]

    group([caller, idle], options={"num_worker_threads": 2})


def test_references():
    def caller():
        rref = rpc.remote("w1", served.Counter, args=(5,))
        assert rref.owner_name() == "w1" and not rref.is_owner() and rref.owner().id == 1
        assert rref.rpc_sync().add(2) == 7
        assert rref.rpc_async().add(1).wait() == 8
        assert rref.remote().get().to_here() == 8
        assert rpc.rpc_sync("w1", served.add_to, args=(rref, 2)) == 10
        assert rpc.rpc_sync("w0", served.add_to, args=(rref, 1)) == 11
        assert rref.to_here().value == 11
        wait_for(rref.confirmed_by_owner, "the owner does not know of it")
        mine = rpc.RRef([1, 2])
        assert mine.is_owner() and mine.local_value() == [1, 2] and mine.to_here() is mine.local_value()
        assert rpc.rpc_sync("w1", served.value_of, args=(mine,)) == [1, 2]
        tensor = rpc.remote("w1", served.double, args=(torch.ones(1 << 16),))
        assert torch.equal(tensor.to_here(), torch.full((1 << 16,), 2.0))
        failed = rpc.remote("w1", served.fail, args=("value", "never made"))
        for _ in range(2):
            with pytest.raises(ValueError, match="never made"):
                failed.to_here()
        with pytest.raises(rpc.RpcError, match="can't call localValue"):
            rref.local_value()
        with pytest.raises(rpc.RpcError, match="_secret"):
            rref.rpc_sync()._secret()
        with pytest.raises(TypeError, match="can only be sent in calls"):
            pickle.dumps(mine)
        slow = rpc.remote("w1", served.slow, args=(0.3,))
        with pytest.raises(rpc.Deadline):
            slow.to_here(timeout=0.05)
        assert slow.to_here() == "slept"
        del rref, mine, tensor, failed, slow
        wait_for(
            lambda: rpc.rpc_sync("w1", served.counters)["num_owner_rrefs"] == 0 and served.counters()["num_owner_rrefs"] == 0,
            "a reference was not given back",
        )

    group([caller, idle])


def test_an_array_in_an_arena_is_not_copied():
    def caller():
        arena = rpc.Arena(4 << 20)
        before = arena.free
        array = arena.empty((1 << 18,), "float32")
        array[:] = 3
        assert before - arena.free == 1 << 20
        assert rpc.rpc_sync("w1", served.sum_of, args=(array,)) == (3.0 * (1 << 18), False)
        assert rpc.rpc_sync("w1", served.double, args=(torch.from_numpy(array),)).sum() == 6 * (1 << 18)
        del array
        wait_for(lambda: arena.free == before, "the memory does not come back")
        with pytest.raises(MemoryError, match="bytes are needed"):
            arena.empty(1 << 30)

    group([caller, idle])


def test_only_what_was_registered_may_be_called():
    def caller():
        with pytest.raises(rpc.RpcError, match="not registered there: decorate it with @rpc.function") as raised:
            rpc.rpc_sync("w1", served.not_registered)
        assert raised.value.kind == "NoSuchMethod"
        with pytest.raises(rpc.RpcError, match="os.*system"):
            import os

            rpc.rpc_sync("w1", os.system, args=("true",))
        assert rpc.rpc_sync("w1", served.flag, args=("ran",)) is None

    group([caller, idle])


def test_other_policies_admit_more():
    def importable():
        assert rpc.rpc_sync("w1", served.not_registered) is None
        assert rpc.rpc_sync("w1", served.flag, args=("ran",))
        with pytest.raises(rpc.RpcError, match="not in the packages|not registered"):
            import os

            rpc.rpc_sync("w1", os.getpid)
        with pytest.raises(ValueError, match="own"):
            try:
                rpc.rpc_sync("w1", served.fail, args=("own", "own"))
            except served.Own as error:
                raise ValueError(str(error)) from None

    def anything():
        import functools
        import os

        assert rpc.rpc_sync("w1", os.getpid) != os.getpid()
        assert rpc.rpc_sync("w1", functools.partial(pow, 2), args=(3,)) == 8
        assert torch.equal(rpc.rpc_sync("w1", torch.add, args=(torch.ones(2), 1)), torch.full((2,), 2.0))
        with pytest.raises(rpc.RpcError, match="does not exist there"):
            missing = lambda: None  # noqa: E731
            missing.__qualname__ = missing.__name__ = "missing"
            rpc.rpc_sync("w1", rpc.function(missing, name="nowhere:missing"))

    group([importable, idle], options={"functions": "importable", "packages": ["rpc"]})
    group([anything, idle], options={"functions": "any"})


def test_bad_input_at_the_start():
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        rpc.rpc_sync("w1", served.nothing)
    with pytest.raises(RuntimeError, match="RPC has not been initialized"):
        rpc.RRef(1)
    with pytest.raises(TypeError, match="Argument backend must be a member of BackendType"):
        rpc.init_rpc("w0", backend="RDZV")
    with pytest.raises(TypeError, match="Could not infer backend for options"):
        rpc.init_rpc("w0", rpc_backend_options=object())
    with pytest.raises(rpc.RpcError, match=r"must match \^\[A-Za-z0-9-_:\]\*\$"):
        rpc.init_rpc("bad name", rank=0, world_size=1, store=rdzv.HashStore())
    with pytest.raises(ValueError, match="positive"):
        rpc.RpcOptions(rpc_timeout=0)
    with pytest.raises(TypeError):
        rpc.RpcOptions(threads=3)
    for wrong in ({"num_worker_threads": 0}, {"token": "short"}, {"lease": 0.0}):
        with pytest.raises(rpc.RpcError, match=next(iter(wrong))):
            options = rpc.RpcOptions(**wrong)
            rpc.init_rpc("w0", rank=0, world_size=1, store=rdzv.HashStore(), rpc_backend_options=options)

    def twice():
        with pytest.raises(RuntimeError, match="RPC is already initialized"):
            rpc.init_rpc("again")
        return rpc.get_worker_info().name

    assert group([twice]) == ["w0"]


def test_workers_of_a_static_group_are_named_if_they_do_not_come():
    with rdzv.StoreServer() as server:
        store = rdzv.TCPStore(server.host, server.port)
        with pytest.raises(rpc.Deadline, match="rank 1|ranks? \\[?1"):
            options = rpc.RpcOptions(init_deadline=0.3)
            rpc.init_rpc("w0", rank=0, world_size=2, store=store, rpc_backend_options=options)


def test_a_dynamic_group():
    def caller():
        wait_for(lambda: len(rpc._agent.current().get_worker_infos()) == 2, "the other does not come")
        assert rpc.rpc_sync("w1", served.add, args=(1, 2)) == 3

    def other():
        wait_for(lambda: rpc._agent.current().get_worker_infos()[0].name == "w0", "the other does not come")
        wait_for(lambda: len(rpc._agent.current().get_worker_infos()) == 1, "the other does not leave")

    group([caller, other], world_size=0)


@pytest.mark.parametrize("how", ["sync", "async", "remote"])
def test_calls_nested_deeper_than_there_are_threads_progress(how):
    def caller():
        assert rpc.rpc_sync("w1", served.nested, args=(50, how), timeout=60) == 50
        # As many functions as before run at a time afterwards.
        assert rpc.rpc_sync("w1", served.add, args=(1, 2)) == 3

    group([caller, idle], options={"num_worker_threads": 1})


def test_calls_that_are_nested_without_end_are_refused():
    def caller():
        begun = time.monotonic()
        with pytest.raises(rpc.RpcError, match="nested too deeply.*\n.*num_worker_threads") as raised:
            rpc.rpc_sync("w1", served.nested, args=(10_000, "sync"), timeout=200)
        assert ":nested;" in str(raised.value)
        assert time.monotonic() - begun < 100

    group([caller, idle], options={"num_worker_threads": 1})


def test_an_error_of_a_deep_call_stays_short():
    def caller():
        with pytest.raises(ValueError, match="at the end") as raised:
            rpc.rpc_sync("w1", served.fail_nested, args=(40,))
        (note,) = raised.value.__notes__
        assert note.count("raised on worker w1") == 21 and len(note) < 100_000
        return len(note)

    group([caller, idle])


def test_a_thousand_newcomers_are_known_to_all_when_init_rpc_returns():
    from rdzv.rpc import _agent

    with rdzv.StoreServer() as server:
        def joined(name, rank):
            store = rdzv.TCPStore(server.host, server.port)
            return _agent.RdzvAgent(name, rank, None, store, rpc.RpcOptions())

        elders = [joined("w0", 0), joined("w1", 1)]
        for _ in range(1000):
            newcomer = joined("w2", 2)
            for elder in elders:
                assert elder.get_worker_info("w2").id == 2
            newcomer.join()
        for elder in elders:
            elder.shutdown()


@pytest.mark.parametrize("to", ["w0", "w1"])
def test_a_reference_reports_a_function_that_exceeds_its_timeout(to):
    def caller():
        begun = time.monotonic()
        late = rpc.remote(to, served.slow, args=(60,), timeout=0.3)
        with pytest.raises(rpc.Deadline, match="300 ms"):
            late.to_here()
        assert time.monotonic() - begun < 30
        assert rpc.remote(to, served.slow, args=(0.01,), timeout=30).to_here() == "slept"

    group([caller, idle])


def test_the_store_of_a_url_may_have_brackets():
    options = rpc.RpcOptions(init_method=f"tcp://[::1]:{free_port()}", address="[::1]")
    rpc.init_rpc("w0", rank=0, world_size=1, rpc_backend_options=options)
    rpc.shutdown()
