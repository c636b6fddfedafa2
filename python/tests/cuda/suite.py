"""Tests of device maps with the stand-in device, between forked workers.

``python suite.py FILE`` writes the outcome of every test to FILE as JSON: name -> text, which is
empty after success. The tests in ``FROM_PYTORCH`` repeat tests of PyTorch's
``TensorPipeAgentCudaRpcTest`` in other words; the others are rdzv's own.
"""

import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback

import rdzv.torch.rpc  # noqa: F401, I001, before any RRef is imported

import torch
import torch.distributed.rpc as rpc
from cuda import standin
from cuda.standin import put

import rdzv
from rdzv import rpc as plain

# Tests that repeat a test of PyTorch.
FROM_PYTORCH = {}
TESTS = {}
LIMIT_SECONDS = 60


def test(*names):
    def add(function):
        FROM_PYTORCH[function.__name__] = names
        TESTS[function.__name__] = function
        return function

    return add


class Worker:
    """One of the two workers of a test."""

    def __init__(self, rank, folder):
        self.rank, self.folder, self.count = rank, folder, 0

    me = property(lambda self: f"worker{self.rank}")
    other = property(lambda self: f"worker{1 - self.rank}")

    def join(self, maps=None, devices=None):
        """Joins the group."""
        self.count += 1
        options = rpc.backend_registry.construct_rpc_backend_options(
            rpc.BackendType.RDZV, init_method=f"file://{self.folder}/{self.count}", rpc_timeout=30
        )
        for to, one in (maps or {}).items():
            options.set_device_map(to, {named(key): named(value) for key, value in one.items()})
        if devices:
            # torch accepts only its own devices in this list.
            options.__class__.devices = property(lambda _: [torch.device(named(one)) for one in devices])
        rpc.init_rpc(self.me, backend=rpc.BackendType.RDZV, rank=self.rank, world_size=2, rpc_backend_options=options)


def named(device):
    return device if device == "cpu" else f"fake:{device}"


def device_of(tensor):
    return "cpu" if tensor.device.type == "cpu" else tensor.device.index


def on(tensor, device):
    return tensor if device == "cpu" else put(tensor, device)


def same(tensor, expected):
    return torch.equal(getattr(tensor, "raw", tensor), expected)


def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
        return str(error)
    raise AssertionError(f"there was no error with {text!r}")


# Wrong maps
# --------------------------------------------------------------------------------------------------


@test("test_device_maps_wrong_worker_name")
def a_map_for_an_unknown_worker(worker):
    text = "Node worker0 has invalid target node names in its device maps"
    refused(ValueError, text, lambda: worker.join({"none_exist": {0: 1}}))
    assert not rpc.api._is_current_rpc_agent_set()


@test("test_device_maps_invalid_max_local_device")
def a_map_from_a_device_that_does_not_exist(worker):
    text = "Node worker0 has source devices with invalid indices in its device map for worker1"
    refused(ValueError, text, lambda: worker.join({worker.other: {standin.COUNT: 0}}))


@test("test_device_maps_invalid_max_remote_device")
def a_map_to_a_device_that_does_not_exist(worker):
    text = "Node worker0 has target devices with invalid indices in its device map for worker1"
    refused(ValueError, text, lambda: worker.join({worker.other: {0: standin.COUNT}}))


@test("test_device_maps_many_to_one")
def a_map_of_two_devices_to_one(worker):
    options = rdzv.torch.rpc.RdzvRpcBackendOptions(init_method=f"file://{worker.folder}/many")
    options.set_device_map(worker.other, {"fake:1": "fake:0"})
    options.set_device_map(worker.other, {"fake:0": "fake:0"})
    # torch finds this only when the group forms: "has duplicated target devices in its device map".
    text = "`device_map` only supports 1-to-1 mapping, trying to map"
    backend = rpc.BackendType.RDZV
    join = lambda: rpc.init_rpc(worker.me, backend=backend, rank=worker.rank, world_size=2, rpc_backend_options=options)
    refused(ValueError, text, join)


@test("test_device_maps_one_to_many")
def a_map_of_one_device_to_two(worker):
    options = rdzv.torch.rpc.RdzvRpcBackendOptions()
    options.set_device_map(worker.other, {"fake:0": "fake:1"})
    again = lambda: options.set_device_map(worker.other, {"fake:0": "fake:0"})
    refused(ValueError, "`set_device_map` only supports 1-to-1 mapping", again)


@test("test_devices_option_mismatch", "test_devices_option_mismatch_reverse")
def devices_that_do_not_have_those_of_a_map(worker):
    text = "has unexpected source devices in its device map for"
    refused(ValueError, text, lambda: worker.join({worker.other: {0: 1}}, devices=[2]))


# Maps
# --------------------------------------------------------------------------------------------------


def add_there(x, y, x_place, y_place, z_place):
    if (device_of(x), device_of(y)) != (x_place, y_place):
        raise ValueError("Wrong device affinity")
    return on(getattr(x, "raw", x) + getattr(y, "raw", y), z_place)


def mapped(worker, to, x_from, y_from, z_to, one):
    worker.join({to: one})
    x, y = on(torch.zeros(2), x_from), on(torch.ones(2), y_from)
    z = rpc.rpc_sync(to, add_there, args=(x, y, one[x_from], one[y_from], z_to))
    z_from = {value: key for key, value in one.items()}[z_to]
    assert device_of(z) == z_from and same(z, torch.ones(2)), (z, z_from)
    rpc.shutdown()


@test("test_device_maps_gpu", "test_device_map_gpu_default", "test_device_map_gpu_non_default",
      "test_device_map_gpu_default_to_non_default", "test_device_map_gpu_non_default_to_default")
def one_device(worker):
    for case in [(0, 0, 0, {0: 0}), (1, 1, 1, {1: 1}), (0, 0, 1, {0: 1}), (1, 1, 0, {1: 0}), (0, 0, 1, {0: 1, 1: 0})]:
        mapped(worker, worker.other, *case)


@test(*(f"test_device_map_gpu_mixed_{number}" for number in range(1, 9)))
def two_devices(worker):
    for one in ({0: 0, 1: 1}, {0: 1, 1: 0}):
        for case in [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]:
            mapped(worker, worker.other, *case, one)


@test(*(f"test_device_map_gpu_mixed_self_{number}" for number in range(1, 9)))
def two_devices_of_the_same_worker(worker):
    for one in ({0: 0, 1: 1}, {0: 1, 1: 0}):
        for case in [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]:
            mapped(worker, worker.me, *case, one)


@test("test_device_map_cpu", "test_device_map_cpu_to_gpu_default", "test_device_map_cpu_to_gpu_non_default",
      "test_device_map_gpu_to_cpu_default", "test_device_map_gpu_to_cpu_non_default")
def the_cpu_in_a_map(worker):
    for case in [("cpu", "cpu", "cpu", {"cpu": "cpu"}), ("cpu", "cpu", 0, {"cpu": 0}), ("cpu", "cpu", 1, {"cpu": 1}),
                 (0, 0, "cpu", {0: "cpu"}), (1, 1, "cpu", {1: "cpu"})]:
        mapped(worker, worker.other, *case)


def add_and_subtract(x, y):
    if (device_of(x), device_of(y)) != (1, 0):
        raise ValueError("Wrong device affinity")
    return put(x.raw + y.raw, 0), put(x.raw - y.raw, 1)


@test("test_device_maps_multi_gpu", "test_device_maps_multi_gpu_self", "test_device_maps_in_options")
def results_on_two_devices(worker):
    for to in (worker.other, worker.me):
        worker.join({to: {0: 1, 1: 0}})
        sum, difference = rpc.rpc_sync(to, add_and_subtract, args=(put(torch.zeros(2), 0), put(torch.ones(2), 1)))
        assert (device_of(sum), device_of(difference)) == (1, 0)
        assert same(sum, torch.ones(2)) and same(difference, -torch.ones(2))
        rpc.shutdown()


def spread(x, y):
    return [put(value, index) for index, value in enumerate((x + y, x - y, x * y, x / y))]


@test("test_device_maps_return_to_gpu", "test_device_maps_return_to_gpu_self")
def results_on_devices_without_arguments(worker):
    for to in (worker.other, worker.me):
        worker.join({to: {0: 1, 1: 2, 2: 3, 3: 0}})
        results = rpc.rpc_sync(to, spread, args=(torch.zeros(2), torch.ones(2)))
        assert [device_of(one) for one in results] == [3, 0, 1, 2]
        assert same(results[1], -torch.ones(2)) and same(results[3], torch.zeros(2))
        rpc.shutdown()


# Missing maps
# --------------------------------------------------------------------------------------------------

NO_MAP = "TensorPipe RPC backend only supports CPU tensors by default"
SET_MAP = "`set_device_map` on `TensorPipeRpcBackendOptions`"


def to_device(x, y):
    return put(x + y, 0)


def without_map(worker, ways):
    call = {
        "sync": lambda function, x: rpc.rpc_sync(worker.other, function, args=(x, 1)),
        "async": lambda function, x: rpc.rpc_async(worker.other, function, args=(x, 1)).wait(),
        "remote": lambda function, x: rpc.remote(worker.other, function, args=(x, 1)).to_here(),
    }
    for way in ways:
        text = refused(RuntimeError, NO_MAP, lambda call=call[way]: call(torch.add, put(torch.zeros(2), 0)))
        assert SET_MAP in text, text
        text = "Response device mapping is not available"
        refused(RuntimeError, text, lambda call=call[way]: call(to_device, torch.zeros(2)))
        assert same(rpc.rpc_sync(worker.other, torch.add, args=(torch.ones(2), 1)), torch.full((2,), 2.0))


@test("test_device_maps_missing_config", "test_device_maps_missing_config_response",
      "test_device_maps_missing_config_remote", "test_device_maps_missing_config_remote_response",
      "test_device_maps_missing_config_not_timeout")
def a_missing_map(worker):
    worker.join()
    begun = time.monotonic()
    without_map(worker, ("sync", "async", "remote"))
    assert time.monotonic() - begun < 30
    rpc.shutdown()


@test("test_device_maps_missing_config_loop", "test_device_maps_missing_config_response_loop")
def a_missing_map_in_more_calls_than_threads(worker):
    worker.join()
    without_map(worker, ("sync",) * 21)
    rpc.shutdown()


@test("test_device_mismatch")
def a_device_that_the_map_has_not(worker):
    worker.join({worker.other: {0: 0}})
    call = lambda: rpc.rpc_sync(worker.other, torch.add, args=(put(torch.zeros(2), 1), 1))
    text = refused(RuntimeError, NO_MAP, call)
    assert "for device cuda:1 but received a tensor on that device" in text
    rpc.shutdown()


# References
# --------------------------------------------------------------------------------------------------


def twice(x):
    return x + x


def of_reference(rref):
    return put(rref.to_here().raw + 1, rref.to_here().index_)


@test("test_device_maps_remote", "test_rref_to_here_synchronization1", "test_rref_as_arg_synchronization1",
      "test_rref_forward_synchronization1", "test_owner_rref_forward_synchronization1")
def references(worker):
    worker.join({worker.other: {1: 0, 0: 1}})
    rref = rpc.remote(worker.other, twice, args=(put(torch.ones(3), 1),))
    assert device_of(rref.to_here()) == 1 and same(rref.to_here(), torch.full((3,), 2.0))
    back = rpc.rpc_sync(worker.other, of_reference, args=(rref,))
    assert device_of(back) == 1 and same(back, torch.full((3,), 3.0))
    own = rpc.RRef(put(torch.ones(3), 1))
    assert device_of(own.to_here()) == 1 and device_of(own.local_value()) == 1
    there = rpc.rpc_sync(worker.other, of_reference, args=(own,))
    assert same(there, torch.full((3,), 2.0))
    proxied = rref.rpc_sync().add(1)
    assert same(proxied, torch.full((3,), 3.0))
    rpc.shutdown()


def rows(x):
    return x[1:, ::2]


@test("test_tensor_view_as_return_value")
def views(worker):
    worker.join({worker.other: {0: 1}})
    matrix = torch.arange(12.0).reshape(3, 4)
    view = rpc.rpc_sync(worker.other, rows, args=(put(matrix, 0),))
    assert device_of(view) == 0 and same(view, matrix[1:, ::2]), view
    transposed = rpc.rpc_sync(worker.other, twice, args=(put(matrix, 0).t(),))
    assert same(transposed, 2 * matrix.t())
    rpc.shutdown()


@rpc.functions.async_execution
def later(x):
    return rpc.rpc_async(rpc.get_worker_info().name, twice, args=(x,)).then(lambda done: done.wait() + 1)


@test("test_async_execution_with_cuda_future", "test_async_execution_nested_with_cuda_future")
def functions_that_return_futures(worker):
    names = ("worker0", "worker1")
    worker.join({name: {0: 0} for name in names})
    result = rpc.rpc_async(worker.other, later, args=(put(torch.ones(2), 0),)).wait()
    assert device_of(result) == 0 and same(result, torch.full((2,), 3.0))
    rpc.shutdown()


# rdzv's own
# --------------------------------------------------------------------------------------------------


class Batch:
    def __init__(self, parts):
        self.parts = parts


def rebuilt(batch):
    return {"again": [Batch({name: twice(one) for name, one in batch.parts.items()})], "number": 5}


def failing(x):
    error = ValueError("it failed")
    error.state = put(x.raw * 3, x.index_)
    raise error


def empty(x):
    return x.shape, device_of(x)


@test()
def tensors_in_objects_and_in_exceptions(worker):
    worker.join({worker.other: {0: 2, "cpu": 3}})
    parts = {"device": put(torch.ones(5), 0), "host": torch.ones(5)}
    made = rpc.rpc_sync(worker.other, rebuilt, args=(Batch(parts),))["again"][0].parts
    assert (device_of(made["device"]), device_of(made["host"])) == (0, "cpu")
    assert same(made["device"], torch.full((5,), 2.0)) and same(made["host"], torch.full((5,), 2.0))
    assert rpc.rpc_sync(worker.other, empty, args=(put(torch.zeros(0, 3), 0),)) == ((0, 3), 2)
    # Arrays and long values stay in host memory, also if the map has the CPU.
    numpy = __import__("numpy")
    assert rpc.rpc_sync(worker.other, len, args=(numpy.ones(100_000),)) == 100_000
    assert rpc.rpc_sync(worker.other, len, args=("x" * 100_000,)) == 100_000
    rpc.shutdown()


def served(x):
    return x + x


plain.function(name="cuda.served")(served)
plain.function(name="cuda.failing")(failing)


@test()
def rdzv_rpc_has_tensors_on_devices(worker):
    store = rdzv.FileStore(f"{worker.folder}/plain")
    maps = {worker.other: {0: 1}}
    options = plain.RpcOptions(device_maps=maps, functions="registered")
    plain.init_rpc(worker.me, rank=worker.rank, world_size=2, store=store, rpc_backend_options=options)
    x = put(torch.arange(4), 0)
    result = plain.rpc_sync(worker.other, served, args=(x,))
    assert device_of(result) == 0 and same(result, 2 * torch.arange(4))
    future = plain.rpc_async(worker.other, served, args=(x,))
    with standin._devices.framework.streams([0]):
        assert same(future.wait(), 2 * torch.arange(4))
        # Another stream that uses the value waits for the stream that has it.
        with standin._devices.framework.streams([0]):
            future.value()
    assert standin.joined and standin.joined[-1][0] != standin.joined[-1][1]
    try:
        plain.rpc_sync(worker.other, failing, args=(x,))
    except ValueError as error:
        # The attributes of an exception arrive in host memory.
        assert device_of(error.state) == "cpu" and same(error.state, 3 * torch.arange(4))
    else:
        raise AssertionError("it did not fail")
    plain.shutdown()


def facts(agent):
    return {name: value for name, value in agent.get_debug_info().items() if "cuda" in name}


def calls(worker):
    with open(f"{worker.folder}/log.{worker.rank}") as file:
        return [line.split() for line in file]


def wait_for(condition, what):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


@test()
def large_tensors_use_ipc_and_no_host_waits(worker):
    worker.join({worker.other: {0: 1}})
    agent = rpc.api._get_current_rpc_agent()
    assert not facts(agent).get("agent.cuda.driver"), "the driver was loaded before the first tensor"
    assert not os.path.exists(f"{worker.folder}/log.{worker.rank}")
    x = put(torch.arange(1 << 20), 0)

    def sent():
        assert same(rpc.rpc_sync(worker.other, twice, args=(x,)), 2 * torch.arange(1 << 20))
        return sum(call[0] == "cuIpcOpenMemHandle" for call in calls(worker)) > 0

    # The first tensors go through host memory, until the other worker has opened the segment.
    wait_for(sent, lambda: facts(agent))
    rpc.api._wait_all_workers(20)
    for _ in range(3):
        sent()
    rpc.api._wait_all_workers(20)
    before = len(calls(worker))
    with standin._devices.framework.streams([0]):
        stream = standin._devices.framework.stream(0)
        for _ in range(20):
            sent()
    rpc.api._wait_all_workers(20)
    after = calls(worker)[before:]
    assert not [call for call in after if call[0] in ("cuEventSynchronize", "cuMemHostAlloc")], after
    assert ["cuEventRecord", str(stream)] in after, "the producer's stream is awaited"
    assert ["cuStreamWaitEvent", str(stream)] in after, "the consumer's stream waits"
    found = facts(agent)
    assert found["agent.cuda.driver"] == "13.2" and int(found["agent.cuda:0.pool_bytes"]) == 64 << 20, found
    wait_for(lambda: facts(agent)["agent.cuda:0.lent_bytes"] == "0", lambda: facts(agent))
    rpc.shutdown()


@test()
def memory_returns_after_the_death_of_a_peer(worker):
    worker.join({worker.other: {0: 1}})
    agent = rpc.api._get_current_rpc_agent()
    x = put(torch.arange(1 << 20), 0)
    opened = lambda: facts(agent)["agent.cuda.segments_of_peers"] == "2"

    def more():
        rpc.rpc_sync(worker.other, twice, args=(x,))
        return opened()

    if worker.rank == 1:
        wait_for(more, lambda: facts(agent))
        rpc.rpc_sync(worker.other, twice, args=(x,))
        time.sleep(100)
    wait_for(more, lambda: facts(agent))
    os.kill(int(open(f"{worker.folder}/pid1").read()), signal.SIGKILL)
    names = ("segments_of_peers", "pool_bytes", "lent_bytes", "received_bytes")
    level = lambda: {value for name, value in facts(agent).items() if name.endswith(names)}
    wait_for(lambda: level() == {"0"}, lambda: facts(agent))
    rpc.shutdown(graceful=False)


@test()
def without_ipc_tensors_go_through_host_memory_and_the_reason_is_shown(worker):
    os.environ["FAKE_CUDA_NO_IPC"] = "1"
    worker.join({worker.other: {0: 1}})
    agent = rpc.api._get_current_rpc_agent()
    x = put(torch.arange(3 << 20), 0)

    def staged():
        assert same(rpc.rpc_sync(worker.other, twice, args=(x,)), 2 * torch.arange(3 << 20))
        return f"agent.cuda.staged.{1 - worker.rank}" in facts(agent)

    wait_for(staged, lambda: facts(agent))
    reason = facts(agent)[f"agent.cuda.staged.{1 - worker.rank}"]
    assert "CUDA IPC was refused: cuIpcOpenMemHandle_v2" in reason, reason
    staged()
    rpc.shutdown()


@test()
def a_tensor_of_an_ended_context_is_refused(worker):
    worker.join({worker.other: {0: 1}})
    standin._now.streams = {0: 3}
    call = lambda: rpc.rpc_sync(worker.other, twice, args=(put(torch.ones(2), 0),))
    refused((RuntimeError, ValueError), "because the CUDA context or stream that made it has ended", call)
    standin._now.streams = {}
    rpc.shutdown()


@test()
def an_old_driver_is_refused(worker):
    os.environ["FAKE_CUDA_VERSION"] = "10020"
    worker.join({worker.other: {0: 1}})
    call = lambda: rpc.rpc_sync(worker.other, twice, args=(put(torch.ones(2), 0),))
    refused((RuntimeError, ValueError), "the driver supports CUDA 10.2, but rdzv needs CUDA 11.2 or newer", call)
    rpc.shutdown()


@test()
def a_fork_after_the_first_use_is_refused(worker):
    worker.join({worker.other: {0: 1}})
    rpc.rpc_sync(worker.other, twice, args=(put(torch.ones(2), 0),))
    agent = rpc.api._get_current_rpc_agent().inner._native
    child = os.fork()
    if not child:
        try:
            tensor = put(torch.ones(2), 0)
            agent.device_tensor(tensor, standin._devices.framework.memory(tensor), 1)
        except RuntimeError as error:
            os._exit(7 if "fork" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    rpc.shutdown()


def run(name, rank, folder, pipe):
    with open(f"{folder}/pid{rank}", "w") as file:
        file.write(str(os.getpid()))
    os.environ["FAKE_CUDA_LOG"] = f"{folder}/log.{rank}"
    worker = Worker(rank, folder)
    try:
        TESTS[name](worker)
        text = ""
    except BaseException:  # noqa: BLE001, it is the result
        text = traceback.format_exc()
    pipe.send(text)
    os._exit(0)


def outcome(name):
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        workers = []
        for rank in (0, 1):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=run, args=(name, rank, folder, theirs))
            process.start()
            theirs.close()
            workers.append((process, mine))
        texts = []
        for process, pipe in workers:
            try:
                texts.append(pipe.recv() if pipe.poll(LIMIT_SECONDS) else "it hangs")
            except EOFError:
                # One test kills a worker.
                pass
        for process, _ in workers:
            process.kill()
            process.join()
        return "\n".join(text for text in texts if text)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {}
    for name in sys.argv[2:] or TESTS:
        found[name] = outcome(name)
        print("failed" if found[name] else "passed", name, found[name], flush=True)
    with open(sys.argv[1], "w") as file:
        json.dump(found, file)
