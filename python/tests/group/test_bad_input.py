"""Tests of wrong arguments.

They are refused before anything is sent, and the group stays usable.
"""

import math
import os
import pickle
import threading

import numpy as np
import pytest
from ranks import threads

import rdzv


@pytest.fixture
def group():
    with rdzv.Group(rdzv.HashStore(), 0, 1, timeout=20) as group:
        yield group
        array = np.ones(2)
        group.all_reduce(array)
        assert array.tolist() == [1.0, 1.0]


def refused(error, *words):
    return pytest.raises(error, match="(?s)" + ".*".join(words))


def test_sizes_that_do_not_fit(group):
    with refused(ValueError, "all_gather", "3 elements", "2", "world_size"):
        group.all_gather(np.zeros(3), np.zeros(2))
    with refused(ValueError, "list of 2 arrays", "1 rank"):
        group.all_gather([np.zeros(2)] * 2, np.zeros(2))
    with refused(ValueError, r"output\[0\] has 3", "needs 2"):
        group.all_gather([np.zeros(3)], np.zeros(2))
    with refused(ValueError, "reduce_scatter", "input has 5", "output has 2"):
        group.reduce_scatter(np.zeros(2), np.zeros(5))
    with refused(ValueError, "output_splits", "has the sum 1", "2 rows"):
        group.all_to_all(np.zeros(2), np.zeros(2), [1], [2])
    with refused(ValueError, "input_splits", "has length 2"):
        group.all_to_all(np.zeros(2), np.zeros(2), [2], [1, 1])
    with refused(ValueError, "negative"):
        group.all_to_all(np.zeros(2), np.zeros(2), [2], [-2])
    with refused(ValueError, "output", "float64", "input", "float32"):
        group.all_gather(np.zeros(2), np.zeros(2, "f4"))


def test_shapes_may_differ_where_the_numbers_of_elements_are_equal(group):
    output = np.zeros((2, 2))
    group.all_gather(output, np.arange(4.0))
    assert output.tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_what_is_not_contiguous(group):
    with refused(ValueError, "all_reduce: tensor is not contiguous", "strides", "numpy.ascontiguousarray"):
        group.all_reduce(np.zeros((4, 4))[:, ::2])
    torch = pytest.importorskip("torch")
    with refused(ValueError, "not contiguous", "contiguous()"):
        group.all_reduce(torch.zeros(4, 4).t()[1:])


def test_what_is_not_aligned(group):
    memory = bytearray(17)
    with refused(ValueError, "all_reduce: tensor is not aligned", "numpy.require"):
        group.all_reduce(np.frombuffer(memory, np.float64, 2, 1))
    torch = pytest.importorskip("torch")
    shifted = torch.frombuffer(memory, dtype=torch.float64, count=2, offset=1)
    with refused(ValueError, "all_reduce: tensor is not aligned", "tensor.clone()"):
        group.all_reduce(shifted)
    group.all_reduce(shifted.clone())


def test_what_is_read_only(group):
    array = np.zeros(2)
    array.flags.writeable = False
    with refused(ValueError, "all_reduce: tensor is read-only"):
        group.all_reduce(array)
    with refused(ValueError, "output is read-only"):
        group.all_gather(b"ab", b"ab")
    group.all_gather(bytearray(2), b"ab")


def test_what_overlaps(group):
    array = np.zeros(4)
    with refused(ValueError, "share memory"):
        group.all_to_all(array[:2], array[1:3])
    group.all_gather(array, array)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([None]), "object"),
        (np.array(["a"]), "U1"),
        (np.zeros(2, "M8[s]"), "M8|datetime"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), "dtype|T"),
        ([1.0, 2.0], "list"),
        (None, "NoneType"),
        (object(), "not an array"),
    ],
)
def test_what_is_no_array_of_numbers(group, array, words):
    with refused(TypeError, "tensor", words):
        group.all_reduce(array)


def test_operators_that_a_type_does_not_have(group):
    for array, op in [(np.zeros(2), "band"), (np.zeros(2, "c8"), "max"), (np.zeros(2, "?"), "avg")]:
        with refused(TypeError, "cannot be reduced", "supported types"):
            group.all_reduce(array, op)
    with refused(TypeError, "cannot be reduced"):
        group.all_reduce(np.zeros(2, "i4"), rdzv.premul_sum(0.5))
    with refused(ValueError, "op is .mean.", "avg"):
        group.all_reduce(np.zeros(2), "mean")
    with refused(ValueError, "not finite"):
        group.all_reduce(np.zeros(2), rdzv.premul_sum(math.nan))
    with refused(TypeError, "op must be"):
        group.all_reduce(np.zeros(2), 3)


def test_another_byte_order(group):
    with refused(TypeError, "byte order", "newbyteorder"):
        group.all_reduce(np.zeros(2, ">f4"))
    group.all_reduce(np.zeros(2, ">u1"))


def test_no_elements_only_take_part(group):
    group.all_reduce(np.zeros(0))
    group.all_reduce(np.zeros((0, 3), "i4"), "band")


def test_memory_of_another_device(group):
    class Device:
        def __dlpack__(self, **arguments):
            raise AssertionError("it is not asked")

        def __dlpack_device__(self):
            return (2, 1)

    with refused(ValueError, "all_reduce: tensor is on cuda:1", "cpu:rdzv,cuda:nccl"):
        group.all_reduce(Device())
    torch = pytest.importorskip("torch")
    with refused(ValueError, "tensor is on meta", "supports only CPU tensors"):
        group.all_reduce(torch.zeros(2, device="meta"))


def test_ranks_out_of_range(group):
    with refused(ValueError, "root is 1", "ranks 0 to 0"):
        group.broadcast(np.zeros(2), root=1)
    with refused(ValueError, "root is -1"):
        group.reduce(np.zeros(2), root=-1)
    with refused(ValueError, "to is 0, which is this rank"):
        group.send(np.zeros(2), to=0)
    with refused(ValueError, "source is 5"):
        group.recv(np.zeros(2), source=5)
    with refused(ValueError, "tag is -1"):

        def rank(two):
            two.send(np.zeros(2), to=1 - two.rank, tag=-1)

        threads(2, rank)
    with refused(ValueError, "rank is 2", "0 to 1"):
        rdzv.Group(rdzv.HashStore(), 2, 2)
    with refused(ValueError, "world_size"):
        rdzv.Group(rdzv.HashStore(), 0, 0)


@pytest.mark.parametrize("timeout", [0, -1, math.nan])
def test_timeouts(group, timeout):
    with refused(ValueError, "timeout is"):
        group.barrier(timeout)
    with refused(ValueError, "timeout is"):
        rdzv.Group(rdzv.HashStore(), 0, 1, timeout=timeout)


def test_the_one_sided_argument_on_the_wrong_side():
    def rank(group):
        with refused(ValueError, "output" if group.rank == 0 else "is used only on the root"):
            group.gather(None if group.rank == 0 else np.zeros(4), np.zeros(2))
        group.barrier()

    threads(2, rank)


def test_a_nested_call_in_a_callback_of_the_same_group():
    def rank(group):
        caught = []
        inside = threading.Event()
        hold = threading.Event()

        def nested(work):
            try:
                group.barrier()
            except RuntimeError as error:
                caught.append(str(error))
            inside.set()

        # The first operation waits for the other rank, so the callback is registered before its
        # end.
        if group.rank == 1:
            hold.wait(0.2)
        work = group.barrier(async_=True)
        work.add_done_callback(nested)
        work.wait()
        inside.wait(10)
        group.barrier()
        return caught

    # At the rank whose operation had already ended, the callback runs on the calling thread, where
    # it may wait. A callback that is refused reports the reason.
    for caught in threads(1, rank):
        assert all("callback of the same group" in text for text in caught)


def test_use_after_close_names_the_location():
    group = rdzv.Group(rdzv.HashStore(), 0, 1)
    group.close()
    group.close()
    with refused(RuntimeError, "closed at .*test_bad_input.py:"):
        group.barrier()
    with refused(RuntimeError, "closed at"):
        group.barrier(async_=True)
    with refused(RuntimeError, "closed at"):
        group.all_gather_objects(1)


@pytest.mark.accident
def test_a_fork_does_not_take_the_group_along():
    def rank(group):
        group.barrier()
        if group.rank == 1:
            group.barrier()
            return None
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                group.barrier()
                text = "no error"
            except RuntimeError as error:
                text = str(error)
            del group
            os.write(writer, text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        group.barrier()
        return os.read(reader, 1000).decode()

    text = threads(2, rank)[0]
    assert f"this Group was created in process {os.getpid()} and does not cross a fork" in text


def test_errors_can_be_pickled():
    error = rdzv.RankLost("rank 1 is lost", rank=0, peer=1, peers=(1,), operation="barrier", cause="lost", elapsed=0.5)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is rdzv.RankLost and copy.__dict__ == error.__dict__ and str(copy) == str(error)
    assert isinstance(error, ConnectionError) and isinstance(error, RuntimeError)
    assert issubclass(rdzv.CollectiveTimeout, TimeoutError)
