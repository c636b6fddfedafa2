"""Gloo group whose ranks call different collectives, with flight recorders.

    recorded_calls.py skips|differs

Rank 1 does not call the second collective, or calls another one. With worker_main, the agent can
read the recorder.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main


@worker_main()
def main():
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(4, 5))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1000))
    elif sys.argv[1] == "differs":
        dist.barrier()
    time.sleep(10_000)


main()
