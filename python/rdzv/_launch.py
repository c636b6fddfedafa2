"""``rdzv.launch``: runs a function in new processes and returns their results.

The native ``rdzv run`` is a child process of the caller; its workers run ``_entry``. They read the call from an
inherited descriptor, and write values and exceptions to files in a private folder. The launcher ends when its caller
ends, even if a signal kills the caller.
"""

from __future__ import annotations

import os
import sys

from rdzv import _entry
from rdzv._errors import Error, LaunchTimeout, WorkerGroupFailed
from rdzv._flags import FLAGS, SWITCHES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta
    from typing import Any, Protocol, Unpack

    from rdzv._call import Call
    from rdzv._config import LaunchConfig
    from rdzv._flags import Flags
    from rdzv._result import RunResult

    _Function = Callable[..., object] | str | Sequence[str | os.PathLike[str]]

    class _Follower(Protocol):
        def _began(self, folder: str) -> str: ...
        def _ended(self) -> None: ...

# Environment variables of the launcher that would change the workers' command or its output.
_UNSET = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PET_LOGS_SPECS", "TORCHELASTIC_ERROR_FILE")

# Prefix of the names of private folders.
_FOLDER = "rdzv-call-"

# Seconds within which the rest of a run must end after its keeper was killed.
_CLEARED_WITHIN = 10.0


def launch(
    fn: _Function,
    args: tuple[object, ...] = (),
    *,
    nprocs: int | str = "auto",
    nnodes: int | str = 1,
    max_restarts: int = 0,
    config: LaunchConfig | None = None,
    start: str = "import",
    timeout: float | timedelta | None = None,
    **flags: Unpack[Flags],
) -> RunResult:
    """Runs a function or a command in several processes and returns the results.

    The native ``rdzv run`` supervises the workers. They get ranks and a store (:mod:`rdzv.worker`). After a failure all
    workers restart together. No worker outlives the caller. Each worker is a new interpreter with the caller's
    ``sys.path`` and ``sys.argv``.

    Args:
        fn (callable | str | list[str]): a function that can be imported by its name, ``"module:function"``, or a
            command and its arguments. The function gets ``args``; its rank is :func:`rdzv.worker.rank`.
        args (tuple): arguments of the function or command. Those of a function are pickled.
        nprocs (int | str): workers on this node: a number, ``"cpu"``, ``"gpu"`` or ``"auto"``. With ``"auto"``, the
            default, there is one worker per accelerator, or one per processor if there are no accelerators. With more
            than one worker, ``OMP_NUM_THREADS`` is 1 unless it is set.
        nnodes (int | str): number of nodes, or ``"MIN:MAX"``. Default 1. With several nodes, each of them calls
            ``launch`` with ``rdzv_backend`` and ``rdzv_endpoint``.
        max_restarts (int): number of times that the workers are restarted after a failure. Default 0.
        config (LaunchConfig | None): settings of :class:`rdzv.elastic.LaunchConfig`. Arguments of ``launch`` override
            them.
        start (str): ``"import"``, or ``"pickle"`` for functions that cannot be imported: those of a notebook, local
            functions and lambdas. ``"pickle"`` uses cloudpickle if it is installed.
        timeout (float | timedelta | None): longest time for the whole run, in seconds. Default ``None``: no limit.
        **flags: long flags of ``rdzv run`` with underscores, such as ``rdzv_endpoint="head:29400"``, ``tee=3``,
            ``heartbeat_timeout=60``. ``True`` sets a switch; a list is joined by commas; a dict gives ``k=v,...``.

    Returns:
        RunResult: a mapping from global rank to the value that this node's worker returned; None for a command.

    Raises:
        WorkerGroupFailed: a worker failed and no restart was left. ``first`` has its rank, cause and traceback.
            ``__cause__`` is the exception of the worker, if it could be pickled.
        LaunchTimeout: the run took longer than ``timeout``, and the launcher stopped it.
        ValueError: the function cannot be imported, or a number is out of range. No process was started.
        TypeError: an unknown flag, or an argument that cannot be pickled. No process was started.
        Error: the launcher failed; the text is that of ``rdzv run``. Failures of the rendezvous raise the classes of
            :mod:`rdzv.rendezvous`.
        KeyboardInterrupt: Ctrl-C was pressed. The exception follows the end of the workers, which get SIGINT, and
            SIGKILL after ``shutdown_timeout``. A second Ctrl-C shortens that time; a third one kills all of them
            immediately.

    Example:
        >>> import rdzv
        >>> rdzv.launch("math:factorial", args=(5,), nprocs=2).return_values
        {0: 120, 1: 120}
    """
    _check_flags(flags)
    settings = {} if config is None else _of_config(config)
    if config is None or nprocs != "auto":
        settings["nproc_per_node"] = _nprocs(nprocs)
    if config is None or nnodes != 1:
        settings["nnodes"] = _nnodes(nnodes)
    if config is None or max_restarts != 0:
        settings["max_restarts"] = _count("max_restarts", max_restarts)
    settings.update(flags)
    return run(fn, args, settings, start=start, timeout=_seconds(timeout))


def run(
    fn: _Function,
    args: tuple[object, ...],
    settings: dict[str, object],
    *,
    start: str = "import",
    timeout: float | None = None,
    agent: _Follower | None = None,
    environment: dict[str, str] | None = None,
) -> RunResult:
    """Runs the function or command like :func:`launch`, but with checked settings.

    ``settings`` are by name of their flag. ``agent`` gets the events of the run. ``environment`` is added to the
    environment of the launcher.
    """
    folder, held = _private_folder()
    launcher = _Launcher()
    try:
        if isinstance(fn, (list, tuple)):
            call: Call | None = None
            command = _command(fn, args)
            title = os.path.basename(command[0])
        else:
            from rdzv import _call

            call = _call.Call(fn, args, start, folder)
            title = call.title
            # The launcher expands `${...}` macros, and this command has none.
            command = [part.replace("$", "$$") for part in _worker_command()]
        settings = dict(settings)
        if not any(settings.get(name) for name in ("log_dir", "redirects", "tee")):
            # Without logs, the private folder gets the error files, which are read below.
            settings["log_dir"] = folder
        if agent is not None:
            settings["events_file"] = agent._began(folder)
        elif call is None:
            settings.setdefault("events_file", os.path.join(folder, "events.json"))
        report = settings["report"] = os.path.join(folder, "report.json")
        launcher.start([*_arguments(settings), "--no-python", "--", *command], call, environment or {}, settings)
        status = launcher.wait(timeout)
        events = str(settings["events_file"]) if call is None else None
        return _concluded(status, folder, report, title, events)
    finally:
        import shutil

        launcher.close()
        if agent is not None:
            agent._ended()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


class _Launcher:
    """Process of ``rdzv run``, with the descriptors that belong to it."""

    def __init__(self) -> None:
        # The process, and the descriptors that `close` closes. A signal handler may raise an
        # exception at any point, so both are recorded as soon as they exist.
        self.pids: list[int] = []
        self.descriptors: list[int] = []
        self.cleared = -1
        self.status: int | None = None

    def start(
        self, arguments: list[str], call: Call | None, added: Mapping[str, str], settings: Mapping[str, object]
    ) -> None:
        from functools import partial

        from rdzv._program import find_rdzv_bin

        program = find_rdzv_bin()
        environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
        environment.update(added)
        environment["RDZV_CALLER"] = str(os.getpid())
        if settings.get("nproc_per_node") != 1:
            environment.setdefault("OMP_NUM_THREADS", "1")
        # The keeper and the guard hold the other end of the pipe. The guard ends after all other
        # processes of the run.
        self.descriptors.extend(os.pipe())
        self.cleared, held = self.descriptors
        inherited = [held]
        if call is not None:
            self.descriptors.append(os.memfd_create("rdzv-call", os.MFD_CLOEXEC))
            inherited.append(self.descriptors[-1])
            with open(inherited[-1], "wb", closefd=False) as file:
                file.write(call.content)
            environment["RDZV_CALL"] = str(inherited[-1])
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        spawn = partial(
            os.posix_spawn,
            # The terminal's Ctrl-C does not reach a separate process group; `wait` sends SIGINT.
            setpgroup=0,
            setsigmask=(),
            setsigdef=_signals_that_python_ignores(),
        )
        # `extend` with `map` is one step for signal handlers: no process exists whose id is missing
        # here.
        self.pids.extend(map(spawn, (program,), ([program, "run", *arguments],), (environment,)))
        for descriptor in inherited:
            self.descriptors.remove(descriptor)
            os.close(descriptor)

    def wait(self, timeout: float | None) -> int | None:
        """Waits for the end of the launcher and returns its exit code.

        The code is negative if a signal ended the launcher, and None if another part of this process collected it.
        """
        import signal

        stopped = interrupted = None
        interrupts = 0
        (pid,) = self.pids
        self.descriptors.append(os.pidfd_open(pid))
        while True:
            try:
                if _readable(self.descriptors[-1], timeout):
                    break
            except KeyboardInterrupt as error:
                interrupts += 1
                if interrupts > 2:
                    # The launcher has printed that a third Ctrl-C kills everything immediately.
                    raise
                interrupted, timeout = error, None
                os.kill(pid, signal.SIGINT)
                continue
            if stopped is not None:
                raise LaunchTimeout(f"the workers of launch did not end within {stopped} s; they were killed")
            stopped, timeout = timeout, 35.0
            os.kill(pid, signal.SIGTERM)
        self._collect()
        if interrupted is not None:
            raise interrupted
        if stopped is not None:
            raise LaunchTimeout(f"the workers of launch did not end within {stopped} s; they were stopped")
        return self.status

    def close(self) -> None:
        """Kills the launcher if it still runs, and closes the descriptors."""
        import signal

        if self.pids:
            # The process id cannot be reused before the process is collected.
            os.kill(self.pids[0], signal.SIGKILL)
            self._collect()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()

    def _collect(self) -> None:
        try:
            _, status = os.waitpid(self.pids[0], 0)
            self.status = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            # Other code in this process collects all children.
            self.status = None
        self.pids.clear()
        if self.status is None or self.status < 0:
            _readable(self.cleared, _CLEARED_WITHIN)


def _readable(descriptor: int, timeout: float | None) -> bool:
    """Waits until a descriptor is readable or at its end; False after the timeout."""
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else min(timeout * 1000, 2**31 - 1)))


def _signals_that_python_ignores() -> list[int]:
    import signal

    return [signal.SIGPIPE, signal.SIGXFSZ]


def _temporary_folder() -> str:
    """Returns the folder for temporary files that ``rdzv run`` would choose."""
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    folders = [os.path.abspath(folder) for folder in [*named, "/tmp", "/var/tmp", "/usr/tmp"] if folder]
    usable = (folder for folder in folders if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK))
    return next(usable, folders[0])


def _private_folder() -> tuple[str, int]:
    """Creates a folder and locks it.

    The lock lasts until the returned descriptor is closed, or this process ends.
    """
    import fcntl

    parent = _temporary_folder()
    _remove_abandoned(parent)
    while True:
        folder = os.path.join(parent, f"{_FOLDER}{os.getpid()}-{os.urandom(8).hex()}")
        os.mkdir(folder, 0o700)
        try:
            descriptor = _opened(folder)
        except FileNotFoundError:
            # Another launch removed it as abandoned.
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            # On a file system without locks, no other launch can remove it as abandoned.
            pass
        if os.fstat(descriptor).st_nlink > 0:
            return folder, descriptor
        os.close(descriptor)


def _remove_abandoned(parent: str) -> None:
    """Removes this user's folders that no caller keeps locked.

    They remain when a caller is killed.
    """
    import fcntl
    import shutil

    try:
        folders = [os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(_FOLDER)]
    except OSError:
        return
    for folder in folders:
        try:
            descriptor = _opened(folder)
        except OSError:
            # Another launch has removed it, or it belongs to another user.
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # Its caller still runs.
            pass
        finally:
            os.close(descriptor)


def _opened(folder: str) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _worker_command() -> list[str]:
    if not sys.executable:
        raise Error("sys.executable is empty, so there is no interpreter for the workers")
    options = ["-u", "-P", *("-O" for _ in range(sys.flags.optimize))]
    options += [f"-W{option}" for option in sys.warnoptions]
    for name, value in sys._xoptions.items():
        options += ["-X", name if value is True else f"{name}={value}"]
    return [sys.executable, *options, _entry.__file__]


def _command(words: Sequence[str | os.PathLike[str]], args: tuple[object, ...]) -> list[str]:
    if not words or not all(isinstance(word, (str, os.PathLike)) for word in words):
        raise TypeError(f"fn is {words!r}: a command is a list of texts, the program first")
    return [*(os.fspath(word) for word in words), *(str(argument) for argument in args)]


def _concluded(status: int | None, folder: str, report_path: str, title: str, ranks_file: str | None) -> RunResult:
    import json

    try:
        with open(report_path, encoding="utf-8") as file:
            report = json.load(file)
    except FileNotFoundError:
        if status == 2:
            raise ValueError("rdzv run refused its settings; the sentence is on stderr") from None
        raise Error(f"rdzv run ended with {status} and left no report") from None
    from rdzv._result import ProcessFailure, RunResult, WorkerState

    outcome = report["outcome"]
    left = _left(folder, report["restart_count"])
    if outcome == "succeeded":
        values = {rank: value for rank, (kind, value) in sorted(left.items()) if kind == "value"}
        if ranks_file is not None:
            values = dict.fromkeys(_ranks(ranks_file))
        result = RunResult(WorkerState.SUCCEEDED, values)
    elif outcome == "failed" and report["failures"]:
        failures: dict[int, ProcessFailure] = {}
        for failure in report["failures"]:
            made = ProcessFailure._of_report(failure)
            failures.setdefault(made.rank, made)
        result = RunResult(WorkerState.FAILED, {}, failures)
    else:
        raise _error_of(report)
    report["title"] = title
    result.report, result.restarts = report, report["restart_count"]
    if not result.is_failed():
        return result
    failed = WorkerGroupFailed(title, result.failures)
    failed.first = next(iter(result.failures.values()))
    failed.result = result
    kind, found = left.get(failed.first.rank, (None, None))
    raise failed from (found if kind == "error" else None)


def _ranks(events: str) -> list[int]:
    """Ranks of this node's workers in the last attempt, from the events file."""
    import json

    with open(events, encoding="utf-8") as file:
        assigned = [json.loads(line) for line in file if '"ranks_assigned"' in line]
    return assigned[-1]["fields"]["ranks"] if assigned else []


def _left(folder: str, restarts: int) -> dict[int, tuple[str, Any]]:
    """Values and exceptions of the workers of the last attempt, by rank."""
    attempts = [
        tuple(int(part) for part in name.split(".")) for name in os.listdir(folder) if name.replace(".", "").isdigit()
    ]
    attempts = [attempt for attempt in attempts if attempt[1] == restarts]
    if not attempts:
        return {}
    attempt = os.path.join(folder, "{}.{}".format(*max(attempts)))
    left: dict[int, tuple[str, Any]] = {}
    for name in os.listdir(attempt):
        if name.isdigit():
            with open(os.path.join(attempt, name), "rb") as file:
                left[int(name)] = _decoded(file.read())
    return left


def _decoded(content: bytes) -> tuple[str, Any]:
    import io
    import marshal

    kind, content = content[:1], content[1:]
    if kind == b"m":
        return "value", marshal.loads(content)
    from rdzv._call import Values

    if kind == b"p":
        return "value", Values(io.BytesIO(content)).load()
    found = marshal.loads(content)
    try:
        error = Values(io.BytesIO(found["pickle"])).load() if found["pickle"] is not None else None
    except Exception:
        # The exception can be unpickled only in the worker.
        error = None
    if isinstance(error, BaseException):
        error.add_note(f"\nin the worker:\n{found['traceback']}")
        return "error", error
    return "error", None


def _error_of(report: dict[str, Any]) -> Exception:
    text = report["error"] or "rdzv run ended without a word"
    name, _, words = text.partition(": ")
    if report["outcome"] == "error" and name.startswith("Rendezvous") and name.endswith("Error"):
        from rdzv import rendezvous

        return getattr(rendezvous, name, Error)(words)
    if report["title"] is None:
        # The launcher refused its settings before the run began.
        return ValueError(words or text)
    return Error(text)


def _check_flags(flags: Mapping[str, object]) -> None:
    for name in flags:
        if name in FLAGS:
            continue
        if name == "report":
            raise TypeError("launch() has no flag report: the report is in the result, as result.report")
        import difflib

        known = [*FLAGS, "nprocs", "nnodes", "max_restarts", "config", "start", "timeout", "args"]
        near = difflib.get_close_matches(name, known, 1, 0.5)
        raise TypeError(f"launch() has no flag {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def _arguments(settings: Mapping[str, object]) -> list[str]:
    arguments: list[str] = []
    for name, value in settings.items():
        if value is None or value is False:
            continue
        flag = "--" + name.replace("_", "-")
        if name in SWITCHES:
            arguments.append(flag)
        else:
            arguments.append(f"{flag}={_text(name, value)}")
    return arguments


def _text(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}={part}" for key, part in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(str(part) for part in (sorted(value) if isinstance(value, (set, frozenset)) else value))
    if hasattr(value, "total_seconds"):
        return f"{value.total_seconds():g}"
    if isinstance(value, (str, int, float, os.PathLike)) and value is not True:
        return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    raise TypeError(f"{name} is {value!r}: it must be a text, a number, a list or a dict")


def _nprocs(value: int | str) -> int | str:
    if isinstance(value, str):
        if value not in ("auto", "cpu", "gpu", "xpu") and not value.isdigit():
            raise ValueError(f"nprocs is {value!r}: it must be a number, 'auto', 'cpu', 'gpu' or 'xpu'")
        return value
    if _count("nprocs", value) == 0:
        raise ValueError("nprocs is 0: there must be a worker")
    return value


def _nnodes(value: int | str) -> int | str:
    return value if isinstance(value, str) else _count("nnodes", value)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value < 0:
        raise ValueError(f"{name} is {value}: it must not be negative")
    return value


def _seconds(timeout: float | timedelta | None) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if hasattr(timeout, "total_seconds") else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"timeout must be seconds as a number, a timedelta or None, not {type(timeout).__name__}")
    if not seconds > 0:
        raise ValueError(f"timeout is {seconds} s: it must be positive; None waits permanently")
    return None if seconds == float("inf") else float(seconds)


def _of_config(config: LaunchConfig) -> dict[str, object]:
    """Settings of a :class:`rdzv.elastic.LaunchConfig`, by flag."""
    from rdzv._config import settings_of

    return settings_of(config)


launch.__module__ = "rdzv"
