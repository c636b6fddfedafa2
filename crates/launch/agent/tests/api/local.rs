//! Tests of agents whose workers are processes.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_agent::AgentEvent;
use rdzv_agent::api::{
    ElasticAgent, LocalElasticAgent, RunError, WorkerEntrypoint, WorkerGroupFailure,
    WorkerLocation, WorkerState,
};
use rdzv_agent::config::{
    HangAction, HangPlan, LogBase, LogPlan, MasterPort, RankSelection, StreamSelection,
};
use rdzv_agent::outcome::Exit;
use rdzv_core::rank::Rank;

use crate::{in_turn, lines, noted, quiet, shell};

fn agent(builder: rdzv_agent::api::WorkerSpecBuilder) -> LocalElasticAgent {
    LocalElasticAgent::new(builder.build().unwrap())
}

#[test]
fn a_command_that_succeeds_leaves_a_full_snapshot() {
    let (_turn, directory) = in_turn();
    let script = "echo $RANK/$WORLD_SIZE $ROLE_NAME $MASTER_PORT >> $DIR/said";
    let mut agent = agent(shell(script, &directory).role("trn").local_world_size(2));
    let result = agent.run("trn").unwrap();
    assert_eq!(result.state, WorkerState::Succeeded);
    assert!(!result.is_failed());
    assert!(result.return_values.is_empty(), "commands return nothing");
    let group = agent.worker_group("trn").unwrap();
    let port = group.master_port().unwrap();
    assert_eq!(
        lines(&directory, "said"),
        [format!("0/2 trn {port}"), format!("1/2 trn {port}")]
    );
    assert_eq!(group.state, WorkerState::Succeeded);
    assert_eq!(
        (group.group_rank_or_unset(), group.group_world_size),
        (0, Some(1))
    );
    let second = &group.workers[1];
    assert!(matches!(second.id, Some(WorkerLocation::Process(pid)) if pid > 1));
    assert_eq!(
        (second.global_rank_or_unset(), second.world_size_or_unset()),
        (1, 2)
    );
    assert_eq!(
        (
            second.role_rank_or_unset(),
            second.role_world_size_or_unset()
        ),
        (1, 2)
    );
}

#[test]
fn failures_come_by_global_rank_with_the_first_one_named() {
    let (_turn, directory) = in_turn();
    // The failing worker waits for the other worker; otherwise the agent would stop the other
    // worker too early.
    let script = "
echo x >> $DIR/attempts
other=$DIR/on$TORCHELASTIC_RESTART_COUNT
test $RANK = 1 || { touch $other; exec sleep 1000; }
until [ -e $other ]; do sleep 0.01; done
exit 7";
    let builder = shell(script, &directory)
        .local_world_size(2)
        .max_restarts(1);
    let result = agent(builder).run("default").unwrap();
    assert!(result.is_failed());
    assert_eq!(lines(&directory, "attempts").len(), 4, "one restart");
    assert_eq!(result.failures[&Rank(0)].exit, Exit::Signal(15));
    assert!(result.failures[&Rank(0)].stopped_by_agent);
    let failure = WorkerGroupFailure::new("sh", result);
    let first = failure.first_failure().unwrap();
    assert_eq!((first.rank, first.exit), (Rank(1), Exit::Code(7)));
    let texts = failure.worker_exceptions();
    assert!(texts[&Rank(1)].contains("exited with code 7"), "{texts:?}");
    assert!(
        failure.to_string().contains("the first of 2 failures"),
        "{failure}"
    );
}

#[test]
fn a_failure_that_no_restart_helps_costs_none() {
    let (_turn, directory) = in_turn();
    let script = "echo $TORCHELASTIC_RESTART_COUNT >> $DIR/attempts; exit 3";
    let builder = shell(script, &directory).max_restarts(5).non_retryable(3);
    assert!(agent(builder).run("default").unwrap().is_failed());
    assert_eq!(lines(&directory, "attempts"), ["0"]);
}

#[test]
fn the_next_attempt_comes_after_the_settle_delay() {
    let (_turn, directory) = in_turn();
    let delay = Duration::from_millis(300);
    let builder = shell("test $TORCHELASTIC_RESTART_COUNT = 1", &directory).settle_delay(delay);
    let (builder, times) = noted(builder, |event| match event {
        AgentEvent::WorkerExited { .. } | AgentEvent::RendezvousBegan { .. } => {
            Some(Instant::now())
        }
        _ => None,
    });
    assert!(!agent(builder).run("default").unwrap().is_failed());
    let times: Vec<Instant> = times.try_iter().collect();
    let [_began, failed, again, _done] = times[..] else {
        panic!("{times:?}");
    };
    assert!(again - failed >= delay);
}

#[test]
fn a_handle_stops_a_run_in_order() {
    let (_turn, directory) = in_turn();
    let script = "trap 'echo asked >> $DIR/said; exit 0' HUP; sleep 1000 & wait";
    let (builder, running) = noted(shell(script, &directory), |event| {
        let healthy = WorkerState::Healthy;
        matches!(event, AgentEvent::StateChanged { state, .. } if *state == healthy).then_some(())
    });
    let mut agent = agent(builder);
    let (stop, look) = (agent.stop_handle(), agent.observer());
    let stopping = thread::spawn(move || {
        running.recv().unwrap();
        let state = look().state;
        stop.stop(1);
        state
    });
    let error = agent.run("default").unwrap_err();
    assert!(
        matches!(
            error,
            RunError::Signalled {
                signal: 1,
                workers_started: true
            }
        ),
        "{error}"
    );
    assert_eq!(stopping.join().unwrap(), WorkerState::Healthy);
    let group = agent.worker_group("default").unwrap();
    assert_eq!(group.state, WorkerState::Failed);
}

#[test]
fn two_agents_with_processes_do_not_run_at_once() {
    let (_turn, directory) = in_turn();
    let second = shell("exit 0", &directory).build().unwrap();
    let (builder, refused) = noted(shell("exit 0", &directory), move |event| {
        let run_second = || LocalElasticAgent::new(second.clone()).run("default");
        matches!(event, AgentEvent::WorkerStarted { .. }).then(|| run_second().unwrap_err())
    });
    assert!(!agent(builder).run("default").unwrap().is_failed());
    assert!(matches!(refused.recv().unwrap(), RunError::Busy));
}

#[test]
fn the_master_port_may_be_fixed_by_a_socket_that_is_kept() {
    let (_turn, directory) = in_turn();
    let kept = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = kept.local_addr().unwrap().port();
    let builder = shell("echo $MASTER_ADDR:$MASTER_PORT >> $DIR/said", &directory)
        .master_port(MasterPort::Kept(Arc::new(kept)));
    assert!(!agent(builder).run("default").unwrap().is_failed());
    assert_eq!(lines(&directory, "said"), [format!("127.0.0.1:{port}")]);
}

#[test]
fn the_master_port_may_be_fixed_by_its_number() {
    let (_turn, directory) = in_turn();
    let port = rdzv_testing::free_port();
    let holder = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let spec =
        || shell("echo $MASTER_PORT >> $DIR/said", &directory).master_port(MasterPort::Fixed(port));
    let taken = agent(spec()).run("default").unwrap_err().to_string();
    assert!(taken.contains(&port.to_string()), "{taken}");
    drop(holder);
    assert!(!agent(spec()).run("default").unwrap().is_failed());
    assert_eq!(lines(&directory, "said"), [port.to_string()]);
}

#[test]
fn a_program_that_is_missing_is_an_error_of_the_run() {
    let (_turn, directory) = in_turn();
    let builder = quiet(
        WorkerEntrypoint::command("no-such-program-here"),
        &directory,
    );
    let error = agent(builder).run("default").unwrap_err().to_string();
    assert!(error.contains("no-such-program-here"), "{error}");
}

#[test]
fn a_python_script_runs_with_its_arguments() {
    let (_turn, directory) = in_turn();
    let script = directory.path().join("script.py");
    let text =
        "import os, sys\nopen(os.environ['DIR'] + '/said', 'a').write(' '.join(sys.argv[1:]))";
    std::fs::write(&script, text).unwrap();
    let entrypoint = WorkerEntrypoint::script(&script).args(["--lr", "$local_rank"]);
    let result = agent(quiet(entrypoint, &directory).args(["last"])).run("default");
    assert!(!result.unwrap().is_failed());
    assert_eq!(lines(&directory, "said"), ["--lr 0 last"]);
}

#[test]
fn the_worker_with_rank_0_may_host_the_store_at_a_port_kept_for_it() {
    let (_turn, directory) = in_turn();
    let script = "echo $TORCHELASTIC_USE_AGENT_STORE $MASTER_PORT >> $DIR/said
        test $TORCHELASTIC_RESTART_COUNT = 1";
    let builder = shell(script, &directory).share_store(false).max_restarts(1);
    assert!(!agent(builder).run("default").unwrap().is_failed());
    let said = lines(&directory, "said");
    assert_eq!(said.len(), 2);
    assert!(
        said.iter().all(|line| line.starts_with("False ")),
        "{said:?}"
    );
    assert_ne!(said[0], said[1], "another one for every attempt");
}

#[test]
fn virtual_local_ranks_are_all_0_with_a_device_each() {
    let (_turn, directory) = in_turn();
    let mut environment: BTreeMap<_, _> = std::env::vars_os().collect();
    environment.insert("CUDA_VISIBLE_DEVICES".into(), "4,5".into());
    environment.insert("DIR".into(), directory.path().into());
    let script = "echo $LOCAL_RANK $RANK $CUDA_VISIBLE_DEVICES >> $DIR/said";
    let builder = shell(script, &directory)
        .local_world_size(2)
        .virtual_local_rank(true)
        .environment(environment);
    assert!(!agent(builder).run("default").unwrap().is_failed());
    assert_eq!(lines(&directory, "said"), ["0 0 4", "0 1 5"]);
}

#[test]
fn filtered_lines_are_copied_for_all_workers() {
    let (_turn, directory) = in_turn();
    let builder = shell("echo loss $RANK; echo other", &directory).local_world_size(2);
    let mut logs = LogPlan::new(LogBase::Directory(directory.path().join("logs")));
    logs.tee = RankSelection::All(StreamSelection {
        stdout: true,
        stderr: false,
    });
    let builder = builder
        .logs(logs)
        .duplicate_stdout_filters(vec!["loss".to_owned()]);
    assert!(!agent(builder).run("default").unwrap().is_failed());
    let mut runs = std::fs::read_dir(directory.path().join("logs")).unwrap();
    let run = runs.next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(run.join("attempt_0/filtered_stdout.log")).unwrap();
    let mut copied: Vec<&str> = text.lines().collect();
    copied.sort_unstable();
    assert_eq!(copied, ["[default0]:loss 0", "[default1]:loss 1"]);
}

#[test]
fn workers_that_hang_make_the_group_unhealthy_and_fail_it() {
    let (_turn, directory) = in_turn();
    let builder = shell("echo x >> $DIR/attempts; exec sleep 1000", &directory)
        .max_restarts(1)
        .hang(HangPlan {
            progress: Some(Duration::from_millis(500)),
            action: HangAction::Restart,
            ..HangPlan::default()
        });
    let (builder, states) = noted(builder, |event| match event {
        AgentEvent::StateChanged { state, .. } => Some(*state),
        _ => None,
    });
    let result = agent(builder).run("default").unwrap();
    assert_eq!(
        lines(&directory, "attempts").len(),
        2,
        "a hang uses a restart"
    );
    assert!(result.is_failed());
    let first = result.first_failure().unwrap();
    assert_eq!(first.cause.kind(), "hang", "{first}");
    assert!(
        states
            .try_iter()
            .any(|state| state == WorkerState::Unhealthy)
    );
}
