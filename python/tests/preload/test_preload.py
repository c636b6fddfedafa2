"""Tests of `rdzv run --preload`, which forks workers."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import coverage
import pytest

LIMIT_SECONDS = 240
READY = "the fork server has imported the modules"
REFUSED = "--preload has no effect"

# Start of each script. The workers of the first attempt are executed. They fail once the fork
# server is ready, so the workers of the second attempt are forked.
HEAD = """\
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while not os.path.exists(os.environ["TEST_FOLDER"] + "/ready"):
        time.sleep(0.01)
    os._exit(3)
if __name__ == "__main__":
    with open(os.environ["TEST_FOLDER"] + "/forked", "w") as file:
        file.write(str(__import__("gc").get_freeze_count() > 0))
    del file
"""

FACTS = """
import ctypes, faulthandler, gc, inspect, json, re, resource, signal, threading, warnings

names = "TracerPid Umask SigQ SigPnd ShdPnd SigBlk SigIgn SigCgt NoNewPrivs Seccomp Threads Cpus_allowed_list"
lines = (line.partition(":") for line in open("/proc/self/status"))
status = {name: value.strip() for name, _, value in lines if name in names.split() and name != "SigQ"}
death = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))

def stream(file):
    raw = getattr(file.buffer, "raw", file.buffer)
    return [
        type(file.buffer).__name__, file.name, file.mode, raw.name, raw.mode, raw.closefd, file.encoding, file.errors,
        file.line_buffering, file.write_through, file.isatty(), file.seekable(), file.fileno(),
    ]

kinds = (os.readlink(f"/proc/self/fd/{n}").partition(":")[0] for n in sorted(os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{n}"))
own = os.getpid()
facts = {
    "forked": gc.get_freeze_count() > 0,
    "ids": [os.getsid(0) == own, os.getpgid(0) == own],
    "parent": open(f"/proc/{os.getppid()}/comm").read(),
    "cwd": os.getcwd(), "fds": list(kinds), "status": status, "death": death.value,
    "limits": [resource.getrlimit(number) for number in range(16)], "nice": os.nice(0),
    "affinity": sorted(os.sched_getaffinity(0)), "oom": open("/proc/self/oom_score_adj").read(),
    "group": re.sub("[0-9]+", "N", open("/proc/self/cgroup").read()), "comm": open("/proc/self/comm").read(),
    "line": open("/proc/self/cmdline").read(), "exe": os.readlink("/proc/self/exe"),
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags), "executable": sys.executable,
    "options": [sys.warnoptions, sys._xoptions], "filters": [str(each) for each in warnings.filters],
    "main": sorted(globals()), "file": __file__, "name": __name__, "spec": str(__spec__), "package": __package__,
    "loader": type(__loader__).__name__, "is_main": sys.modules["__main__"].__dict__ is globals(),
    "custom": "sitecustomize" in sys.modules, "depth": [frame.function for frame in inspect.stack()],
    "streams": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
    "same": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
    # All workers read from one position.
    "stdin": os.environ["LOCAL_RANK"] == "0" and [sys.stdin.tell(), sys.stdin.readline(), sys.stdin.tell(), sys.stdin.read()], "threads": [thread.name for thread in threading.enumerate()],
    "main_thread": threading.main_thread() is threading.current_thread(), "native": threading.main_thread().native_id == own,
    "handlers": [str(signal.getsignal(number)).partition(" at ")[0] for number in sorted(signal.valid_signals())],
    "gc": [gc.isenabled(), gc.get_threshold()], "fault": faulthandler.is_enabled(),
    "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace() is None],
    "names": sorted(os.environ),
    "environment": {
        name: value for name, value in os.environ.items()
        if name not in ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TEST_MARK")
    },
}
# The interpreter creates these as it needs them.
facts["main"] = [name for name in facts["main"] if name not in ("__annotations__", "__warningregistry__")]
print(json.dumps(facts))
"""

DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    loss = model(torch.full((2, 4), float(dist.get_rank() + step))).square().mean()
    loss.backward()
    optimizer.step()
total = loss.detach().clone()
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"{total.item():.5f}", torch.initial_seed(), torch.get_num_threads(), flush=True)
dist.destroy_process_group()
# A thread of PyTorch may still run here; its destructor aborts the process (with torchrun too).
os._exit(0)
"""

LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor(index * index), os.getppid()

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        loader = DataLoader(Squares(), batch_size=2, num_workers=2, multiprocessing_context=method)
        batches = list(loader)
        parents = {int(parent) for _, each in batches for parent in each}
        print(method, [batch.tolist() for batch, _ in batches], method == "forkserver" or parents == {os.getpid()})
"""

PROCESSES = """
import multiprocessing as mp
from multiprocessing import shared_memory

def double(number):
    return 2 * number, __name__, sys.argv[1:]

def add(queue, lock):
    with lock:
        queue.put(os.getppid())

if __name__ == "__main__":
    print(mp.current_process().name, mp.parent_process(), mp.get_start_method(), len(mp.current_process().authkey))
    for method in ("fork", "spawn", "forkserver"):
        context = mp.get_context(method)
        with context.Pool(2) as pool:
            print(method, pool.map(double, range(3)))
        queue, lock = context.Queue(), context.Lock()
        child = context.Process(target=add, args=(queue, lock))
        child.start()
        print(method == "forkserver" or queue.get() == os.getpid())
        child.join()
        print(child.exitcode)
    with mp.Manager() as manager:
        print(dict(manager.dict(a=1)))
    memory = shared_memory.SharedMemory(create=True, size=16)
    memory.buf[0] = 7
    print(shared_memory.SharedMemory(memory.name).buf[0])
    memory.close()
    memory.unlink()
"""

COMPILE = """
import operator, torch
from torch._inductor.compile_worker.subproc_pool import SubprocPool

if __name__ == "__main__":
    pool = SubprocPool(2)
    print(pool.submit(operator.add, 2, 3).result())
    pool.shutdown()
    compiled = torch.compile(lambda tensor: (tensor * 2 + 1).sum())
    print(compiled(torch.arange(6.0)).item())
"""

FAULT = """
import faulthandler, threading
faulthandler.enable()
def inner():
    faulthandler.dump_traceback(sys.stdout.fileno())
    faulthandler._sigsegv()
inner()
"""

AT_EXIT = """
import atexit, threading, weakref
class Held:
    pass
held = Held()
weakref.finalize(held, print, "finalizer")
atexit.register(print, "first")
atexit.register(lambda: print("second", __name__, sys.argv, sys.modules["__main__"].__dict__ is globals()))
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print("end")
sys.exit("the last words")
"""

PICKLES = """
import pickle
from concurrent.futures import ProcessPoolExecutor
import multiprocessing as mp

class Point:
    def __init__(self, x):
        self.x = x
    def __reduce__(self):
        return Point, (self.x,)

def moved(point):
    return Point(point.x + 1)

if __name__ == "__main__":
    print(Point.__module__, pickle.loads(pickle.dumps(Point(1))).x, pickle.dumps(moved))
    with ProcessPoolExecutor(1, mp_context=mp.get_context("spawn")) as pool:
        print(pool.submit(moved, Point(4)).result().x)
"""

ERROR = """
def fail():
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error
print("before")
fail()
"""

SIGNALLED = """
import signal
def on_term(number, frame):
    print("handled", number, frame.f_code.co_name)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGTERM, on_term)
os.kill(os.getpid(), signal.SIGTERM)
"""

STEPS = """
total = 0
for number in range(3):
    total += number
print("total", total)
"""

CACHES = """
import importlib
for _ in range(16):
    os.pipe()
importlib.invalidate_caches()
print("invalidated")
"""

IMPORT_OUTPUT = """
import loud
print("script", loud.__name__)
"""

QUICK = "json,multiprocessing.pool,logging,concurrent.futures"
SCRIPT = ["train.py", "--lr", "0.1", "${local_rank}"]

# Name: program, modules, arguments.
PROGRAMS = {
    "facts": (FACTS, QUICK, SCRIPT),
    "module": (FACTS, QUICK, ["-m", "train", "--lr", "0.1", "${local_rank}"]),
    "run_path": (FACTS, QUICK, ["--run-path", *SCRIPT]),
    "ddp": (DDP, "torch", SCRIPT),
    "loader": (LOADER, "torch", SCRIPT),
    "compile": (COMPILE, "torch", SCRIPT),
    "multiprocessing": (PROCESSES, QUICK, SCRIPT),
    "faulthandler": (FAULT, QUICK, SCRIPT),
    "atexit": (AT_EXIT, QUICK, SCRIPT),
    "pickles": (PICKLES, QUICK, SCRIPT),
    "error": (ERROR, QUICK, SCRIPT),
    "run_path_error": (ERROR, QUICK, ["--run-path", *SCRIPT]),
    "signals": (SIGNALLED, QUICK, SCRIPT),
    "trace": (STEPS, QUICK, ["-m", "trace", "--trace", "--ignore-dir", sys.prefix, *SCRIPT]),
    "coverage": (STEPS, QUICK, ["-m", "coverage", "run", "--data-file=measured", *SCRIPT]),
    "pdb": (STEPS, QUICK, ["-m", "pdb", "-c", "tbreak 13", "-c", "continue", *SCRIPT]),
    "caches": (CACHES, QUICK, SCRIPT),
    "output_of_imports": (IMPORT_OUTPUT, f"{QUICK},loud", SCRIPT),
}


class Run:
    """A running `rdzv run`, whose log is watched."""

    def __init__(self, folder, program, flags, arguments, restarts=1, variables=None):
        self.folder, self.mark = folder, uuid.uuid4().hex
        (folder / "train.py").write_text(HEAD + program if restarts == 1 else program)
        (folder / "loud.py").write_text("import sys\nprint('to stdout')\nprint('to stderr', file=sys.stderr)\n")
        environment = {
            **os.environ, "PYTHON_EXEC": sys.executable, "LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1",
            "TEST_FOLDER": str(folder), "TEST_MARK": self.mark, "PYTHONHASHSEED": "1", **(variables or {}),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "rdzv", "run", "--max-restarts", str(restarts), "--log-dir", str(folder / "logs"), "-r", "3",
            "--exit-code", "worker", *flags, *arguments,
        ]  # fmt: skip
        (folder / "input").write_text("p number\nc\nq\n")
        self.log = folder / "agent.log"
        with self.log.open("w") as log, (folder / "input").open() as given:
            self.process = subprocess.Popen(command, stdin=given, stdout=log, stderr=log, env=environment, cwd=folder)

    def marked(self):
        """Processes of this run, by id; with the id of the parent."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if f"TEST_MARK={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        return found

    def agent(self):
        return next(
            (pid for pid in self.marked() if self.comm(pid) == "rdzv" and "RDZV_GUARD" in self.environ(pid)), None
        )

    def fork_server(self):
        """The only child of the agent that has this variable, until it forks workers."""
        [server] = (
            pid for pid, parent in self.marked().items()
            if self.comm(parent) == "rdzv" and "/proc/self/fd/" in self.environ(pid).get("PYTHONPATH", "")
        )  # fmt: skip
        return server

    def comm(self, pid):
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip()

    def environ(self, pid):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/environ").read_text().split("\0")
            return dict(line.split("=", 1) for line in lines if "=" in line)
        return {}

    def await_text(self, text):
        self.wait_for(lambda: text in self.log.read_text() or self.process.poll() is not None, text)
        assert text in self.log.read_text(), self.log.read_text()

    def wait_for(self, holds, what):
        end = time.monotonic() + LIMIT_SECONDS
        while not holds():
            assert time.monotonic() < end, f"{what}: {self.log.read_text()}"
            time.sleep(0.01)

    def ended(self):
        try:
            return self.process.wait(LIMIT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()

    def outputs(self, attempt):
        """Stdout and stderr of each worker in an attempt."""
        workers = sorted(self.folder.glob(f"logs/*/attempt_{attempt}/[0-9]*"))
        return [[(worker / name).read_text() for name in ("stdout.log", "stderr.log")] for worker in workers]


def outcome(folder, name, is_preloaded):
    program, modules, arguments = PROGRAMS[name]
    flags = ["--preload", modules] if is_preloaded else []
    workers = "2" if name in ("ddp", "facts") else "1"
    run = Run(folder, program, ["--nproc-per-node", workers, *flags], arguments)
    if is_preloaded:
        run.await_text(READY)
    (folder / "ready").touch()
    code = run.ended()
    (folder / "ready").unlink()
    assert (folder / "forked").read_text() == str(is_preloaded)
    outputs = run.outputs(1)
    assert len(outputs) == int(workers) and REFUSED not in run.log.read_text(), run.log.read_text()
    if name == "coverage":
        outputs.append([str(covered(folder)), ""])
    return code, outputs


def covered(folder):
    """Line numbers of the script that `coverage` has recorded. Removes its record."""
    record = coverage.CoverageData(str(folder / "measured"))
    record.read()
    lines = sorted(record.lines(str(folder / "train.py")) or [])
    assert lines, "coverage recorded no line of the script"
    record.erase()
    return lines


def without_addresses(text):
    return re.sub(r"logs/[^/]+/", "logs/RUN/", re.sub(r"0x[0-9a-f]{8,}", "ADDRESS", text))


# Warning of multiprocessing's resource tracker, which depends on the order in which processes exit.
TRACKER = re.compile(r"/\S*resource_tracker\.py:\d+: UserWarning: .*\n  warnings\.warn\(.*\n")


def comparable(found):
    code, workers = found
    texts = [[TRACKER.sub("", str(text)) for text in worker] for worker in workers]
    return re.sub(r"\d{4,}(, \d+)*", "N", without_addresses(str((code, texts))))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_behaves_the_same_with_preload(tmp_path, name):
    folder = tmp_path / "run"
    folder.mkdir()
    executed = outcome(folder, name, False)
    (folder / "logs").rename(tmp_path / "executed")
    forked = outcome(folder, name, True)
    if PROGRAMS[name][0] is not FACTS:
        assert comparable(executed) == comparable(forked)
        return
    assert executed[0] == forked[0] == 0, (executed, forked)
    for (one, _), (other, _) in zip(executed[1], forked[1], strict=True):
        one, other = json.loads(without_addresses(one)), json.loads(without_addresses(other))
        assert not one.pop("forked") and other.pop("forked")
        # The command line is that of the first worker.
        if one["environment"]["LOCAL_RANK"] != "0":
            assert one.pop("line") != other.pop("line")
        assert one == other


def test_a_wrapper_may_add_flags_to_the_interpreter(tmp_path):
    wrapper = tmp_path / "wrapped"
    wrapper.write_text(f'#!/bin/sh\nexport WRAPPED=1\nexec {sys.executable} -X dev "$@"\n')
    wrapper.chmod(0o755)
    program = """
import gc
print(gc.get_freeze_count() > 0, sys.flags.dev_mode, sys.orig_argv[1:], os.environ["WRAPPED"])
"""
    run = Run(tmp_path, program, ["--preload", QUICK], SCRIPT, variables={"PYTHON_EXEC": str(wrapper)})
    run.await_text(READY)
    (tmp_path / "ready").touch()
    assert run.ended() == 0
    arguments = ["-X", "dev", "-u", "train.py", "--lr", "0.1", "0"]
    assert run.outputs(1) == [[f"True True {arguments} 1\n", ""]]


# A machine without a GPU has no such device, so this one takes its place.
GPU = """
import sys
frame = sys._getframe()
while "GPUS" not in frame.f_globals:
    frame = frame.f_back
frame.f_globals["GPUS"] = "/dev/full"
device = open("/dev/full")
"""

UNSAFE = {
    "absent": ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'"),
    "ends": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "the fork server has exited"),
    "thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        "2 threads run after the imports",
    ),
    "process": ("import subprocess; subprocess.Popen(['sleep', '1000'])", "the imports have started a process"),
    "gpu": (GPU, "the imports have initialised a GPU (/dev/full is open)"),
    "ignored": ("", "the interpreter has the flags -I"),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_where_a_fork_is_not_safe_workers_are_executed(tmp_path, name):
    code, reason = UNSAFE[name]
    (tmp_path / "unsafe.py").write_text(code)
    variables = {}
    if name == "ignored":
        wrapper = tmp_path / "wrapped"
        wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
        wrapper.chmod(0o755)
        variables["PYTHON_EXEC"] = str(wrapper)
    run = Run(tmp_path, "import gc; print(gc.get_freeze_count())", ["--preload", "unsafe"], SCRIPT, variables=variables)
    run.await_text(reason)
    (tmp_path / "ready").touch()
    assert run.ended() == 0
    assert run.outputs(1) == [["0\n", ""]]
    assert run.log.read_text().count(REFUSED) == 1
    assert run.marked() == {}


RESTARTING = """
import gc
with open(os.environ["TEST_FOLDER"] + "/ran", "ab", 0) as file:
    file.write("{TORCHELASTIC_RESTART_COUNT} {RANK} {}\\n".format(gc.get_freeze_count() > 0, **os.environ).encode())
if os.environ["TORCHELASTIC_RESTART_COUNT"] != os.environ["TORCHELASTIC_MAX_RESTARTS"]:
    time.sleep(0.02 if os.environ["RANK"] == "0" else 1000)
    sys.exit(3)
"""


def restarting(folder, restarts):
    run = Run(folder, HEAD + RESTARTING, ["--nproc-per-node", "2", "--preload", QUICK], ["train.py"], restarts=restarts)
    run.await_text(READY)
    run.server = run.fork_server()
    (folder / "ready").touch()
    return run


@pytest.mark.accident(rounds=5)
def test_no_worker_depends_on_the_fork_server(tmp_path, accident_round):
    run = restarting(tmp_path, 10)
    run.wait_for((tmp_path / "ran").exists, "first restart")
    time.sleep(random.uniform(0, 0.6))
    # The run may have ended.
    with contextlib.suppress(ProcessLookupError):
        os.kill(run.server, signal.SIGKILL)
    assert run.ended() == 0, run.log.read_text()
    lines = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    ran = [(attempt, rank) for attempt, rank, _ in lines]
    # Every worker ran once, forked or executed.
    assert len(ran) == len(set(ran)) and {("10", "0"), ("10", "1")} <= set(ran), lines
    assert lines[0][2] == "True", lines
    assert run.log.read_text().count(REFUSED) <= 1
    assert run.marked() == {}


@pytest.mark.accident(rounds=10)
def test_a_killed_agent_leaves_no_forked_process(tmp_path, accident_round):
    run = restarting(tmp_path, 1000)
    run.wait_for((tmp_path / "ran").exists, "first restart")
    agent = run.agent()
    time.sleep(random.uniform(0, 0.3))
    os.kill(agent, signal.SIGKILL)
    run.ended()
    run.wait_for(lambda: run.marked() == {}, "leftovers")
    assert "True" in (tmp_path / "ran").read_text()
