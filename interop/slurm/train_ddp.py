"""Trains with DDP over gloo for a number of steps; after the notice all ranks stop at the same step and save.

A step takes its data from its number and the rank, so a run that was broken off has the same losses as another.
"""

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
    # Where buckets begin changes with the first step of a process, and with it the order of
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
        # All stop at the same step.
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
    # No rank takes its group down while another one is still in an operation.
    dist.barrier()
    dist.destroy_process_group()


main()
