"""Collectives until a rank exits.

named.py DIRECTORY BACKEND: survivors write the reason to DIRECTORY/reason-RANK.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import rdzv


@rdzv.resilient
def work(job, directory, backend):
    if job.reason:
        (directory / f"reason-{job.rank}").write_text(job.reason)
    job.init_process_group(backend)
    dist.all_reduce(torch.ones(1))
    if job.kept:
        dist.destroy_process_group()
        return
    temporary = directory / f"pid-{job.rank}"
    temporary.write_text(str(os.getpid()))
    temporary.rename(directory / f"running-{job.rank}")
    while True:
        dist.all_reduce(torch.ones(1000))


work(Path(sys.argv[1]), sys.argv[2])
