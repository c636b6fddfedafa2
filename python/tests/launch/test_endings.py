"""Ends of a caller: no process remains after SIGKILL, Ctrl-C or an exception."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch.processes import await_that, descendants, is_alive

import rdzv

HERE = Path(__file__).parents[1]

CALLER = """
import faulthandler, sys, rdzv
faulthandler.enable()
sys.path.insert(0, sys.argv[1])
try:
    rdzv.launch("launch.functions:write_pid_and_wait", (sys.argv[2],), nprocs=2, shutdown_timeout=1)
except KeyboardInterrupt:
    print("interrupted")
"""


class Caller:
    """Process that launches two workers, each with a child in a separate session."""

    def __init__(self, folder):
        folder.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", CALLER, str(HERE), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        files = [folder / "0", folder / "1"]
        await_that(lambda: all(file.exists() for file in files), "workers")
        self.workers = [int(pid) for file in files for pid in file.read_text().split()]
        self.all = [*descendants(self.process.pid), *self.workers]

    def await_end_of_all(self, seconds=10.0):
        await_that(lambda: not any(is_alive(pid) for pid in self.all), "the end of all", seconds)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_a_caller_that_is_killed(tmp_path, number):
    caller = Caller(tmp_path / "pids")
    os.kill(caller.process.pid, number)
    caller.await_end_of_all()
    caller.process.communicate()
    assert caller.process.returncode == -number


def test_the_folder_of_a_caller_that_was_killed_goes_with_the_next_launch(tmp_path, monkeypatch):
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setenv("TMPDIR", str(folders))

    def present():
        return {path for path in folders.iterdir() if path.name.startswith("rdzv-call-")}

    killed, running = Caller(tmp_path / "killed"), Caller(tmp_path / "running")
    both = present()
    assert len(both) == 2
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.await_end_of_all()
    killed.process.communicate()
    assert present() == both
    assert rdzv.launch("math:factorial", (3,), nprocs=1)[0] == 6
    # The folder of the caller that still runs remains.
    assert {path.name.split("-")[2] for path in present()} == {str(running.process.pid)}
    running.process.send_signal(signal.SIGINT)
    assert running.process.communicate(timeout=30)[0] == "interrupted\n"
    assert not present()


def test_a_caller_that_is_killed_with_its_launcher_leaves_nothing(tmp_path):
    caller = Caller(tmp_path / "pids")
    keeper = next(pid for pid, command in descendants(caller.process.pid).items() if " run " in command)
    os.kill(caller.process.pid, signal.SIGKILL)
    try:
        os.kill(keeper, signal.SIGKILL)
    except ProcessLookupError:
        pass
    caller.await_end_of_all()
    caller.process.communicate()


def test_ctrl_c_ends_the_workers_and_then_the_call(tmp_path):
    caller = Caller(tmp_path / "pids")
    # Like a terminal, this sends the signal to the whole process group.
    os.killpg(caller.process.pid, signal.SIGINT)
    printed, stderr = caller.process.communicate(timeout=30)
    assert printed == "interrupted\n", stderr
    caller.await_end_of_all(1.0)


def test_the_third_ctrl_c_waits_for_nobody(tmp_path):
    script = CALLER.replace("shutdown_timeout=1", "shutdown_timeout=60")
    folder = tmp_path / "pids"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(HERE), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    await_that(lambda: (folder / "0").exists() and (folder / "1").exists(), "workers")
    below = list(descendants(process.pid))
    begin = time.monotonic()
    while process.poll() is None and time.monotonic() - begin < 30:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.communicate()
    # After only two of them, the workers would have had 15 s.
    assert time.monotonic() - begin < 10
    await_that(lambda: not any(is_alive(pid) for pid in below), "the end of all", 5.0)


def test_an_exception_of_a_signal_handler_leaves_nothing():
    class Enough(Exception):
        pass

    def raise_it(*_):
        raise Enough

    earlier = signal.signal(signal.SIGALRM, raise_it)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(Enough):
            rdzv.launch("time:sleep", (60,), nprocs=2)
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert not descendants()


REPEATED = """
import faulthandler, os, signal, sys, threading, time
faulthandler.enable()
faulthandler.dump_traceback_later(500, exit=True)
sys.path.insert(0, sys.argv[1])
import rdzv
from launch.processes import descendants, await_that
before = len(os.listdir("/proc/self/fd"))
for number in range(int(sys.argv[2])):
    kind = number % 4
    try:
        if kind == 0:
            rdzv.launch("launch.functions:fail_on", (number % 2,), nprocs=2)
        elif kind == 1:
            rdzv.launch("time:sleep", (60,), nprocs=2, timeout=0.02 * (number % 7 + 1))
        elif kind == 2:
            rdzv.launch("launch.functions:kill_oneself", (9,), nprocs=2)
        else:
            timer = threading.Timer(0.02 * (number % 9), os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            rdzv.launch("time:sleep", (60,), nprocs=2)
        raise SystemExit("nothing was raised")
    except (rdzv.WorkerGroupFailed, rdzv.LaunchTimeout, KeyboardInterrupt):
        pass
    left = descendants()
    assert not left, (number, left)
await_that(lambda: len(os.listdir("/proc/self/fd")) == before, "every descriptor is closed")
print("good")
"""


def test_failures_leave_no_process_and_no_descriptor_a_hundred_times():
    ended = subprocess.run(
        [sys.executable, "-c", REPEATED, str(HERE), "100"], capture_output=True, text=True, timeout=550
    )
    assert ended.stdout == "good\n", ended.stderr[-4000:]
