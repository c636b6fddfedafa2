"""Agent whose workers are processes on this node, and ``elastic_launch``."""

import json
import os
import threading
import warnings
from collections.abc import Callable

from rdzv import _launch
from rdzv._config import LaunchConfig, LogsSpecs, log_flags, rendezvous_flags, settings_of, worker_flags
from rdzv._errors import WorkerGroupFailed
from rdzv._result import RunResult, WorkerState
from rdzv.elastic._agent import ElasticAgent
from rdzv.elastic._spec import Worker, WorkerGroup, WorkerSpec, rendezvous_settings

_running = threading.Lock()
_warned: "set[str]" = set()


class LocalElasticAgent(ElasticAgent):
    """Agent that runs its workers as processes on this node, with ``rdzv run``.

    Args:
        spec (WorkerSpec): specification of the workers. Its handler must come from :mod:`rdzv.rendezvous`.
        logs_specs (LogsSpecs): destinations of the workers' output.
        start_method (str): ``"spawn"``; ``"fork"`` and ``"forkserver"`` warn, and pickle the function by value.
        exit_barrier_timeout (float): seconds that a node whose workers have succeeded waits for the other nodes.
        log_line_prefix_template (str | None): prefix of teed lines.
        shutdown_timeout (int): seconds between the closing signal and SIGKILL.
        health_check_server (None): must be None. ``TORCHELASTIC_HEALTH_CHECK_PORT`` starts the native server.
        uninterruptible_state_timeout (float | None): maximum time that a worker may be in state D, in seconds.
            ``None``: the value of ``TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT``.

    Raises:
        TypeError: ``spec.rdzv_handler`` or ``logs_specs`` is an object from another library.
        ValueError: ``health_check_server``, or ``master_addr`` or ``master_port`` of the specification, is not None, or
            ``start_method`` is unknown.

    Example:
        >>> import math
        >>> from rdzv.elastic import DefaultLogsSpecs, LocalElasticAgent, WorkerSpec
        >>> from rdzv.rendezvous import RendezvousParameters, get_rendezvous_handler
        >>> handler = get_rendezvous_handler(RendezvousParameters("c10d", "", "job", 1, 1))
        >>> spec = WorkerSpec("trainer", 2, handler, entrypoint=math.factorial, args=(4,))
        >>> LocalElasticAgent(spec, DefaultLogsSpecs()).run().return_values
        {0: 24, 1: 24}
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: "str | None" = None,
        shutdown_timeout: int = 30,
        health_check_server: object = None,
        uninterruptible_state_timeout: "float | None" = None,
    ):
        params = rendezvous_settings(
            spec.rdzv_handler, "the native launcher needs it; derive your own agents from SimpleElasticAgent"
        )
        self._worker_group = WorkerGroup(spec)
        self._start = start_of(start_method)
        self._environment = {}
        if uninterruptible_state_timeout is not None:
            self._environment["TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"] = str(uninterruptible_state_timeout)
        refuse_health_check_server(health_check_server)
        for name, value in (("master_addr", spec.master_addr), ("master_port", spec.master_port)):
            if value is not None:
                raise ValueError(
                    f"{name} of the specification is {value!r}: the native launcher chooses the endpoint of the workers'"
                    " store, so it must be None"
                )
        self._settings: "dict[str, object]" = {
            "nnodes": f"{params.min_nodes}:{params.max_nodes}",
            "nproc_per_node": spec.local_world_size,
            "rdzv_id": params.run_id or None,
            "log_line_prefix_template": log_line_prefix_template,
            "shutdown_timeout": shutdown_timeout,
            "exit_barrier_timeout": exit_barrier_timeout,
            "local_addr": spec.local_addr or params.local_addr,
            **worker_flags(spec),
            **rendezvous_flags(params.backend, params.endpoint, params.config, params.max_nodes),
            **log_flags(logs_specs),
        }
        self._events: "str | None" = None

    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """Returns the group of the workers; any thread can call it during a run.

        Args:
            role (str): role of the workers, or the default.

        Returns:
            WorkerGroup: the only group of this agent, with its current state. The ``id`` of a worker is its process
                id.

        Raises:
            ValueError: the agent has workers of another role.
        """
        self._check_role(role)
        if self._events is not None:
            read_events(self._events, self._worker_group)
        return self._worker_group

    def _check_role(self, role: str) -> None:
        has = self._worker_group.spec.role
        if role not in ("default", has):
            raise ValueError(f"this agent has workers of role {has!r}, none of role {role!r}")

    def run(self, role: str = "default") -> RunResult:
        """Runs the workers until they exit.

        Args:
            role (str): role of the workers, or the default.

        Returns:
            RunResult: the return values of the workers, or their failures, by global rank.

        Raises:
            ValueError: the agent has workers of another role, or the function cannot be imported.
            RuntimeError: another agent of this class runs in this process.
            Error: the launcher failed.
            KeyboardInterrupt: Ctrl-C was pressed, and the workers have exited.
        """
        self._check_role(role)
        if not _running.acquire(blocking=False):
            raise RuntimeError("another LocalElasticAgent is running in this process: wait for it, or use rdzv.launch")
        spec = self._worker_group.spec
        try:
            return _launch.run(
                command_of(spec.entrypoint),
                spec.args,
                self._settings,
                start=self._start,
                agent=self,
                environment=self._environment,
            )
        except WorkerGroupFailed as failed:
            result = failed.result
            assert isinstance(result, RunResult)
            return result
        finally:
            _running.release()

    def _began(self, folder: str) -> str:
        """Records the start of a run; returns the path of its events file."""
        self._events = os.path.join(folder, "events.json")
        return self._events

    def _ended(self) -> None:
        """Reads the last events of a run, before the launcher removes the folder."""
        self.get_worker_group()
        self._events = None


def read_events(path: str, group: WorkerGroup) -> None:
    """Updates a group from the events that the launcher has written."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.readlines()
    except FileNotFoundError:
        return
    spec = group.spec
    for line in lines:
        if not line.endswith("\n"):
            # The launcher has not finished this line.
            break
        event = json.loads(line)
        name, fields = event["name"], event["fields"]
        if name == "ranks_assigned":
            group.group_rank, group.group_world_size = fields["group_rank"], fields["group_world_size"]
            group.master_addr, group.master_port = fields["master_addr"], fields["master_port"]
            group.restart_count = fields["restart_count"]
            group.workers = [
                Worker(local_rank, rank, -1, fields["world_size"], -1) for local_rank, rank in enumerate(fields["ranks"])
            ]
        elif name == "worker_started" and fields["local_rank"] < spec.local_world_size:
            worker = group.workers[fields["local_rank"]]
            worker.id, worker.role_rank = fields["pid"], fields["role_rank"]
        elif name == "state_changed":
            group.state, group.restart_count = WorkerState(fields["state"]), fields["restart_count"]


def refuse_health_check_server(server: object) -> None:
    """Refuses a server of the caller, which cannot monitor the launcher."""
    if server is not None:
        raise ValueError(
            f"health_check_server is {server!r}: the native launcher has its own, which the variable"
            " TORCHELASTIC_HEALTH_CHECK_PORT starts"
        )


def start_of(start_method: str) -> str:
    """Argument ``start`` of :func:`rdzv.launch` for a start method of torch."""
    if start_method not in ("spawn", "fork", "forkserver"):
        raise ValueError(f"start_method is {start_method!r}: it must be 'spawn', 'fork' or 'forkserver'")
    if start_method == "spawn":
        return "import"
    if start_method not in _warned:
        _warned.add(start_method)
        warnings.warn(f"workers are always new interpreters: start_method={start_method!r} is like 'pickle'", stacklevel=3)
    return "pickle"


def command_of(entrypoint: "Callable[..., object] | str") -> "Callable[..., object] | list[str]":
    """Argument ``fn`` of :func:`rdzv.launch`; a text is the path of a program."""
    return [entrypoint] if isinstance(entrypoint, str) else entrypoint


class elastic_launch:
    """Launcher of a function or a program in workers on this node.

    ``elastic_launch(config, entrypoint)(*args)`` runs the function or program.

    Args:
        config (LaunchConfig): settings of the launch.
        entrypoint (callable | str | None): the function, or a program.
        health_check_server (None): must be None. ``TORCHELASTIC_HEALTH_CHECK_PORT`` starts the native server.

    Raises:
        ValueError: ``health_check_server`` is not None.

    Example:
        >>> import math
        >>> from rdzv.elastic import LaunchConfig, elastic_launch
        >>> elastic_launch(LaunchConfig(1, 1, 2), math.factorial)(3)
        {0: 6, 1: 6}
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: "Callable[..., object] | str | None",
        health_check_server: object = None,
    ):
        refuse_health_check_server(health_check_server)
        self._config, self._entrypoint = config, entrypoint

    def __call__(self, *args: object) -> "dict[int, object]":
        return launch_agent(self._config, self._entrypoint, list(args))


def launch_agent(
    config: LaunchConfig,
    entrypoint: "Callable[..., object] | str | None",
    args: "list[object]",
    health_check_server: object = None,
) -> "dict[int, object]":
    """Runs a function or a program in workers on this node.

    Args:
        config (LaunchConfig): settings of the launch. An empty ``run_id`` is replaced by a random one.
        entrypoint (callable | str | None): the function, or a program.
        args (list[object]): arguments of the function or program.
        health_check_server (None): must be None. ``TORCHELASTIC_HEALTH_CHECK_PORT`` starts the native server.

    Returns:
        dict[int, object]: return values of this node's workers, by global rank; None for a program.

    Raises:
        ChildFailedError: workers failed after the last restart.
        ValueError: the function cannot be imported, or ``health_check_server`` is not None. No process was started.
        Error: the launcher failed.

    Example:
        >>> import math
        >>> from rdzv.elastic import LaunchConfig, launch_agent
        >>> launch_agent(LaunchConfig(1, 1, 1), math.factorial, [3])
        {0: 6}
    """
    refuse_health_check_server(health_check_server)
    if entrypoint is None:
        raise ValueError("entrypoint is None: pass a function or a program")
    if not config.run_id:
        import uuid

        config.run_id = str(uuid.uuid4().int)
        if config.max_nodes > 1:
            warnings.warn(f"the configuration has no run_id, so it is {config.run_id}: other nodes cannot know it", stacklevel=2)
    result = _launch.run(command_of(entrypoint), tuple(args), settings_of(config), start=start_of(config.start_method))
    return result.return_values


for _public in (LocalElasticAgent, elastic_launch, launch_agent):
    _public.__module__ = "rdzv.elastic"
