"""Tests that rdzv under the name `torchrun` shows users the same output.

Each scenario runs with the real launcher and with a link to rdzv. The tests compare exit code, stdout,
stderr and log files, without times, process ids and random names. For each intended difference, a
function in `NAMED` removes it, and `docs/replacing-torchrun.md` describes it.
"""

import os
import pty
import re
import select
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import launching
from launching import RDZV, TORCHRUN, Running, environment, worker

SHELL = ("--no-python", "sh", "-c")
FAIL = """\
import os, time
if os.environ["RANK"] == "0":
    raise ValueError("no such shard")
time.sleep(600)
"""
# Writes each line with one call, because the two workers share the streams.
SPEAK = """\
import os
rank = os.environb[b"RANK"]
os.write(1, b"out " + rank + b"\\n")
os.write(2, b"err " + rank + b"\\n")
"""
# Both workers fail: rank 1 with a different error when it is stopped.
BOTH = """\
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
rank = os.environ["RANK"]
pathlib.Path(f"on{rank}").touch()
while not all(pathlib.Path(f"on{rank}").exists() for rank in range(2)):
    time.sleep(0.01)
if rank == "0":
    os._exit(3)
time.sleep(600)
"""
WAIT = "touch on$RANK; exec sleep 600"
FILES = (("both.py", BOTH), ("fail.py", FAIL), ("speak.py", SPEAK), ("speak.json", '{"a": 1}'))


@dataclass
class Scenario:
    name: str
    words: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    threads: str | None = "1"
    # Signal that is sent after the start of both workers.
    signal: int = 0
    terminal: bool = False
    code: int = 1


PAIR = ("--nproc-per-node", "2")
SCENARIOS = [
    Scenario("success", (*PAIR, "speak.py"), code=0),
    Scenario("the note on threads", (*PAIR, "speak.py"), threads=None, code=0),
    Scenario("an exception", (*PAIR, "fail.py")),
    Scenario("a recorded exception", (worker("recorded.py"), "raise")),
    Scenario("os._exit", (*SHELL, "exit 7")),
    Scenario("a worker killed", (*SHELL, 'kill -KILL "$$$$"')),
    Scenario("a crash", (*SHELL, 'kill -SEGV "$$$$"')),
    Scenario("two failures", (*PAIR, "both.py")),
    Scenario("restarts", ("--max-restarts", "2", *SHELL, "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3"), code=0),
    Scenario("restarts that do not help", ("--max-restarts", "1", *SHELL, "exit 3")),
    Scenario("an unknown flag", ("--bogus", "speak.py"), code=2),
    Scenario("a bad value", ("--nnodes", "a", "speak.py")),
    Scenario("an unknown backend", ("--rdzv-backend", "foo", "--rdzv-endpoint", "localhost:1", "speak.py")),
    Scenario("an unknown setting of the backend", ("--standalone", "--rdzv-conf", "x=1", "speak.py"), code=0),
    Scenario("no such script", ("nowhere.py",)),
    Scenario("missing program", ("--no-python", "nowhere")),
    Scenario("a module", ("-m", "json.tool", "speak.json"), code=0),
    Scenario("a standalone run", ("--standalone", *PAIR, "speak.py"), code=0),
    Scenario("redirected", (*PAIR, "--log-dir", "logs", "-r", "3", "speak.py"), code=0),
    Scenario("redirected, and failing", (*PAIR, "--log-dir", "logs", "-r", "3", "fail.py")),
    Scenario("teed", (*PAIR, "--log-dir", "logs", "-t", "3", "speak.py"), code=0),
    Scenario("filtered", (*PAIR, "--log-dir", "logs", "-t", "3", "--local-ranks-filter", "1", "speak.py"), code=0),
    Scenario("SIGINT", (*PAIR, *SHELL, WAIT), signal=signal.SIGINT),
    Scenario("SIGTERM", (*PAIR, *SHELL, WAIT), signal=signal.SIGTERM),
    Scenario("success on a terminal", (*PAIR, "speak.py"), terminal=True, code=0),
    Scenario("an exception on a terminal", (*PAIR, "fail.py"), terminal=True),
    Scenario("Ctrl-C", (*PAIR, *SHELL, WAIT), signal=signal.SIGINT, terminal=True),
    Scenario("an error file of the caller", (worker("recorded.py"), "raise"), {"TORCHELASTIC_ERROR_FILE": "own"}),
]


@pytest.fixture
def link(tmp_path) -> str:
    path = tmp_path / "torchrun"
    os.symlink(RDZV, path)
    return str(path)


@dataclass
class Seen:
    """Streams of a launch, and the files below `logs`."""

    code: int
    stdout: str
    stderr: str
    files: dict[str, str]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_people_see_the_same(tmp_path, link, scenario):
    launches = [Launch(TORCHRUN, tmp_path / "theirs", scenario), Launch(link, tmp_path / "ours", scenario)]
    try:
        theirs, ours = (launch.seen() for launch in launches)
    finally:
        for launch in launches:
            launch.clear()
    print(f"--- theirs, {theirs.code}\n{theirs.stdout}{theirs.stderr}--- ours, {ours.code}\n{ours.stdout}{ours.stderr}")
    assert (theirs.code, ours.code) == (scenario.code, scenario.code)
    assert plain(ours.stdout) == plain(theirs.stdout)
    assert plain(ours.stderr) == plain(theirs.stderr)
    assert ours.files == theirs.files


class Launch:
    def __init__(self, launcher: str, folder: Path, scenario: Scenario):
        folder.mkdir()
        for name, text in FILES:
            (folder / name).write_text(text)
        self.folder, self.scenario = folder, scenario
        # The name of the program selects the output format.
        variables = {"RDZV_COMPAT_OUTPUT": "", **scenario.environment}
        if scenario.threads:
            variables["OMP_NUM_THREADS"] = scenario.threads
        self.words = [launcher, *scenario.words]
        start = OnTerminal if scenario.terminal else OnPipes
        self.running = start(self.words, env=variables, cwd=folder)

    def seen(self) -> Seen:
        if self.scenario.signal:
            until = time.monotonic() + 60
            while not (all((self.folder / f"on{rank}").exists() for rank in range(2)) and self.watches()):
                assert time.monotonic() < until, "the workers have not begun"
                time.sleep(0.01)
            self.running.signal(self.scenario.signal)
        finished = self.running.finish(120)
        logs = self.folder / "logs"
        files = {
            re.sub(r"^[^/]+", "<run>", str(path.relative_to(logs))): plain(path.read_text())
            for path in sorted(logs.rglob("*"))
            if path.is_file() and path.name != "error.json"
        }
        return Seen(finished.code, finished.stdout, finished.stderr, files)

    def watches(self) -> bool:
        """Returns `True` if the launcher already monitors its workers.

        A signal during the start of the last worker gives a different traceback.
        """
        return self.words[0] != TORCHRUN or "nanosleep" in Path(f"/proc/{self.running.process.pid}/wchan").read_text()

    def clear(self):
        self.running.clear()


class OnPipes(Running):
    def signal(self, number: int):
        self.process.send_signal(number)


class OnTerminal(Running):
    """Launch on a new terminal, which is its whole input and output."""

    def __init__(self, words, env, cwd):
        self.master, terminal = pty.openpty()
        self.mark = os.urandom(16).hex()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *words],
            env=environment({"TERM": "xterm", **env, launching.MARK: self.mark}),
            cwd=cwd,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)

    def signal(self, number: int):
        assert number == signal.SIGINT
        os.write(self.master, b"\x03")

    def finish(self, timeout: float = 240) -> launching.Finished:
        output, until = b"", time.monotonic() + timeout
        while True:
            assert select.select([self.master], [], [], until - time.monotonic())[0], output.decode()
            try:
                output += os.read(self.master, 65536)
            except OSError:
                break  # no process has the terminal open any more
        os.close(self.master)
        text = output.decode().replace("\r\n", "\n").replace("^C", "")
        return launching.Finished(self.process.wait(timeout), text, "")


UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# Parts that differ from run to run.
VARYING = [
    (r"^(\[?[CEWI])\d{4} [\d:.]+ \d+ (?:\S+\]) ?", r"\1 <place>] "),
    (r"\bpid: \d+", "pid: <pid>"),
    (r"\bPID \d+", "PID <pid>"),
    (r"\b([Pp]rocess) \d+", r"\1 <pid>"),
    (r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", "<time>"),
    (r"^  host      : \S+$", "  host      : <host>"),
    (rf"\S+/torchelastic_\w+/{UUID}_\w+/", "<temporary>/"),
    (rf"\blogs/{UUID}_\w+/", "logs/<run>/"),
    (r"\S+/(theirs|ours)/", "<folder>/"),
]


def traceback_of_the_launcher(text: str) -> str:
    """Removes the frames of `torchrun` itself, and earlier exceptions."""
    frames = r"Traceback \(most recent call last\):\n(?:  .*\n)*?"
    own = rf"^{frames}  File \"\S*/bin/torchrun\", .*\n(?:  .*\n)*"
    caused = rf"^{frames}  File \"\S*/torch/distributed/.*\n(?:  .*\n)*\w+: .*\n\nThe above exception .*\n\n"
    text = re.sub(caused, "", text, flags=re.MULTILINE)
    return re.sub(own, "", text, flags=re.MULTILINE)


def first_failure(text: str) -> str:
    """Removes rdzv's verdict before the report."""
    return re.sub(r"^rdzv: .*\n(?:    .*\n)*", "", text, flags=re.MULTILINE)


def order_of_the_log(text: str) -> str:
    """Sorts the log lines.

    rdzv logs a failure before it stops the other workers, torchrun afterwards. The order of lines from
    several workers is random."""
    lines = text.splitlines()
    movable = [line for line in lines if re.match(r"[EW] <place>\]|\[default\d\]:|(out|err) \d$", line)]
    return "\n".join([*sorted(movable), *(line for line in lines if line not in movable)])


def note_on_threads(text: str) -> str:
    return re.sub(r"(Setting OMP_NUM_THREADS environment variable for each process to be 1 in default), .*", r"\1", text)


def usage(text: str) -> str:
    """Shortens torchrun's usage, which contains all flags, to one line."""
    return re.sub(r"^usage: torchrun .*\n(?:  .*\n)*", "usage: torchrun\n", text, flags=re.MULTILINE)


def interpreter(text: str) -> str:
    """Unifies the interpreter: torchrun's own, or `python3` or `python` for rdzv."""
    return re.sub(r"/bin/python3?\b", "/bin/python", text)


def no_effect(text: str) -> str:
    """Removes rdzv's warning about flags without an effect."""
    return re.sub(r"^W <place>\] .* has no (?:option|effect).*\n", "", text, flags=re.MULTILINE)


NAMED = [traceback_of_the_launcher, first_failure, note_on_threads, usage, interpreter, no_effect, order_of_the_log]


def plain(text: str) -> list[str]:
    # A horizontal rule has the length of the longest line, which depends on the process ids.
    text = re.sub(r"^([=-])\1{20,}$", r"\1", text, flags=re.MULTILINE)
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    for difference in NAMED:
        text = difference(text)
    return text.splitlines()
