"""Data-parallel training over gloo on generated data, with checkpoints.

This is an ordinary PyTorch script: it does not depend on the launcher.

    rdzv run --standalone --nproc-per-node 2 examples/ddp_train.py
    torchrun --standalone --nproc-per-node 2 examples/ddp_train.py

Both commands print the same final loss, down to the last digit. To see a restart, let a worker die
during training. The final loss stays the same, because training resumes from the last checkpoint:

    rdzv run --standalone --nproc-per-node 2 --max-restarts 1 examples/ddp_train.py \\
        --checkpoint /tmp/model.pt --kill-rank 1 --kill-at-step 140
"""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class TwoSpirals(Dataset):
    """Points on two interleaved spirals. The label is the index of the spiral."""

    def __init__(self, points: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(points) % 2
        angle = torch.rand(points, generator=generator).sqrt() * 3 * torch.pi
        radius = angle / (3 * torch.pi)
        turn = angle + self.labels * torch.pi
        noise = 0.02 * torch.randn(points, 2, generator=generator)
        self.points = torch.stack([radius * turn.cos(), radius * turn.sin()], dim=1) + noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int):
        return self.points[index], self.labels[index]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="train a small classifier with DDP over gloo")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=64, help="per rank")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--checkpoint", help="file to save to and to resume from")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--kill-rank", type=int, help="let this rank die in the first attempt")
    parser.add_argument("--kill-at-step", type=int, default=140)
    return parser.parse_args()


def save(path: str, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replaces the checkpoint atomically: readers find the old or the new file."""
    unfinished = f"{path}.{os.getpid()}"
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def resume(path: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Loads the checkpoint, if any, and returns the number of completed steps."""
    if not os.path.exists(path):
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def batches(loader: DataLoader, sampler: DistributedSampler, first_step: int):
    """Yields all batches from `first_step` on. The seed determines their order."""
    step = 0
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for batch in loader:
            if step >= first_step:
                yield step, batch
            step += 1
        epoch += 1


def mean_over_ranks(value: torch.Tensor) -> float:
    total = value.clone()
    dist.all_reduce(total)
    return (total / dist.get_world_size()).item()


def train(options: argparse.Namespace) -> None:
    rank = dist.get_rank()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))

    network = nn.Sequential(
        nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)
    )
    model = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    data = TwoSpirals(points=4096, seed=options.seed)
    sampler = DistributedSampler(data, seed=options.seed)
    loader = DataLoader(data, batch_size=options.batch_size, sampler=sampler, drop_last=True)

    done = resume(options.checkpoint, network, optimizer) if options.checkpoint else 0
    if rank == 0 and done:
        print(f"attempt {attempt}: resumed after step {done}", flush=True)

    for step, (points, labels) in batches(loader, sampler, done):
        if step >= options.steps:
            break
        if attempt == 0 and rank == options.kill_rank and step == options.kill_at_step:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = loss_of(model(points), labels)
        loss.backward()
        optimizer.step()

        made = step + 1
        if made % 50 == 0:
            mean = mean_over_ranks(loss.detach())
            if rank == 0:
                print(f"step {made}: loss {mean:.4f}", flush=True)
        if rank == 0 and options.checkpoint and made % options.checkpoint_every == 0:
            save(options.checkpoint, made, network, optimizer)

    with torch.no_grad():
        final = loss_of(network(data.points), data.labels).item()
    if rank == 0:
        print(f"final loss {final!r}", flush=True)


def main() -> None:
    options = arguments()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options)
    dist.destroy_process_group()


def end_here() -> None:
    """Exits immediately with status 0, without shutting down the interpreter.

    A process group that DDP has used outlives `destroy_process_group` (seen with PyTorch 2.15), and
    so do its gloo threads. Such a thread may still hold the tensor of the last collective, and
    needs the interpreter lock to release the tensor. If the interpreter is shutting down at that
    time, the process aborts, although all work is done. This function therefore skips the shutdown.
    Call functions here that you would otherwise register with `atexit`. A script without DDP needs
    only `destroy_process_group`, which stops the threads of its groups.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
    end_here()
