"""Fails in rank 1, whose process ends slowly, while others lose connections."""

import threading
import time

import torch
import torch.distributed as dist
from ending import ends_at_once


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        threading.Thread(target=time.sleep, args=(60,)).start()
        try:
            raise ValueError("loss is NaN")
        finally:
            dist.destroy_process_group()
    dist.all_reduce(torch.ones(1))


ends_at_once(main)
