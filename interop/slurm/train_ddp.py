"""DDP training over gloo; after the notice, all ranks stop at the same step.

The ranks then save a checkpoint. The data of a step depends only on its number and the rank, so an
interrupted run has the same losses as a run without an interruption.
"""

import gc
import json
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 60
folder = os.environ["JOB"]
noticed = []
signal.signal(signal.SIGUSR1, lambda *_: noticed.append(True))


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(1)
    # The bucket boundaries change with the first step of a process, and so does the order of the
    # additions.
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    report = open(f"{folder}/worker-{os.environ['TORCHELASTIC_RUN_ID']}-{rank}.json", "a", buffering=1)

    def say(word, **facts):
        report.write(json.dumps({"say": word, "rank": rank, **facts}) + "\n")

    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    path, step, loss = f"{folder}/checkpoint-{rank}.pt", 0, None
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    say("start", step=step, restart=os.environ.get("SLURM_RESTART_COUNT", "0"))
    stops = torch.zeros(1)
    while step < STEPS and not stops.item():
        random = torch.Generator().manual_seed(1000 * step + rank)
        points = torch.randn(16, 8, generator=random)
        optimizer.zero_grad()
        loss = (model(points) - points.sum(dim=1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 10:
            say("tenth")
        time.sleep(0.03)
        # All ranks stop at the same step.
        stops[0] = float(bool(noticed))
        dist.all_reduce(stops)
    if stops.item() and step < STEPS:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)
        say("saved", step=step)
    else:
        total = loss.detach().clone()
        dist.all_reduce(total)
        say("end", step=step, loss=total.item())
    # No rank destroys its group while another rank is still in an operation.
    dist.barrier()
    dist.destroy_process_group()


main()
# DDP is part of a reference cycle and keeps its group. PyTorch 2.15 aborts a process that exits
# while a thread of this group releases a tensor (with torchrun too). The collector ends the group.
gc.collect()
