"""Joins a process group at the URL given and checks what it computes.

It replaces `{MASTER_ADDR}` and other variables in the URL. Each rank writes its result to the file
`attempt N rank R` in the given folder.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from ending import ends_at_once


def compute() -> float:
    rank, size = dist.get_rank(), dist.get_world_size()

    total = torch.arange(1000, dtype=torch.float64) * (rank + 1)
    dist.all_reduce(total)
    assert torch.equal(total, torch.arange(1000, dtype=torch.float64) * (size * (size + 1) // 2))

    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": n} for n in range(size)]

    last = torch.tensor([rank])
    dist.broadcast(last, src=size - 1)
    assert last.item() == size - 1

    second = dist.new_group(list(range(size)))
    dist.barrier(group=second)
    dist.barrier()
    return total[1].item()


def main() -> None:
    url, folder = sys.argv[1:3]
    url = url.format(**os.environ)
    options = {"timeout": timedelta(seconds=60)}
    if not url.startswith("env://"):
        options |= {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    dist.init_process_group("gloo", init_method=url, **options)
    result = compute()
    rank = dist.get_rank()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    with open(os.path.join(folder, f"attempt {attempt} rank {rank}"), "w") as file:
        file.write(str(result))
    dist.destroy_process_group()


ends_at_once(main)
