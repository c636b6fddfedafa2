"""Tests of operations of a group on arrays, compared with numpy."""

import asyncio
import threading

import numpy as np
import pytest
from ranks import CALLS, processes, resident, threads

import rdzv

NUMBERS = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
WORLD = 3


def values(rank, kind, length=10):
    return (np.arange(length) % 7 + rank + 1).astype(kind)


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("length", [0, 1, 10, 70_000])
def test_all_reduce_of_every_number_type(kind, length):
    def rank(group):
        array = values(group.rank, kind, length)
        group.all_reduce(array)
        return array

    with np.errstate(over="ignore"):
        expected = sum(values(rank, kind, length) for rank in range(WORLD))
    for array in threads(WORLD, rank):
        assert array.dtype == np.dtype(kind)
        np.testing.assert_array_equal(array, expected.astype(kind))


OPERATORS = {
    "sum": lambda arrays: sum(arrays),
    "prod": lambda arrays: arrays[0] * arrays[1] * arrays[2],
    "min": lambda arrays: np.minimum.reduce(arrays),
    "max": lambda arrays: np.maximum.reduce(arrays),
    "band": lambda arrays: arrays[0] & arrays[1] & arrays[2],
    "bor": lambda arrays: arrays[0] | arrays[1] | arrays[2],
    "bxor": lambda arrays: arrays[0] ^ arrays[1] ^ arrays[2],
    "avg": lambda arrays: sum(arrays) // WORLD,
}


@pytest.mark.parametrize("op", OPERATORS)
def test_operators(op):
    def rank(group):
        array = values(group.rank, "i4")
        group.all_reduce(array, op)
        return array

    expected = OPERATORS[op]([values(rank, "i4") for rank in range(WORLD)])
    for array in threads(WORLD, rank):
        np.testing.assert_array_equal(array, expected)


def test_bool_is_logical_and_complex_numbers_are_summed():
    def rank(group):
        flags = np.array([group.rank == 1, False, True])
        group.all_reduce(flags)
        every = np.array([group.rank == 1, False, True])
        group.all_reduce(every, "min")
        numbers = np.full(3, group.rank + 1j, "c8")
        group.all_reduce(numbers)
        with pytest.raises(TypeError, match="complex64.*maximum|complex64, which cannot be reduced"):
            group.all_reduce(numbers, "max")
        return flags.tolist(), every.tolist(), numbers.tolist()

    assert threads(WORLD, rank) == [([True, False, True], [False, False, True], [3 + 3j] * 3)] * WORLD


def test_a_premultiplied_sum_has_the_factor_of_each_rank():
    def rank(group):
        array = np.ones(4, "f4")
        group.all_reduce(array, rdzv.premul_sum(0.5 * (group.rank + 1)))
        return array.tolist()

    assert threads(WORLD, rank) == [[3.0] * 4] * WORLD


def test_reduce_leaves_the_other_ranks_alone():
    def rank(group):
        array = values(group.rank, "f8", 20_000)
        group.reduce(array, root=2)
        return array

    results = threads(WORLD, rank)
    np.testing.assert_array_equal(results[0], values(0, "f8", 20_000))
    np.testing.assert_array_equal(results[2], sum(values(rank, "f8", 20_000) for rank in range(WORLD)))


def test_broadcast_reads_what_is_read_only_at_the_root():
    def rank(group):
        array = b"payload" if group.rank == 1 else bytearray(7)
        group.broadcast(array, root=1)
        return bytes(array)

    assert threads(WORLD, rank) == [b"payload"] * WORLD


def test_all_gather_into_one_array_into_lists_and_into_one_buffer():
    def rank(group):
        own = np.full(2, group.rank, "i2")
        whole = np.zeros((WORLD, 2), "i2")
        group.all_gather(whole, own)
        parts = [np.zeros(2, "i2") for _ in range(WORLD)]
        group.all_gather(parts, own)
        place = np.zeros(WORLD * 2, "i2")
        mine = place[group.rank * 2 : group.rank * 2 + 2]
        mine[:] = group.rank
        group.all_gather(place, mine)
        return whole.ravel().tolist(), np.concatenate(parts).tolist(), place.tolist()

    expected = [0, 0, 1, 1, 2, 2]
    assert threads(WORLD, rank) == [(expected, expected, expected)] * WORLD


def test_reduce_scatter_leaves_its_input_alone():
    def rank(group):
        whole = np.arange(6, dtype="f4") + group.rank
        before = whole.copy()
        part = np.zeros(2, "f4")
        group.reduce_scatter(part, whole)
        listed = np.zeros(2, "f4")
        group.reduce_scatter(listed, [before[0:2], before[2:4], before[4:6]], "max")
        assert (whole == before).all()
        return part.tolist(), listed.tolist()

    assert threads(WORLD, rank) == [
        ([3.0, 6.0], [2.0, 3.0]),
        ([9.0, 12.0], [4.0, 5.0]),
        ([15.0, 18.0], [6.0, 7.0]),
    ]


def test_all_to_all_with_equal_parts_with_splits_and_with_lists():
    def rank(group):
        equal = np.zeros(3, "i8")
        group.all_to_all(equal, np.arange(3) + 10 * group.rank)
        # Rank r has r + 1 rows for each rank.
        rows = group.rank + 1
        source = np.full((rows * WORLD, 2), group.rank, "i4")
        target = np.zeros((6, 2), "i4")
        group.all_to_all(target, source, [1, 2, 3], [rows] * WORLD)
        lists = [np.zeros(length, "u1") for length in (1, 2, 3)]
        group.all_to_all(lists, [np.full(rows, group.rank, "u1") for _ in range(WORLD)])
        return equal.tolist(), target[:, 1].tolist(), np.concatenate(lists).tolist()

    for at, (equal, split, listed) in enumerate(threads(WORLD, rank)):
        assert equal == [at, 10 + at, 20 + at]
        assert split == listed == [0, 1, 1, 2, 2, 2]


def test_gather_and_scatter():
    def rank(group):
        root = group.rank == 1
        whole = np.zeros((WORLD, 2), "f2") if root else None
        group.gather(whole, np.full(2, group.rank, "f2"), root=1)
        part = np.zeros(2, "f2")
        group.scatter(part, [whole[2], whole[1], whole[0]] if root else None, root=1)
        return part.tolist()

    assert threads(WORLD, rank) == [[2.0, 2.0], [1.0, 1.0], [0.0, 0.0]]


def test_messages_by_rank_by_tag_and_from_anybody():
    def rank(group):
        if group.rank == 0:
            group.send(np.array([1.5]), to=2, tag=7)
            group.send(np.array([2.5]), to=2, tag=8)
            return None
        if group.rank == 1:
            group.send(np.full(40_000, 3.5), to=2)
            return None
        large, first, second = np.zeros(40_000), np.zeros(1), np.zeros(1)
        assert group.recv(second, source=0, tag=8) == 0
        assert group.recv(first, tag=7) == 0
        work = group.recv(large, async_=True)
        assert work.wait() == 1
        return first[0], second[0], large[-1]

    assert threads(WORLD, rank)[2] == (1.5, 2.5, 3.5)


def test_both_of_two_ranks_may_send_first():
    def rank(group):
        mine, theirs = np.full(50_000, group.rank), np.zeros(50_000, "i8")
        sent = group.send(mine, to=1 - group.rank, async_=True)
        group.recv(theirs, source=1 - group.rank)
        sent.wait()
        return int(theirs[-1])

    assert threads(2, rank) == [1, 0]


def test_objects_with_arrays_come_back_writable():
    def rank(group):
        objects = group.all_gather_objects({"rank": group.rank, "array": np.full(3, group.rank)})
        objects[0]["array"][0] = 9
        shared = group.broadcast_object({"from": 2} if group.rank == 2 else None, root=2)
        plain = group.all_gather_objects((group.rank, "ü"), trusted=False)
        later = group.all_gather_objects(np.float32(group.rank), async_=True).wait()
        return [int(one["array"].sum()) for one in objects], shared, plain, [float(one) for one in later]

    expected = ([9, 3, 6], {"from": 2}, [(0, "ü"), (1, "ü"), (2, "ü")], [0.0, 1.0, 2.0])
    assert threads(WORLD, rank) == [expected] * WORLD


class Evil:
    def __reduce__(self):
        return print, ("run",)


def test_an_untrusted_object_names_nothing(capsys):
    import pickle

    def rank(group):
        with pytest.raises(pickle.UnpicklingError, match="builtins.print"):
            group.all_gather_objects(Evil(), trusted=False)
        group.barrier()

    threads(2, rank)
    assert capsys.readouterr().out == ""


def test_asynchronous_operations_keep_the_order_of_the_calls():
    def rank(group):
        array = np.ones(1000, "f4")
        ends = []
        works = [group.all_reduce(array, async_=True) for _ in range(5)]
        for number, work in enumerate(works):
            work.add_done_callback(lambda work, number=number: ends.append((number, work.done())))
        group.all_reduce(array)
        assert [number for number, _ in sorted(ends)] == list(range(5)) and all(done for _, done in ends)
        works[-1].wait(timeout=1)
        return float(array[0])

    assert threads(2, rank) == [64.0, 64.0]


def test_work_can_be_awaited():
    def rank(group):
        async def both():
            array = np.ones(3)
            await group.all_reduce(array, async_=True)
            return await group.all_gather_objects(float(array[0]), async_=True)

        return asyncio.run(both())

    assert threads(2, rank) == [[2.0, 2.0]] * 2


@pytest.mark.accident
def test_threads_of_one_rank_come_one_after_another():
    def rank(group):
        arrays = [np.ones(100) for _ in range(4)]
        # All arrays have one size, so the order of calls is the same on all ranks.
        callers = [threading.Thread(target=group.all_reduce, args=(array,)) for array in arrays]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        return sum(float(array[0]) for array in arrays)

    assert threads(2, rank) == [8.0, 8.0]


def test_a_tensor_of_torch_and_bfloat16_through_dlpack():
    torch = pytest.importorskip("torch")

    def rank(group):
        tensor = torch.full((2, 3), 1.5, dtype=torch.bfloat16)
        group.all_reduce(tensor)

        class Other:
            """Object that is no tensor, but has the interface."""

            def __init__(self, of):
                self.__dlpack__, self.__dlpack_device__ = of.__dlpack__, of.__dlpack_device__

        group.all_reduce(Other(tensor), "max")
        return tensor.sum().item()

    assert threads(2, rank) == [18.0, 18.0]


def test_rebuild_makes_the_next_epoch():
    stores = rdzv.HashStore()

    def rank(group):
        group = group.rebuild(stores)
        with group:
            group.barrier()
            return group.epoch, group.world_size

    assert threads(2, rank) == [(1, 2), (1, 2)]


def test_many_calls_do_not_grow():
    def calls(group, count):
        few, many, places = np.zeros(1), np.zeros(20_000), np.zeros((2, 1))
        for number in range(count // 5):
            group.all_reduce(few)
            group.all_reduce(few, async_=True).wait()
            group.all_gather(places, few)
            group.broadcast(few)
            group.barrier()
            if number % 100 == 0:
                group.all_reduce(many)
                group.all_gather_objects({"number": number})

    def rank(number, count, address):
        with rdzv.Group(rdzv.TCPStore(*address), number, count, timeout=30) as group:
            calls(group, 2_000)
            before = resident()
            calls(group, CALLS)
            return before, resident()

    with rdzv.StoreServer() as server:
        for before, after in processes(2, rank, (server.host, server.port)):
            assert after - before < 4 << 20, f"{before} bytes became {after} in {CALLS} calls"
