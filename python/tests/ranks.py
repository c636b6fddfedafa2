"""Several ranks of one test: as threads, as forked processes, or as programs.

Threads are enough for ranks that need only a group.
"""

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import traceback

import rdzv

# Number of calls of the tests for memory growth. The time limit has one second for each thousand.
CALLS = int(os.environ.get("RDZV_TEST_CALLS", "20000"))
LIMIT_SECONDS = 60 + CALLS // 1000


def resident(pid="self"):
    """Resident memory of a process, in bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads(count, function, *, timeout=30.0, name="default"):
    """Runs ``function(group)`` for each rank, in threads of this process.

    Returns the results by rank. Raises only the first exception, because it can cause exceptions in other ranks.
    """
    store = rdzv.HashStore()
    results = [None] * count
    errors = []

    def run(rank):
        try:
            with rdzv.Group(store, rank, count, timeout=timeout, name=name) as group:
                results[rank] = function(group)
        except BaseException as error:  # noqa: BLE001, raised below
            errors.append(error)

    ranks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join(LIMIT_SECONDS)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]
    return results


def processes(count, function, *args):
    """Runs ``function(rank, count, *args)`` in forked processes.

    Returns the results by rank.
    """
    context = multiprocessing.get_context("fork")
    pipes, ranks = [], []

    def run(rank, pipe):
        try:
            result = True, function(rank, count, *args)
        except BaseException:  # noqa: BLE001, raised by the parent
            result = False, traceback.format_exc()
        # `send` would let torch share the memory of tensors, which ends with this process.
        pipe.send_bytes(pickle.dumps(result))
        sys.stdout.flush()
        os._exit(0)

    for rank in range(count):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=run, args=(rank, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        ranks.append(process)
    results = []
    try:
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(LIMIT_SECONDS), f"rank {rank} hangs"
            good, result = pickle.loads(pipe.recv_bytes())
            assert good, f"rank {rank}:\n{result}"
            results.append(result)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return results


class Program:
    """Python program that the test can end at any time."""

    def __init__(self, source, *args):
        command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(source), *map(str, args)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self):
        return self.process.stdout.readline().strip()

    def go(self):
        """Sends a line to the program, which waits for it."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """Waits for the end; returns exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.communicate()
