"""Measures restarts with and without `--preload torch`.

Usage: `python preload.py RDZV`, with the Python of the workers. Four workers form a gloo group. Two
seconds later, when the fork server has forked the next processes, rank 0 kills itself. The script
prints two times for the restarts: from the kill to the first line of the last worker's script, and
from the first line of a script to the end of `init_process_group`. It also prints the memory of the
last workers and of the processes of the fork server.

The first restart counts apart, because it always ends workers that were executed.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKERS, RESTARTS = 4, 9

WORKER = """
import time
first = time.time_ns()
import json, os, signal
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
formed = time.time_ns()
attempt, rank, folder = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), dist.get_rank(), os.environ["NOTES"]
while attempt == 0 and not os.path.exists(folder + "/ready"):
    time.sleep(0.01)
dist.barrier()
lines = dict(line.split()[:2] for line in open("/proc/self/smaps_rollup").readlines()[1:])
pids = [None] * dist.get_world_size()
dist.all_gather_object(pids, os.getpid())
note = {"first": first, "formed": formed, "rss": int(lines["Rss:"]), "pss": int(lines["Pss:"])}
if rank == 0:
    note["others"] = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent, group = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1:3]
            leader = open(f"/proc/{group}/stat").read().rpartition(")")[2].split()[1]
            if leader == str(os.getppid()) and int(group) not in pids:
                memory = dict(line.split()[:2] for line in open(f"/proc/{pid}/smaps_rollup").readlines()[1:])
                note["others"] += int(memory["Pss:"])
        except (OSError, IndexError):
            pass
with open(f"{folder}/{attempt}.{rank}", "w") as file:
    file.write(json.dumps(note))
dist.barrier()
time.sleep(2)
if attempt < int(os.environ["TORCHELASTIC_MAX_RESTARTS"]):
    if rank == 0:
        with open(f"{folder}/{attempt}.killed", "w") as file:
            file.write(str(time.time_ns()))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
"""


def measure(program, flags):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "worker.py").write_text(WORKER)
        command = [
            program, "run", "--nproc-per-node", str(WORKERS), "--max-restarts", str(RESTARTS), "-r", "3",
            "--log-dir", str(folder / "logs"), *flags, "worker.py",
        ]  # fmt: skip
        environment = {
            **os.environ,
            "NOTES": name,
            "OMP_NUM_THREADS": "1",
            "LOGLEVEL": "INFO",
            "PYTHON_EXEC": sys.executable,
        }
        with (folder / "log").open("w") as log:
            run = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        while flags and "the fork server has imported" not in (folder / "log").read_text() and run.poll() is None:
            time.sleep(0.1)
        (folder / "ready").touch()
        if run.wait() != 0:
            sys.exit((folder / "log").read_text())
        starts, formations = [], []
        for attempt in range(1, RESTARTS + 1):
            notes = [json.loads((folder / f"{attempt}.{rank}").read_text()) for rank in range(WORKERS)]
            killed = int((folder / f"{attempt - 1}.killed").read_text())
            starts.append(max(note["first"] for note in notes) / 1e6 - killed / 1e6)
            formations.append(max(note["formed"] - note["first"] for note in notes) / 1e6)
    memory = {kind: sum(note[kind] for note in notes) / 1024 for kind in ("rss", "pss")}
    server = notes[0]["others"] / 1024
    return starts, formations, memory, server


def main():
    for title, flags in (("executed", []), ("--preload torch", ["--preload", "torch"])):
        starts, formations, memory, server = measure(os.path.abspath(sys.argv[1]), flags)
        for quantity, values in (
            ("first restart", starts[:1]),
            ("kill to first line", starts[1:]),
            ("first line to formed group", formations[1:]),
        ):
            print(f"{title:<16} {quantity:<27} median {statistics.median(values):7.1f} ms, worst {max(values):7.1f} ms")
        print(
            f"{title:<16} memory of {WORKERS} workers         RSS {memory['rss']:.0f} MiB, PSS {memory['pss']:.0f} MiB,"
            f" and PSS of the fork server {server:.0f} MiB"
        )


main()
