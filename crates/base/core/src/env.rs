//! Environment variables that rdzv sets for workers or reads.
//!
//! The names are a contract with worker scripts and with users' job files, so other code refers to
//! these constants. (The names `PET_*` of command-line defaults are next to their flags. Variables
//! of schedulers, and general ones such as `PATH` and `TMPDIR`, are in the code that reads them.)
//! `rdzv env` prints the comments of this file.

macro_rules! variables {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {
        $($(#[doc = $doc])* pub const $name: &str = stringify!($name);)*

        /// Name and meaning of all variables, in the order of this file.
        pub const ALL: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),*))),*];
    };
}

variables! {
    /// Worker: global rank.
    RANK;
    /// Worker: rank within the node; `0` for all with `--virtual-local-rank`.
    LOCAL_RANK;
    /// Worker: number of workers in the job.
    WORLD_SIZE;
    /// Worker: number of workers on the node.
    LOCAL_WORLD_SIZE;
    /// Worker: rank of the node's agent in this round.
    GROUP_RANK;
    /// Worker: number of agents in this round.
    GROUP_WORLD_SIZE;
    /// Worker: the `--role`.
    ROLE_NAME;
    /// Worker: rank among the workers of the same role.
    ROLE_RANK;
    /// Worker: number of workers of the same role.
    ROLE_WORLD_SIZE;
    /// Worker: host of the workers' store.
    MASTER_ADDR;
    /// Worker: port of the workers' store.
    MASTER_PORT;
    /// Worker: the run id.
    TORCHELASTIC_RUN_ID;
    /// Worker: number of restarts of `--max-restarts` that its agent has used.
    TORCHELASTIC_RESTART_COUNT;
    /// Worker: `--max-restarts`.
    TORCHELASTIC_MAX_RESTARTS;
    /// Worker: `True` if the agent hosts the store at the master address.
    /// In this case, no worker binds that address.
    TORCHELASTIC_USE_AGENT_STORE;
    /// Worker: path for the error file; empty if none is wanted.
    /// Launcher: path for its own error file.
    TORCHELASTIC_ERROR_FILE;
    /// Worker: value of `--signals-to-handle`.
    TORCHELASTIC_SIGNALS_TO_HANDLE;
    /// Worker: number of the round, from 0, the same on all nodes.
    /// It grows with every restart and every change of membership, while each node counts only its
    /// own restarts. Static rendezvous has one round. Not in torchrun.
    RDZV_ROUND;
    /// Worker: ranks on nodes that were not in the last round, comma separated.
    /// Empty in the first round, in static rendezvous, without rdzv's coordinator (as with etcd),
    /// in a round with an agent of torchrun, and if more than 4,096 ranks are new. Not in torchrun.
    RDZV_REPLACED;
    /// Worker: inherited, or `1` if absent.
    TORCH_NCCL_ASYNC_ERROR_HANDLING;
    /// Worker: inherited; `1` if absent and there are several local workers.
    OMP_NUM_THREADS;
    /// Worker: device list; one device with `--virtual-local-rank`.
    CUDA_VISIBLE_DEVICES;
    /// Worker: device list; one device with `--virtual-local-rank`.
    HIP_VISIBLE_DEVICES;
    /// Worker: path of the watchdog's named pipe, if the watchdog is on.
    TORCHELASTIC_TIMER_FILE;
    /// Launcher: the Python interpreter for workers.
    PYTHON_EXEC;
    /// Launcher: the active virtual environment, searched for an interpreter.
    VIRTUAL_ENV;
    /// Launcher: log level.
    LOGLEVEL;
    /// Launcher: kind of the terminal; `dumb` or none makes `--ui auto` plain.
    TERM;
    /// Launcher: if not empty, its terminal output has no colours.
    NO_COLOR;
    /// Launcher: default of `--log-line-prefix-template`.
    TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE;
    /// Launcher: default of `--shutdown-timeout`, in seconds.
    TORCH_ELASTIC_SHUTDOWN_TIMEOUT;
    /// Launcher: `1` leaves hosting the workers' store to the worker with rank 0.
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE;
    /// Launcher: `1` computes ranks without an exchange.
    /// All nodes must have the same number of workers.
    TORCH_ELASTIC_WORKER_IDENTICAL;
    /// Agent: longest time of a worker in the kernel's uninterruptible sleep (`D`).
    /// In seconds. A longer sleep counts as a failure of the worker. Off by default.
    TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT;
    /// Agent: process id of its keeper. Workers never see it.
    /// The keeper is the process that the user started.
    RDZV_KEEPER;
    /// Agent: process id of the guard that started it. Workers never see it.
    RDZV_GUARD;
    /// Agent: numbers of the descriptors that outlive a killed agent.
    /// Each agent inherits them from the guard. Workers never see this variable.
    RDZV_KEPT;
    /// Launcher: process id of the program that called it (`rdzv.launch`).
    /// The launch ends with that program, which reads the report itself, so the report is not
    /// printed. Workers never see it. Not in torchrun.
    RDZV_CALLER;
    /// Launcher and worker: number of the descriptor with the workers' call.
    /// The workers inherit the descriptor. Not in torchrun.
    RDZV_CALL;
    /// Launcher and views: folder of this user's sockets, as the system sets it.
    XDG_RUNTIME_DIR;
    /// Worker: path of the socket for requests to the worker.
    /// Set with `--worker-server`, or inherited.
    TORCH_WORKER_SERVER_SOCKET;
    /// Launcher: serves health checks at this port, on all addresses.
    TORCHELASTIC_HEALTH_CHECK_PORT;
    /// Function worker: directory of the call that started this program.
    /// Not in torchrun.
    RDZV_FUNCTION_CALL;
    /// Worker: path of the named pipe for its heartbeats, one line each.
    /// Set only with `--heartbeat-timeout` or `--stragglers`. Not in torchrun.
    RDZV_HEARTBEAT;
    /// Worker: path of the socket through which it recovers in its process.
    /// Set only with `--in-process`. Not in torchrun.
    RDZV_CONTROL;
    /// Worker: path of the file that announces a preemption.
    /// The file exists once the scheduler has reported that it will take the nodes away. Set only
    /// with `--preempt-signal`. Not in torchrun.
    RDZV_PREEMPT;
    /// Worker: Unix time in seconds at which the job has to end.
    /// Set if the scheduler reports it, or inherited. Not in torchrun.
    RDZV_DEADLINE;
    /// Launcher: `auto`, `slurm` or `none`, if `--scheduler` is not given.
    /// Not in torchrun.
    RDZV_SCHEDULER;
    /// Launcher: endpoints of processes that may know the coordinator.
    /// Each is `host:port`, separated by commas. With c10d, a new node on a machine other than the
    /// endpoint's contacts them too, if agents can become voters. Not in torchrun.
    RDZV_CONTACT_POINTS;
    /// Launcher: `1` makes the output of `rdzv run` that of `torchrun`.
    /// Same as `--compat-output`. Not in torchrun.
    RDZV_COMPAT_OUTPUT;
    /// Worker: path of the file with the job token, if the job has one.
    /// Launcher and `rdzv store`: the same path, if `--token-file` is not given. Not in torchrun.
    RDZV_JOB_TOKEN_FILE;
    /// Launcher and `rdzv store`: the job token itself, if no file is named.
    /// Workers never see it. Not in torchrun.
    RDZV_JOB_TOKEN;
    /// Launcher and `rdzv store`: private file with the token of RDZV_JOB_TOKEN.
    /// The launcher removes the file at its end, and `rdzv store` once it has read the token.
    /// Workers never see this variable.
    RDZV_TOKEN_COPY;
    /// Worker: path of `--tls-cert`, if that is given. Not in torchrun.
    RDZV_TLS_CERT;
    /// Worker: path of `--tls-key`, if that is given. Not in torchrun.
    RDZV_TLS_KEY;
    /// Worker: path of `--tls-ca`, if that is given. Not in torchrun.
    RDZV_TLS_CA;
    /// Launcher: exactly `1` enables the watchdog.
    /// Workers may then set timers for themselves.
    TORCHELASTIC_ENABLE_FILE_TIMER;
    /// URL rendezvous: any value, without effect.
    /// rdzv does not read it; its server has one backend.
    USE_LIBUV;
}
