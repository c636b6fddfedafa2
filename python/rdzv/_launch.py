"""``rdzv.launch``: runs a function in new processes and returns their results.

The native ``rdzv run`` is a child process of the caller. Workers of a function run ``_entry``: they
read the call from an inherited descriptor, and write values and exceptions to files in a private
folder. The launcher ends when its caller ends, even if a signal kills the caller.
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

# Maximum wait, in seconds, for the end of all processes of a run after its launcher was killed.
_CLEARED_WITHIN = 10.0

# Longest system call that waits, in seconds.
_SLICE = 0.1


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

    The native ``rdzv run`` supervises the workers, which get ranks and a store (:mod:`rdzv.worker`). After a failure,
    all workers restart together. No worker outlives the caller. Each worker of a function is a new interpreter with
    the caller's ``sys.path`` and ``sys.argv``.

    Args:
        fn (callable | str | list[str]): a function that can be imported by its name, ``"module:function"``, or a
            command and its arguments. The function gets ``args``; its rank is :func:`rdzv.worker.rank`.
        args (tuple): arguments of the function or command. Those of a function are pickled.
        nprocs (int | str): workers on this node: a number, ``"cpu"``, ``"gpu"``, ``"xpu"`` or ``"auto"``. With
            ``"auto"``, the default, there is one worker per accelerator, or one per processor if there are no
            accelerators. Unless ``nprocs`` is 1, workers get ``OMP_NUM_THREADS=1`` if that variable is not set.
        nnodes (int | str): number of nodes, or ``"MIN:MAX"``. Default 1. With several nodes, each of them calls
            ``launch`` with ``rdzv_backend`` and ``rdzv_endpoint``.
        max_restarts (int): maximum number of restarts after failures. Default 0.
        config (LaunchConfig | None): settings of :class:`rdzv.elastic.LaunchConfig`. ``flags``, and ``nprocs``,
            ``nnodes`` and ``max_restarts`` if they differ from their defaults, override them.
        start (str): ``"import"``, or ``"pickle"`` for functions that cannot be imported: notebook functions, local
            functions and lambdas. ``"pickle"`` uses cloudpickle if it is installed.
        timeout (float | timedelta | None): time limit for the whole run, in seconds. Default ``None``: no limit.
        **flags: most long flags of ``rdzv run`` with underscores, such as
            ``rdzv_endpoint="head:29400"``, ``tee=3``, ``heartbeat_timeout=60``. ``True`` sets a
            switch; a list becomes ``a,b``; a dict becomes ``k=v,...``.

    Returns:
        RunResult: a mapping from global rank to the value that this node's worker returned; None for a command.

    Raises:
        WorkerGroupFailed: a worker failed and no restart was left. ``first`` has its rank, cause and traceback.
            ``__cause__`` is the exception of the worker, if the worker ran on this node and the
            exception could be pickled.
        LaunchTimeout: the run took longer than ``timeout``, and the launcher stopped it.
        ValueError: the function cannot be imported, or a setting is invalid. No worker was started.
        TypeError: a flag is unknown, or an argument cannot be pickled. No process was started.
        Error: the launcher failed; the text is the error of ``rdzv run``. Failures of the rendezvous raise the
            classes of :mod:`rdzv.rendezvous`.
        KeyboardInterrupt: Ctrl-C was pressed. The exception is raised after the workers have exited; they get SIGINT,
            and SIGKILL after ``shutdown_timeout``. A second Ctrl-C shortens that time; a third Ctrl-C kills the
            workers immediately.

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
    """Runs the function or command like :func:`launch`, with checked settings.

    ``settings`` maps names of flags to values. ``agent`` gets the events of the run. ``environment`` is added to the
    environment of the launcher.
    """
    launcher = _Launcher()
    try:
        try:
            return launcher.run(fn, args, settings, start, timeout, agent, environment or {})
        finally:
            launcher.close()
    except BaseException:
        # A signal handler may have ended `close` in the middle.
        launcher.close()
        raise


class _Launcher:
    """Process of ``rdzv run``, with its descriptors and its folder.

    A signal handler may raise an exception between any two instructions of the interpreter. So one call of C code makes
    or frees a resource and records it: ``extend`` of a list with ``map``. :meth:`close` can be repeated after an
    exception in the middle of it.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self.agent: _Follower | None = None
        self.descriptors: list[int] = []
        self.pids: list[int] = []
        # Results of `waitpid` for the process.
        self.ended: list[tuple[int, int]] = []
        # Read end of the pipe that ends with the last process of the run.
        self.cleared: list[int] = []
        # Descriptors for the launcher: the write end of the pipe, and the call.
        self.held: list[int] = []

    def __del__(self) -> None:
        # Signal handlers may have ended `close` twice.
        self.close()

    def run(
        self,
        fn: _Function,
        args: tuple[object, ...],
        settings: dict[str, object],
        start: str,
        timeout: float | None,
        agent: _Follower | None,
        environment: dict[str, str],
    ) -> RunResult:
        folder = self.private_folder()
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
            self.agent = agent
            settings["events_file"] = agent._began(folder)
        elif call is None:
            settings.setdefault("events_file", os.path.join(folder, "events.json"))
        report = settings["report"] = os.path.join(folder, "report.json")
        self.start([*_arguments(settings), "--no-python", "--", *command], call, environment, settings)
        status = self.wait(timeout)
        events = str(settings["events_file"]) if call is None else None
        return _concluded(status, folder, report, title, events)

    def private_folder(self) -> str:
        """Creates a folder and locks it until :meth:`close`."""
        import fcntl

        parent = _temporary_folder()
        _remove_abandoned(parent, self.descriptors)
        while True:
            self.folder = os.path.join(parent, f"{_FOLDER}{os.getpid()}-{os.urandom(8).hex()}")
            os.mkdir(self.folder, 0o700)
            try:
                descriptor = _opened(self.folder, self.descriptors)
            except FileNotFoundError:
                # Another launch removed it as abandoned.
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                # On a file system without locks, no other launch can remove it as abandoned.
                pass
            if os.fstat(descriptor).st_nlink > 0:
                return self.folder
            _close_all(self.descriptors)

    def start(
        self, arguments: list[str], call: Call | None, added: Mapping[str, str], settings: Mapping[str, object]
    ) -> None:
        from functools import partial
        from itertools import chain, starmap

        from rdzv._program import find_rdzv_bin

        program = find_rdzv_bin()
        environment = {name: value for name, value in os.environ.items() if name not in _UNSET}
        environment.update(added)
        environment["RDZV_CALLER"] = str(os.getpid())
        if settings.get("nproc_per_node") != 1:
            environment.setdefault("OMP_NUM_THREADS", "1")
        # The keeper and the guard hold the other end of the pipe. If the keeper is killed, the
        # guard ends after all other processes of the run.
        self.cleared.extend(chain.from_iterable(starmap(os.pipe, [()])))
        self.held.extend(map(self.cleared.pop, (1,)))
        if call is not None:
            self.held.extend(map(os.memfd_create, ("rdzv-call",), (os.MFD_CLOEXEC,)))
            with open(self.held[-1], "wb", closefd=False) as file:
                file.write(call.content)
            environment["RDZV_CALL"] = str(self.held[-1])
        for descriptor in self.held:
            os.set_inheritable(descriptor, True)
        spawn = partial(
            os.posix_spawn,
            # The terminal's Ctrl-C does not reach a separate process group; `wait` sends SIGINT.
            setpgroup=0,
            setsigmask=(),
            setsigdef=_signals_that_python_ignores(),
        )
        self.pids.extend(map(spawn, (program,), ([program, "run", *arguments],), (environment,)))
        _close_all(self.held)

    def wait(self, timeout: float | None) -> int | None:
        """Waits for the end of the launcher and returns its exit code.

        The code is negative if a signal ended the launcher, and None if another part of this process collected it.
        """
        import signal

        stopped = interrupted = None
        interrupts = 0
        (pid,) = self.pids
        self.descriptors.extend(map(os.pidfd_open, self.pids))
        while True:
            try:
                if _readable(self.descriptors[-1], timeout):
                    break
            except KeyboardInterrupt as error:
                interrupts += 1
                if interrupts > 2:
                    # The launcher has printed that a third Ctrl-C kills everything immediately.
                    raise
                # After a timeout, the launcher keeps its 35 s.
                interrupted, timeout = error, None if stopped is None else timeout
                os.kill(pid, signal.SIGINT)
                continue
            if stopped is not None:
                raise LaunchTimeout(
                    f"the workers of launch did not exit within {stopped} s, nor within 35 s after SIGTERM, so they"
                    " were killed"
                )
            stopped, timeout = timeout, 35.0
            os.kill(pid, signal.SIGTERM)
        status = self._collect()
        if interrupted is not None:
            raise interrupted
        if stopped is not None:
            raise LaunchTimeout(f"the workers of launch did not exit within {stopped} s, so they were stopped")
        return status

    def close(self) -> None:
        """Ends the launcher, and frees what belongs to it."""
        _close_all(self.held)
        if self.pids:
            if not self.ended:
                import signal

                try:
                    os.kill(self.pids[0], signal.SIGKILL)
                except ProcessLookupError:
                    # Other code in this process has collected it.
                    pass
            self._collect()
        if self.agent is not None:
            self.agent._ended()
            self.agent = None
        if self.folder is not None:
            _remove(self.folder)
            self.folder = None
        # The folder is locked up to here.
        _close_all(self.descriptors)
        _close_all(self.cleared)

    def _collect(self) -> int | None:
        """Waits for the end of the process.

        If the process was killed, waits for the end of the run too.
        """
        try:
            if not self.ended:
                self.ended.extend(map(os.waitpid, self.pids, (0,)))
            status = os.waitstatus_to_exitcode(self.ended[0][1])
        except ChildProcessError:
            # Other code in this process collects all children.
            status = None
        if (status is None or status < 0) and self.cleared:
            _readable(self.cleared[0], _CLEARED_WITHIN)
        self.pids.clear()
        return status


def _close_all(descriptors: list[int]) -> None:
    """Closes descriptors.

    One C call removes a descriptor from the list and closes it.
    """
    while descriptors:
        any(map(os.close, map(descriptors.pop, (0,))))


def _readable(descriptor: int, timeout: float | None) -> bool:
    """Waits until a descriptor is readable or at its end.

    Returns False on timeout. A signal that arrives just before the system call does not end it, so no system call
    is longer than a slice.
    """
    import select
    from time import monotonic

    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    end = float("inf") if timeout is None else monotonic() + timeout
    while True:
        left = end - monotonic()
        if poll.poll(max(0.0, min(left, _SLICE)) * 1000):
            return True
        if left <= 0:
            return False


def _signals_that_python_ignores() -> list[int]:
    import signal

    return [signal.SIGPIPE, signal.SIGXFSZ]


def _temporary_folder() -> str:
    """Returns the folder for temporary files that ``rdzv run`` would choose."""
    named = [os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")]
    folders = [os.path.abspath(folder) for folder in [*named, "/tmp", "/var/tmp", "/usr/tmp"] if folder]
    usable = (folder for folder in folders if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK))
    return next(usable, folders[0])


def _remove_abandoned(parent: str, descriptors: list[int]) -> None:
    """Removes this user's folders that no caller keeps locked.

    Such folders remain when a caller is killed.
    """
    import fcntl

    try:
        folders = [os.path.join(parent, name) for name in os.listdir(parent) if name.startswith(_FOLDER)]
    except OSError:
        return
    for folder in folders:
        try:
            fcntl.flock(_opened(folder, descriptors), fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)
        except OSError:
            # Its caller still runs, another launch has removed it, or it belongs to another user.
            pass
        finally:
            _close_all(descriptors)


def _opened(folder: str, descriptors: list[int]) -> int:
    descriptors.extend(map(os.open, (folder,), (os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,)))
    return descriptors[-1]


def _remove(folder: str) -> None:
    """Removes a folder and everything in it, as far as possible.

    ``shutil.rmtree`` opens descriptors, which an exception of a signal handler would leave open.
    """
    for path, folders, files in os.walk(folder, topdown=False):
        for name in (*folders, *files):
            inner = os.path.join(path, name)
            _without_error(os.rmdir if name in folders and not os.path.islink(inner) else os.unlink, inner)
    _without_error(os.rmdir, folder)


def _without_error(remove: Callable[[str], None], path: str) -> None:
    try:
        remove(path)
    except OSError:
        pass


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
        raise TypeError(f"fn is {words!r}: a command is a list of strings that starts with the program")
    return [*(os.fspath(word) for word in words), *(str(argument) for argument in args)]


def _concluded(status: int | None, folder: str, report_path: str, title: str, ranks_file: str | None) -> RunResult:
    import json

    try:
        with open(report_path, encoding="utf-8") as file:
            report = json.load(file)
    except FileNotFoundError:
        if status == 2:
            raise ValueError("rdzv run refused its settings; the reason is on stderr") from None
        raise Error(f"rdzv run exited with {status} and wrote no report") from None
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
            kind, found = left.get(made.rank, (None, None))
            made.exception = found if kind == "error" else None
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
    raise failed from failed.first.exception


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
    text = report["error"] or "rdzv run exited without a message"
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
            raise TypeError("launch() has no flag report: use result.report")
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
    raise TypeError(f"{name} is {value!r}: it must be a string, a number, a list or a dict")


def _nprocs(value: int | str) -> int | str:
    if isinstance(value, str):
        if value not in ("auto", "cpu", "gpu", "xpu") and not value.isdigit():
            raise ValueError(f"nprocs is {value!r}: it must be a number, 'auto', 'cpu', 'gpu' or 'xpu'")
        return value
    if _count("nprocs", value) == 0:
        raise ValueError("nprocs is 0: there must be at least one worker")
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
        raise ValueError(f"timeout is {seconds} s: it must be positive; None waits without a limit")
    return None if seconds == float("inf") else float(seconds)


def _of_config(config: LaunchConfig) -> dict[str, object]:
    """Settings of a :class:`rdzv.elastic.LaunchConfig`, by flag."""
    from rdzv._config import settings_of

    return settings_of(config)


launch.__module__ = "rdzv"
