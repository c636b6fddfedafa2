//! Tests of workers, threads, devices, output and signals.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::time::Duration;

use rdzv_agent::config::{LogBase, RankSelection, StreamSelection};
use rdzv_agent_proto::topology::Quota;

use super::super::{Launch, Note};
use super::{case, warnings};

fn streams(stdout: bool, stderr: bool) -> StreamSelection {
    StreamSelection { stdout, stderr }
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
        case.launch().plan.identity.local_world_size
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
fn a_limit_of_the_control_group_counts_for_processors() {
    let quota = |quota, period| Some(Quota { quota, period });
    let launched = |word, quota| {
        let mut case = case(&["--nproc-per-node", word, "s.py"]).with("OMP_NUM_THREADS", "1");
        case.machine.quota = quota;
        case.launch()
    };
    let limited = launched("cpu", quota(150_000, 100_000));
    assert_eq!(limited.plan.identity.local_world_size, 2);
    let [warning] = warnings(&limited)[..] else {
        panic!("{:?}", limited.notes)
    };
    for part in [
        "is 2 instead of 6",
        "/sys/fs/cgroup/cpu.max",
        "150000 of 100000",
    ] {
        assert!(warning.contains(part), "{warning}");
    }
    assert_eq!(
        launched("auto", quota(10, 100))
            .plan
            .identity
            .local_world_size,
        1
    );
    let ample = launched("cpu", quota(600, 100));
    assert_eq!(ample.plan.identity.local_world_size, 6);
    assert!(warnings(&ample).is_empty());
    assert_eq!(
        launched("3", quota(10, 100)).plan.identity.local_world_size,
        3
    );
}

#[test]
fn workers_are_bound_before_any_starts_or_the_launch_is_refused() {
    let line = ["--numa-binding", "node", "--nproc-per-node", "2", "s.py"];
    let mut case = case(&line);
    case.machine.gpus = 2;
    let bound: Vec<String> = case
        .launch()
        .plan
        .placement
        .processors
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(bound, ["0-5", "0-5"]);
    case.machine.gpus = 1;
    let refusal = case.refusal().to_string();
    assert!(
        refusal.starts_with("RuntimeError: local rank 1 has no device"),
        "{refusal}"
    );
    assert!(
        super::case(&["s.py"])
            .launch()
            .plan
            .placement
            .processors
            .is_empty()
    );
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
    assert!(warnings(&launch).is_empty());
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
fn prefix_and_shutdown_timeout_fall_back_to_the_environment() {
    let with_variables = |line: &[&'static str]| {
        case(line)
            .with("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}>")
            .with("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5")
            .launch()
            .plan
    };
    let plan = with_variables(&["s.py"]);
    assert_eq!(plan.logs.prefix_template, "<${rank}>");
    assert_eq!(plan.stop.shutdown_timeout, Duration::from_secs(5));
    let plan = with_variables(&[
        "--log-line-prefix-template",
        "x",
        "--shutdown-timeout",
        "3",
        "s.py",
    ]);
    assert_eq!(plan.logs.prefix_template, "x");
    assert_eq!(plan.stop.shutdown_timeout, Duration::from_secs(3));
    assert_eq!(
        case(&["s.py"]).launch().plan.stop.shutdown_timeout,
        Duration::from_secs(30)
    );
}

#[test]
fn signal_names_become_numbers_and_unknown_ones_are_left_out() {
    let launch = case(&["--signals-to-handle", "SIGUSR1, SIGTERM,SIGFOO", "s.py"]).launch();
    assert_eq!(launch.plan.stop.signals, [10, 15]);
    assert_eq!(launch.plan.stop.signals_text, "SIGUSR1, SIGTERM,SIGFOO");
    assert_eq!(
        warnings(&launch),
        ["Failed to register signal handler for SIGFOO: this signal does not exist"]
    );
    assert_eq!(case(&["s.py"]).launch().plan.stop.signals, [15, 2, 1, 3]);
}

#[test]
fn the_launch_can_be_read_in_words() {
    let launch = case(&["--rdzv-id", "job", "--master-port", "7", "s.py"]).launch();
    let Some(Note::Info(text)) = launch.notes.last() else {
        panic!("{:?}", launch.notes)
    };
    for line in [
        "\n  entrypoint               : s.py\n",
        "\n  rdzv_endpoint            : 127.0.0.1:7\n",
        "\n  run_id                   : job\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}
