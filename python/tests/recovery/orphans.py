"""Random kills of the processes of a job that recovers in its processes.

orphans.py RDZV [KILLS] [SEED] starts two nodes with two workers each (`--in-process --preload torch`). Each kill ends one
or two processes of a node: workers, the fork server, the agent. After each kill, all ranks must continue, and each
process of the job must descend from a launcher. After the end, no process may be left.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from recovery.measure import IN_PROCESS, Job, Row, tree

MARK = f"RDZV_ORPHANS_TEST={os.getpid()}"
FLAGS = (*IN_PROCESS, "--preload", "torch", "--agent-restarts", "1000")


def marked():
    """Returns the processes of the job, whatever their parents are."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            if MARK.encode() in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                found[int(entry)] = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def name_of(process):
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


def await_no_orphan(job, nodes, limit=20):
    end = time.monotonic() + limit
    while True:
        families = [process for node in nodes for process in tree(node.pid)]
        orphans = {process: name for process, name in marked().items() if process not in families}
        if not orphans:
            return
        if time.monotonic() > end:
            raise SystemExit(f"orphans after {limit} s: {orphans}; logs: {job.directory}")
        time.sleep(0.05)


def main(rdzv, kills=100, seed=1):
    os.environ.update([MARK.split("=")])
    row = Row("orphans", kills, flags=FLAGS)
    job, chosen = Job(rdzv, row), random.Random(seed)
    del os.environ[MARK.split("=")[0]]
    nodes, size = list(job.nodes.values()), row.most * row.local
    try:
        job.world(size)
        for kill in range(kills):
            named = {process: name_of(process) for process in tree(chosen.choice(nodes).pid)[1:]}
            # The guard between keeper and agent is not among them.
            processes = [process for process, name in named.items() if name in ("python", "rdzv")]
            victims = chosen.sample(processes, min(chosen.choice([1, 2]), len(processes)))
            names = [named[victim] for victim in victims]
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            at = time.monotonic()
            await_no_orphan(job, nodes)
            job.world(size, at + 0.3, limit=90)
            print(f"kill {kill}: {', '.join(names)}; {time.monotonic() - at:.1f} s", flush=True)
    finally:
        try:
            ended = job.finish()
        finally:
            await_no_orphan(job, [])
    print(f"{kills} kills, exit codes {ended}, no orphan; logs: {job.directory}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:4]))
