"""Tests of the backend of torch.distributed: the same results as gloo."""

import subprocess
import sys
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Program, processes

TYPES = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
# Gloo has no arithmetic for these types: their results are those of int64.
OTHERS = [torch.int16, torch.uint16, torch.uint32, torch.uint64]


def join(backend, rank, world, path, **options):
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=f"file://{path}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=30),
        **options,
    )


def pattern(rank, kind, length=60):
    return (torch.arange(length) % 5 + rank + 1).to(kind)


def reductions(kind):
    names = ["SUM", "PRODUCT", "MIN", "MAX"]
    if not kind.is_floating_point:
        names += ["BAND", "BOR", "BXOR"]
    return [getattr(dist.ReduceOp, name) for name in names]


def collectives(rank, world, backend, path, kinds):
    """Returns the results of every collective operation, for each element type."""
    join(backend, rank, world, path)
    results = {}
    for kind in kinds:
        own = pattern(rank, kind)
        for op in reductions(kind):
            whole = own.clone()
            dist.all_reduce(whole, op)
            results[kind, str(op)] = whole
            reduced = own.clone()
            dist.reduce(reduced, 1, op)
            if rank == 1:
                results[kind, "reduce", str(op)] = reduced
        sent = own.clone()
        dist.broadcast(sent, 1)
        gathered = [torch.empty_like(own) for _ in range(world)]
        dist.all_gather(gathered, own)
        flat = torch.empty(world * own.numel(), dtype=kind)
        dist.all_gather_into_tensor(flat, own)
        collected = [torch.empty_like(own) for _ in range(world)] if rank == 0 else None
        dist.gather(own, collected, 0)
        part = torch.empty(60 // world, dtype=kind)
        dist.scatter(part, list(own.chunk(world)) if rank == 0 else None, 0)
        reduced = torch.empty(60 // world, dtype=kind)
        dist.reduce_scatter_tensor(reduced, own)
        listed = torch.empty(60 // world, dtype=kind)
        dist.reduce_scatter(listed, list(own.chunk(world)))
        exchanged = torch.empty_like(own)
        dist.all_to_all_single(exchanged, own)
        if rank == 0:
            dist.send(own, 1)
        elif rank == 1:
            dist.recv(received := torch.empty_like(own), 0)
            results[kind, "recv"] = received
        results[kind, "moved"] = [sent, *gathered, flat, *(collected or []), part, reduced, listed, exchanged]
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank})
    shared = [f"from {rank}"]
    dist.broadcast_object_list(shared, 1)
    results["objects"] = [objects, shared]
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=10))
    dist.destroy_process_group()
    return results


def compare(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, result in theirs.items():
        ours_of = ours[name]
        if name == "objects":
            assert ours_of == result
            continue
        pairs = zip(ours_of, result, strict=True) if isinstance(result, list) else [(ours_of, result)]
        for mine, other in pairs:
            assert mine.dtype == other.dtype
            torch.testing.assert_close(mine, other, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("world", [2, 4])
def test_all_collectives_are_those_of_gloo(tmp_path, world):
    ours = processes(world, collectives, "rdzv", tmp_path / "ours", TYPES)
    theirs = processes(world, collectives, "gloo", tmp_path / "theirs", TYPES)
    for mine, other in zip(ours, theirs, strict=True):
        compare(mine, other)
    for name in ours[0]:
        if name != "objects" and name[1] != "moved" and name[1] != "reduce":
            for other in ours[1:]:
                assert torch.equal(ours[0][name], other[name]), "not the same bits on all ranks"


def test_types_that_gloo_cannot_add_are_added(tmp_path):
    def rank(rank, world, path):
        join("rdzv", rank, world, path)
        results = []
        for kind in OTHERS:
            own = pattern(rank, torch.int64).to(kind)
            dist.all_reduce(own)
            results.append(own.to(torch.int64).tolist())
        flags = torch.tensor([rank == 0, False, True])
        dist.all_reduce(flags)
        every = torch.tensor([rank == 0, False, True])
        dist.all_reduce(every, dist.ReduceOp.MIN)
        numbers = torch.full((3,), 1 + 2j)
        dist.all_reduce(numbers)
        average = torch.full((3,), float(rank))
        dist.all_reduce(average, dist.ReduceOp.AVG)
        small = torch.ones(4).to(torch.float8_e5m2)
        dist.broadcast(small, 0)
        dist.destroy_process_group()
        return results, flags.tolist(), every.tolist(), numbers.tolist(), average.tolist()

    expected = (pattern(0, torch.int64) + pattern(1, torch.int64)).tolist()
    for results, flags, every, numbers, average in processes(2, rank, tmp_path / "store"):
        assert results == [expected] * 4
        assert (flags, every) == ([True, False, True], [False, False, True])
        assert numbers == [2 + 4j] * 3 and average == [0.5] * 3


def asynchronous(rank, world, backend, path):
    join(backend, rank, world, path)
    tensors = [torch.ones(1000) * (rank + 1) for _ in range(4)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        assert work.wait() and work.is_completed()
    polled = dist.barrier(async_op=True)
    while not polled.is_completed():
        pass
    future = dist.all_reduce(tensors[0], async_op=True).get_future()
    then = future.then(lambda future: future.value()[0].sum().item())
    total = then.wait()
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    mine, theirs = torch.full((50_000,), float(rank)), torch.empty(50_000)
    batch = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, theirs, 1 - rank)]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    first = dist.new_group([0, 1])
    alone = dist.new_group([1])
    if rank == 1:
        assert dist.get_world_size(alone) == 1
        dist.all_reduce(torch.ones(2), group=alone)
    dist.barrier(group=first)
    import torch.distributed._functional_collectives as functional

    summed = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    gathered = functional.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    results = [*tensors, torch.tensor(total), theirs, summed + 0, gathered + 0]
    dist.destroy_process_group()
    return results


def test_asynchronous_coalesced_batched_and_functional_calls(tmp_path):
    ours = processes(2, asynchronous, "rdzv", tmp_path / "ours")
    theirs = processes(2, asynchronous, "gloo", tmp_path / "theirs")
    for mine, other in zip(ours, theirs, strict=True):
        for one, two in zip(mine, other, strict=True):
            assert torch.equal(one, two)


def training(rank, world, backend, path):
    join(backend, rank, world, path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 20)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


def test_ddp_trains_as_with_gloo(tmp_path):
    ours = processes(2, training, "rdzv", tmp_path / "ours")
    theirs = processes(2, training, "gloo", tmp_path / "theirs")
    for (mine, weights), (other, others) in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(other, abs=1e-6)
        for one, two in zip(weights, others, strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-6)
    for one, two in zip(ours[0][1], ours[1][1], strict=True):
        assert torch.equal(one, two)


def sharded(rank, world, path):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    join("rdzv", rank, world, path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    steps(model, torch.arange(32.0).reshape(4, 8)[rank * (4 // world) : (rank + 1) * (4 // world)] / 32)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    dist.destroy_process_group()
    return {name: value.clone() for name, value in state.items()}


def steps(model, data):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()


def test_fully_shard_is_what_one_process_does(tmp_path):
    state = processes(2, sharded, tmp_path / "store")[0]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    steps(model, torch.arange(32.0).reshape(4, 8) / 32)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6)


def test_nothing_has_to_be_imported_and_devices_can_be_named(tmp_path):
    program = f"""
import torch, torch.distributed as dist
dist.init_process_group("cpu:rdzv,cuda:gloo", init_method="file://{tmp_path}/store", rank=0, world_size=1)
tensor = torch.ones(3)
dist.all_reduce(tensor)
print(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).getBackendName())
dist.destroy_process_group()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "rdzv", result.stderr


def test_errors_speak_as_torch_does(tmp_path):
    def rank(rank, world, path):
        join("rdzv", rank, world, path)
        texts = []
        for call in (
            lambda: dist.all_reduce(torch.ones(4, 4)[:, ::2]),
            lambda: dist.all_gather_into_tensor(torch.zeros(5), torch.ones(3)),
            lambda: dist.all_to_all_single(torch.zeros(4), torch.ones(4), [1, 1], [2, 2]),
        ):
            with pytest.raises((ValueError, RuntimeError)) as caught:
                call()
            texts.append(str(caught.value))
        dist.barrier()
        if rank == 0:
            options = dist.AllreduceOptions()
            options.timeout = timedelta(milliseconds=300)
            options.asyncOp = False
            with pytest.raises(RuntimeError, match=r"Timed out waiting \d+ms") as caught:
                dist.distributed_c10d._get_default_group().allreduce([torch.ones(1)], options)
            assert isinstance(caught.value, TimeoutError)
        else:
            import time

            time.sleep(1)
        return texts

    for strided, size, splits in processes(2, rank, tmp_path / "store"):
        assert "contiguous" in strided and "world_size" in size and "has the sum 2" in splits


def test_a_monitored_barrier_names_ranks_as_torch_does(tmp_path):
    def rank(rank, world, path, wait_all):
        join("rdzv", rank, world, path)
        dist.barrier()
        if rank in (1, 2):
            import time

            time.sleep(1)
            return ""
        with pytest.raises(RuntimeError) as caught:
            dist.monitored_barrier(timeout=timedelta(milliseconds=300), wait_all_ranks=wait_all)
        return str(caught.value)

    texts = processes(4, rank, tmp_path / "one", False)
    assert texts[0].startswith("Rank 1 failed to pass monitoredBarrier in 300 ms")
    assert texts[3].startswith("Rank 3 successfully reached monitoredBarrier")
    texts = processes(4, rank, tmp_path / "all", True)
    assert texts[0].startswith("Ranks 1, 2 failed to pass monitoredBarrier")


def test_groups_of_one_name_and_split_groups(tmp_path):
    def rank(rank, world, path):
        join("rdzv", rank, world, path)
        for _ in range(3):
            again = dist.new_group([0, 1], use_local_synchronization=True)
            dist.all_reduce(torch.ones(1), group=again)
            dist.destroy_process_group(again)
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
        half = backend.split(dist.PrefixStore("half/", dist.FileStore(str(path) + "2", 2)), [1], None)
        assert (half is None) == (rank == 0)
        if half is not None:
            assert (half.rank(), half.size()) == (0, 1)
            half.shutdown()
        dist.destroy_process_group()
        return True

    assert processes(2, rank, tmp_path / "store") == [True, True]


def test_groups_that_are_destroyed_leave_nothing():
    source = """
        import os, sys
        import torch, torch.distributed as dist

        def level():
            with open("/proc/self/statm") as file:
                pages = int(file.read().split()[1])
            return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pages * os.sysconf("SC_PAGE_SIZE")

        def rounds(count):
            for _ in range(count):
                store = dist.HashStore()
                dist.init_process_group("rdzv", store=store, rank=0, world_size=1)
                other = dist.new_group([0], backend="rdzv")
                dist.all_reduce(torch.ones(4))
                dist.all_reduce(torch.ones(4), group=other)
                dist.destroy_process_group()
            return level()

        before = rounds(100)
        after = rounds(1000)
        print(before, after)
        assert after[:2] == before[:2], (before, after)
        assert after[2] - before[2] < 8 << 20, (before, after)
    """
    with Program(source) as program:
        code, out, err = program.end()
        assert code == 0, (out, err)


@pytest.mark.skipif(not hasattr(dist, "_reconfigure"), reason="torch cannot reconfigure groups")
def test_a_group_changes_its_connections_when_it_is_reconfigured():
    dist.init_process_group("rdzv", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
    try:
        assert dist._supports_reconfigure()
        with pytest.raises(RuntimeError, match="_reconfigure first"):
            dist.all_reduce(torch.ones(1))
        handle = dist._get_reconfigure_handle()
        for uuid in (1, 2):
            dist._reconfigure(uuid=uuid, handles=[handle]).wait()
            tensor = torch.ones(1)
            dist.all_reduce(tensor)
            assert tensor.item() == 1
        with pytest.raises(ValueError, match="rank 0 of 1 cannot become rank 0 of 2"):
            dist._reconfigure(uuid=3, handles=[handle, "other"])
    finally:
        dist.destroy_process_group()


def test_a_torch_without_backends_in_python_is_refused():
    source = "import torch._C._distributed_c10d as c; vars(c).pop('ErrorType', None); import rdzv.torch.backend"
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert "the backend 'rdzv' of torch.distributed needs torch 2.14 or newer, but this is torch" in ended.stderr
