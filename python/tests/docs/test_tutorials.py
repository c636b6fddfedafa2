"""Tests of the tutorials: runs each page from its first to its last block.

A block of Python with a comment such as `# train.py` in its first line is saved as this file. In a
`console` block, a line that begins with `$ ` is a command, and the lines after it are lines of its
output, in this order. Other lines may be between them, and `…` stands for the rest of a line. All
commands of a page run in one shell.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from ports import free_port

import rdzv

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.M | re.S)
# Programs that only read. The reader repeats such a command until the output is there.
READERS = ("cat", "grep", "ls", "rdzv ps")
# Limit for one command, and for a repeated command.
LIMIT_SECONDS = 240
# Values that differ from run to run.
VARIABLE = [
    (re.compile(r"\d+-\d+-\d+T\d+:\d+:\d+\.\d+Z"), "TIME"),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"\b(\d+h)?(\d+m)?\d+(\.\d+)? ?s\b"), "SECONDS"),
    (re.compile(r"\bpid \d+"), "PID"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"process \d+"), "PROCESS"),
    (re.compile(r"\d+\.\d+"), "NUMBER"),
    (re.compile(r"\s+"), " "),
]


class Shell:
    """A shell in the folder of the reader."""

    END = "__end__"

    def __init__(self, folder):
        path = os.pathsep.join([str(Path(rdzv.find_rdzv_bin()).parent), os.environ["PATH"]])
        self.process = subprocess.Popen(
            ["bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            # Other tests list the jobs of this user, and must not find these.
            env={**os.environ, "PATH": path, "PYTHON_EXEC": sys.executable, "XDG_RUNTIME_DIR": str(folder)},
            start_new_session=True,
        )

    def run(self, command):
        """Runs the command. Returns its output and its exit code."""
        self.process.stdin.write(f"{command}\necho {self.END}$?\n".encode())
        self.process.stdin.flush()
        output = b""
        limit = time.monotonic() + LIMIT_SECONDS
        while not (end := re.search(rf"^{self.END}(\d+)\n", output.decode(errors="replace"), re.M)):
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, limit - time.monotonic()))
            assert ready, f"no end after {LIMIT_SECONDS} s: {command}\n{output.decode()}"
            read = os.read(self.process.stdout.fileno(), 65536)
            assert read, f"the shell has exited: {command}\n{output.decode()}"
            output += read
        return output.decode()[: end.start()], int(end[1])

    def end(self):
        # Workers die with their agents.
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    shell.end()


def commands(block):
    """Yields each command of a block with the lines of its output."""
    command, expected = None, []
    for line in block.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, expected
            command, expected = line[2:], []
        else:
            assert command is not None, f"the block begins with output: {line}"
            expected.append(line)
    yield command, expected


def comparable(line, folder):
    line = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "my-host", line.replace(str(folder), "/home/me"))
    for pattern, name in VARIABLE:
        line = pattern.sub(name, line)
    return line.strip()


def missing(expected, output, folder):
    """Returns the first expected line that the output lacks, or `None`."""
    lines = iter([comparable(line, folder) for line in output.splitlines()])
    for line in expected:
        start, rest, _ = comparable(line, folder).partition("…")
        if not any(found.startswith(start) if rest else found == start for found in lines):
            return line
    return None


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_shows(page, shell, tmp_path):
    # Other jobs run on this machine at the same time.
    text = page.read_text().replace("29400", str(free_port())).replace("tutorial-job", uuid.uuid4().hex[:12])
    checked = 0
    for kind, block in BLOCK.findall(text):
        if kind == "python":
            name = re.match(r"# (\S+\.py)\n", block)
            assert name, f"the first line must be the name of the file:\n{block}"
            (tmp_path / name[1]).write_text(block)
            continue
        for command, expected in commands(block):
            follow(shell, command, expected, tmp_path)
            checked += len(expected)
    assert checked, f"{page} shows no output"


def follow(shell, command, expected, folder):
    limit = time.monotonic() + LIMIT_SECONDS
    while True:
        output, code = shell.run(command)
        absent = missing(expected, output, folder)
        if absent is None and code == 0:
            return
        can_repeat = command.startswith(READERS) and time.monotonic() < limit
        assert can_repeat, f"$ {command}\n{output}exit code {code}; missing line: {absent}"
        time.sleep(0.2)
