"""One rank of a small job, which the experiments of `bench ha` interrupt.

Arguments: `ddp`, `plain` or `silent`, a folder, and the least milliseconds of a step. `ddp` trains with DistributedDataParallel
over gloo; rank 0 writes a checkpoint after each step, and everybody begins at the last one. `plain` only counts, without
PyTorch. `silent` only waits for the end, leaves no record, and needs none of the variables of rdzv.

Each process writes a file of its own into `steps/` of the folder: a line when it begins (with the number of its machine, the
variable `MACHINE`), and one for each step, with the time in nanoseconds since the epoch. It ends with 0 after the step in which
rank 0 finds a file `end` in the folder, or after the step whose number is in the variable `LAST_STEP`.
"""

import os
import time

BEGAN = time.time_ns()

import sys  # noqa: E402

KIND, FOLDER, PACE = sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1e3


def is_to_end():
    return os.path.exists(f"{FOLDER}/end")


if KIND == "silent":
    while not is_to_end():
        time.sleep(PACE)
    sys.exit()

LAST_STEP = int(os.environ.get("LAST_STEP", 1 << 60))
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

record = os.open(
    f"{FOLDER}/steps/{BEGAN}-{os.getpid()}",
    os.O_WRONLY | os.O_CREAT | os.O_APPEND,
)


def write(*words):
    os.write(record, (" ".join(map(str, words)) + "\n").encode())


write(
    "began",
    BEGAN,
    os.environ["RDZV_ROUND"],
    RANK,
    WORLD_SIZE,
    os.getpid(),
    os.environ["TORCHELASTIC_RESTART_COUNT"],
    os.environ["MACHINE"],
)


def count():
    step = 0
    while not is_to_end():
        time.sleep(PACE)
        step += 1
        write("step", step, time.time_ns(), 0)


def train():
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).double()
    checkpoint = f"{FOLDER}/checkpoint"
    step = 0
    # Rank 0 of this round is there already, and nobody of an older one writes.
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        step = saved["step"]
        model.load_state_dict(saved["model"])
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ends = torch.zeros(1)
    while True:
        due = time.monotonic() + PACE
        step += 1
        # The same samples whatever the number of ranks, which divides 12.
        samples = torch.Generator().manual_seed(step)
        inputs = torch.randn(12, 8, generator=samples, dtype=torch.float64)
        targets = inputs.sin().sum(dim=1, keepdim=True) + torch.randn(12, 1, generator=samples, dtype=torch.float64)
        optimizer.zero_grad()
        loss = (model(inputs[RANK::WORLD_SIZE]) - targets[RANK::WORLD_SIZE]).square().mean()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if RANK == 0:
            torch.save({"step": step, "model": model.module.state_dict()}, checkpoint + ".new")
            os.rename(checkpoint + ".new", checkpoint)
            ends[0] = is_to_end() or step >= LAST_STEP
        # After this each rank knows that the checkpoint is there, and whether that was the last step.
        dist.broadcast(ends, src=0)
        time.sleep(max(0.0, due - time.monotonic()))
        write("step", step, time.time_ns(), repr(float(mean) / WORLD_SIZE))
        if ends[0]:
            break
    dist.barrier()
    dist.destroy_process_group()


{"ddp": train, "plain": count}[KIND]()
