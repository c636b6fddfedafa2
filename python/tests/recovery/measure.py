"""Times from the death of a worker to the first step of the new world.

measure.py RDZV [KILLS] [WAY] starts two nodes with two workers each, and kills one worker at a time. WAY is
`reconfigure` or `again`. It prints the times in milliseconds:

- kill to the first finished step of all ranks of the new world, with the import of torch in the replacement;
- kill to the moment at which all survivors have left the broken collective and wait for the replacement.

After each kill, the survivors' processes must be the same, and no step may be repeated.
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


def start(rdzv, directory, way, port):
    command = [
        rdzv, "run", "--in-process", "--nnodes", str(NODES), "--nproc-per-node", str(LOCAL), "--max-restarts", "1000",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "recovery", "--ui", "plain",
        str(HERE / "train.py"), str(directory), "100000000", way,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHON_EXEC": sys.executable, "PET_LOCAL_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    outputs = [(directory / f"node{node}.log").open("w") for node in range(NODES)]
    return [subprocess.Popen(command, env=environment, stdout=out, stderr=out) for out in outputs]


def lines(directory):
    """Returns all steps as (time, pid, rank, round, step, loss)."""
    found = []
    for path in directory.iterdir():
        if path.name.isdigit():
            for line in path.read_text().splitlines():
                fields = line.split()
                if len(fields) == 6:
                    found.append((float(fields[0]), *map(int, fields[1:5]), float(fields[5])))
    return found


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


def world(directory, after, beyond=-1, limit=60):
    """Waits for a later round, and returns the first step of each rank."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        steps = [it for it in lines(directory) if it[0] > after and it[3] > beyond]
        newest = max((it[3] for it in steps), default=-1)
        first = {}
        for it in sorted(it for it in steps if it[3] == newest):
            first.setdefault(it[2], it)
        if len(first) == NODES * LOCAL:
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
        last = max((it[4] for it in lines(directory)), default=0) // 10 * 10 + 500
        (directory / "end.new").write_text(str(last))
        (directory / "end.new").rename(directory / "end")
        try:
            ended = [node.wait(60) for node in nodes]
        finally:
            for node in nodes:
                node.terminate()
    found = lines(directory)
    unbroken = losses(max(it[4] for it in found))
    for it in found:
        assert abs(unbroken[it[4] - 1] - it[5]) < 1e-4, f"step {it[4]}: {it[5]} instead of {unbroken[it[4] - 1]}"
    print(f"{way}: {kills} kills, exit codes {ended}, {len(unbroken)} steps; in ms:")
    for name, values in (("survivors have left", left), ("first step of all ranks", times)):
        values.sort()
        p95 = values[-(-len(values) * 95 // 100) - 1]
        print(f"kill to {name}: median {statistics.median(values):.0f}, p95 {p95:.0f}, most {values[-1]:.0f}")
    print(f"logs: {directory}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:4])
