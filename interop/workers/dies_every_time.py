"""Joins a group in which rank 1 dies after a collective, but not in the last.

The number of the last attempt is an argument. Rank 0 records each attempt after the collective.
"""

import os
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from ending import ends_at_once


def count() -> int:
    one = torch.ones(())
    dist.all_reduce(one)
    return int(one.item())


def main() -> None:
    last_attempt, notes = int(sys.argv[1]), sys.argv[2]
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    workers = count()
    if rank == 0:
        with open(notes, "a") as file:
            file.write(f"{attempt} {workers}\n")
    # No rank continues before the record is written.
    dist.barrier()
    if attempt < last_attempt:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.barrier()
        finally:
            os._exit(1)
    dist.destroy_process_group()


ends_at_once(main)
