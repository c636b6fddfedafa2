"""Causes the fault that its argument names, in a collective of gloo."""

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from ending import ends_at_once


def main() -> None:
    way = sys.argv[1]
    rank = int(os.environ["RANK"])

    if way == "absent" and rank == 1:
        signal.pause()
    dist.init_process_group("gloo", timeout=timedelta(seconds=3 if way == "absent" else 60))
    for step in range(100):
        dist.all_reduce(torch.ones(1000))
        if step != 20 or rank != 1:
            continue
        if way == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if way == "raises":
            raise ValueError("loss is NaN at step 20")
        if way == "slow":
            until = time.process_time() + 3
            while time.process_time() < until:
                sum(range(10_000))
    if way == "late" and rank == 1:
        signal.pause()
    if way == "late":
        dist.monitored_barrier(timeout=timedelta(seconds=2))
    dist.barrier()
    dist.destroy_process_group()


ends_at_once(main)
