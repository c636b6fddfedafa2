"""Functions that the workers of tests call."""

import os
import signal
import sys
import time

import rdzv.worker


def rank_times(factor):
    return rdzv.worker.rank() * factor


def fail_on(rank, error=ValueError, text="boom"):
    if rdzv.worker.rank() == rank:
        raise error(text)
    time.sleep(60)


def fail_once():
    if rdzv.worker.restart_count() == 0:
        if rdzv.worker.rank() == 1:
            raise ValueError("the first attempt")
        return "stale"
    return rdzv.worker.restart_count()


def exit_with(code):
    sys.exit(code)


def kill_oneself(number):
    os.kill(os.getpid(), number)
    time.sleep(60)


def not_to_be_pickled():
    if rdzv.worker.rank() == 1:
        return lambda: None
    return 0


def write_pid_and_wait(folder):
    """Writes the ids of this process and of a child, then waits.

    It ignores SIGTERM and SIGINT.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    import subprocess

    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    path = os.path.join(folder, f"{rdzv.worker.rank()}")
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename(path + ".new", path)
    time.sleep(600)


def big(value):
    return len(value), value[:3]


class OfTheWorker(Exception):
    """Exception that can be created only in a worker."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raise_what_cannot_come_back():
    raise OfTheWorker("one", "two")


def launch_in_worker():
    import rdzv

    return dict(rdzv.launch("launch.functions:rank_times", (10,), nprocs=2))
