"""Joins a group in every round and reports its size, until `finish` is opened.

The folder has two named pipes. A line `name rank world` per round goes to `reports`. The test opens
`finish` for writing to end the job.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from ending import ends_at_once


def main() -> None:
    folder, name = sys.argv[1:3]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    assert total.item() == size * (size + 1) / 2, (total, size)
    # No rank leaves before all ranks have received the sum.
    dist.barrier()
    with open(os.path.join(folder, "reports"), "w") as reports:
        reports.write(f"{name} {rank} {size}\n")
    # Waits until another process opens the pipe for writing.
    open(os.path.join(folder, "finish")).close()
    dist.destroy_process_group()


ends_at_once(main)
