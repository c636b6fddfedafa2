//! Tests of workers that are bound on this machine.

use rdzv_agent::config::{Entrypoint, LogBase, LogPlan};
use rdzv_agent::launcher::topology::Hardware;
use rdzv_agent::{AgentConfig, Outcome, run};
use rdzv_agent_proto::topology::CpuList;

/// Runs workers on these processors; returns the outcome and their output.
fn bound(workers: u32, processors: [u32; 2], script: &str) -> (Outcome, Vec<String>) {
    let directory = tempfile::tempdir().unwrap();
    let said = directory.path().join("said");
    let entrypoint = Entrypoint {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into(), "sh".into(), said.clone().into()],
        name: "sh".to_owned(),
    };
    let mut config = AgentConfig {
        entrypoint,
        ..AgentConfig::default()
    };
    config.identity.local_world_size = workers;
    config.stop.signals.clear();
    config.logs = LogPlan::new(LogBase::Discard);
    config.environment = std::env::vars_os().collect();
    let lists = processors.map(|one| CpuList::parse(&one.to_string()).unwrap());
    config.placement.processors = lists.into();
    let outcome = run(config, &mut |_| {});
    let text = std::fs::read_to_string(said).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    (outcome, lines)
}

/// Covers both cases, because a process has at most one agent at a time.
#[test]
fn bound_workers_run_where_they_are_placed_and_others_where_the_agent_may() {
    let all = Hardware::of_this_machine().affinity();
    let (first, last) = (all.first().unwrap(), all.iter().last().unwrap());
    let script =
        "echo $LOCAL_RANK $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) >> $1";
    let (outcome, lines) = bound(3, [first, last], script);
    assert!(matches!(outcome, Outcome::Succeeded), "{outcome:?}");
    assert_eq!(
        lines,
        [
            format!("0 {first}"),
            format!("1 {last}"),
            format!("2 {all}")
        ]
    );

    // A worker that cannot be bound ends the launch.
    let (outcome, _) = bound(2, [first, last + 200], "exec sleep 1000");
    let Outcome::Error(error) = outcome else {
        panic!("{outcome:?}");
    };
    let expected = "cannot start the worker with local rank 1, '/bin/sh': cannot bind it to its processors (--numa-binding): Invalid argument";
    assert!(error.to_string().starts_with(expected), "{error}");
}
