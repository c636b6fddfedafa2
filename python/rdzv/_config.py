"""Configuration of a launch and of the workers' output."""

import os
from enum import IntFlag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Std(IntFlag):
    """Output streams of a worker.

    Example:
        >>> from rdzv.elastic import Std
        >>> Std.from_str("0:3,1:1")
        {0: <Std.ALL: 3>, 1: <Std.OUT: 1>}
    """

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> "Std | dict[int, Std]":
        """Parses the value of ``--redirects`` and ``--tee``.

        Args:
            vm (str): ``"0"`` to ``"3"`` for all workers, or by local rank: ``"0:3,12:1"``.

        Returns:
            Std | dict[int, Std]: streams for all workers, or by local rank.

        Raises:
            ValueError: the text has another form.

        Example:
            >>> from rdzv.elastic import Std
            >>> Std.from_str("1")
            <Std.OUT: 1>
        """
        parts = [part.split(":") for part in vm.split(",")]
        if len(parts) == 1 and vm in ("0", "1", "2", "3"):
            return cls(int(vm))
        good = all(len(part) == 2 and part[0].isdigit() and part[1] in ("0", "1", "2", "3") for part in parts)
        if not good:
            raise ValueError(f"{vm!r} is not a set of streams: pass a digit from 0 to 3, or RANK:DIGIT,...")
        return {int(rank): cls(int(streams)) for rank, streams in parts}


class LogsSpecs:
    """Destinations of the workers' output.

    Args:
        log_dir (str | None): parent folder; each run creates a new folder in it. ``None``: below ``TMPDIR``.
        redirects (Std | dict[int, Std]): streams that go to files only, for all workers or by local rank.
        tee (Std | dict[int, Std]): streams that go to files and, with a prefix, to the console.
        local_ranks_filter (set[int] | None): local ranks whose output may reach the console; ``None``: all.

    Example:
        >>> from rdzv.elastic import LogsSpecs, Std
        >>> LogsSpecs("/tmp/logs", tee=Std.ALL).root_log_dir
        '/tmp/logs'
    """

    def __init__(
        self,
        log_dir: "str | None" = None,
        redirects: "Std | dict[int, Std]" = Std.NONE,
        tee: "Std | dict[int, Std]" = Std.NONE,
        local_ranks_filter: "set[int] | None" = None,
    ):
        if log_dir is not None and os.path.isfile(log_dir):
            raise NotADirectoryError(f"log_dir: {log_dir} is a file")
        self._root_log_dir, self._redirects, self._tee = log_dir, redirects, tee
        self._local_ranks_filter = local_ranks_filter

    @property
    def root_log_dir(self) -> "str | None":
        """str | None: parent of the log folders of all runs; None: below ``TMPDIR``."""
        return self._root_log_dir

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LogsSpecs) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(root_log_dir={self._root_log_dir!r}, redirects={self._redirects!r},"
            f" tee={self._tee!r}, local_ranks_filter={self._local_ranks_filter!r})"
        )


class DefaultLogsSpecs(LogsSpecs):
    """Default :class:`LogsSpecs`, under the name of torch's class.

    Args:
        log_dir (str | None): parent folder; each run creates a new folder in it. ``None``: below ``TMPDIR``.
        redirects (Std | dict[int, Std]): streams that go to files only, for all workers or by local rank.
        tee (Std | dict[int, Std]): streams that go to files and, with a prefix, to the console.
        local_ranks_filter (set[int] | None): local ranks whose output may reach the console; ``None``: all.

    Example:
        >>> from rdzv.elastic import DefaultLogsSpecs
        >>> DefaultLogsSpecs().root_log_dir is None
        True
    """


class LaunchConfig:
    """Settings of a launch on this node.

    The fields, and their order, are the same as in torch's class of this name.

    Args:
        min_nodes (int): smallest number of nodes, at least 1.
        max_nodes (int): largest number of nodes.
        nproc_per_node (int): number of workers on this node.
        logs_specs (LogsSpecs | None): destinations of the workers' output; ``None``: the console.
        run_id (str): run id of the job; empty: a random one, or in :func:`rdzv.launch` the default
            of ``--rdzv-id``.
        role (str): label of the workers.
        rdzv_endpoint (str): ``HOST[:PORT]``; empty for a single node.
        rdzv_backend (str): ``"c10d"`` (torch: ``"etcd"``), ``"static"``, ``"etcd"`` or ``"etcd-v2"``.
        rdzv_configs (dict[str, object] | None): options of the backend.
        rdzv_timeout (int): the option ``timeout`` in seconds; -1: that of ``rdzv_configs``, or 900.
        max_restarts (int): maximum number of restarts after failures. Default 3.
        monitor_interval (float): seconds; rdzv checks the value, but does not poll.
        start_method (str): ``"spawn"``; ``"fork"`` and ``"forkserver"`` warn, and pickle the function by value.
            :func:`rdzv.launch` ignores it.
        log_line_prefix_template (str | None): prefix of teed lines.
        metrics_cfg (dict[str, str] | None): if any value is ``"console"``, the launcher prints metrics.
        local_addr (str | None): address at which the other nodes reach this node.
        event_log_handler (str): ``"null"``, ``"console"`` or ``"dynamic_rendezvous"``.
        numa_options (object | None): torch's ``NumaOptions``; rdzv uses its ``affinity_mode``.
        signals_to_handle (str): signals on which the launcher stops the workers and ends the run.
        duplicate_stdout_filters (list[str] | None): texts; teed lines that contain one of them are copied to one
            file.
        duplicate_stderr_filters (list[str] | None): the same for stderr.
        virtual_local_rank (bool): gives every worker local rank 0, and makes only the worker's own device visible.
        shutdown_timeout (int | None): seconds between the closing signal and SIGKILL; ``None``: the value of
            ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT``, or 30.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> from rdzv.elastic import LaunchConfig
        >>> LaunchConfig(1, 1, 4).max_restarts
        3
    """

    def __init__(
        self,
        min_nodes: int,
        max_nodes: int,
        nproc_per_node: int,
        logs_specs: "LogsSpecs | None" = None,
        run_id: str = "",
        role: str = "default_role",
        rdzv_endpoint: str = "",
        rdzv_backend: str = "c10d",
        rdzv_configs: "dict[str, object] | None" = None,
        rdzv_timeout: int = -1,
        max_restarts: int = 3,
        monitor_interval: float = 0.1,
        start_method: str = "spawn",
        log_line_prefix_template: "str | None" = None,
        metrics_cfg: "dict[str, str] | None" = None,
        local_addr: "str | None" = None,
        event_log_handler: str = "null",
        numa_options: object = None,
        signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        duplicate_stdout_filters: "list[str] | None" = None,
        duplicate_stderr_filters: "list[str] | None" = None,
        virtual_local_rank: bool = False,
        shutdown_timeout: "int | None" = None,
    ):
        if not 0 < min_nodes <= max_nodes:
            raise ValueError(f"min_nodes must be positive and at most max_nodes, not {min_nodes} and {max_nodes}")
        if nproc_per_node < 1:
            raise ValueError(f"nproc_per_node is {nproc_per_node}: there must be at least one worker")
        if shutdown_timeout is None:
            shutdown_timeout = int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
        if shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout is {shutdown_timeout} s: it must not be negative")
        self.min_nodes, self.max_nodes, self.nproc_per_node = min_nodes, max_nodes, nproc_per_node
        self.logs_specs = DefaultLogsSpecs() if logs_specs is None else logs_specs
        self.run_id, self.role, self.rdzv_endpoint, self.rdzv_backend = run_id, role, rdzv_endpoint, rdzv_backend
        self.rdzv_configs: "dict[str, object]" = {} if rdzv_configs is None else rdzv_configs
        self.rdzv_timeout = rdzv_timeout
        if rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = rdzv_timeout
        self.rdzv_configs.setdefault("timeout", 900)
        self.max_restarts, self.monitor_interval, self.start_method = max_restarts, monitor_interval, start_method
        self.log_line_prefix_template = log_line_prefix_template
        self.metrics_cfg: "dict[str, str]" = {} if metrics_cfg is None else metrics_cfg
        self.local_addr, self.event_log_handler, self.numa_options = local_addr, event_log_handler, numa_options
        self.signals_to_handle = signals_to_handle
        self.duplicate_stdout_filters = duplicate_stdout_filters
        self.duplicate_stderr_filters = duplicate_stderr_filters
        self.virtual_local_rank, self.shutdown_timeout = virtual_local_rank, shutdown_timeout

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"LaunchConfig({fields})"


def settings_of(config: LaunchConfig) -> "dict[str, object]":
    """Flags of ``rdzv run`` that correspond to a :class:`LaunchConfig`."""
    settings = {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}",
        "nproc_per_node": config.nproc_per_node,
        "rdzv_id": config.run_id or None,
        "log_line_prefix_template": config.log_line_prefix_template,
        "metrics_handler": "console" if "console" in config.metrics_cfg.values() else None,
        "signals_to_handle": config.signals_to_handle,
        "shutdown_timeout": config.shutdown_timeout,
        "local_addr": config.local_addr,
        **worker_flags(config),
    }
    settings.update(rendezvous_flags(config.rdzv_backend, config.rdzv_endpoint, config.rdzv_configs, config.max_nodes))
    settings.update(log_flags(config.logs_specs))
    return settings


def worker_flags(source: "Any") -> "dict[str, object]":
    """Flags of a worker group, from a :class:`LaunchConfig` or a ``WorkerSpec``."""
    return {
        "role": source.role,
        "max_restarts": source.max_restarts,
        "monitor_interval": source.monitor_interval,
        "event_log_handler": source.event_log_handler,
        "duplicate_stdout_filters": _escaped(source.duplicate_stdout_filters),
        "duplicate_stderr_filters": _escaped(source.duplicate_stderr_filters),
        "virtual_local_rank": source.virtual_local_rank,
        "numa_binding": _numa_binding(source.numa_options),
    }


def rendezvous_flags(backend: str, endpoint: str, options: "dict[str, object]", nodes: int) -> "dict[str, object]":
    """Flags of a rendezvous; none for c10d on a single node without an endpoint."""
    if backend == "c10d" and not endpoint and nodes == 1:
        return {}
    flags: "dict[str, object]" = {"rdzv_backend": backend, "rdzv_endpoint": endpoint or None}
    if backend == "static":
        options = dict(options)
        flags["node_rank"] = options.pop("rank", None)
    if options:
        flags["rdzv_conf"] = options
    return flags


def log_flags(logs: "LogsSpecs | None") -> "dict[str, object]":
    """Flags of the destinations of the workers' output."""
    if logs is None:
        return {}
    if not isinstance(logs, LogsSpecs):
        raise TypeError(f"logs_specs must be an rdzv.elastic.LogsSpecs, not {type(logs).__qualname__}")
    return {
        "log_dir": logs._root_log_dir,
        "redirects": _streams(logs._redirects),
        "tee": _streams(logs._tee),
        "local_ranks_filter": logs._local_ranks_filter or None,
    }


def _numa_binding(options: object) -> "str | None":
    """Value of ``--numa-binding``, from torch's ``NumaOptions`` or a text."""
    if options is None or isinstance(options, str):
        return options
    mode = getattr(options, "affinity_mode", None)
    return str(getattr(mode, "value", mode))


def _streams(streams: "Std | dict[int, Std]") -> "str | None":
    if isinstance(streams, dict):
        return ",".join(f"{rank}:{int(which)}" for rank, which in streams.items()) or None
    return str(int(streams)) if streams else None


def _escaped(texts: "list[str] | None") -> "str | None":
    return ",".join(text.replace(",", ",,") for text in texts) if texts else None


for _class in (Std, LogsSpecs, DefaultLogsSpecs, LaunchConfig):
    _class.__module__ = "rdzv.elastic"
