"""Tools that inspect other processes."""

import os
import time


def is_alive(pid):
    """Returns True if a process runs and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def await_that(condition, what, seconds=20.0):
    """Waits for a condition that other processes make true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def descendants(of=None):
    """Descendants of a process: `{pid: command}`."""
    of = os.getpid() if of is None else of
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, left = {}, [of]
    while left:
        for child in parents.get(left.pop(), ()):
            left.append(child)
            try:
                with open(f"/proc/{child}/cmdline") as file:
                    found[child] = file.read().replace("\0", " ")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
