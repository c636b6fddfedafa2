//! Every environment variable that rdzv sets for workers or reads, declared once.
//!
//! The names are the contract with worker scripts and with people's job files; this file is the
//! only one that spells them. (The command-line defaults `PET_*` are spelt beside their flags.)

macro_rules! variables {
    ($($(#[doc = $doc:literal])* $name:ident;)*) => {
        $($(#[doc = $doc])* pub const $name: &str = stringify!($name);)*

        /// All of them: name and meaning, in the order of this file.
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
    /// Worker: host of the store that the workers meet at.
    MASTER_ADDR;
    /// Worker: port of the store that the workers meet at.
    MASTER_PORT;
    /// Worker: the run id.
    TORCHELASTIC_RUN_ID;
    /// Worker: how many of the agent's restarts have been used.
    TORCHELASTIC_RESTART_COUNT;
    /// Worker: `--max-restarts`.
    TORCHELASTIC_MAX_RESTARTS;
    /// Worker: `True` if the agent hosts the store at the master address, so nobody else binds it.
    TORCHELASTIC_USE_AGENT_STORE;
    /// Worker: where to leave the error file; empty for nowhere. Launcher: where to put its own.
    TORCHELASTIC_ERROR_FILE;
    /// Worker: value of `--signals-to-handle`.
    TORCHELASTIC_SIGNALS_TO_HANDLE;
    /// Worker: number of the round, from 0, the same on all nodes: it grows with every restart and
    /// every change of membership, while each node counts restarts for itself. Static rendezvous has
    /// one round. Ours.
    RDZV_ROUND;
    /// Worker: inherited, else `1`.
    TORCH_NCCL_ASYNC_ERROR_HANDLING;
    /// Worker: inherited; `1` if absent and there are several local workers.
    OMP_NUM_THREADS;
    /// Worker: device list, divided with `--virtual-local-rank`.
    CUDA_VISIBLE_DEVICES;
    /// Worker: device list, divided with `--virtual-local-rank`.
    HIP_VISIBLE_DEVICES;
    /// Worker: path of the watchdog's named pipe, when there is one.
    TORCHELASTIC_TIMER_FILE;
    /// Launcher: the Python interpreter for workers.
    PYTHON_EXEC;
    /// Launcher: the active virtual environment, searched for an interpreter.
    VIRTUAL_ENV;
    /// Launcher: log level.
    LOGLEVEL;
    /// Launcher: kind of the terminal; on a `dumb` one nothing is redrawn.
    TERM;
    /// Launcher: not empty, nothing of its own is coloured on a terminal.
    NO_COLOR;
    /// Launcher: default of `--log-line-prefix-template`.
    TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE;
    /// Launcher: default of `--shutdown-timeout`, in seconds.
    TORCH_ELASTIC_SHUTDOWN_TIMEOUT;
    /// Launcher: `1` leaves hosting the workers' store to the worker with rank 0.
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE;
    /// Launcher: `1` computes ranks without an exchange; all nodes must have equal sizes.
    TORCH_ELASTIC_WORKER_IDENTICAL;
    /// Agent: how many seconds a worker may be in the uninterruptible sleep of the kernel (`D`) before
    /// the group is given up; off by default.
    TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT;
    /// Agent: process id of its keeper, the process that the user started. Workers never see it.
    RDZV_KEEPER;
    /// Agent: process id of the guard that started it. Workers never see it.
    RDZV_GUARD;
    /// Agent: numbers of the descriptors of what outlives it if it is killed. Workers never see it.
    RDZV_KEPT;
    /// Launcher: process id of the program that called it (`rdzv.launch` of Python). The launch ends with that
    /// program, which reads the report itself: nothing of it is printed. Workers never see it. Ours.
    RDZV_CALLER;
    /// Launcher: number of the descriptor with the call of its workers, which inherit it. Worker: the same. Ours.
    RDZV_CALL;
    /// Worker: path of the socket for requests to it (`--worker-server`, or inherited).
    TORCH_WORKER_SERVER_SOCKET;
    /// Launcher: serves health checks at this port, on all addresses.
    TORCHELASTIC_HEALTH_CHECK_PORT;
    /// Function worker: directory of the call that this copy of the program was started for. Ours.
    RDZV_FUNCTION_CALL;
    /// Worker: path of the named pipe that its heartbeats go to, one line each; set only with
    /// `--heartbeat-timeout`. Ours.
    RDZV_HEARTBEAT;
    /// Worker: path of the file that is there once the scheduler has said that it will take the nodes away; set
    /// only with `--preempt-signal`. Ours.
    RDZV_PREEMPT;
    /// Worker: Unix time in seconds at which the job has to end, if the scheduler says so, or inherited. Ours.
    RDZV_DEADLINE;
    /// Launcher: `auto`, `slurm` or `none`, if `--scheduler` is not given. Ours.
    RDZV_SCHEDULER;
    /// Launcher: `host:port` of processes that may know the coordinator, with commas between them; a new node on another machine
    /// than the endpoint's asks them too. Ours.
    RDZV_CONTACT_POINTS;
    /// Launcher: `1` makes `rdzv run` speak as `torchrun` does (`--compat-output`). Ours.
    RDZV_COMPAT_OUTPUT;
    /// Worker: path of the file with the job token, if the job has one. Launcher and `rdzv store`: that path,
    /// if `--token-file` is not given. Ours.
    RDZV_JOB_TOKEN_FILE;
    /// Launcher and `rdzv store`: the job token itself, if no file is named. Workers never see it. Ours.
    RDZV_JOB_TOKEN;
    /// Launcher: the private file that holds the token of RDZV_JOB_TOKEN, to be removed at the end. Workers
    /// never see it.
    RDZV_TOKEN_COPY;
    /// Worker: path of `--tls-cert`, if it is given. Ours.
    RDZV_TLS_CERT;
    /// Worker: path of `--tls-key`, if it is given. Ours.
    RDZV_TLS_KEY;
    /// Worker: path of `--tls-ca`, if it is given. Ours.
    RDZV_TLS_CA;
    /// Launcher: exactly `1` turns the watchdog on: workers may set timers for themselves.
    TORCHELASTIC_ENABLE_FILE_TIMER;
    /// URL rendezvous: `1` (default) or not; read for compatibility, our server has one backend.
    USE_LIBUV;
}
