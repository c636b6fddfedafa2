"""Start of programs that do not outlive their test."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

# Prefixes of variables that an outer launcher or a developer may have set. Tests set their own.
CLEARED = ("PET_", "TORCHELASTIC_", "TORCH_", "MASTER_", "CUDA_", "HIP_", "RDZV_")
CLEARED_NAMES = (
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK "
    "ROLE_WORLD_SIZE OMP_NUM_THREADS LOGLEVEL PYTHON_EXEC PYTHONPATH USE_LIBUV"
).split()

# Variable in the environment of all processes of one launch, to find those that remain.
MARK = "INTEROP_LAUNCH"


def program(variable: str) -> str:
    """Returns the path of a program under test. A missing variable is an error."""
    path = os.environ.get(variable)
    if not path or not os.path.isfile(path):
        raise RuntimeError(f"{variable} names no program: run `cargo xtask test`")
    return path


RDZV = program("RDZV_BINARY")
STORE_CLIENT = program("RDZV_STORE_CLIENT")
STATE_CODEC = program("RDZV_STATE_CODEC")
DLPACK_BORDER = program("RDZV_DLPACK_BORDER")
MEMBER = program("RDZV_MEMBER")
PLAIN_STORE = program("RDZV_PLAIN_STORE")
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
WORKERS = Path(__file__).parent / "workers"
EXAMPLES = Path(__file__).parent.parent / "examples"


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Returns an environment with this Python first and no launcher settings."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(CLEARED) and name not in CLEARED_NAMES
    }
    programs = str(Path(sys.executable).parent)
    kept["PATH"] = programs + os.pathsep + kept.get("PATH", os.defpath)
    kept["VIRTUAL_ENV"] = sys.prefix
    # The tests compare the messages of `rdzv run` in the format of PyTorch's launcher.
    kept["RDZV_COMPAT_OUTPUT"] = "1"
    kept.update(extra or {})
    return kept


@dataclass
class Finished:
    code: int
    stdout: str
    stderr: str

    @property
    def all(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"


def marked(mark: str) -> list[int]:
    """Returns the processes that have `mark` in their environment."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            state = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has exited, or belongs to another user
        if f"{MARK}={mark}".encode() in variables and state != "Z":
            found.append(int(entry))
    return found


class Running:
    """Program in a new session, with a new folder for temporary files."""

    def __init__(self, words, env=None, cwd=None):
        self.mark = uuid.uuid4().hex
        self.words = [str(word) for word in words]
        self.temporary = tempfile.TemporaryDirectory(prefix="interop-")
        self.process = subprocess.Popen(
            self.words,
            env=environment({"TMPDIR": self.temporary.name, **(env or {}), MARK: self.mark}),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def finish(self, timeout: float = 240) -> Finished:
        """Waits for the exit, and checks that no process and no file remains."""
        try:
            stdout, stderr = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.clear()
            stdout, stderr = self.process.communicate()
            finished = Finished(self.process.returncode, stdout, stderr)
            raise AssertionError(f"{self.words} did not end in {timeout} s: {finished.all}") from None
        left = self.clear()
        # Files of the launchers only: PyTorch keeps a compiler cache in the same folder.
        files = [n for n in os.listdir(self.temporary.name) if not n.startswith("torchinductor_")]
        self.temporary.cleanup()
        finished = Finished(self.process.returncode, stdout, stderr)
        if self.words[0] != TORCHRUN:
            assert not left, f"{self.words} left processes {left}: {finished.all}"
            # After a failure the error files of the workers remain, because the report names them.
            if finished.code == 0:
                assert not files, f"{self.words} left files {files}: {finished.all}"
        return finished

    def clear(self) -> list[int]:
        """Kills the remaining processes and returns their ids."""
        left = marked(self.mark)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return left


def finish(words, env=None, cwd=None, timeout: float = 240) -> Finished:
    """Runs a program until it exits."""
    return Running(words, env, cwd).finish(timeout)


def rdzv_run(*words, **options) -> Finished:
    return finish([RDZV, "run", *words], **options)


def torchrun(*words, **options) -> Finished:
    return finish([TORCHRUN, *words], **options)


def worker(name: str) -> str:
    path = WORKERS / name
    assert path.is_file(), f"there is no worker {path}"
    return str(path)


HELD_PORTS: list[socket.socket] = []


def free_port() -> int:
    """Returns a free port, for programs that do not report their port.

    The port stays bound until this process ends, so that no other program gets it. Stores and most
    servers set SO_REUSEADDR, so they can still listen on it.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("", 0))
    HELD_PORTS.append(held)
    return held.getsockname()[1]
