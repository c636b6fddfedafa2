"""One rank of a gloo group that only reduces and exchanges messages.

Arguments: host:port of a store, rank, world size, name of the group. Rank 0 prints one line of JSON
with the median seconds of one `all_reduce`, by size in bytes. With two ranks it also has the median
seconds of a message to the other rank and back, as `message` and the size.
"""

import json
import os
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

ROUNDS = ((4, 3000), (64 << 10, 1000), (16 << 20, 20))
WARM = 5

torch.set_num_threads(1)
address, rank, world_size, name = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
host, port = address.rsplit(":", 1)
store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))
dist.init_process_group(
    "gloo", store=dist.PrefixStore(name, store), rank=rank, world_size=world_size
)
figures = {}
for size, rounds in ROUNDS:
    values = torch.ones(size // 4)
    dist.barrier()
    times = []
    for _ in range(WARM + rounds):
        start = time.perf_counter()
        dist.all_reduce(values, dist.ReduceOp.MAX)
        times.append(time.perf_counter() - start)
    figures[str(size)] = statistics.median(times[WARM:])
for size, rounds in ROUNDS if world_size == 2 else ():
    values = torch.ones(size // 4)
    dist.barrier()
    times = []
    for _ in range(WARM + rounds):
        start = time.perf_counter()
        if rank == 0:
            dist.send(values, 1)
            dist.recv(values, 1)
        else:
            dist.recv(values, 0)
            dist.send(values, 0)
        times.append(time.perf_counter() - start)
    figures[f"message {size}"] = statistics.median(times[WARM:])
dist.barrier()
if rank == 0:
    print(json.dumps(figures), flush=True)
# The process ends immediately: threads of gloo may still use objects that would be destroyed.
os._exit(0)
