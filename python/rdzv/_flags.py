"""Flags of ``rdzv run`` as keywords of ``rdzv.launch``.

``cargo xtask flags`` writes this file.
"""

# Flags without a value.
SWITCHES = frozenset(
    (
        "bare_stderr",
        "collapse",
        "compat_output",
        "in_process",
        "requeue_on_preempt",
        "standalone",
        "virtual_local_rank",
        "worker_server",
    )
)

FLAGS = SWITCHES | {
    "abort_timeout",
    "agent_restarts",
    "duplicate_stderr_filters",
    "duplicate_stdout_filters",
    "event_log_handler",
    "events_file",
    "exit_barrier_timeout",
    "final_exit_codes",
    "hang_action",
    "hang_timeout",
    "heartbeat_timeout",
    "hook_timeout",
    "local_addr",
    "local_ranks_filter",
    "log_dir",
    "log_line_prefix_template",
    "logs_specs",
    "master_addr",
    "master_port",
    "metrics_handler",
    "monitor_interval",
    "node_check",
    "node_check_timeout",
    "node_rank",
    "numa_binding",
    "on_failure",
    "on_restart",
    "preempt_exit_code",
    "preempt_grace",
    "preempt_signal",
    "preload",
    "rdzv_backend",
    "rdzv_conf",
    "rdzv_endpoint",
    "rdzv_id",
    "redirects",
    "role",
    "scheduler",
    "settle_delay",
    "shutdown_timeout",
    "signals_to_handle",
    "spares",
    "status_addr",
    "stragglers",
    "tee",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "token_file",
    "torch_clients",
}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta
    from os import PathLike
    from typing import Any, Literal, TypedDict

    _Seconds = float | str | timedelta | None
    _Path = str | PathLike[str] | None
    _Text = float | str | timedelta | PathLike[str] | list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any] | dict[str, Any] | None

    class Flags(TypedDict, total=False):
        """Keywords of ``rdzv.launch``; ``None`` leaves a flag out."""

        abort_timeout: _Seconds
        """Seconds that a worker has to leave its function in a recovery (--in-process). Default ``30``."""
        agent_restarts: int | str | None
        """Restart a killed agent up to N times in a row (0 disables restarts)."""
        bare_stderr: bool | None
        """Let workers write directly to rdzv's own stderr."""
        collapse: bool | None
        """Show equal lines of several workers once, as in `[default0-3,5]:text`."""
        compat_output: bool | None
        """Behave as torchrun: its log lines, errors, exit codes and failure report."""
        duplicate_stderr_filters: _Text
        """Copy teed stderr lines with one of these texts to filtered_stderr.log."""
        duplicate_stdout_filters: _Text
        """Copy teed stdout lines with one of these texts to filtered_stdout.log."""
        event_log_handler: _Text
        """Destination of events: null, console or dynamic_rendezvous. Default ``null``."""
        events_file: _Path
        """Append every event of the run to this file, one JSON object per line."""
        exit_barrier_timeout: _Seconds
        """Longest wait of a successful node for the other nodes."""
        final_exit_codes: _Text
        """Exit codes of workers that prevent a restart, such as 3,42,-6 (SIGABRT)."""
        hang_action: _Text
        """Action when workers hang: report, restart or fail. Default ``report``."""
        hang_timeout: _Seconds
        """Seconds without progress that count as a hang (0 disables). Default ``0``."""
        heartbeat_timeout: _Text
        """Maximum seconds between heartbeats, such as 30 or init=600,step=30."""
        hook_timeout: _Seconds
        """Time limit of the --on-failure and --on-restart commands, in seconds. Default ``30``."""
        in_process: bool | None
        """Keep the processes of workers when another worker is lost."""
        local_addr: _Text
        """Address at which other nodes reach this node."""
        local_ranks_filter: _Text
        """Local ranks that may write to the console, such as 0,2,3 (default: all)."""
        log_dir: _Path
        """Directory for the workers' output and error files."""
        log_line_prefix_template: _Text
        """Prefix of teed lines."""
        logs_specs: _Text
        """Plug-in for output destinations; rdzv has only `default`."""
        master_addr: _Text
        """Address of node 0; static rendezvous only. Default ``127.0.0.1``."""
        master_port: int | str | None
        """Port on node 0; static rendezvous only (default 29500)."""
        metrics_handler: _Text
        """Destination of torchelastic's metrics: console or null. Default ``null``."""
        monitor_interval: _Seconds
        """Seconds between polls of the workers; checked, but not used. Default ``0.1``."""
        node_check: _Text
        """Command (for sh) that must exit with 0 before this node joins."""
        node_check_timeout: _Seconds
        """Time limit of the --node-check command, in seconds. Default ``60``."""
        node_rank: int | str | None
        """This node's rank; static rendezvous only. Default ``0``."""
        numa_binding: Literal["node", "socket", "exclusive", "core-complex"] | None
        """Bind workers to the processors near their device."""
        on_failure: _Text
        """Run this command (for sh) after the run has failed on this node."""
        on_restart: _Text
        """Run this command (for sh) whenever the workers restart."""
        preempt_exit_code: int | str | None
        """Exit code of a launch whose workers exited in order after the notice. Default ``75``."""
        preempt_grace: _Seconds
        """Seconds that workers have between the notice and SIGTERM."""
        preempt_signal: _Text
        """Signal by which the scheduler announces a preemption, such as USR1 or TERM."""
        preload: _Text
        """Import Python modules once; fork the workers from there."""
        rdzv_backend: _Text
        """Rendezvous backend: static, c10d, etcd-v2 or etcd. Default ``static``."""
        rdzv_conf: _Text
        """More rendezvous settings, as `key=value,key=value`."""
        rdzv_endpoint: _Text
        """Endpoint of the rendezvous: a host, and usually a port."""
        rdzv_id: _Text
        """Name of the job, the same on all its nodes."""
        redirects: _Text
        """Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both. Default ``0``."""
        requeue_on_preempt: bool | None
        """Requeue the Slurm job after the notice (`scontrol requeue`)."""
        role: _Text
        """Role of this node's workers, in ROLE_NAME and in log prefixes. Default ``default``."""
        scheduler: Literal["auto", "slurm", "none"] | None
        """Cluster scheduler that configures the rendezvous if no flag does. Default ``auto``."""
        settle_delay: _Seconds
        """Seconds between the workers' exit and the next rendezvous. Default ``0``."""
        shutdown_timeout: _Seconds
        """Seconds that workers have between the closing signal and SIGKILL."""
        signals_to_handle: _Text
        """Signals that stop the run and are passed on to the workers. Default ``SIGTERM,SIGINT,SIGHUP,SIGQUIT``."""
        spares: int | str | None
        """Number of spare nodes, in addition to those of --nnodes. Default ``0``."""
        standalone: bool | None
        """Run on this node alone, on a free port."""
        status_addr: _Text
        """Serve health, metrics and status over HTTP at this address."""
        stragglers: _Seconds
        """Name ranks that are slower than the others for SECONDS (0 disables). Default ``0``."""
        tee: _Text
        """Streams that go to files and, prefixed, to the console; format as for -r. Default ``0``."""
        tls_ca: _Path
        """Certificate of the authority that signs all nodes' certificates, in PEM."""
        tls_cert: _Path
        """Certificate of this node, in PEM, for encrypted connections (TLS 1.3)."""
        tls_key: _Path
        """Private key of --tls-cert, in PEM."""
        token_file: _Path
        """File with the job token, the same on all nodes."""
        torch_clients: Literal["deny", "job", "any"] | None
        """PyTorch clients that a job with a token admits: deny, job or any."""
        virtual_local_rank: bool | None
        """Give every worker LOCAL_RANK 0 and one visible device."""
        worker_server: bool | None
        """Give every worker a socket for its control plane."""
