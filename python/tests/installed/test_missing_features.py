"""Tests of jobs on systems that lack or deny features of the kernel."""

import ctypes
import errno
import os
import platform
import struct
import subprocess
import sys

import pytest

import rdzv

# Numbers of system calls on x86-64; rdzv works without these calls.
DISPENSABLE = {
    "sched_setaffinity": 203,
    "inotify_init1": 294,
    "process_vm_readv": 310,
    "memfd_create": 319,
    "clone3": 435,
    "close_range": 436,
    "epoll_pwait2": 441,
}
PIDFD_OPEN = 434
FCNTL = 72
F_ADD_SEALS = 1033

ALLOW = (0x06, 0, 0, 0x7FFF0000)
LOAD_CALL = (0x20, 0, 0, 0)
LOAD_SECOND_ARGUMENT = (0x20, 0, 0, 24)

# Rank 1 fails once. Then the ranks call each other, meet in a store and sum, with large values.
JOB = """
import os
import rdzv
from rdzv import rpc

rank = int(os.environ["RANK"])
assert rank == 0 or os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"

@rpc.function
def length(value):
    return len(value)

rpc.init_rpc(f"w{rank}", rank=rank, world_size=2)
assert rpc.rpc_sync(f"w{1 - rank}", length, args=(b"x" * 8_000_000,)) == 8_000_000
rpc.shutdown()
store = rdzv.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
with rdzv.Group(store, rank, 2) as group:
    values = bytearray([rank + 1]) * 5_000_000
    group.all_reduce(values, "sum")
    assert values[-1] == 3
"""


def refused(number, code):
    """Returns the instructions of a filter that refuse one system call."""
    return [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | code)]


def seals_refused(code):
    """Returns the instructions of a filter that refuse seals of memory files."""
    return [(0x15, 0, 4, FCNTL), LOAD_SECOND_ARGUMENT, *refused(F_ADD_SEALS, code), LOAD_CALL]


def filter_calls(instructions):
    """Installs a filter of system calls in this process and its descendants."""
    code = b"".join(struct.pack("<HBBI", *one) for one in [LOAD_CALL, *instructions, ALLOW])
    buffer = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()


def run(folder, *, before=(), instructions=()):
    """Runs the job, with a filter if there are instructions."""
    script = folder / "job.py"
    script.write_text(JOB)
    command = [rdzv.find_rdzv_bin(), "run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", script]
    return subprocess.run(
        [*before, *command],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHON_EXEC": sys.executable},
        preexec_fn=(lambda: filter_calls(instructions)) if instructions else None,
    )


x86_64 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are those of x86-64")


@x86_64
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_a_job_runs_without_dispensable_calls(code, tmp_path):
    # glibc starts no thread if `clone3` fails with another error than ENOSYS.
    codes = {name: errno.ENOSYS if name == "clone3" else code for name in DISPENSABLE}
    instructions = [one for name, number in DISPENSABLE.items() for one in refused(number, codes[name])]
    finished = run(tmp_path, instructions=instructions)
    assert finished.returncode == 0, finished.stderr
    assert "the agent will not be restarted if it is killed" in finished.stderr


@x86_64
def test_a_job_runs_without_seals_of_memory_files(tmp_path):
    finished = run(tmp_path, instructions=seals_refused(errno.EINVAL))
    assert finished.returncode == 0, finished.stderr


@x86_64
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM])
def test_a_system_without_pidfd_open_is_refused_with_advice(code, tmp_path):
    finished = run(tmp_path, instructions=refused(PIDFD_OPEN, code))
    assert finished.returncode == 1
    error, advice = finished.stderr.splitlines()
    assert error == f"rdzv: cannot watch the keeper with pidfd_open: {os.strerror(code)} (os error {code})"
    assert advice.startswith("help: ") and "seccomp" in advice


@x86_64
@pytest.mark.parametrize("command", ["demo", "check"])
def test_a_command_without_threads_reports_that(command):
    finished = subprocess.run(
        [rdzv.find_rdzv_bin(), command],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: filter_calls(refused(DISPENSABLE["clone3"], errno.EPERM)),
    )
    assert "panicked" not in finished.stderr
    assert "Operation not permitted (os error 1)" in finished.stdout + finished.stderr


@pytest.mark.parametrize("folders", ["/dev/shm", "/sys/fs/cgroup", "/dev/shm /sys"])
def test_a_job_runs_without_shared_memory_and_control_groups(folders, tmp_path):
    # As the other tests with mounts, this one needs user namespaces.
    empty = tmp_path / "empty"
    empty.mkdir()
    script = (
        f'for folder in {folders}; do mount --bind {empty} $folder; mount -o remount,bind,ro $folder; done; exec "$@"'
    )
    finished = run(tmp_path, before=["unshare", "-rm", "sh", "-ec", script, "sh"])
    assert finished.returncode == 0, finished.stderr
