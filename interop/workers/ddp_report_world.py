"""Trains with DDP in a world of any size, until the file `finished` exists.

Unlike in `report_world.py`, all ranks are in collectives all the time, so the loss of one rank
affects all of them.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from ending import ends_at_once
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    folder, name = sys.argv[1:3]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    finished = torch.zeros(1)
    steps = 0
    while not finished.item():
        optimizer.zero_grad()
        points = torch.randn(16, 8)
        loss = (model(points) - points.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps == 3:
            with open(os.path.join(folder, "reports"), "w") as reports:
                reports.write(f"{name} {rank} {size}\n")
        # All ranks stop at the same step.
        finished[0] = float(os.path.exists(os.path.join(folder, "finished")))
        dist.all_reduce(finished)
    dist.destroy_process_group()


ends_at_once(main)
