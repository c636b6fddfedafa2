//! The flags of `rdzv run`, exactly as `torchrun` has them, and what each of them does.
//!
//! Only what the user typed is in here; what it means on this machine is decided in `resolve`.
//! Types follow the reference: `int` and `float` options accept what Python accepts, everything
//! else stays text until it is resolved, because the reference reports bad text differently
//! (exit code 1, not 2).

use std::ffi::OsString;

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::console::ConsoleArgs;
use super::explain::ExplainArgs;
use super::hang::HangArgs;
use super::number;
use super::observe::ObserveArgs;
use super::restart::RestartArgs;
use super::verdict::VerdictArgs;

/// Flags of `rdzv run` and of `torchrun`.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct RunArgs {
    /// Number of nodes, or MIN:MAX for an elastic job
    ///
    /// `N` means `N:N`; both must be positive, and MIN at most MAX. With static rendezvous only MAX
    /// counts.
    #[arg(long, value_name = "N|MIN:MAX", default_value = "1:1")]
    pub(crate) nnodes: String,

    /// Workers per node: a number, cpu, gpu, xpu or auto
    ///
    /// `cpu` is the number of processors this process may use: its affinity mask, or less if a limit
    /// of its control group (cpu.max) leaves no time for so many. `gpu` is the number of NVIDIA or
    /// AMD devices that are visible, `xpu` that of Intel's, `auto` that of whatever accelerator there
    /// is, else as `cpu`. With more than one worker, OMP_NUM_THREADS is set to 1
    /// unless it is set already.
    #[arg(long, value_name = "N|cpu|gpu|xpu|auto", default_value = "1")]
    pub(crate) nproc_per_node: String,

    /// How the nodes find one another: static, c10d, etcd-v2 or etcd
    ///
    /// `static` with neither an endpoint nor a master port on one node needs no rendezvous at all.
    #[arg(long, value_name = "BACKEND", default_value = "static")]
    pub(crate) rdzv_backend: String,

    /// Where the rendezvous is: a host, and usually a port
    ///
    /// `static` requires the port; without an endpoint, it uses --master-addr and --master-port. The
    /// default port of c10d is 29400, of etcd 2379. The agent that runs on the endpoint's host hosts
    /// c10d, unless a store (`rdzv store`, say) is there already.
    #[arg(long, value_name = "HOST[:PORT]", default_value = "")]
    pub(crate) rdzv_endpoint: String,

    /// Name of the job, the same on all its nodes
    ///
    /// Workers see it as TORCHELASTIC_RUN_ID and log directories begin with it. Not given on a
    /// single node, it is a random UUID (torchrun also overwrites one that was given; rdzv keeps
    /// it); else it is `none`.
    #[arg(long, value_name = "ID")]
    pub(crate) rdzv_id: Option<String>,

    /// More rendezvous settings: key=value,key=value
    ///
    /// Static rendezvous reads `timeout`, in seconds (900). The others read, in seconds:
    /// `join_timeout` (600), `last_call_timeout` (30: how long a round that has MIN nodes waits for
    /// more), `close_timeout` (30), `heartbeat_timeout` (5), `keep_alive_interval` (5), and
    /// `keep_alive_max_attempt` (3 missed heartbeats: the node is lost). c10d: `is_host` (whether
    /// this node hosts the endpoint; found out from its addresses), `store_type` (`tcp` or `file`),
    /// `read_timeout` (60). etcd: `protocol` (`http` or `https`), `cert`, `key`, `cacert`,
    /// `etcd_prefix`, `lease_ttl` (5: a node that is gone is noticed after it).
    #[arg(long, value_name = "K=V,...", default_value = "")]
    pub(crate) rdzv_conf: String,

    /// Run on this node alone, on a free port
    ///
    /// Overrides backend and endpoint.
    #[arg(long)]
    pub(crate) standalone: bool,

    /// How often the worker group is restarted before its failure is final
    #[arg(long, value_name = "N", default_value = "0", value_parser = number::int)]
    pub(crate) max_restarts: i64,

    /// Seconds between two looks at the workers; accepted and checked, but not needed
    ///
    /// rdzv waits for exits instead of polling for them.
    #[arg(long, value_name = "SECONDS", default_value = "0.1", value_parser = number::float)]
    pub(crate) monitor_interval: f64,

    /// How function workers are started; accepted, but without meaning for programs
    #[arg(
        long,
        value_name = "METHOD",
        default_value = "spawn",
        value_parser = PossibleValuesParser::new(["spawn", "fork", "forkserver"])
    )]
    pub(crate) start_method: String,

    /// Where events go: null, console or dynamic_rendezvous
    ///
    /// `console` prints one JSON object per event on stderr.
    #[arg(long, value_name = "HANDLER", default_value = "null")]
    pub(crate) event_log_handler: String,

    /// Role of this node's workers, in ROLE_NAME and in log prefixes
    #[arg(long, value_name = "ROLE", default_value = "default")]
    pub(crate) role: String,

    /// Run the script argument as a Python module (python -m)
    #[arg(short, long)]
    pub(crate) module: bool,

    /// Execute the script argument itself, without Python
    ///
    /// Looked up in PATH if it has no slash.
    #[arg(long)]
    pub(crate) no_python: bool,

    /// Run the script as __main__ inside an interpreter that records its exceptions
    ///
    /// Wins over --no-python and --module. An uncaught exception is written to the worker's error
    /// file, so the failure report shows its traceback.
    #[arg(long)]
    pub(crate) run_path: bool,

    /// Directory for the workers' output and error files
    ///
    /// A new directory named after the run id is made in it for each run. Not given, it is below
    /// TMPDIR. `/dev/null` turns all files off, and with them -r, -t and --local-ranks-filter.
    #[arg(long, value_name = "DIR")]
    pub(crate) log_dir: Option<OsString>,

    /// Streams that go to files only: 0 none, 1 stdout, 2 stderr, 3 both
    ///
    /// One digit for all workers, or by local rank: `0:3,12:1`.
    #[arg(short, long, value_name = "STREAMS", default_value = "0")]
    pub(crate) redirects: String,

    /// Streams that go to files and, prefixed, to the console; written as for -r
    #[arg(short, long, value_name = "STREAMS", default_value = "0")]
    pub(crate) tee: String,

    /// Prefix of teed lines
    ///
    /// Macros: ${role_name}, ${local_rank}, ${rank}, ${hostname}. Empty: the value of
    /// TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else `[${role_name}${local_rank}]:`.
    #[arg(long, value_name = "TEMPLATE", default_value = "")]
    pub(crate) log_line_prefix_template: String,

    /// Local ranks whose output may reach the console: 0,2,3 (default: all)
    ///
    /// Output of the others is in their files, if they have any. Else its end (64 KiB of each stream)
    /// is kept, and shown if the worker fails.
    #[arg(long, value_name = "RANKS", default_value = "")]
    pub(crate) local_ranks_filter: String,

    /// Copy teed stdout lines with one of these texts to filtered_stdout.log
    ///
    /// Separated by commas; a double comma is a comma.
    #[arg(long, value_name = "TEXT,...")]
    pub(crate) duplicate_stdout_filters: Option<String>,

    /// Copy teed stderr lines with one of these texts to filtered_stderr.log
    ///
    /// Separated by commas; a double comma is a comma.
    #[arg(long, value_name = "TEXT,...")]
    pub(crate) duplicate_stderr_filters: Option<String>,

    /// This node's rank; static rendezvous only
    #[arg(long, value_name = "N", default_value = "0", value_parser = number::int)]
    pub(crate) node_rank: i64,

    /// Address of node 0; static rendezvous only
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub(crate) master_addr: String,

    /// Port on node 0; static rendezvous only (default 29500)
    ///
    /// Given on a single node, it makes that node rendezvous statically, at that port.
    #[arg(long, value_name = "PORT", value_parser = number::int)]
    pub(crate) master_port: Option<i64>,

    /// Address of this node that others should use
    #[arg(long, value_name = "HOST")]
    pub(crate) local_addr: Option<String>,

    /// Plug-in that decides where output goes; rdzv has `default` only
    #[arg(long, value_name = "NAME")]
    pub(crate) logs_specs: Option<String>,

    /// Bind workers to the processors near their device
    ///
    /// A worker's device is the visible one whose index is its local rank. `node`: all processors of
    /// the device's NUMA node; `socket`: of its socket; `exclusive`: a share of the node's cores that
    /// no other device's worker has; `core-complex`: those that share one last-level cache. Only
    /// processors that rdzv itself may use.
    #[arg(
        long,
        value_name = "MODE",
        value_parser = PossibleValuesParser::new(["node", "socket", "exclusive", "core-complex"])
    )]
    pub(crate) numa_binding: Option<String>,

    /// Signals that end the run in order and are passed on to the workers
    #[arg(
        long,
        value_name = "NAME,...",
        default_value = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    )]
    pub(crate) signals_to_handle: String,

    /// Seconds that workers have between the closing signal and SIGKILL
    ///
    /// Not given: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, else 30. Unlike in torchrun it holds on every
    /// path: signals, restarts and failures of a sibling.
    #[arg(long, value_name = "SECONDS", value_parser = number::int)]
    pub(crate) shutdown_timeout: Option<i64>,

    /// Give every worker LOCAL_RANK 0 and one visible device
    #[arg(long)]
    pub(crate) virtual_local_rank: bool,

    /// Print a completion script for torchrun and exit
    #[arg(
        long,
        value_name = "SHELL",
        value_parser = PossibleValuesParser::new(["bash", "zsh", "tcsh"])
    )]
    pub(crate) print_completion: Option<String>,

    #[command(flatten)]
    pub(crate) observe: ObserveArgs,
    /// Dry run.
    #[command(flatten)]
    pub(crate) explain: ExplainArgs,

    /// Workers that hang.
    #[command(flatten)]
    pub(crate) hang: HangArgs,

    #[command(flatten)]
    pub(crate) console: ConsoleArgs,

    /// What comes between a failure and the next attempt.
    #[command(flatten)]
    pub(crate) restart: RestartArgs,

    /// What is left of a run.
    #[command(flatten)]
    pub(crate) verdict: VerdictArgs,

    /// Script, module or program, and everything that belongs to it
    ///
    /// What follows the script goes to the workers unchanged, except for ${local_rank}, which is
    /// replaced, and $$, which becomes $. The first `--` of the line is dropped, as torchrun does.
    #[arg(value_name = "TRAINING_SCRIPT [ARGS]", trailing_var_arg = true)]
    pub(crate) training_script: Vec<OsString>,
}

/// Flags of the older `python -m torch.distributed.launch`.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct LaunchArgs {
    /// All flags of torchrun.
    #[command(flatten)]
    pub(crate) run: RunArgs,

    /// Do not pass --local-rank to the script; it reads LOCAL_RANK instead
    #[arg(long)]
    pub(crate) use_env: bool,
}
