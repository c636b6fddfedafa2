"""One rank of torch.distributed with the backends rdzv and gloo, in one process, measured in turns.

Arguments: host:port of a store, rank, world size, name of the run. Rank 0 prints one line of JSON: for each backend the median
seconds of one `all_reduce`, by size in bytes, and with two ranks those of a step of DDP, as `step`, and those that the
gradients of a step are on their way, as `communication`.
"""

import json
import os
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

ROUNDS = ((4, 1500), (64 << 10, 400), (16 << 20, 10))
# So many turns of each backend, one after the other.
TURNS = 3
STEPS = 40

torch.set_num_threads(1)
address, rank, world_size, name = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
host, port = address.rsplit(":", 1)
store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group("rdzv", store=dist.PrefixStore(name, store), rank=rank, world_size=world_size)
groups = {"rdzv": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def timed(rounds, call):
    for _ in range(max(2, rounds // 20)):
        call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def in_turns(rounds, calls):
    """Median seconds of each call, measured in turns."""
    times = {name: [] for name in calls}
    for _ in range(TURNS):
        for name, call in calls.items():
            dist.barrier()
            times[name] += timed(max(1, rounds // TURNS), call)
    return {name: statistics.median(found) for name, found in times.items()}


figures = {"rdzv": {}, "gloo": {}}
for size, rounds in ROUNDS:
    values = torch.ones(size // 4)
    calls = {
        backend: lambda group=group, values=values: dist.all_reduce(values, dist.ReduceOp.MAX, group=group)
        for backend, group in groups.items()
    }
    for backend, seconds in in_turns(rounds, calls).items():
        figures[backend][str(size)] = seconds

if world_size == 2:
    # About a million parameters.
    def model():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(256, 1800), torch.nn.ReLU(), torch.nn.Linear(1800, 300))

    def step(module):
        data, optimizer = torch.randn(32, 256), torch.optim.SGD(module.parameters(), lr=0.01)

        def call():
            optimizer.zero_grad()
            module(data).square().mean().backward()
            optimizer.step()

        return call

    ddp = torch.nn.parallel.DistributedDataParallel
    models = {backend: ddp(model(), process_group=group) for backend, group in groups.items()}
    for backend, seconds in in_turns(STEPS, {backend: step(of) for backend, of in models.items()}).items():
        figures[backend]["step"] = seconds
    for backend, group in groups.items():
        underway = []

        def timed_hook(group, bucket, underway=underway):
            start = time.perf_counter()

            def ended(future, start=start):
                underway[-1] += time.perf_counter() - start
                return future.value()[0]

            tensor = bucket.buffer().div_(world_size)
            return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(ended)

        observed = ddp(model(), process_group=group)
        observed.register_comm_hook(group, timed_hook)
        call = step(observed)
        for _ in range(STEPS):
            underway.append(0.0)
            call()
        figures[backend]["communication"] = statistics.median(underway[5:])
dist.barrier()
if rank == 0:
    print(json.dumps(figures), flush=True)
# Ends here and now: threads of gloo may still hold what would be torn down.
os._exit(0)
