"""Several ranks of one test.

They are threads if they need only a group, forked processes, or programs.
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

# Number of calls after which nothing may have grown. Each thousand calls beyond the usual number
# adds a second to the time limit.
CALLS = int(os.environ.get("RDZV_TEST_CALLS", "20000"))
LIMIT_SECONDS = 60 + CALLS // 1000


def resident(pid="self"):
    """Returns the memory of a process, in bytes."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def threads(count, function, *, timeout=30.0, name="default"):
    """Runs ``function(group)`` for each rank, in threads of this process.

    Returns the results by rank. An exception of one rank is raised here. Exceptions that other
    ranks get because of it are not raised.
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
        # `send` is not used: torch would share the memory of tensors, which ends with this process.
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
    """Python program whose end the test decides."""

    def __init__(self, source, *args):
        command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(source), *map(str, args)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self):
        return self.process.stdout.readline().strip()

    def go(self):
        """Lets a program continue that waits for a line."""
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
