//! Scripts for the machine: `⟨milliseconds⟩ ⟨input⟩ -> ⟨output⟩ | ⟨output⟩ …`.
//!
//! Unless a script specifies otherwise, groups have two workers and a shutdown timeout of eight
//! seconds. The test compares all outputs after each input. The group must have finished after the
//! last line, unless the script ends with `…`.

use std::time::Duration;

use rdzv_agent_proto::group::policy::EXPLAINED_WITHIN;
use rdzv_agent_proto::group::{
    Exit, Finality, GroupEnding, GroupIdentity, GroupInput, GroupOutput, GroupSpec, GroupState,
    Master, MembershipCause, PreemptionPlan, RestartOptions, Round, StopOptions, WorkerExit,
    WorkerGroupMachine,
};
use rdzv_core::machine::Machine;
use rdzv_core::rank::{Assignment, GroupRank, LocalRank};
use rdzv_core::time::{Mono, Now, Wall};

/// Lines from the beginning until both workers run.
const STARTED: &str = "
    0 begin      -> join 0
    0 joined     -> assign
    0 assigned   -> assigned 2 | start 0
    0 started 0  -> start 1
    0 started 1  ->
";

pub(crate) fn spec(max_restarts: u32) -> GroupSpec {
    GroupSpec {
        identity: GroupIdentity {
            local_world_size: 2,
            ..GroupIdentity::default()
        },
        restarts: RestartOptions {
            max_restarts,
            ..RestartOptions::default()
        },
        stop: StopOptions {
            shutdown_timeout: Duration::from_secs(8),
            ..StopOptions::default()
        },
        preemption: Some(PreemptionPlan {
            signal: 10,
            shutdown_timeout: Duration::from_secs(60),
            file: None,
        }),
        purge_store: true,
        ..GroupSpec::default()
    }
}

/// Runs a script and returns the machine.
pub(crate) fn run(spec: GroupSpec, agents: u32, script: &str) -> WorkerGroupMachine {
    let mut group = WorkerGroupMachine::new(spec);
    let mut finished = false;
    for line in script
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
    {
        if line == "…" {
            return group;
        }
        assert!(!finished, "{line}: nothing comes after finish (INV-G2)");
        let (event, expected) = line.split_once("->").expect("a line has an arrow");
        let (millis, input) = event.trim().split_once(' ').expect("a line has a time");
        let now = Now::at(Mono::from_origin(Duration::from_millis(
            millis.parse().unwrap(),
        )));
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

/// Runs a script for a group whose workers have been started.
pub(crate) fn started(spec: GroupSpec, agents: u32, script: &str) -> WorkerGroupMachine {
    run(spec, agents, &format!("{STARTED}{script}"))
}

pub(crate) fn started_then(max_restarts: u32, script: &str) -> WorkerGroupMachine {
    started(spec(max_restarts), 1, script)
}

/// Runs a script for two agents of a dynamic rendezvous; the round is number 3.
pub(crate) fn of_two_then(max_restarts: u32, script: &str) -> WorkerGroupMachine {
    let mut spec = spec(max_restarts);
    (spec.purge_store, spec.dynamic, spec.joins_again) = (false, true, true);
    let started = STARTED.replace("joined  ", "joined 3");
    run(spec, 2, &format!("{started}{script}"))
}

/// Runs a script for workers that recover in their processes (`--in-process`).
pub(crate) fn in_process_then(max_restarts: u32, agents: u32, script: &str) {
    let mut spec = spec(max_restarts);
    spec.abort_timeout = Some(Duration::from_secs(30));
    spec.dynamic = agents > 1;
    let connected = "
        1 recoverable 0 ->
        1 recoverable 1 ->
    ";
    started(spec, agents, &format!("{connected}{script}"));
}

/// Runs a script for two agents of a static rendezvous.
pub(crate) fn static_two_then(max_restarts: u32, script: &str) -> WorkerGroupMachine {
    started(spec(max_restarts), 2, script)
}

pub(crate) fn parse(input: &str, agents: u32) -> GroupInput {
    let (name, value) = input.split_once(' ').unwrap_or((input, ""));
    match name {
        "begin" => GroupInput::Begin,
        "joined" => GroupInput::Joined(Round {
            number: value.trim_end_matches('!').parse().unwrap_or(0),
            group_rank: GroupRank(0),
            group_world_size: agents,
            replaced: Vec::new(),
            master: Master {
                addr: "127.0.0.1".into(),
                port: 1,
                hosted_by_agent: true,
            },
            losses_known_within: EXPLAINED_WITHIN,
            answers_barrier: value.ends_with('!'),
        }),
        "assigned" => GroupInput::Assigned(Assignment::from((0, 2, 0, 2))),
        "started" => GroupInput::Started(LocalRank(value.parse().unwrap())),
        "exited" => GroupInput::Exited(value.split(' ').map(exit).collect()),
        "signal" => GroupInput::Signal(value.parse().unwrap()),
        "preempted" => GroupInput::Preempted(value.parse().unwrap()),
        "recoverable" => GroupInput::Recoverable(LocalRank(value.parse().unwrap())),
        "ready" => GroupInput::Ready(LocalRank(value.parse().unwrap())),
        "raised" => GroupInput::Raised(LocalRank(value.parse().unwrap())),
        "hang" => GroupInput::Unhealthy {
            workers: ranks(value.trim_end_matches('!')),
            is_final: value.ends_with('!').then_some(Finality::WorkersHeld),
        },
        "keeper-lost" => GroupInput::KeeperLost,
        "broken" => GroupInput::Broken,
        "cleared" => GroupInput::Cleared,
        "not-needed" => GroupInput::NotNeeded,
        "changed" | "restarted" | "waiting" | "alone" => GroupInput::MembershipChanged {
            round: value.parse().unwrap(),
            cause: match name {
                "restarted" => MembershipCause::Restarted,
                "waiting" => MembershipCause::Waiting,
                _ => MembershipCause::Lost,
            },
            reason: match name {
                "alone" => "b came, and the workers of all other nodes have succeeded".into(),
                _ => "b came".into(),
            },
        },
        "peer-failed" => GroupInput::PeerFailed {
            node: value.into(),
            reason: "code 7".into(),
        },
        "closed" => GroupInput::RunClosed,
        "lost" => GroupInput::RendezvousLost,
        "losses-known" => {
            GroupInput::LossesKnownWithin(Duration::from_millis(value.parse().unwrap()))
        }
        "barrier-passed" => GroupInput::BarrierPassed,
        "barrier-timeout" => GroupInput::BarrierTimeout("too long".into()),
        "time" => GroupInput::TimePassed,
        _ => panic!("no such input: {input}"),
    }
}

fn ranks(text: &str) -> Vec<LocalRank> {
    text.split_whitespace()
        .map(|rank| LocalRank(rank.parse().unwrap()))
        .collect()
}

/// Parses an exit: `1=-9!` means that signal 9 ended local rank 1.
/// The exclamation mark means that the agent had signalled the worker before.
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
        GroupOutput::Start(request) => format!("start {}", request.ranks.local_rank),
        GroupOutput::Go(request) => format!("go {}", request.ranks.local_rank),
        GroupOutput::Abort { workers, .. } => format!("abort {}", ranks(workers)),
        GroupOutput::Discard { workers } => format!("discard {}", ranks(workers)),
        GroupOutput::Fail(worker) => format!("fail {worker}"),
        GroupOutput::FirstFailure(exit) => format!("failure {}", exit.local_rank),
        GroupOutput::Unhealthy { workers, last } => {
            let last = if *last { " for good" } else { "" };
            format!("unhealthy {}{last}", ranks(workers))
        }
        GroupOutput::Announce(exit) => format!("announce {}", exit.local_rank),
        GroupOutput::Regrouping { reason } => format!("regroup: {reason}"),
        GroupOutput::Signal { workers, signal } => format!("signal {signal} to {}", ranks(workers)),
        GroupOutput::Notify { workers, signal } => format!("notify {signal} to {}", ranks(workers)),
        GroupOutput::Kill { workers } => format!("kill {}", ranks(workers)),
        GroupOutput::Abandon { workers } => format!("abandon {}", ranks(workers)),
        GroupOutput::ClearLeftovers => "clear".into(),
        GroupOutput::AbandonLeftovers => "abandon leftovers".into(),
        GroupOutput::Restarting {
            state: GroupState::Failed,
            remaining,
            most,
        } => format!("restarting {remaining}/{most}"),
        GroupOutput::Restarting {
            state,
            remaining,
            most,
        } => format!("restarting {} {remaining}/{most}", state.name()),
        GroupOutput::ExitBarrier { agents } => format!("barrier of {agents}"),
        GroupOutput::Finish(ending) => match ending {
            GroupEnding::Succeeded { .. } => "finish succeeded".into(),
            GroupEnding::SucceededAlone { reason, .. } => {
                format!("finish succeeded alone: {reason}")
            }
            GroupEnding::Failed {
                exits,
                unhealthy,
                finality,
            } => {
                let hung = if unhealthy.is_empty() {
                    String::new()
                } else {
                    format!(" hung {}", ranks(unhealthy))
                };
                let exits: Vec<String> = exits
                    .iter()
                    .map(|exit| format!("{}={}", exit.local_rank, exit.exit.as_number()))
                    .collect();
                // Most scripts use up the budget.
                let why = match finality {
                    Finality::BudgetUsed { .. } => String::new(),
                    other => format!(" ({})", other.kind()),
                };
                format!("finish failed {}{hung}{why}", exits.join(" "))
            }
            GroupEnding::Signalled {
                signal,
                workers_started,
            } => format!("finish signalled {signal} started={workers_started}"),
            GroupEnding::Preempted { signal, exits } => {
                let exits: Vec<String> = exits
                    .iter()
                    .map(|exit| format!("{}={}", exit.local_rank, exit.exit.as_number()))
                    .collect();
                format!("finish preempted {signal} {}", exits.join(" "))
            }
            GroupEnding::PeerFailed { node, reason } => format!("finish peer {node}: {reason}"),
            GroupEnding::RunClosed => "finish closed".into(),
            GroupEnding::NotNeeded => "finish not needed".into(),
            GroupEnding::KeeperLost => "finish keeper lost".into(),
            GroupEnding::Broken => "finish broken".into(),
            GroupEnding::Devices(text) => format!("finish devices: {text}"),
        },
    }
}
