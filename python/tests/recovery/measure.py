"""Times from a death to the first finished step of the new world.

That is the first step that all of its ranks have finished.

measure.py RDZV [--row WORDS]... [--kills N] [--minutes N] runs the rows of ROWS in sequence, or all those whose names
contain WORDS, with the job of train.py. It prints a Markdown table. `--kills` replaces the number of kills of each row.
Rows kill less often if they would take longer than `--minutes` (10) together.

After each death, the script checks the survivors: the same processes, the same ranks, no repeated step, no checkpoint
read. The ranks of the dead must belong to new processes. At the end of a row, it compares each loss with that of an
unbroken run. A row that fails a check is in the table with the reason.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

HERE = Path(__file__).resolve().parent
Step = namedtuple("Step", "time pid node rank world round step loss")
# Largest difference between a loss and that of the unbroken run, from the order of sums.
TOLERANCE = 1e-9


class Row:
    """One way of recovery, with the job that shows it.

    victim: `worker`, `node`, or `any node` (also the one that hosts the coordinator).
    """

    def __init__(self, name, kills, victim="worker", nodes="2", local=2, spares=0, way="reconfigure", flags=()):
        self.name, self.kills, self.victim, self.way, self.flags = name, kills, victim, way, flags
        self.nodes, self.local, self.spares = nodes, local, spares
        self.least, self.most = (int(nodes.split(":")[at]) for at in (0, -1))
        self.is_in_process, self.is_torchrun = "--in-process" in flags, name.startswith("torchrun")


IN_PROCESS = ("--in-process",)
PRELOAD = ("--preload", "torch,torch._dynamo,rdzv.torch")
WAYS = ("reconfigure", "again")
# The cheap rows come first, because each row gets an equal share of the time that is left.
ROWS = [
    *(Row(f"prepared replacement, {way}", 20, way=way, flags=IN_PROCESS + PRELOAD) for way in WAYS),
    Row("rdzv run, restart with --preload", 20, way="again", flags=PRELOAD),
    *(Row(f"cold replacement, {way}", 12, way=way, flags=IN_PROCESS) for way in WAYS),
    Row("rdzv run, restart", 8, way="again"),
    Row("torchrun, restart", 6, way="again"),
    *(Row(f"shrink, {way}", 20, "node", "1:2", way=way, flags=IN_PROCESS) for way in WAYS),
    *(Row(f"prepared spare node, {way}", 20, "node", "2", 2, 1, way, IN_PROCESS + PRELOAD) for way in WAYS),
]
# Rows that run only by name.
OTHERS = [
    Row("4 + 1 nodes, a node lost", 20, "node", "4", 1, 1, flags=IN_PROCESS + PRELOAD),
    Row("4 + 1 nodes, any node lost", 20, "any node", "4", 1, 1, flags=IN_PROCESS + PRELOAD),
    Row("six ranks on three nodes, shrink", 20, "node", "2:3", flags=IN_PROCESS),
]


class Job:
    """A running job, and the steps that its workers have logged."""

    def __init__(self, rdzv, row):
        self.rdzv, self.row = rdzv, row
        self.directory = Path(tempfile.mkdtemp(prefix="rdzv_measure_"))
        self.logs, self.nodes, self.starts = {}, {}, {}
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self.port = held.getsockname()[1]
        for name in range(row.most + row.spares):
            self.start(name)
            # The first node hosts the coordinator.
            wait = Wait("the first node", self, 60)
            while not name and not self.listens():
                wait.poll()

    def start(self, name):
        row = self.row
        launcher = [self.rdzv, "run", "--ui", "plain", *row.flags]
        if row.is_torchrun:
            launcher = [sys.executable, "-m", "torch.distributed.run"]
        if row.spares:
            launcher += ["--spares", str(row.spares)]
        command = [
            *launcher, "--nnodes", row.nodes, "--nproc-per-node", str(row.local), "--max-restarts", "1000",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "recovery",
            str(HERE / "train.py"), str(self.directory), "100000000", row.way,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHON_EXEC": sys.executable,
            "PET_LOCAL_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "LOGLEVEL": "INFO",
            "NODE": str(name),
        }
        if row.is_torchrun:
            # Otherwise the second round finds gloo's addresses of the first one, and hangs.
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        self.starts[name] = self.starts.get(name, 0) + 1
        with (self.directory / f"node{name}.log").open("a") as out:
            self.nodes[name] = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def listens(self):
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def steps(self):
        """Returns all steps that are in the logs."""
        for path in self.directory.iterdir():
            if path.name.isdigit():
                with path.open("rb") as log:
                    begin, found = self.logs.setdefault(path, (0, []))
                    log.seek(begin)
                    whole = log.read().rpartition(b"\n")[0]
                for line in whole.splitlines():
                    time, *numbers, loss = line.split()
                    found.append(Step(float(time), *map(int, numbers), float(loss)))
                self.logs[path] = begin + len(whole) + bool(whole), found
        return [it for _, found in self.logs.values() for it in found]

    def world(self, size, after=0.0, before=None, limit=60):
        """Waits for the next world, and returns the first step of each rank."""
        pids = {it.pid for it in before.values()} if before else set()
        beyond = max((it.round for it in before.values()), default=-1) if before else -1
        wait = Wait(f"a new world of {size} ranks", self, limit)
        while True:
            steps = [it for it in self.steps() if it.time > after and (it.round > beyond or it.pid not in pids)]
            newest = max((it.round for it in steps), default=-1)
            first = {}
            for it in sorted(it for it in steps if it.round == newest and it.world == size):
                first.setdefault(it.rank, it)
            if len(first) == size:
                return first
            wait.poll()

    def settle(self, chosen):
        """Waits for further steps, and for the prepared workers."""
        row, wait = self.row, Wait("further steps and prepared workers", self, 60)
        while not self.are_prepared():
            wait.poll()
        last = max(it.step for it in self.steps())
        # A restart finds a checkpoint. The fork server forks workers again within 1 s.
        is_long = not row.is_in_process or ("--preload" in row.flags and not row.spares)
        more = 300 + chosen.randrange(100) if is_long else 20
        while max(it.step for it in self.steps()) < last + more:
            wait.poll()

    def are_prepared(self):
        if "--preload" not in self.row.flags:
            return True
        logs = {name: (self.directory / f"node{name}.log").read_text() for name in self.nodes}
        return all(logs[name].count("fork server has imported") >= self.starts[name] for name in logs)

    def reads(self):
        """Returns the number of checkpoints that workers have read."""
        return sum(path.read_text().count("\n") for path in self.directory.glob("read-*"))

    def departure(self, after):
        """Returns the time at which the last survivor had left its function."""
        found = (float(line) for path in self.directory.glob("left-*") for line in path.read_text().splitlines())
        return max(at for at in found if at > after)

    def finish(self):
        """Ends the job, and returns the exit codes of its nodes."""
        last = max(it.step for it in self.steps()) // 10 * 10 + 200
        (self.directory / "end.new").write_text(str(last))
        (self.directory / "end.new").rename(self.directory / "end")
        deadline = time.monotonic() + 60
        return [node.wait(deadline - time.monotonic()) for node in self.nodes.values()]

    def kill(self, name):
        """Kills all processes of a node."""
        for process in tree(self.nodes[name].pid):
            # The death of the agent ends some of the others.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.nodes[name].wait()


class Wait:
    """Wait for a state of the job that has a limit."""

    def __init__(self, what, job, limit):
        self.what, self.job, self.limit = what, job, limit
        self.deadline = time.monotonic() + limit

    def poll(self):
        if time.monotonic() > self.deadline:
            raise AssertionError(f"waited {self.limit} s for {self.what}; logs in {self.job.directory}")
        time.sleep(0.02)


def tree(root):
    """Returns a process and its descendants, parents first."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


class Result:
    """Times in milliseconds, repeated steps, and survivors with new ranks."""

    def __init__(self):
        self.times, self.departures, self.lost, self.moved, self.reads, self.error = [], [], [], [], 0, ""

    def line(self, row):
        def quantiles(values):
            values = sorted(values)
            if not values:
                return "– | –"
            return f"{statistics.median(values):.0f} | {values[-(-len(values) * 95 // 100) - 1]:.0f}"

        times = f"{quantiles(self.times)} | {max(self.times, default=0):.0f} | {quantiles(self.departures)}"
        lost = f"{statistics.median(self.lost):.0f}" if self.lost else "–"
        outcome = self.error or "passed"
        return f"| {row.name} | {len(self.times)} | {times} | {lost} | {self.reads} | {len(self.moved)} | {outcome} |"


HEAD = """\
| way | kills | median, ms | p95 | most | survivors out, median | p95 | steps lost | checkpoints read | ranks moved | checks |
|---|---|---|---|---|---|---|---|---|---|---|"""


def measure(rdzv, row, result=None, until=float("inf"), seed=1):
    """Runs a row, and raises AssertionError if a check fails."""
    result = result or Result()
    chosen = random.Random(seed)
    job = Job(rdzv, row)
    try:
        whole = row.most * row.local
        now = job.world(whole)
        for kill in range(row.kills):
            job.settle(chosen)
            if time.monotonic() > until:
                break
            before = now
            at, dead, node = strike(job, row, before, chosen)
            shrinks = row.least < row.most
            now = job.world(row.least * row.local if shrinks else whole, at, before)
            compare(job, row, before, now, dead, result, f"kill {kill}")
            result.times.append(1000 * (max(it.time for it in now.values()) - at))
            if row.is_in_process:
                result.departures.append(1000 * (job.departure(at) - at))
            print(f"{row.name}: kill {kill}: {result.times[-1]:.0f} ms", file=sys.stderr, flush=True)
            if node is not None:
                job.start(node)
            if shrinks:
                smaller, now = now, job.world(whole, at, now)
                compare(job, row, smaller, now, set(range(len(smaller), whole)), result, f"return after kill {kill}")
        codes = job.finish()
        assert not any(codes), f"the nodes exited with {codes}; logs in {job.directory}"
    finally:
        for name, node in job.nodes.items():
            if node.poll() is None:
                job.kill(name)
    verify_losses(job, row)
    assert not result.moved, f"{'; '.join(result.moved)}; logs in {job.directory}"
    shutil.rmtree(job.directory)
    return result


def strike(job, row, before, chosen):
    """Kills a worker or a node.

    Returns the time, the ranks of the dead, and the node that must be started.
    """
    if row.victim == "worker":
        rank = chosen.choice(sorted(before))
        at = time.monotonic()
        os.kill(before[rank].pid, signal.SIGKILL)
        return at, {rank}, None
    # The first node hosts the coordinator and the store.
    nodes = sorted({it.node for it in before.values()} - ({0} if row.victim == "node" else set()))
    node = chosen.choice(nodes)
    at = time.monotonic()
    job.kill(node)
    return at, {rank for rank, it in before.items() if it.node == node}, node


def compare(job, row, before, now, dead, result, when):
    """Checks the world after a death or a join."""
    reached = max(it.step for it in job.steps() if it.time < min(first.time for first in now.values()))
    if not row.is_in_process:
        result.lost.append(reached + 1 - min(it.step for it in now.values()))
        result.reads = job.reads()
        return
    survivors = {rank: it.pid for rank, it in before.items() if rank not in dead}
    assert {it.pid for it in now.values()} >= set(survivors.values()), f"{when}: a survivor is missing in {now}"
    known, ranks = {it.pid for it in before.values()}, {it.pid: rank for rank, it in now.items()}
    # In a smaller world, the ranks above those of the dead move down.
    fixed = {rank: pid for rank, pid in survivors.items() if len(now) >= len(before) or rank < min(dead)}
    result.moved += [f"{when}: rank {old} became {ranks[pid]}" for old, pid in fixed.items() if ranks[pid] != old]
    if row.spares:
        nodes = {it.node for it in before.values()}
        same = {now[rank].node for rank in dead} & nodes
        assert result.moved or not same, f"{when}: no spare node has the ranks {dead}: {now}"
    first = {it.pid: it.step for it in now.values()}
    last = {pid: max(it.step for it in job.steps() if it.pid == pid and it.round < now[0].round) for pid in known}
    result.lost.append(max(last[pid] + 1 - first[pid] for pid in survivors.values()))
    assert result.lost[-1] <= 0, f"{when}: a survivor repeated {result.lost[-1]} steps"
    result.reads = job.reads()
    assert not result.reads, f"{when}: a checkpoint was read"


def verify_losses(job, row):
    """Compares all losses with those of a run in which no worker dies."""
    sys.path.insert(0, str(HERE))
    import train

    found = sorted(job.steps(), key=lambda it: it.step)
    model, optimizer = train.build()
    step = 0
    for it in found:
        while step < it.step:
            errors = train.errors_of(model, step)
            optimizer.zero_grad()
            errors.mean().backward()
            optimizer.step()
            step += 1
        expected = errors[it.rank :: it.world].mean().item()
        assert abs(expected - it.loss) < TOLERANCE, f"{it} instead of loss {expected}; logs in {job.directory}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rdzv")
    parser.add_argument("--row", action="append", help="run only the rows whose names contain these words")
    parser.add_argument("--kills", type=int, help="number of kills of each row")
    parser.add_argument("--minutes", type=float, default=10, help="time for all rows")
    arguments = parser.parse_args()
    rdzv, words = os.path.abspath(arguments.rdzv), arguments.row or []
    rows = [row for row in ROWS + OTHERS if any(it in row.name for it in words) or (not words and row in ROWS)]
    results, ends = [], time.monotonic() + 60 * arguments.minutes
    for at, row in enumerate(rows):
        row.kills = row.kills if arguments.kills is None else arguments.kills
        results.append((row, Result()))
        began = time.monotonic()
        # The end of a row takes a few seconds.
        until = began + (ends - began) / (len(rows) - at) - 5
        try:
            measure(rdzv, row, results[-1][1], until)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            results[-1][1].error = str(error)
        print(f"{row.name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(HEAD, *(result.line(row) for row, result in results), sep="\n")
    return any(result.error for _, result in results)


if __name__ == "__main__":
    sys.exit(main())
