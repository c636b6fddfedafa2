"""Random kills of the processes of a job that recovers in its processes.

orphans.py RDZV [KILLS] [SEED] starts two nodes with two workers each (`--in-process --preload torch`). Each kill ends one
or two processes of a node: workers, the fork server, the agent. After each kill, all ranks must continue, and each
process of the job must descend from a launcher. After the end, no process may be left.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recovery.measure import HERE, LOCAL, NODES, finish, lines, tree

MARK = "RDZV_ORPHANS_TEST"


def marked(directory):
    """Returns the processes of the job, whatever their parents are."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{MARK}={directory}".encode() in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def name_of(process):
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def await_no_orphan(directory, nodes, limit=20):
    end = time.monotonic() + limit
    while True:
        families = [process for node in nodes for process in tree(node.pid)]
        orphans = {process: name for process, name in marked(directory).items() if process not in families}
        if not orphans:
            return
        if time.monotonic() > end:
            raise SystemExit(f"orphans after {limit} s: {orphans}; logs: {directory}")
        time.sleep(0.05)


def await_steps(directory, after, limit=90):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        steps = [it for it in lines(directory) if it[0] > after]
        newest = max((it[3] for it in steps), default=-1)
        if len({it[2] for it in steps if it[3] == newest}) == NODES * LOCAL:
            return
        time.sleep(0.05)
    raise SystemExit(f"not all ranks continue within {limit} s; logs: {directory}")


def main(rdzv, kills=100, seed=1):
    directory = Path(tempfile.mkdtemp(prefix="rdzv_orphans_"))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    command = [
        rdzv, "run", "--in-process", "--preload", "torch", "--nnodes", str(NODES), "--nproc-per-node", str(LOCAL),
        "--max-restarts", "1000", "--agent-restarts", "1000", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id",
        "orphans", "--ui", "plain", str(HERE / "train.py"), str(directory), "100000000", "reconfigure",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHON_EXEC": sys.executable, "PET_LOCAL_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    environment[MARK] = str(directory)
    nodes = []
    for node in range(NODES):
        with (directory / f"node{node}.log").open("w") as out:
            nodes.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
    chosen = random.Random(seed)
    try:
        await_steps(directory, 0)
        for kill in range(kills):
            named = {process: name_of(process) for process in tree(chosen.choice(nodes).pid)[1:]}
            # The guard between keeper and agent is not among them.
            processes = [process for process, name in named.items() if name in ("python", "rdzv")]
            victims = chosen.sample(processes, min(chosen.choice([1, 2]), len(processes)))
            names = [named[victim] for victim in victims]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            at = time.monotonic()
            await_no_orphan(directory, nodes)
            await_steps(directory, at + 0.3)
            print(f"kill {kill}: {', '.join(names)}; {time.monotonic() - at:.1f} s", flush=True)
    finally:
        try:
            ended = finish(directory, nodes)
        finally:
            await_no_orphan(directory, [])
    print(f"{kills} kills, exit codes {ended}, no orphan; logs: {directory}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
