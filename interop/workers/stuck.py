"""Gloo group in which one worker does not enter a collective.

    stuck.py sleeps|computes SECONDS

Rank 1 sleeps, or computes without output, for SECONDS. The other ranks wait for it in `all_reduce`.
Each rank prints the time at which it begins, in seconds since the epoch.
"""

import sys
import time

import torch
import torch.distributed as dist
from ending import ends_at_once


def elsewhere(how: str, seconds: float):
    if how == "sleeps":
        time.sleep(seconds)
    end = time.monotonic() + seconds
    values = torch.ones(1000)
    while time.monotonic() < end:
        values = values * 1.0001


def main(how: str, seconds: float):
    dist.init_process_group("gloo")
    values = torch.ones(4)
    dist.all_reduce(values)
    print(f"began {time.time()}", flush=True)
    if dist.get_rank() == 1:
        elsewhere(how, seconds)
    dist.all_reduce(values)
    print("all came", flush=True)


ends_at_once(lambda: main(sys.argv[1], float(sys.argv[2])))
