//! The flags of `rdzv run` with their help, in the order of `torchrun`.
//!
//! Flags that are resolved together are in the file that resolves them. Types follow `torchrun`:
//! `int` and `float` options accept the texts that Python accepts. Most other values of torchrun's
//! flags stay text until they are resolved, because `torchrun` reports bad text later (exit code 1,
//! not 2).

use std::ffi::OsString;

use clap::Args;

use super::entrypoint::CommandArgs;
use super::hang_detection::HangArgs;
use super::node_check::NodeCheckArgs;
use super::observers::ObserveArgs;
use super::preemption::PreemptionArgs;
use super::rendezvous_choice::{RendezvousArgs, StaticArgs};
use super::restarts::{RestartArgs, StopArgs};
use super::results::ReportArgs;
use super::terminal_view::TerminalArgs;
use super::worker_count::CountArgs;
use super::worker_output::OutputArgs;
use crate::exit::Raised;
use crate::number;
use crate::scheduler::{SCHEDULERS, Scheduled};
use crate::trust::TrustArgs;

/// Flags of `rdzv run` and of `torchrun`.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) count: CountArgs,

    #[command(flatten)]
    pub(crate) rendezvous: RendezvousArgs,

    /// Restart the workers up to N times before the job fails.
    #[arg(long, value_name = "N", default_value = "0", value_parser = number::int)]
    pub(crate) max_restarts: i64,

    /// Seconds between polls of the workers; checked, but not used.
    ///
    /// rdzv waits for exits instead of polling.
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = number::float)]
    pub(super) monitor_interval: f64,

    /// Start method of function workers; accepted without effect.
    #[arg(
        long,
        value_name = "METHOD",
        default_value = "spawn",
        value_parser = ["spawn", "fork", "forkserver"]
    )]
    start_method: String,

    /// Destination of events: null, console or dynamic_rendezvous.
    ///
    /// `console` prints each torchelastic event on stderr, as a JSON object, unless LOGLEVEL is set
    /// to a level above INFO. The other two print nothing.
    #[arg(long, value_name = "HANDLER", default_value = "null")]
    pub(super) event_log_handler: String,

    /// Role of this node's workers, in ROLE_NAME and in log prefixes.
    #[arg(long, value_name = "ROLE", default_value = "default")]
    pub(crate) role: String,

    #[command(flatten)]
    pub(crate) command: CommandArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    #[command(flatten)]
    pub(super) fixed: StaticArgs,

    /// Plug-in for output destinations; rdzv has only `default`.
    #[arg(long, value_name = "NAME")]
    pub(super) logs_specs: Option<String>,

    /// Bind workers to the processors near their device.
    ///
    /// A worker's device is the visible device whose index is the local rank. `node` binds to all
    /// processors of the device's NUMA node, and `socket` to those of its socket. `exclusive` binds
    /// to a share of the NUMA node's cores that no worker of another device has. `core-complex`
    /// binds to processors that share one last-level cache. Workers get only processors that rdzv
    /// itself may use.
    #[arg(
        long,
        value_name = "MODE",
        value_parser = ["node", "socket", "exclusive", "core-complex"]
    )]
    pub(super) numa_binding: Option<String>,

    #[command(flatten)]
    pub(super) stop: StopArgs,

    /// Give every worker LOCAL_RANK 0 and one visible device.
    #[arg(long)]
    pub(super) virtual_local_rank: bool,

    /// Print a completion script for torchrun and exit.
    #[arg(long, value_name = "SHELL", value_parser = ["bash", "zsh", "tcsh"])]
    pub(crate) print_completion: Option<String>,

    /// Show equal lines of several workers once, as in `[default0-3,5]:text`
    ///
    /// This applies to lines that -t labels; without -t, all output is labelled (-t 3). Equal lines
    /// that arrive within 100 ms become one line, whose label names all ranks. Other lines stay
    /// unchanged and in the order of their worker, but appear up to 100 ms later.
    #[arg(long)]
    pub(super) collapse: bool,

    /// Script, module or program, with its arguments.
    ///
    /// Arguments after the script are passed to the workers unchanged, except that $local_rank and
    /// ${local_rank} become the local rank, and $$ becomes $. As in torchrun, a `--` before the
    /// script or directly after it is dropped.
    #[arg(value_name = "TRAINING_SCRIPT [ARGS]", trailing_var_arg = true)]
    pub(crate) training_script: Vec<OsString>,

    // Flags that only rdzv has. A heading applies to all flags of its struct.
    #[command(flatten, next_help_heading = "On a terminal")]
    pub(crate) terminal: TerminalArgs,

    #[command(flatten, next_help_heading = "Watching a run")]
    pub(super) observe: ObserveArgs,

    /// Print the plan and the origin of every value; start nothing.
    ///
    /// `--explain=json` prints the plan as JSON. An invalid command line is refused as usual.
    #[arg(
        long,
        value_name = "FORMAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "table",
        help_heading = "Before a run",
        value_parser = ["table", "json"]
    )]
    pub(crate) explain: Option<String>,

    /// Cluster scheduler that configures the rendezvous if no flag does.
    ///
    /// In a Slurm step with several nodes, `srun rdzv run train.py` needs no other flags. Nodes,
    /// endpoint, port and run id come from Slurm, and with GPUs also the number of workers;
    /// `--explain` shows each value. A step with several tasks on a node is refused. `auto` uses
    /// Slurm inside a step; `slurm` refuses to run outside a step; `none` uses no scheduler. The
    /// link named torchrun never uses a scheduler. [env: RDZV_SCHEDULER]
    #[arg(
        long,
        value_name = "NAME",
        default_value = SCHEDULERS[0],
        value_parser = SCHEDULERS,
        help_heading = "Before a run"
    )]
    pub(crate) scheduler: String,

    /// Number of spare nodes, in addition to those of --nnodes.
    ///
    /// With `--nnodes 4 --spares 1`, start five nodes: the job runs on four of them, and starts
    /// without waiting for the spare one. A spare node has no workers until another node is lost or
    /// withdraws. In a Slurm step without --nnodes, K nodes of the step are spare nodes. This needs
    /// a dynamic rendezvous. Under Slurm, use `srun --no-kill --kill-on-bad-exit=0`; `rdzv verdict`
    /// prints the result of the job, see docs/slurm.md.
    #[arg(
        long,
        value_name = "K",
        default_value = "0",
        help_heading = "Before a run"
    )]
    pub(super) spares: u32,

    /// Settings from the scheduler.
    #[arg(skip)]
    pub(crate) scheduled: Scheduled,

    #[command(flatten, next_help_heading = "Before a run")]
    pub(super) node_check: NodeCheckArgs,

    #[command(flatten, next_help_heading = "Workers that hang")]
    pub(super) hang: HangArgs,

    #[command(flatten, next_help_heading = "Restarts")]
    pub(super) restart: RestartArgs,

    #[command(flatten, next_help_heading = "Preemption")]
    pub(crate) preemption: PreemptionArgs,

    #[command(flatten, next_help_heading = "Results of a run")]
    pub(crate) report: ReportArgs,

    /// Behave as torchrun: its log lines, errors, exit codes and failure report.
    ///
    /// This flag is for programs that parse torchrun's output. Without it, `rdzv run` reports
    /// events in plain sentences, and ends with the first failure and its cause. The link named
    /// torchrun always behaves as torchrun. [env: RDZV_COMPAT_OUTPUT=1]
    #[arg(long, help_heading = "Results of a run")]
    pub(crate) compat_output: bool,

    #[command(flatten, next_help_heading = "Job token and TLS")]
    pub(super) trust: TrustArgs,
}

/// Flags of the older `python -m torch.distributed.launch`.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct LaunchArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// Do not pass --local-rank to the script; it reads LOCAL_RANK instead.
    #[arg(long, help_heading = None::<&str>)]
    pub(crate) use_env: bool,
}

impl LaunchArgs {
    /// `true` if scripts get `--local-rank`.
    pub(crate) fn local_rank_argument(&self) -> Result<bool, Raised> {
        if self.run.command.no_python && !self.use_env {
            return Err(Raised::value_error(
                "When using the '--no-python' flag, you must also set the '--use-env' flag.",
            ));
        }
        Ok(!self.use_env)
    }
}
