//! Tests of explanations, on machines that each test chooses.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Case, case};

fn explained(case: &Case) -> Value {
    serde_json::from_str(&case.explanation().json()).unwrap()
}

/// Returns value, source and reason of a line.
///
/// The source is a flag, a variable or the kind of the origin.
fn line(explanation: &Value, name: &str) -> (String, String, String) {
    let sections = explanation["sections"].as_array().unwrap().iter();
    let mut lines = sections.flat_map(|section| section["lines"].as_array().unwrap());
    let line = lines.find(|line| line["name"] == name);
    let line = line.unwrap_or_else(|| panic!("no line {name} in {explanation:#}"));
    let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
    let source = match text("origin").as_str() {
        "flag" | "variable" => text("source"),
        other => other.to_owned(),
    };
    (text("value"), source, text("reason"))
}

fn value(explanation: &Value, name: &str) -> String {
    line(explanation, name).0
}

#[test]
fn a_launch_is_explained_as_a_table() {
    let case = case(&[
        "--nproc-per-node",
        "cpu",
        "-t",
        "0:3",
        "train.py",
        "--lr=1e-3",
        "a b",
    ])
    .with("PET_MAX_RESTARTS", "3")
    .with("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "5");
    let table = case.explanation().table();
    // The last section grows with every new flag, so it is not in the snapshot.
    let (planned, _) = table.split_once("\nOther settings\n").unwrap();
    insta::assert_snapshot!(planned);
}

#[test]
fn every_flag_is_mentioned_once() {
    let line = [
        "--local-addr",
        "10.0.0.1",
        "--master-port",
        "7",
        "--logs-specs",
        "default",
        "s.py",
    ];
    let explanation = explained(&case(&line));
    let sections = explanation["sections"].as_array().unwrap().iter();
    let lines = sections.flat_map(|section| section["lines"].as_array().unwrap());
    let sources: Vec<&str> = lines.filter_map(|line| line["source"].as_str()).collect();
    for flag in [
        "--nnodes",
        "--role",
        "--logs-specs",
        "--master-port",
        "--monitor-interval",
    ] {
        let times = sources.iter().filter(|source| **source == flag).count();
        assert_eq!(times, 1, "{flag} in {sources:?}");
    }
    let different: BTreeSet<&str> = sources.iter().copied().collect();
    assert!(different.len() + 3 >= sources.len(), "{sources:?}");
}

#[test]
fn typed_values_variables_and_defaults_are_distinguished() {
    let case = case(&["--role", "trainer", "s.py"])
        .with("PET_NNODES", "2")
        .with("OMP_NUM_THREADS", "4");
    let shown = explained(&case);
    let short = |name: &str| {
        let (value, source, _) = line(&shown, name);
        (value, source)
    };
    let is = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(short("role"), is("trainer", "--role"));
    assert_eq!(short("nodes"), is("2", "PET_NNODES"));
    assert_eq!(short("workers on this node"), is("1", "default"));
    assert_eq!(short("OMP_NUM_THREADS"), is("4", "OMP_NUM_THREADS"));
    assert_eq!(short("endpoint"), is("127.0.0.1:29500", "decided"));
    assert_eq!(short("MASTER_PORT"), is("29500", "default"));
}

#[test]
fn a_count_says_what_was_counted() {
    let mut case = case(&["--nproc-per-node", "gpu", "s.py"]).with("CUDA_VISIBLE_DEVICES", "2,3");
    case.machine.gpus = 4;
    assert_eq!(
        line(&explained(&case), "workers on this node"),
        (
            "2".to_owned(),
            "--nproc-per-node".to_owned(),
            "2 of 4 NVIDIA devices are visible".to_owned()
        )
    );
}

#[test]
fn who_hosts_the_rendezvous_follows_from_the_endpoint() {
    let shown = |endpoint: &'static str, settings: &'static str| {
        let line = [
            "--nnodes=2:4",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint",
            endpoint,
            "--rdzv-conf",
            settings,
            "s.py",
        ];
        value(&explained(&case(&line)), "coordinator")
    };
    assert_eq!(
        shown("this-node", ""),
        "this node's agent, unless a store is already at this-node:29400"
    );
    assert_eq!(
        shown("that-node:77", ""),
        "the agent or store at that-node:77"
    );
    assert_eq!(shown("that-node:77", "is_host=1"), "this node's agent");
    let list = "that-node:77,this-node,third";
    assert_eq!(
        shown(list, ""),
        "the elected agent among those at that-node:77, this-node:77, third:77"
    );
    assert_eq!(
        shown(list, "voters=1"),
        "the agent or store at that-node:77"
    );
    let fixed = |rank: &'static str| {
        let line = [
            "--nnodes=2",
            "--rdzv-endpoint=n:1",
            "--node-rank",
            rank,
            "s.py",
        ];
        value(&explained(&case(&line)), "coordinator")
    };
    assert_eq!(fixed("0"), "this node's agent");
    assert_eq!(fixed("1"), "the agent with --node-rank 0");
}

#[test]
fn what_only_the_nodes_together_know_is_not_made_up() {
    let line = [
        "--nnodes=2:4",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=n:1",
        "s.py",
    ];
    let shown = explained(&case(&line));
    assert_eq!(value(&shown, "RANK"), "known after the rendezvous");
    assert_eq!(value(&shown, "LOCAL_RANK"), "0");
    assert_eq!(value(&shown, "nodes"), "2 to 4");
    let shown = explained(&case(&["--nproc-per-node", "12", "s.py"]));
    assert_eq!(value(&shown, "RANK"), "0, 1, … 11");
    assert_eq!(value(&shown, "WORLD_SIZE"), "12");
    assert_eq!(value(&shown, "MASTER_PORT"), "a free port");
}

#[test]
fn workers_commands_are_shown_as_typed() {
    let shown = explained(&case(&[
        "--no-python",
        "--nproc-per-node",
        "2",
        "echo",
        "it's",
        "$local_rank",
    ]));
    assert_eq!(value(&shown, "worker 1"), r"echo 'it'\''s' 1");
    assert_eq!(value(&shown, "program"), "echo");
    let shown = explained(&case(&["-m", "--nproc-per-node", "2", "pkg.train"]));
    assert_eq!(
        value(&shown, "each worker"),
        "/usr/bin/python3 -u -m pkg.train"
    );
    let (path, _, why) = line(&shown, "interpreter");
    assert_eq!(
        (&*path, &*why),
        ("/usr/bin/python3", "the first python3 in PATH")
    );
}

#[test]
fn bound_workers_show_their_processors() {
    let mut case = case(&["--numa-binding", "node", "--nproc-per-node", "2", "s.py"]);
    case.machine.gpus = 2;
    let shown = explained(&case);
    let (processors, _, why) = line(&shown, "worker 1");
    assert_eq!((&*processors, &*why), ("0-5", "device 1 is on NUMA node 0"));
}

#[test]
fn what_is_watched_is_explained_with_its_origin() {
    let case = case(&["--hang-timeout", "5", "--heartbeat-timeout=init=60", "s.py"])
        .with("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
        .with("TORCHELASTIC_TIMER_FILE", "/tmp/pipe")
        .with("TORCHELASTIC_HEALTH_CHECK_PORT", "8080");
    let shown = explained(&case);
    assert_eq!(
        value(&shown, "group without progress"),
        "after 5 s without progress"
    );
    let (pipe, variable, _) = line(&shown, "watchdog");
    assert_eq!(
        (&*pipe, &*variable),
        ("/tmp/pipe", "TORCHELASTIC_ENABLE_FILE_TIMER")
    );
    assert_eq!(value(&shown, "health check"), "port 8080, all addresses");
    assert_eq!(
        value(&shown, "location of a hang"),
        "the kernel's information"
    );
    assert!(
        case.explanation()
            .table()
            .contains("--heartbeat-timeout init=60")
    );
}
