use rdzv_agent::event::{WorkerFiles, WorkerIdentity};
use rdzv_agent::outcome::{Evidence, Exit, Failure};
use rdzv_agent_proto::group::GroupState;
use rdzv_core::rank::{GroupRank, LocalRank, Rank, RoleRank};

use super::*;

const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

fn at(seconds: i64) -> Wall {
    Wall::from_unix_micros(1_935_817_688_000_000 + seconds * 1_000_000)
}

fn worker(rank: u32) -> WorkerIdentity {
    WorkerIdentity {
        local_rank: LocalRank(rank),
        rank: Rank(rank),
        world_size: 4,
        role_rank: RoleRank(rank),
        role_world_size: 4,
        pid: 100 + rank,
    }
}

fn met(seconds: i64, nodes: u32) -> AgentEvent {
    AgentEvent::Rendezvous {
        at: at(seconds),
        took: Duration::ZERO,
        result: Ok((GroupRank(0), nodes)),
        restart_count: 0,
    }
}

fn started(rank: u32) -> AgentEvent {
    AgentEvent::WorkerStarted {
        at: at(0),
        worker: worker(rank),
        files: WorkerFiles::default(),
        restart_count: 0,
    }
}

fn exited(rank: u32) -> AgentEvent {
    AgentEvent::WorkerExited {
        at: at(2),
        worker: worker(rank),
        exit: Exit::Code(0),
        stopped_by_agent: true,
    }
}

fn lines_of(story: &mut Story, events: &[AgentEvent]) -> Vec<String> {
    let lines = events.iter().flat_map(|event| story.record(event, None));
    lines.map(|line| line.text()).collect()
}

fn begun() -> Story {
    let mut story = Story::new(SHUTDOWN_TIMEOUT);
    let mut events = vec![met(0, 2)];
    events.extend((0..4).map(started));
    assert!(lines_of(&mut story, &events).is_empty());
    story
}

#[test]
fn restarts_and_changes_of_nodes_are_said_and_counted() {
    let mut story = begun();
    let failure = Failure {
        cause: Cause::exception("ValueError: boom"),
        evidence: Evidence {
            host: "node-a".to_owned(),
            rank: Some(Rank(3)),
            exit: Some(Exit::Code(1)),
            ..Evidence::default()
        },
    };
    let events: Vec<_> = (0..4).map(exited).collect();
    assert!(lines_of(&mut story, &events).is_empty());
    let lines = lines_of(
        &mut story,
        &[
            AgentEvent::Restarting {
                at: at(60),
                state: GroupState::Failed,
                remaining: 2,
                most: 3,
                failure: Some(Box::new(failure)),
            },
            met(61, 2),
            AgentEvent::Regrouping {
                at: at(90),
                reason: "node node-b_42_0 is lost (killed)".to_owned(),
            },
            met(91, 1),
            AgentEvent::AgentFinal {
                at: at(7_380),
                state: "SUCCEEDED",
                took: Duration::ZERO,
                workers_succeeded: true,
                raw_error: None,
            },
        ],
    );
    assert_eq!(
        lines,
        [
            "rdzv: restart 1 of 3: rank 3 on node-a failed (ValueError: boom); all workers restart",
            "rdzv: node-b is lost (killed); 1 node continues",
        ]
    );
    assert_eq!(
        story.success().sentence(),
        "finished in 2 h 03 min, 4 workers on 1 node, 1 restart (rank 3: ValueError: boom), 1 \
         membership change (node-b is lost (killed))"
    );
}

#[test]
fn workers_that_recover_in_their_processes_are_still_running() {
    let mut story = begun();
    let lines = lines_of(
        &mut story,
        &[
            exited(3),
            AgentEvent::Restarting {
                at: at(60),
                state: GroupState::Failed,
                remaining: 2,
                most: 3,
                failure: None,
            },
            AgentEvent::RendezvousBegan {
                at: at(60),
                restart_count: 1,
                job_restarts: 1,
            },
            AgentEvent::SignalReceived {
                at: at(61),
                signal: 15,
            },
        ],
    );
    assert_eq!(
        lines,
        [
            "rdzv: restart 1 of 3: workers failed; ranks 0-2 keep their processes",
            "rdzv: SIGTERM: ranks 0-2 have 30 s to exit; a second SIGTERM leaves 7.5 s, a third kills them",
        ]
    );
}

#[test]
fn a_stop_counts_down_and_says_who_was_killed() {
    let mut story = begun();
    let signal = |seconds| AgentEvent::SignalReceived {
        at: at(seconds),
        signal: 2,
    };
    let killed = |rank: u32| AgentEvent::WorkerSignalled {
        at: at(9),
        pid: 100 + rank,
        signal: 9,
        forced: true,
    };
    let lines = lines_of(
        &mut story,
        &[
            signal(1),
            exited(0),
            signal(1),
            signal(3),
            killed(1),
            killed(2),
        ],
    );
    assert_eq!(
        lines,
        [
            "rdzv: Ctrl-C: ranks 0-3 have 30 s to exit; a second Ctrl-C leaves 7.5 s, a third kills them",
            "rdzv: Ctrl-C: ranks 1-3 have 7.5 s left to exit; one more Ctrl-C kills them",
            "rdzv: ranks 1-3 did not exit within the shutdown timeout and are killed",
        ]
    );
    assert_eq!(
        story.stopped(2, None)[0].text(),
        "rdzv: stopped by Ctrl-C (SIGINT) after 9.0 s; 4 workers exited, 2 of them killed by \
         SIGKILL"
    );
}

#[test]
fn a_worker_that_leaves_its_function_late_is_named_alone() {
    let mut story = begun();
    let killed = |rank: u32| AgentEvent::WorkerSignalled {
        at: at(9),
        pid: 100 + rank,
        signal: 9,
        forced: true,
    };
    assert_eq!(
        lines_of(&mut story, &[exited(1), killed(2), exited(2), killed(2)]),
        [
            "rdzv: rank 2 did not leave its function within the abort timeout (--abort-timeout) and \
             is killed"
        ]
    );
}

#[test]
fn a_kill_after_the_exit_of_all_workers_is_not_reported() {
    let mut story = begun();
    let signalled = |forced| AgentEvent::WorkerSignalled {
        at: at(9),
        pid: 100,
        signal: 9,
        forced,
    };
    let mut events = vec![signalled(false)];
    events.extend((0..4).map(exited));
    events.push(signalled(true));
    assert_eq!(lines_of(&mut story, &events), Vec::<String>::new());
}
