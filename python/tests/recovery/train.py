"""Training whose workers recover in their processes.

train.py DIRECTORY STEPS WAY: each worker appends lines `time pid rank round step loss` to DIRECTORY/PID.
"""

import os
import sys
import time

import torch

import rdzv
import rdzv.torch

torch.set_num_threads(1)


def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    return model, torch.optim.Adam(model.parameters(), 0.01)


def loss_of(model, step):
    # The same data on every rank, so the loss does not depend on the number of workers.
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()


def left(job):
    with open(f"{sys.argv[1]}/left-{os.getpid()}", "a") as log:
        print(time.monotonic(), file=log)


@rdzv.resilient(finalize=left)
def train(job, directory, steps, way):
    if way == "reconfigure":
        job.init_process_group("gloo")
    else:
        # A group with a store of the user's choice is made again.
        job.init_process_group("gloo", init_method="env://")
    if "model" not in job.state:
        job.state["model"] = build()
    model, optimizer = job.state["model"]
    step = rdzv.torch.broadcast_state(model, optimizer, job) or 0
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    with open(f"{directory}/{os.getpid()}", "a", buffering=1) as log:
        while step < steps:
            if step % 10 == 0 and os.path.exists(f"{directory}/end"):
                # All ranks end at the step that this file names.
                with open(f"{directory}/end") as end:
                    steps = int(end.read())
            loss = loss_of(parallel, step)
            optimizer.zero_grad()
            loss.backward()
            with job.atomic():
                optimizer.step()
                step += 1
                job.step(step)
            print(time.monotonic(), os.getpid(), job.rank, job.round, step, loss.item(), file=log)
            time.sleep(0.002)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), sys.argv[3])
