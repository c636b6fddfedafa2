//! The list of accidents.

/// One accident and its expected screen.
pub(crate) struct Scene {
    /// Name of the accident: its heading in `docs/accidents.md`.
    pub(crate) name: &'static str,
    /// Flags of the launcher; `{port}` is a free port, `{taken}` is a port in use.
    pub(crate) flags: &'static [&'static str],
    /// Training script, which follows the lines of [`BEGINNING`].
    pub(crate) script: &'static str,
    /// Second node, if there is one.
    pub(crate) other: Option<Other>,
    /// Part of the text about the cause.
    pub(crate) cause: &'static str,
    /// Part of the text about the worker or node that failed.
    pub(crate) who: &'static str,
    /// Part of the text about the remedy.
    pub(crate) remedy: &'static str,
}

/// Second node.
pub(crate) struct Other {
    /// Flags of this node, which replace flags with the same names.
    pub(crate) flags: &'static [&'static str],
    /// `true` if the whole node is killed once its workers run.
    pub(crate) is_killed: bool,
}

/// First lines of every script: each worker creates a file when it starts.
pub(crate) const BEGINNING: &str = "\
import ctypes, os, resource, time
rank = int(os.environ['RANK'])
open(f'up{rank}', 'w').close()
";

const C10D: &[&str] = &[
    "--nnodes=2",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:{port}",
    "--rdzv-id=job",
    "--rdzv-conf=join_timeout=5,read_timeout=5",
];

const NOTHING: &str = "time.sleep(600)\n";

pub(crate) const SCENES: [Scene; 12] = [
    Scene {
        name: "exception",
        flags: &[],
        script: "def load(path):\n    raise ValueError(f\"bad config: no key 'lr' in {path}\")\n\
            if rank == 1:\n    load('run.yaml')\ntime.sleep(600)\n",
        other: None,
        cause: "ValueError: bad config: no key 'lr' in run.yaml",
        who: "first failure: rank 1 ",
        remedy: "raised in",
    },
    Scene {
        name: "`os._exit`",
        flags: &[],
        script: "if rank == 1:\n    os._exit(3)\ntime.sleep(600)\n",
        other: None,
        cause: "exited with code 3",
        who: "first failure: rank 1 ",
        remedy: "help: use -r 3 --log-dir DIR",
    },
    Scene {
        name: "segfault",
        flags: &[],
        script: "if rank == 1:\n    ctypes.string_at(0)\ntime.sleep(600)\n",
        other: None,
        cause: "killed by SIGSEGV",
        who: "first failure: rank 1 ",
        remedy: "help: set PYTHONFAULTHANDLER=1",
    },
    Scene {
        name: "out of memory",
        flags: &[],
        script: "if rank == 1:\n    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n    \
            batch = bytearray(8 << 30)\ntime.sleep(600)\n",
        other: None,
        cause: "MemoryError",
        who: "first failure: rank 1 ",
        remedy: "help: use a smaller batch",
    },
    Scene {
        name: "import error",
        flags: &[],
        script: "import torchvison\n",
        other: None,
        cause: "ModuleNotFoundError: No module named 'torchvison'",
        who: "first failure: rank ",
        remedy: "help: install 'torchvison'",
    },
    Scene {
        name: "port in use",
        flags: &["--master-port={taken}"],
        script: NOTHING,
        other: None,
        cause: "Address already in use",
        who: "node 0 has to host the store at 127.0.0.1:",
        remedy: "choose another --master-port",
    },
    Scene {
        name: "missing node",
        flags: C10D,
        script: NOTHING,
        other: None,
        cause: "run 'job' had 1 of at least 2 nodes after 5",
        who: "(joined: 127.0.0.1_",
        remedy: "check that the other agents run",
    },
    Scene {
        name: "wrong endpoint",
        flags: &[
            "--nnodes=2",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=no-such-host.invalid:29400",
            "--rdzv-id=job",
            "--rdzv-conf=join_timeout=5,read_timeout=5",
        ],
        script: NOTHING,
        other: None,
        cause: "failed to lookup address information",
        who: "no-such-host.invalid:29400",
        remedy: "check that --rdzv-endpoint names that",
    },
    Scene {
        name: "wrong run id",
        flags: C10D,
        script: NOTHING,
        other: Some(Other {
            flags: &["--rdzv-id=jbo"],
            is_killed: false,
        }),
        cause: "run 'job' had 1 of at least 2 nodes after 5",
        who: "(joined: 127.0.0.1_",
        remedy: "with the same --rdzv-id",
    },
    Scene {
        name: "hang",
        flags: &["--hang-timeout=4", "--hang-action=fail"],
        script: NOTHING,
        other: None,
        cause: "no progress for ",
        who: "first failure: rank ",
        remedy: "help: use --events-file FILE",
    },
    Scene {
        name: "full disk",
        flags: &[],
        script: "if rank == 1:\n    with open('/dev/full', 'w') as checkpoint:\n        \
            checkpoint.write('x' * 9000)\ntime.sleep(600)\n",
        other: None,
        cause: "No space left on device",
        who: "first failure: rank 1 ",
        remedy: "help: free space on that file system",
    },
    Scene {
        name: "lost node",
        flags: C10D,
        script: NOTHING,
        other: Some(Other {
            flags: &["--node-rank=0"],
            is_killed: true,
        }),
        cause: "node lost: ",
        who: "first failure of the job: node 127.0.0.1",
        remedy: "help: check the log of that node",
    },
];
