"""Jobs with a slow or stuck rank, which rdzv must name, and healthy jobs.

The ranks of a job run on two or three nodes, which are launchers on this machine.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ports import free_port

import rdzv

# Common part of all scripts: a barrier of plain Python, and work that needs a processor.
PREFIX = """
import os, sys, time
import rdzv
from rdzv.worker import step
rank, size = rdzv.worker.rank(), rdzv.worker.world_size()
attempt = rdzv.worker.restart_count()
store = rdzv.worker.store()
def barrier(name):
    name = str(name)
    if store.add(name, 1) == size:
        store.set(name + "/passed", "")
    store.wait([name + "/passed"])
def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(10_000))
def train(steps, before=lambda number: None, seconds=0.1):
    for number in range(steps):
        before(number)
        time.sleep(seconds)
        step(number)
        barrier(number)
barrier("start")
"""

LIMIT = 4
WINDOW = 3
FAIL = ("--hang-timeout", str(LIMIT), "--hang-action", "fail")
SLOW = ("--stragglers", str(WINDOW))


def run(tmp_path, script, nodes, flags, ranks=1, prefix=PREFIX):
    """Runs a script on several nodes; returns the exit codes and all output."""
    path = tmp_path / "job.py"
    path.write_text(prefix + script)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "RDZV_"))}
    environment["PYTHON_EXEC"] = sys.executable
    # py-spy is where PyTorch is.
    programs = Path(torch.__file__).parents[4] / "bin"
    assert (programs / "py-spy").exists()
    environment["PATH"] += f"{os.pathsep}{programs}"
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    environment["RDZV_TEST_FOLDER"] = str(tmp_path)
    command = [rdzv.find_rdzv_bin(), "run", f"--nnodes={nodes}", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job", *flags, str(path)]
    started = [
        subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(nodes)
    ]
    try:
        outputs = [node.communicate(timeout=120)[0] for node in started]
    finally:
        for node in started:
            node.kill()
    return [node.returncode for node in started], "\n".join(outputs)


GLOO = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
values = torch.ones(4)
dist.all_reduce(values)
def elsewhere():
    time.sleep(1000)
if dist.get_rank() == 1:
    elsewhere()
dist.all_reduce(values)
"""

# A file in a folder `torch/distributed` replaces NCCL, which spins while it waits.
SPIN = """
folder = os.path.join(os.environ["RDZV_TEST_FOLDER"], f"rank{rank}", "torch", "distributed")
os.makedirs(folder)
with open(os.path.join(folder, "spinning.py"), "w") as file:
    file.write("import os\\ndef all_reduce(path):\\n    while not os.access(path, os.F_OK): pass\\n")
sys.path.insert(0, folder)
import spinning
def elsewhere():
    time.sleep(1000)
if rank == 1:
    elsewhere()
spinning.all_reduce("/no/such/file")
"""

TRACED = """
import ctypes
if rank == 1 and os.fork() == 0:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(16, os.getppid(), None, None) == 0, os.strerror(ctypes.get_errno())
    time.sleep(1000)
    os._exit(0)
time.sleep(0.5)
barrier("end")
"""

DEBUGGED = """
def evaluate():
    reader, writer = os.pipe()
    os.dup2(reader, 0)
    breakpoint()
if rank == 1:
    evaluate()
barrier("end")
"""

FULL_PIPE = """
def export():
    reader, writer = os.pipe()
    os.write(writer, bytes(1 << 20))
if rank == 1:
    export()
barrier("end")
"""

# Name, nodes, ranks per node, script and text that names the rank.
STUCK = {
    "a sleep before a collective of gloo": (3, 1, GLOO, r"elsewhere \(job\.py"),
    "a sleep while the other ranks spin": (2, 2, SPIN, r"elsewhere \(job\.py"),
    "a rank that a debugger holds": (3, 1, TRACED, r"stopped by a debugger \(ptrace\)"),
    "a rank that waits in pdb": (2, 2, DEBUGGED, r"\((bdb|cmd|pdb)\.py"),
    "a rank whose pipe has no reader": (2, 2, FULL_PIPE, r"export \(job\.py"),
}


@pytest.mark.parametrize("name", STUCK)
def test_the_stuck_rank_is_named_and_ends_the_job(tmp_path, name):
    nodes, ranks, script, place = STUCK[name]
    prefix = "" if script is GLOO else PREFIX
    codes, output = run(tmp_path, script, nodes, FAIL, ranks, prefix)
    assert all(codes), output
    assert re.search(rf"rank 1 \(\S+\) is not where the others are: it is in .*{place}", output), output


LATE = "train(60, lambda number: time.sleep(0.2 if rank == 1 else 0))"

BEHIND = """
for number in range(120):
    time.sleep(0.25 if rank == 1 else 0.1)
    step(number)
barrier("end")
"""

GUESSED = """
for number in range(40):
    if rank == 1:
        compute(0.25)
    barrier(number)
"""

SLOWER = {
    "a rank that arrives late in each step": (3, LATE, "rank 1 .* has been slower .* reaches each step 0.[12]"),
    "a rank that falls behind": (2, BEHIND, "rank 1 .* has been slower .* steps? behind"),
    "a rank that computes while the others wait": (3, GUESSED, "rank 1 .* may have been slower .*[(]a guess"),
}


@pytest.mark.parametrize("name", SLOWER)
def test_the_slow_rank_is_named_once(tmp_path, name):
    nodes, script, text = SLOWER[name]
    codes, output = run(tmp_path, script, nodes, SLOW)
    assert not any(codes), output
    assert len(re.findall(text, output)) == 1, output
    assert len(re.findall("slower than the other ranks for", output)) == 1, output


HEALTHY = {
    "a long compilation on all ranks": (2, "compute(LIMIT + 2); barrier('compiled'); train(30)"),
    "checkpoints on one rank": (3, "train(50, lambda number: time.sleep(0.5 if rank == 0 and number % 5 == 0 else 0))"),
    "an evaluation on one rank of one node": (
        2,
        "train(20)\nif rank == 0:\n    compute(LIMIT + 3)\nbarrier('evaluated')\ntrain(20)",
    ),
    "a slow first step": (3, "train(40, lambda number: compute(3 if rank == 1 and number == 0 else 0))"),
    "an uneven start of data loading": (3, "time.sleep(rank)\ntrain(40)"),
    "an idle server": (
        2,
        "if rank == 0:\n    store.wait(['over'])\nelse:\n    for number in range(80):\n        time.sleep(0.1)\n"
        "        step(number)\n    store.set('over', '')",
    ),
    "ranks that read and write much": (
        2,
        "path = os.path.join(os.environ['RDZV_TEST_FOLDER'], f'data{rank}')\n"
        "for number in range(90):\n    with open(path, 'wb') as file:\n        file.write(bytes(1 << 20))\n"
        "    with open(path, 'rb') as file:\n        file.read()\n    time.sleep(0.1)\n",
    ),
    "a restart in between": (
        2,
        "train(25)\nif rank == 1 and attempt == 0:\n    sys.exit(3)\nbarrier('middle')\ntrain(25)",
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_raises_nothing(tmp_path, name):
    nodes, script = HEALTHY[name]
    script = script.replace("LIMIT", str(LIMIT))
    codes, output = run(tmp_path, script, nodes, (*FAIL, *SLOW, "--max-restarts=1"))
    assert not any(codes), output
    assert "hangs:" not in output and "slower" not in output, output
