"""Training whose workers recover, or restart from a checkpoint.

train.py DIRECTORY STEPS WAY: each worker appends lines `time pid node rank world round step loss` to DIRECTORY/PID, and
the time of each checkpoint that it reads to DIRECTORY/read-PID. NODE is the name of its node.
"""

import os
import sys
import time

import torch

import rdzv
import rdzv.torch

torch.set_num_threads(1)

# Samples of a step, shared by all ranks; steps between two checkpoints.
BATCH, INTERVAL = 24, 100


def build():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1, dtype=torch.float64)
    return model, torch.optim.Adam(model.parameters(), 0.01)


def errors_of(model, step, rank=0, world=1):
    """Returns the errors of the samples of a step and a rank."""
    samples = torch.randn(BATCH, 9, generator=torch.Generator().manual_seed(step), dtype=torch.float64)[rank::world]
    # The last column is noise, so the loss does not become 0.
    return (model(samples[:, :8]).squeeze(1) - samples.sum(1)).square()


def left(job):
    with open(f"{sys.argv[1]}/left-{os.getpid()}", "a") as log:
        print(time.monotonic(), file=log)


def load_checkpoint(directory, model, optimizer):
    try:
        step, states = torch.load(f"{directory}/checkpoint")
    except FileNotFoundError:
        return 0
    for it, state in zip((model, optimizer), states, strict=True):
        it.load_state_dict(state)
    with open(f"{directory}/read-{os.getpid()}", "a") as log:
        print(time.monotonic(), file=log)
    return step


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
    step = rdzv.torch.broadcast_state(model, optimizer, job)
    if step is None:
        step = load_checkpoint(directory, model, optimizer)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    who = f"{os.getpid()} {os.environ.get('NODE', 0)} {job.rank} {job.world_size} {job.round}"
    with open(f"{directory}/{os.getpid()}", "a", buffering=1) as log:
        while step < steps:
            if step % 10 == 0 and os.path.exists(f"{directory}/end"):
                # All ranks end at the step that this file names.
                with open(f"{directory}/end") as end:
                    steps = int(end.read())
            loss = errors_of(parallel, step, job.rank, job.world_size).mean()
            optimizer.zero_grad()
            loss.backward()
            with job.atomic():
                optimizer.step()
                step += 1
                job.step(step)
            print(time.monotonic(), who, step, loss.item(), file=log)
            if job.rank == 0 and step % INTERVAL == 0:
                torch.save((step, [it.state_dict() for it in (model, optimizer)]), f"{directory}/checkpoint.new")
                os.replace(f"{directory}/checkpoint.new", f"{directory}/checkpoint")
            time.sleep(0.002)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), sys.argv[3])
