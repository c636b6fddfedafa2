"""Tests that rdzv binds workers to the same processors as PyTorch.

The machines are generated files. PyTorch reads `/sys` at fixed paths and gets addresses from the
accelerator's library; the tests redirect both to these files. PyTorch also needs a `numactl`, so the
tests intercept its decision before it searches for that program.
"""

import builtins
import os
import random
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.numa import binding as theirs

from launching import program

PLACEMENT = program("RDZV_PLACEMENT")
MODES = [mode.value for mode in theirs.AffinityMode]


def ranges(numbers) -> str:
    return ",".join(map(str, sorted(numbers)))


@dataclass
class Machine:
    root: Path
    allowed: set[int]
    addresses: list[str] = field(default_factory=list)

    def file(self, path: str, text) -> None:
        path = self.root / path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def machine(root: Path, seed: int) -> Machine:
    """Generates sockets, nodes, cores and threads, some offline or not allowed."""
    draw = random.Random(seed)
    sockets, nodes = draw.choice([(1, 1), (1, 2), (2, 2), (2, 4)])
    cores, threads = draw.randint(1, 8), draw.choice([1, 2])
    per_cache = draw.choice([1, 2, 3, 8])
    count = nodes * cores
    everything = list(range(count * threads))
    offline = set(draw.sample(everything, draw.choice([0, 0, len(everything) // 4])))
    here = [number for number in everything if number not in offline]
    built = Machine(root, set(here) - set(draw.sample(here, len(here) // draw.choice([3, 4, 100]))))
    built.file("/sys/devices/system/node/possible", f"0-{nodes - 1}")
    for node in range(nodes):
        own = [number for number in here if number % count // cores == node]
        built.allowed.add(own[0]) if own else None
        built.file(f"/sys/devices/system/node/node{node}/cpulist", ranges(own))
    for number in here:
        core = number % count
        node, first = core // cores, core - core % cores % per_cache
        shared = range(first, min(first + per_cache, (node + 1) * cores))
        siblings = [core + count * thread for thread in range(threads)]
        folder = f"/sys/devices/system/cpu/cpu{number}"
        built.file(f"{folder}/topology/physical_package_id", node * sockets // nodes)
        built.file(
            f"{folder}/topology/thread_siblings_list", ranges(set(siblings) - offline)
        )
        last = {core + count * thread for core in shared for thread in range(threads)} - offline
        for index, kind, level, cpus in [
            (0, "Data", 1, {number}),
            (1, "Instruction", 4, {number}),
            (2, "Unified", 2, last),
        ]:
            cache = f"{folder}/cache/index{index}"
            built.file(f"{cache}/type", kind)
            built.file(f"{cache}/level", level)
            built.file(f"{cache}/shared_cpu_list", ranges(cpus))
    for device in range(draw.randint(1, 8)):
        address = f"0000:{device + 1:02x}:00.0"
        built.addresses.append(address)
        built.file(f"/proc/driver/nvidia/gpus/{address}/information", "Model: none")
        node = draw.choice([-1, *range(nodes)])
        built.file(f"/sys/bus/pci/devices/{address}/numa_node", node)
    return built


def decided_by_pytorch(built: Machine, mode: str, monkeypatch) -> list[set[int]] | None:
    """Returns PyTorch's decision, or `None` if it raises for any of the workers."""
    real_open, real_list = builtins.open, os.listdir

    def led(path):
        path = os.fspath(path)
        return built.root / path[1:] if path.startswith("/sys/") else path

    def properties(index):
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=index + 1, pci_device_id=0)

    module = SimpleNamespace(get_device_properties=properties)
    options = theirs.NumaOptions(affinity_mode=theirs.AffinityMode(mode))
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "open", lambda path, *more, **named: real_open(led(path), *more, **named))
        patched.setattr(os, "listdir", lambda path: real_list(led(path)))
        patched.setattr(os, "sched_getaffinity", lambda _: set(built.allowed))
        patched.setattr(torch.accelerator, "is_available", lambda: True)
        patched.setattr(torch.accelerator, "device_count", lambda: len(built.addresses))
        patched.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        patched.setattr(torch, "get_device_module", lambda _: module)
        try:
            bound = [
                theirs._get_logical_cpus_to_bind_to(device_index=index, numa_options=options)
                for index in range(len(built.addresses))
            ]
        except (RuntimeError, ValueError):
            return None
    # PyTorch refuses an empty set at the point where it searches for numactl.
    return bound if all(bound) else None


def decided_by_us(built: Machine, mode: str) -> list[set[int]] | None:
    line = [PLACEMENT, str(built.root), ranges(built.allowed), mode, str(len(built.addresses))]
    text = subprocess.run(line, check=True, capture_output=True, text=True).stdout
    if text.startswith("error: "):
        return None
    return [theirs._get_set_of_int_from_ranges_str(line) for line in text.splitlines()]


@pytest.mark.parametrize("mode", MODES)
def test_both_bind_to_the_same_processors(mode, tmp_path, monkeypatch):
    bound = refused = 0
    for seed in range(60):
        built = machine(tmp_path / str(seed), seed)
        ours, reference = decided_by_us(built, mode), decided_by_pytorch(built, mode, monkeypatch)
        # In mode `socket`, PyTorch fails on nodes without an allowed processor. rdzv ignores them.
        if reference is None and mode == "socket":
            continue
        assert ours == reference, f"seed {seed}"
        bound, refused = bound + (ours is not None), refused + (ours is None)
    assert bound > 20, (bound, refused)
    assert refused > 0 or mode != "exclusive"
