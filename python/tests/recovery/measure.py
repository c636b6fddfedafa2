"""Times from the death of a worker to the first step of the new world.

measure.py RDZV [KILLS] [WAY] [--nodes] starts two nodes with two workers each, and kills one worker at a time. WAY is
`reconfigure` or `again`. It prints the times in milliseconds:

- kill to the first finished step of all ranks of the new world, with the import of torch in the replacement;
- kill to the moment at which all survivors have left the broken collective and wait for the replacement.

After each kill, the survivors' processes must be the same, and no step may be repeated.

With `--nodes`, the script starts three nodes, kills all processes of one at a time, and starts the node again once the
others have continued. It prints the times from the kill to the first finished step of the smaller world.
"""

import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NODES, LOCAL = 2, 2

# Length and steps of each log that was read.
READ = {}


def start(rdzv, directory, way, port, nodes=str(NODES), names=range(NODES)):
    command = [
        rdzv, "run", "--in-process", "--nnodes", nodes, "--nproc-per-node", str(LOCAL), "--max-restarts", "1000",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "recovery", "--ui", "plain",
        str(HERE / "train.py"), str(directory), "100000000", way,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHON_EXEC": sys.executable, "PET_LOCAL_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    outputs = [(directory / f"node{node}.log").open("a") for node in names]
    return [subprocess.Popen(command, env=environment, stdout=out, stderr=out) for out in outputs]


def lines(directory):
    """Returns all steps as (time, pid, rank, round, step, loss)."""
    for path in directory.iterdir():
        if path.name.isdigit():
            with path.open("rb") as log:
                begin, found = READ.get(path, (0, []))
                log.seek(begin)
                whole = log.read().rpartition(b"\n")[0]
            for line in whole.splitlines():
                fields = line.split()
                found.append((float(fields[0]), *map(int, fields[1:5]), float(fields[5])))
            READ[path] = (begin + len(whole) + bool(whole), found)
    return [it for path, (_, found) in READ.items() if path.parent == directory for it in found]


def losses(steps):
    """Returns the losses of a run in which no worker dies."""
    sys.path.insert(0, str(Path(__file__).parent))
    import train

    model, optimizer = train.build()
    found = []
    for step in range(steps):
        loss = train.loss_of(model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def departures(directory, after):
    """Returns the time at which the last survivor had left its function."""
    found = (float(line) for path in directory.glob("left-*") for line in path.read_text().splitlines())
    return max(at for at in found if at > after)


def world(directory, after, beyond=-1, limit=60, size=NODES * LOCAL):
    """Waits for a later round, and returns the first step of each rank."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        steps = [it for it in lines(directory) if it[0] > after and it[3] > beyond]
        newest = max((it[3] for it in steps), default=-1)
        first = {}
        for it in sorted(it for it in steps if it[3] == newest):
            first.setdefault(it[2], it)
        if len(first) == size:
            return first
        time.sleep(0.02)
    raise SystemExit(f"no new world within {limit} s: {directory}")


def main(rdzv, kills=20, way="reconfigure", seed=1):
    directory = Path(tempfile.mkdtemp(prefix="rdzv_measure_"))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    nodes = start(rdzv, directory, way, port)
    chosen, times, left = random.Random(seed), [], []
    try:
        now = world(directory, 0)
        for kill in range(kills):
            rank = chosen.randrange(NODES * LOCAL)
            before = {it[2]: it[1] for it in now.values()}
            current = next(iter(now.values()))[3]
            reached = max(it[4] for it in lines(directory))
            at = time.monotonic()
            os.kill(before[rank], signal.SIGKILL)
            now = world(directory, at, current)
            after = {it[2]: it[1] for it in now.values()}
            kept = set(before.values()) & set(after.values())
            assert len(kept) == NODES * LOCAL - 1, f"kill {kill}: {before} became {after}"
            lost = reached - min(it[4] for it in now.values()) + 1
            assert lost <= 0, f"kill {kill}: {lost} steps were repeated"
            left.append(1000 * (departures(directory, at) - at))
            times.append(1000 * (max(it[0] for it in now.values()) - at))
    finally:
        ended = finish(directory, nodes)
    report(f"{way}: {kills} kills", directory, ended, {"survivors have left": left, "first step of all ranks": times})


def lose_nodes(rdzv, kills=20, way="reconfigure"):
    directory = Path(tempfile.mkdtemp(prefix="rdzv_measure_"))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    nodes = start(rdzv, directory, way, port, "2:3", range(3))
    times = []
    try:
        now = world(directory, 0, size=3 * LOCAL)
        for kill in range(kills):
            # The first node hosts the store.
            node = 1 + kill % 2
            processes = tree(nodes[node].pid)
            before = {it[1] for it in now.values()} - set(processes)
            current = next(iter(now.values()))[3]
            at = time.monotonic()
            for process in processes:
                os.kill(process, signal.SIGKILL)
            nodes[node].wait()
            now = world(directory, at, current, size=2 * LOCAL)
            assert before == {it[1] for it in now.values()}, f"loss {kill}: {before} became {now}"
            times.append(1000 * (max(it[0] for it in now.values()) - at))
            print(f"loss {kill}: {times[-1]:.0f} ms", flush=True)
            current = next(iter(now.values()))[3]
            nodes[node : node + 1] = start(rdzv, directory, way, port, "2:3", [node])
            now = world(directory, at, current, size=3 * LOCAL)
            assert before < {it[1] for it in now.values()}, f"after loss {kill}: {before} became {now}"
    finally:
        ended = finish(directory, nodes)
    report(f"{way}: {kills} losses of a node", directory, ended, {"first step of the smaller world": times})


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


def finish(directory, nodes):
    """Ends the job, and returns the exit codes of its nodes."""
    last = max((it[4] for it in lines(directory)), default=0) // 10 * 10 + 500
    (directory / "end.new").write_text(str(last))
    (directory / "end.new").rename(directory / "end")
    try:
        return [node.wait(60) for node in nodes]
    finally:
        for node in nodes:
            node.terminate()


def report(title, directory, ended, times):
    """Checks all losses, and prints the times."""
    found = lines(directory)
    unbroken = losses(max(it[4] for it in found))
    for it in found:
        assert abs(unbroken[it[4] - 1] - it[5]) < 1e-4, f"step {it[4]}: {it[5]} instead of {unbroken[it[4] - 1]}"
    print(f"{title}, exit codes {ended}, {len(unbroken)} steps; in ms:")
    for name, values in times.items():
        values.sort()
        p95 = values[-(-len(values) * 95 // 100) - 1]
        print(f"kill to {name}: median {statistics.median(values):.0f}, p95 {p95:.0f}, most {values[-1]:.0f}")
    print(f"logs: {directory}")


if __name__ == "__main__":
    arguments = [it for it in sys.argv[1:] if it != "--nodes"]
    measure = lose_nodes if "--nodes" in sys.argv else main
    measure(arguments[0], *map(int, arguments[1:2]), *arguments[2:3])
