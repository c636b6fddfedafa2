use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rdzv_agent::{LogBase, RankSelection, RendezvousPlan, StreamSelection};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::rank::GroupRank;

use super::*;
use crate::args::{Parsed, parse};

/// A machine of a test's choosing.
#[derive(Debug, Default)]
struct Fake {
    processors: u32,
    gpus: u32,
    xpus: u32,
    files: BTreeSet<&'static str>,
}

impl Machine for Fake {
    fn usable_processors(&self) -> u32 {
        self.processors
    }
    fn gpu_devices(&self) -> u32 {
        self.gpus
    }
    fn xpu_devices(&self) -> u32 {
        self.xpus
    }
    fn working_directory(&self) -> PathBuf {
        "/work".into()
    }
    fn is_file(&self, path: &Path) -> bool {
        path.to_str().is_some_and(|path| self.files.contains(path))
    }
    fn is_program(&self, path: &Path) -> bool {
        self.is_file(path)
    }
    fn random_id(&self) -> String {
        "a-random-id".to_owned()
    }
}

/// A launch to be: what was typed, in which environment, on which machine.
struct Case {
    line: Vec<&'static str>,
    environment: Environment,
    machine: Fake,
    called: Called,
}

fn case(line: &[&'static str]) -> Case {
    Case {
        line: line.to_vec(),
        environment: Environment::default(),
        machine: Fake {
            processors: 6,
            files: BTreeSet::from(["/usr/bin/python3"]),
            ..Fake::default()
        },
        called: Called::default(),
    }
    .with("PATH", "/usr/local/bin:/usr/bin")
}

impl Case {
    fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.0.insert(name.into(), value.into());
        self
    }

    fn files(mut self, files: &[&'static str]) -> Self {
        self.machine.files.extend(files);
        self
    }

    fn resolved(&self) -> Result<Launch, Refusal> {
        let words: Vec<OsString> = self.line.iter().map(OsString::from).collect();
        match parse::<RunArgs>("torchrun", &words, &self.environment.0)? {
            Parsed::Run(arguments) => {
                resolve(&arguments, &self.called, &self.environment, &self.machine)
            }
            other => panic!("{:?} was read as {other:?}", self.line),
        }
    }

    fn launch(&self) -> Launch {
        match self.resolved() {
            Ok(launch) => launch,
            Err(refusal) => panic!("{:?} was refused: {refusal}", self.line),
        }
    }

    fn refusal(&self) -> Refusal {
        match self.resolved() {
            Ok(_) => panic!("{:?} was accepted", self.line),
            Err(refusal) => refusal,
        }
    }
}

fn warnings(launch: &Launch) -> Vec<&str> {
    fn warning(note: &Note) -> Option<&str> {
        match note {
            Note::Warning(text) => Some(text),
            Note::Info(_) => None,
        }
    }
    launch.notes.iter().filter_map(warning).collect()
}

fn streams(stdout: bool, stderr: bool) -> StreamSelection {
    StreamSelection { stdout, stderr }
}

#[test]
fn impossible_values_raise_what_the_reference_raises() {
    for (line, text) in [
        (
            &["--nnodes", "a"][..],
            "ValueError: invalid literal for int() with base 10: 'a'",
        ),
        (
            &["--nnodes="],
            "ValueError: invalid literal for int() with base 10: ''",
        ),
        (
            &["--nnodes", "1:2:3"],
            "RuntimeError: nnodes=1:2:3 is not in \"MIN:MAX\" format",
        ),
        (
            &["--nnodes", "0"],
            "AssertionError: min_nodes must be > 0 and <= max_nodes, got min_nodes=0, max_nodes=0",
        ),
        (
            &["--nnodes", "2:1"],
            "AssertionError: min_nodes must be > 0 and <= max_nodes, got min_nodes=2, max_nodes=1",
        ),
        (
            &["--max-restarts", "-1"],
            "AssertionError: max_restarts must be >= 0",
        ),
        (
            &["--nproc-per-node", "abc"],
            "ValueError: Unsupported nproc_per_node value: abc",
        ),
        (
            &["--nproc-per-node", "1.5"],
            "ValueError: Unsupported nproc_per_node value: 1.5",
        ),
        (
            &["--nproc-per-node", "gpu"],
            "ValueError: Cuda is not available.",
        ),
        (
            &["--nproc-per-node", "xpu"],
            "ValueError: Xpu is not available.",
        ),
        (
            &["--nproc-per-node", "0"],
            "AssertionError: nproc_per_node must be > 0, got 0",
        ),
        (
            &["--monitor-interval", "0"],
            "AssertionError: monitor_interval must be > 0, got 0",
        ),
        (
            &["--no-python", "-m"],
            "ValueError: Don't use both the '--no-python' flag and the '--module' flag at the \
             same time.",
        ),
        (
            &["--rdzv-backend", "foo"],
            "ValueError: The rendezvous backend 'foo' is not registered. Did you forget to call \
             `register`?",
        ),
        (
            &["--rdzv-conf", "foo"],
            "ValueError: The rendezvous configuration option 'foo' must have a value specified.",
        ),
        (
            &["--rdzv-conf", "=3"],
            "ValueError: The rendezvous configuration string must be in format \
             <key1>=<value1>,...,<keyN>=<valueN>.",
        ),
        (
            &["--rdzv-endpoint", "a:65536"],
            "ValueError: The port number of the rendezvous endpoint 'a:65536' must be an integer \
             between 0 and 65536.",
        ),
        (
            &["--rdzv-endpoint", "localhost"],
            "ValueError: port is missing in endpoint: localhost. Try to specify --master-port",
        ),
        (
            &["--local-ranks-filter", "a"],
            "ValueError: --local_ranks_filter must be a comma-separated list of integers e.g. \
             --local_ranks_filter=0,1,2",
        ),
        (
            &["-r", "4"],
            r"ValueError: 4 does not match: <^[0123]$> or <^(\d:[0123],)*(\d:[0123])$>",
        ),
        (
            &["--log-dir", "taken"],
            "NotADirectoryError: log_dir: taken is a file",
        ),
        (
            &["--log-dir", "/dev/null", "--duplicate-stdout-filters", "a"],
            "NotADirectoryError: [Errno 20] Not a directory: '/dev/null/filtered_stdout.log'",
        ),
        (
            &["--logs-specs", "bogus"],
            "ValueError: Could not find entrypoint under 'torchrun.logs_specs[bogus]' key",
        ),
        (
            &["--shutdown-timeout", "-1"],
            "ValueError: shutdown_timeout must be non-negative, got -1",
        ),
        (
            &["--numa-binding", "node"],
            "RuntimeError: No accelerator available for NUMA binding",
        ),
        (&["--event-log-handler", "bogus"], "KeyError: 'bogus'"),
        (
            &["--signals-to-handle", "SIGTERM,SIGKILL"],
            "OSError: [Errno 22] Invalid argument",
        ),
    ] {
        let line = [line, &["s.py"]].concat();
        let refusal = case(&line).files(&["/work/taken"]).refusal();
        assert!(matches!(refusal, Refusal::Raised(_)), "{line:?}");
        assert_eq!(refusal.to_string(), text, "{line:?}");
    }
}

#[test]
fn a_single_node_needs_no_rendezvous_and_keeps_a_run_id_that_was_given() {
    let launch = case(&["s.py"]).launch();
    assert_eq!(launch.plan.rendezvous, RendezvousPlan::Local);
    assert_eq!(launch.plan.run_id.as_str(), "a-random-id");
    for line in [
        &["--rdzv-id", "mine", "s.py"][..],
        &["--standalone", "--rdzv-id", "mine", "s.py"],
        &[
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
            "--rdzv-id=mine",
            "s.py",
        ],
    ] {
        let launch = case(line).launch();
        assert_eq!(launch.plan.rendezvous, RendezvousPlan::Local);
        assert_eq!(launch.plan.run_id.as_str(), "mine");
    }
}

#[test]
fn an_address_makes_the_rendezvous_static() {
    let at = |host: &str, port| Endpoint {
        host: host.to_owned(),
        port,
    };
    for (line, endpoint, node_rank, nodes) in [
        (&["--master-port", "7"][..], at("127.0.0.1", 7), 0, 1),
        (&["--rdzv-endpoint", "h:8"], at("h", 8), 0, 1),
        (
            &[
                "--nnodes",
                "1:2",
                "--node-rank",
                "1",
                "--master-addr",
                "[::1]",
            ],
            at("::1", 29500),
            1,
            2,
        ),
    ] {
        let launch = case(&[line, &["s.py"]].concat()).launch();
        assert_eq!(
            launch.plan.rendezvous,
            RendezvousPlan::Static {
                endpoint,
                node_rank: GroupRank(node_rank),
                nodes,
                timeout: Duration::from_secs(900),
            }
        );
        assert_eq!(launch.plan.run_id.as_str(), "none");
    }
}

#[test]
fn an_elastic_range_without_a_dynamic_backend_is_warned_about() {
    let launch = case(&["--nnodes", "1:2", "s.py"]).launch();
    let [warning] = warnings(&launch)[..] else {
        panic!("{:?}", launch.notes)
    };
    assert!(warning.contains("exactly 2 nodes"), "{warning}");
}

#[test]
fn flags_without_effect_are_warned_about() {
    let launch = case(&["--rdzv-backend", "c10d", "--node-rank", "1", "s.py"]).launch();
    assert_eq!(
        warnings(&launch),
        [
            "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not \
             specified.",
            "node_rank is only used for static rdzv_backend. It will be ignored for \
             rdzv_backend=c10d."
        ]
    );
}

#[test]
fn dynamic_rendezvous_over_several_nodes_is_refused_in_one_sentence() {
    for line in [
        &["--standalone", "--nnodes", "2"][..],
        &["--rdzv-backend", "c10d", "--nnodes", "1:4"],
        &["--rdzv-backend", "etcd"],
        &["--rdzv-backend", "etcd-v2", "--nnodes", "2"],
    ] {
        let refusal = case(&[line, &["s.py"]].concat()).refusal();
        assert!(matches!(refusal, Refusal::Unsupported(_)), "{line:?}");
        assert!(refusal.to_string().starts_with(line[0]), "{refusal}");
        assert!(!refusal.to_string().contains('\n'));
    }
}

#[test]
fn a_node_rank_beyond_the_nodes_is_refused_at_once() {
    let refusal = case(&["--nnodes", "2", "--node-rank", "2", "s.py"]).refusal();
    assert_eq!(
        refusal.to_string(),
        "ValueError: --node-rank 2 is not in 0..2 (--nnodes 2): nodes are numbered from 0"
    );
}

#[test]
fn workers_are_counted_by_what_they_need() {
    let size = |word, gpus, xpus, list: Option<&str>| {
        let mut case = case(&["--nproc-per-node", word, "s.py"]);
        case.machine.gpus = gpus;
        case.machine.xpus = xpus;
        if let Some(list) = list {
            case = case.with("CUDA_VISIBLE_DEVICES", list);
        }
        case.launch().plan.local_world_size
    };
    assert_eq!(size(" 3 ", 0, 0, None), 3);
    assert_eq!(size("cpu", 4, 0, None), 6);
    assert_eq!(size("gpu", 4, 0, None), 4);
    assert_eq!(size("gpu", 4, 0, Some("2, 0")), 2);
    assert_eq!(size("gpu", 4, 0, Some("2,-1,3")), 1);
    assert_eq!(size("gpu", 4, 0, Some("GPU-abc,GPU-def,1")), 3);
    assert_eq!(size("xpu", 0, 2, None), 2);
    assert_eq!(size("auto", 4, 2, None), 4);
    assert_eq!(size("auto", 4, 2, Some("")), 2);
    assert_eq!(size("auto", 0, 0, None), 6);
}

#[test]
fn several_workers_get_one_thread_each_unless_the_user_said_otherwise() {
    let threads = |launch: &Launch| {
        let value = launch.plan.environment.get(OsStr::new("OMP_NUM_THREADS"));
        value.and_then(|value| value.to_str().map(str::to_owned))
    };
    let launch = case(&["--nproc-per-node", "2", "s.py"]).launch();
    assert_eq!(threads(&launch).as_deref(), Some("1"));
    let [warning] = warnings(&launch)[..] else {
        panic!("{:?}", launch.notes)
    };
    let lines: Vec<&str> = warning.split('\n').collect();
    let stars = "*".repeat(41);
    assert_eq!((lines[0], lines[1], lines[3]), ("", &*stars, &*stars));
    let launch = case(&["--nproc-per-node", "2", "s.py"])
        .with("OMP_NUM_THREADS", "7")
        .launch();
    assert_eq!(threads(&launch).as_deref(), Some("7"));
    assert!(launch.notes.is_empty());
    assert_eq!(threads(&case(&["s.py"]).launch()), None);
}

#[test]
fn more_workers_than_devices_cannot_have_one_each() {
    let line = ["--virtual-local-rank", "--nproc-per-node", "2", "s.py"];
    assert_eq!(
        case(&line)
            .with("CUDA_VISIBLE_DEVICES", "4")
            .refusal()
            .to_string(),
        "ValueError: local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4"
    );
    assert_eq!(
        case(&line)
            .with("CUDA_VISIBLE_DEVICES", "4,5")
            .with("HIP_VISIBLE_DEVICES", "0")
            .refusal()
            .to_string(),
        "ValueError: local_rank 1 exceeds available GPUs in HIP_VISIBLE_DEVICES=0"
    );
    case(&line).with("CUDA_VISIBLE_DEVICES", "4, 5").launch();
    case(&line).launch();
}

#[test]
fn commands_are_built_as_the_mode_says() {
    let words = |case: &Case| {
        let entrypoint = case.launch().plan.entrypoint;
        let mut words = vec![entrypoint.program.into_string().unwrap()];
        let text = |word: OsString| word.into_string().unwrap();
        words.extend(entrypoint.arguments.into_iter().map(text));
        (words, entrypoint.name)
    };
    let (line, name) = words(&case(&["s.py", "a"]));
    assert_eq!(line, ["/usr/bin/python3", "-u", "s.py", "a"]);
    assert_eq!(name, "s.py");
    let (line, name) = words(&case(&["-m", "pkg.mod", "a"]));
    assert_eq!(line, ["/usr/bin/python3", "-u", "-m", "pkg.mod", "a"]);
    assert_eq!(name, "pkg.mod");
    let (line, name) = words(&case(&["--no-python", "echo", "hi"]));
    assert_eq!(line, ["echo", "hi"]);
    assert_eq!(name, "echo");
    let (line, name) = words(&case(&["--run-path", "--no-python", "s.py", "a"]));
    assert_eq!(line[..3], ["/usr/bin/python3", "-u", "-c"]);
    assert_eq!(line[4..], ["s.py", "a"]);
    assert!(!line[3].contains('$'), "arguments are templates");
    assert_eq!(name, "run_script_path");
    let mut legacy = case(&["s.py", "--foo"]);
    legacy.called.local_rank_argument = true;
    let (line, _) = words(&legacy);
    assert_eq!(
        line,
        [
            "/usr/bin/python3",
            "-u",
            "s.py",
            "--local-rank=${local_rank}",
            "--foo"
        ]
    );
}

#[test]
fn the_interpreter_is_the_one_of_the_users_environment() {
    let program = |case: Case| case.launch().plan.entrypoint.program;
    let link_in = |directory: &str| {
        let mut case = case(&["s.py"]);
        case.called.beside = Some(directory.into());
        case.files(&[
            "/venv/bin/python3",
            "/active/bin/python3",
            "/usr/local/bin/python3",
            "/venv/bin/../pyvenv.cfg",
        ])
    };
    assert_eq!(
        program(link_in("/venv/bin").with("PYTHON_EXEC", "my-python")),
        "my-python"
    );
    assert_eq!(
        program(link_in("/venv/bin").with("VIRTUAL_ENV", "/active")),
        "/venv/bin/python3"
    );
    assert_eq!(
        program(link_in("/usr/local/bin").with("VIRTUAL_ENV", "/active")),
        "/active/bin/python3"
    );
    assert_eq!(program(link_in("/usr/local/bin")), "/usr/local/bin/python3");
    assert_eq!(program(link_in("/nowhere")), "/usr/local/bin/python3");
    let none = case(&["s.py"]).with("PATH", "/empty").refusal();
    assert!(
        none.to_string()
            .starts_with("FileNotFoundError: no Python interpreter"),
        "{none}"
    );
}

#[test]
fn output_goes_where_the_flags_say() {
    let logs = |line: &[&'static str]| case(&[line, &["s.py"]].concat()).launch().plan.logs;
    let plain = logs(&[]);
    assert_eq!(plain.base, LogBase::Temporary("/tmp".into()));
    assert_eq!(plain.redirects, RankSelection::All(streams(false, false)));
    assert_eq!(plain.prefix_template, "[${role_name}${local_rank}]:");
    assert_eq!(plain.console_ranks, None);
    assert_eq!(
        logs(&["--log-dir", "d"]).base,
        LogBase::Directory("/work/d".into())
    );
    assert_eq!(
        logs(&["--log-dir="]).base,
        LogBase::Temporary("/tmp".into())
    );
    assert_eq!(logs(&["--log-dir", "/dev/null"]).base, LogBase::Discard);
    assert_eq!(
        logs(&["-r", "0:3,12:2"]).redirects,
        RankSelection::Each(BTreeMap::from([
            (0, streams(true, true)),
            (12, streams(false, true))
        ]))
    );
    assert_eq!(
        logs(&["--local-ranks-filter", "0, 2,-1"]).console_ranks,
        Some(BTreeSet::from([0, 2]))
    );
    assert_eq!(
        logs(&["--duplicate-stdout-filters", "a,,b,c"]).stdout_filters,
        ["a,b", "c"]
    );
    assert_eq!(logs(&["--duplicate-stderr-filters="]).stderr_filters, [""]);
}

#[test]
fn prefix_and_grace_fall_back_to_the_environment() {
    let with_variables = |line: &[&'static str]| {
        case(line)
            .with("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}>")
            .with("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5")
            .launch()
            .plan
    };
    let plan = with_variables(&["s.py"]);
    assert_eq!(plan.logs.prefix_template, "<${rank}>");
    assert_eq!(plan.shutdown_timeout, Duration::from_secs(5));
    let plan = with_variables(&[
        "--log-line-prefix-template",
        "x",
        "--shutdown-timeout",
        "3",
        "s.py",
    ]);
    assert_eq!(plan.logs.prefix_template, "x");
    assert_eq!(plan.shutdown_timeout, Duration::from_secs(3));
    assert_eq!(
        case(&["s.py"]).launch().plan.shutdown_timeout,
        Duration::from_secs(30)
    );
}

#[test]
fn signal_names_become_numbers_and_unknown_ones_are_left_out() {
    let launch = case(&["--signals-to-handle", "SIGUSR1, SIGTERM,SIGFOO", "s.py"]).launch();
    assert_eq!(launch.plan.signals, [10, 15]);
    assert_eq!(launch.plan.signals_text, "SIGUSR1, SIGTERM,SIGFOO");
    assert_eq!(
        warnings(&launch),
        ["Failed to register signal handler for SIGFOO: there is no signal of that name"]
    );
    assert_eq!(case(&["s.py"]).launch().plan.signals, [15, 2, 1, 3]);
}
