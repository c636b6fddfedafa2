//! The worker group machine, driven by scripts: `⟨milliseconds⟩ ⟨input⟩ -> ⟨output⟩ | ⟨output⟩ …`.
//!
//! Groups have two workers and a grace of eight seconds unless a script says otherwise. After each
//! input all outputs are compared; after the last line the group has finished, unless the script
//! ends with `…`.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

use std::time::Duration;

use rdzv_core::group::{
    Ending, Exit, GroupInput, GroupOutput, GroupSpec, Master, Round, WorkerExit, WorkerGroup,
};
use rdzv_core::ident::RunId;
use rdzv_core::machine::Machine;
use rdzv_core::rank::{Assignment, GroupRank, LocalRank};
use rdzv_core::time::{Mono, Now, Wall};

/// From the beginning until both workers run.
const STARTED: &str = "
    0 begin      -> join 0
    0 joined     -> assign
    0 assigned   -> assigned 2 | start 0
    0 started 0  -> start 1
    0 started 1  ->
";

fn spec(max_restarts: u32) -> GroupSpec {
    GroupSpec {
        role: "default".into(),
        run_id: RunId::new("none"),
        local_world_size: 2,
        max_restarts,
        grace: Duration::from_secs(8),
        purge_store: true,
        signals_text: "SIGTERM".into(),
        nccl_error_handling: None,
        virtual_local_rank: None,
    }
}

/// Runs a script and returns the machine.
fn run(spec: GroupSpec, agents: u32, script: &str) -> WorkerGroup {
    let mut group = WorkerGroup::new(spec);
    let mut finished = false;
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        if line == "…" {
            return group;
        }
        assert!(!finished, "{line}: nothing comes after finish (G2)");
        let (event, expected) = line.split_once("->").expect("a line has an arrow");
        let (millis, input) = event.trim().split_once(' ').expect("a line has a time");
        let now = Now {
            mono: Mono::from_origin(Duration::from_millis(millis.parse().unwrap())),
            wall: Wall::default(),
        };
        group.handle(now, parse(input.trim(), agents));
        let outputs: Vec<String> = std::iter::from_fn(|| group.poll_output())
            .map(|output| shown(&output))
            .collect();
        assert_eq!(outputs.join(" | "), expected.trim(), "after: {line}");
        finished = outputs.iter().any(|output| output.starts_with("finish"));
    }
    assert!(finished, "the group has finished");
    assert_eq!(group.deadline(), None);
    group
}

fn started_then(max_restarts: u32, script: &str) -> WorkerGroup {
    run(spec(max_restarts), 1, &format!("{STARTED}{script}"))
}

fn parse(input: &str, agents: u32) -> GroupInput {
    let (name, value) = input.split_once(' ').unwrap_or((input, ""));
    match name {
        "begin" => GroupInput::Begin,
        "joined" => GroupInput::Joined(Round {
            group_rank: GroupRank(0),
            group_world_size: agents,
            master: Master {
                addr: "127.0.0.1".into(),
                port: 1,
                hosted_by_agent: true,
            },
        }),
        "assigned" => GroupInput::Assigned(Assignment::from((0, 2, 0, 2))),
        "started" => GroupInput::Started(LocalRank(value.parse().unwrap())),
        "exited" => GroupInput::Exited(value.split(' ').map(exit).collect()),
        "signal" => GroupInput::Signal(value.parse().unwrap()),
        "keeper-lost" => GroupInput::KeeperLost,
        "broken" => GroupInput::Broken,
        "cleared" => GroupInput::Cleared,
        "barrier-passed" => GroupInput::BarrierPassed,
        "time" => GroupInput::TimePassed,
        _ => panic!("no such input: {input}"),
    }
}

/// `1=-9!`: local rank 1 was ended by signal 9, after the agent had signalled it.
fn exit(text: &str) -> WorkerExit {
    let (rank, number) = text.split_once('=').unwrap();
    let number: i32 = number.trim_end_matches('!').parse().unwrap();
    WorkerExit {
        local_rank: LocalRank(rank.parse().unwrap()),
        pid: 100,
        exit: if number < 0 {
            Exit::Signal(-number)
        } else {
            Exit::Code(number)
        },
        at: Wall::default(),
        stopped_by_agent: text.ends_with('!'),
    }
}

fn shown(output: &GroupOutput) -> String {
    let ranks = |workers: &[LocalRank]| {
        let ranks: Vec<String> = workers.iter().map(ToString::to_string).collect();
        ranks.join(" ")
    };
    match output {
        GroupOutput::Join { restart_count } => format!("join {restart_count}"),
        GroupOutput::PurgeStore => "purge".into(),
        GroupOutput::Assign(_) => "assign".into(),
        GroupOutput::Assigned { workers, .. } => format!("assigned {}", workers.len()),
        GroupOutput::Start { worker, .. } => format!("start {}", worker.local_rank),
        GroupOutput::FirstFailure(exit) => format!("failure {}", exit.local_rank),
        GroupOutput::Signal { workers, signal } => format!("signal {signal} to {}", ranks(workers)),
        GroupOutput::Kill { workers } => format!("kill {}", ranks(workers)),
        GroupOutput::Abandon { workers } => format!("abandon {}", ranks(workers)),
        GroupOutput::ClearLeftovers => "clear".into(),
        GroupOutput::AbandonLeftovers => "abandon leftovers".into(),
        GroupOutput::Restarting { remaining, most } => format!("restarting {remaining}/{most}"),
        GroupOutput::ExitBarrier { agents } => format!("barrier of {agents}"),
        GroupOutput::Finish(ending) => match ending {
            Ending::Succeeded { .. } => "finish succeeded".into(),
            Ending::Failed { exits } => {
                let exits: Vec<String> = exits
                    .iter()
                    .map(|exit| format!("{}={}", exit.local_rank, exit.exit.as_number()))
                    .collect();
                format!("finish failed {}", exits.join(" "))
            }
            Ending::Signalled {
                signal,
                workers_started,
            } => format!("finish signalled {signal} started={workers_started}"),
            Ending::KeeperLost => "finish keeper lost".into(),
            Ending::Broken => "finish broken".into(),
            Ending::Devices(text) => format!("finish devices: {text}"),
        },
    }
}

#[test]
fn all_workers_exit_well() {
    let group = started_then(
        0,
        "10 exited 1=0 ->
         20 exited 0=0 -> clear
         20 cleared    -> finish succeeded",
    );
    assert_eq!(group.state().name(), "SUCCEEDED");
}

#[test]
fn several_agents_wait_for_one_another() {
    run(
        spec(0),
        2,
        &format!(
            "{STARTED}
             10 exited 0=0 1=0 -> clear
             10 cleared        -> barrier of 2
             99 barrier-passed -> finish succeeded"
        ),
    );
}

#[test]
fn a_failure_without_restarts_stops_the_others_and_ends_the_run() {
    let group = started_then(
        0,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         20 exited 0=-15! -> clear
         20 cleared       -> finish failed 1=7 0=-15",
    );
    assert_eq!(group.state().name(), "FAILED");
}

#[test]
fn failures_of_one_moment_keep_their_order_and_nobody_is_signalled() {
    started_then(
        0,
        "10 exited 1=7 0=-11 -> failure 1 | clear
         10 cleared          -> finish failed 1=7 0=-11",
    );
}

#[test]
fn every_attempt_but_the_first_begins_with_an_empty_store() {
    started_then(
        1,
        "10 exited 1=7    -> failure 1 | signal 15 to 0 1
         20 exited 0=0!   -> clear
         30 cleared       -> restarting 0/1 | join 1
         30 joined        -> purge | assign
         30 assigned      -> assigned 2 | start 0
         30 started 0     -> start 1
         30 started 1     ->
         40 exited 0=1    -> failure 0 | signal 15 to 0 1
         50 exited 1=-15! -> clear
         50 cleared       -> finish failed 0=1 1=-15",
    );
}

#[test]
fn a_shared_store_is_not_emptied_under_other_nodes() {
    let mut spec = spec(1);
    spec.purge_store = false;
    run(
        spec,
        2,
        &format!(
            "{STARTED}
             10 exited 0=1 1=1 -> failure 0 | clear
             10 cleared        -> restarting 0/1 | join 1
             10 joined         -> assign
             …"
        ),
    );
}

#[test]
fn workers_that_outlive_the_grace_are_killed() {
    let group = started_then(
        0,
        "1000 exited 1=7   -> failure 1 | signal 15 to 0 1
         8999 time         ->
         9000 time         -> kill 0
         9001 exited 0=-9! -> clear
         9001 cleared      -> finish failed 1=7 0=-9",
    );
    assert_eq!(group.restart_count(), 0);
}

#[test]
fn a_worker_that_the_kernel_does_not_end_is_given_up() {
    started_then(
        0,
        "    0 exited 1=7 -> failure 1 | signal 15 to 0 1
          8000 time       -> kill 0
         17999 time       ->
         18000 time       -> abandon 0 | clear
         28000 time       -> abandon leftovers | finish failed 1=7",
    );
}

#[test]
fn a_signal_reaches_the_workers_as_it_is() {
    started_then(
        5,
        "10 signal 1      -> signal 1 to 0 1
         20 exited 0=-1!  ->
         30 exited 1=0!   -> clear
         30 cleared       -> finish signalled 1 started=true",
    );
}

#[test]
fn three_signals_take_the_grace_away_but_never_the_kill() {
    started_then(
        0,
        "    0 signal 15 -> signal 15 to 0 1
           100 signal 15 ->
          1000 signal 15 -> signal 15 to 0 1
          1500 signal 15 -> signal 15 to 0 1 | kill 0 1
          2000 signal 15 ->
          2001 exited 0=-9! 1=-9! -> clear
          2001 cleared -> finish signalled 15 started=true",
    );
}

#[test]
fn a_second_signal_leaves_a_quarter_of_the_grace() {
    started_then(
        0,
        "    0 signal 15 -> signal 15 to 0 1
          1000 signal 2  -> signal 2 to 0 1
          2999 time      ->
          3000 time      -> kill 0 1
          3001 exited 0=-9! 1=-9! -> clear
          3001 cleared -> finish signalled 15 started=true",
    );
}

#[test]
fn a_signal_before_the_first_worker_ends_the_run_at_once() {
    run(
        spec(0),
        1,
        "0 begin     -> join 0
         9 signal 15 -> finish signalled 15 started=false",
    );
}

#[test]
fn a_signal_while_a_restart_is_being_prepared_cancels_it() {
    started_then(
        3,
        "10 exited 1=7   -> failure 1 | signal 15 to 0 1
         20 signal 2     -> signal 2 to 0 1
         30 exited 0=-2! -> clear
         30 cleared      -> finish signalled 2 started=true",
    );
    started_then(
        3,
        "10 exited 1=7 0=1 -> failure 1 | clear
         20 signal 2       ->
         30 cleared        -> finish signalled 2 started=true",
    );
}

#[test]
fn the_last_failure_is_reported_even_if_a_signal_follows() {
    started_then(
        0,
        "10 exited 1=7   -> failure 1 | signal 15 to 0 1
         20 signal 2     -> signal 2 to 0 1
         30 exited 0=-2! -> clear
         30 cleared      -> finish failed 1=7 0=-2",
    );
}

#[test]
fn without_its_keeper_the_group_is_gone_within_half_a_second() {
    started_then(
        3,
        "1000 keeper-lost -> signal 15 to 0 1
         1400 time        -> kill 0 1
         1401 exited 0=-9! 1=-9! -> clear
         1402 cleared     -> finish keeper lost",
    );
}

#[test]
fn the_loss_of_the_keeper_shortens_a_grace_that_runs_already() {
    started_then(
        0,
        "   0 signal 15    -> signal 15 to 0 1
         1000 keeper-lost -> signal 15 to 0 1
         1400 time        -> kill 0 1
         1401 exited 0=-9! 1=-9! -> clear
         1402 cleared     -> finish keeper lost",
    );
}

#[test]
fn a_worker_that_cannot_be_started_stops_those_before_it() {
    run(
        spec(3),
        1,
        "0 begin      -> join 0
         0 joined     -> assign
         0 assigned   -> assigned 2 | start 0
         0 started 0  -> start 1
         0 broken     -> signal 15 to 0
         5 exited 0=-15! -> clear
         5 cleared    -> finish broken",
    );
}

#[test]
fn a_worker_that_was_being_started_when_the_group_was_stopped_is_stopped_too() {
    run(
        spec(0),
        1,
        "0 begin      -> join 0
         0 joined     -> assign
         0 assigned   -> assigned 2 | start 0
         0 started 0  -> start 1
         1 signal 15  -> signal 15 to 0
         2 started 1  -> signal 15 to 1
         3 exited 0=-15! 1=-15! -> clear
         3 cleared    -> finish signalled 15 started=true",
    );
}

#[test]
fn an_early_failure_stops_the_start_of_the_others() {
    run(
        spec(0),
        1,
        "0 begin      -> join 0
         0 joined     -> assign
         0 assigned   -> assigned 2 | start 0
         0 started 0  -> start 1
         1 exited 0=3 -> failure 0 | clear
         1 cleared    -> finish failed 0=3",
    );
}

#[test]
fn a_failed_rendezvous_ends_the_run() {
    run(
        spec(3),
        1,
        "0 begin  -> join 0
         9 broken -> finish broken",
    );
}

#[test]
fn too_few_devices_end_the_run_before_any_worker() {
    let mut spec = spec(3);
    spec.virtual_local_rank = Some(rdzv_core::group::VisibleDevices {
        hip: None,
        cuda: Some("4".into()),
    });
    run(
        spec,
        1,
        "0 begin    -> join 0
         0 joined   -> assign
         0 assigned -> finish devices: local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4",
    );
}

#[test]
fn a_signal_at_the_exit_barrier_ends_the_run() {
    run(
        spec(0),
        2,
        &format!(
            "{STARTED}
             10 exited 0=0 1=0 -> clear
             10 cleared        -> barrier of 2
             99 signal 15      -> finish signalled 15 started=true"
        ),
    );
}
