use rdzv_agent::event::{WorkerFiles, WorkerIdentity};
use rdzv_agent_proto::group::GroupState;
use rdzv_core::rank::{LocalRank, Rank, RoleRank};
use rdzv_core::time::Wall;

use super::*;

const SIGTERM: i32 = Signal::TERM.as_raw();
const AT: Wall = Wall::from_unix_micros(0);

fn worker(rank: u32, pid: u32) -> WorkerIdentity {
    WorkerIdentity {
        local_rank: LocalRank(rank),
        rank: Rank(rank),
        world_size: 2,
        role_rank: RoleRank(rank),
        role_world_size: 2,
        pid,
    }
}

fn started(rank: u32, pid: u32) -> Observation {
    Observation::Agent(AgentEvent::WorkerStarted {
        at: AT,
        worker: worker(rank, pid),
        files: WorkerFiles::default(),
        restart_count: 0,
    })
}

fn exited(rank: u32, pid: u32, exit: Exit) -> Observation {
    Observation::Agent(AgentEvent::WorkerExited {
        at: AT,
        worker: worker(rank, pid),
        exit,
        stopped_by_agent: exit == Exit::Signal(SIGTERM),
    })
}

fn restarting() -> Observation {
    Observation::Agent(AgentEvent::Restarting {
        at: AT,
        state: GroupState::Failed,
        remaining: 0,
        most: 1,
        failure: None,
    })
}

fn met(step: u32) -> Observation {
    Observation::Worker(Progress::Joined { step })
}

fn step(step: u32) -> Observation {
    Observation::Worker(Progress::Step {
        step,
        loss: 1.0 / step as f32,
    })
}

fn finished() -> Observation {
    Observation::Worker(Progress::Finished(Finished {
        step: 120,
        loss: 0.0123,
        accuracy: 0.99,
    }))
}

/// Returns the observations of a successful demo with two workers.
fn all_of_it() -> Vec<Observation> {
    vec![
        started(0, 100),
        started(1, 101),
        met(0),
        step(1),
        step(KILL_AT),
        exited(1, 101, Exit::Signal(SIGKILL)),
        exited(0, 100, Exit::Signal(SIGTERM)),
        restarting(),
        started(0, 102),
        started(1, 103),
        met(40),
        step(60),
        finished(),
        exited(0, 102, Exit::Code(0)),
        exited(1, 103, Exit::Code(0)),
    ]
}

/// Feeds the observations to a timeline, one every 10 ms.
fn play(kill: bool, story: Vec<Observation>) -> (Timeline, Vec<Action>) {
    let mut timeline = Timeline::new(2, kill);
    let actions = (1_u64..)
        .zip(story)
        .flat_map(|(count, observation)| {
            timeline.handle(Duration::from_millis(10 * count), observation)
        })
        .collect();
    (timeline, actions)
}

fn reason(kill: bool, story: Vec<Observation>) -> String {
    let (timeline, _) = play(kill, story);
    timeline.verdict(&Outcome::Succeeded).unwrap_err()
}

#[test]
fn the_story_as_it_should_go() {
    let (timeline, actions) = play(true, all_of_it());
    timeline.verdict(&Outcome::Succeeded).unwrap();
    let lines: Vec<String> = actions
        .into_iter()
        .map(|action| match action {
            Action::Print(_, head, text) => format!("{head}{text}"),
            Action::Kill(pid) => format!("kill -KILL {pid}"),
        })
        .collect();
    insta::assert_snapshot!(lines.join("\n"), @r"
       0.02 s  start     ranks 0, 1 as processes 100, 101
       0.03 s  met       at the agent's store; the training begins
       0.04 s  step        1  loss 1.0000  ██████████████████████████████
       0.05 s  KILL      rank 1, process 101, with SIGKILL, in the middle of step 48
    kill -KILL 101
       0.06 s  died      rank 1 by SIGKILL; seen 10.0 ms later
       0.08 s  stopped   rank 0 by SIGTERM
       0.08 s  restart   1 of 1
       0.10 s  start     ranks 0, 1 as processes 102, 103
       0.11 s  resumed   from the checkpoint of step 40; repeating 7 steps
       0.12 s  step       60  loss 0.0167  █
       0.13 s  done      120  loss 0.0123  99.0 % of the points told apart
       0.13 s  loss      █▁▁
    ");
}

#[test]
fn the_victim_is_killed_once() {
    let mut story = all_of_it();
    story.insert(5, step(KILL_AT + 1));
    story.insert(13, step(KILL_AT));
    let (_, actions) = play(true, story);
    let kills: Vec<&Action> = actions
        .iter()
        .filter(|action| matches!(action, Action::Kill(_)))
        .collect();
    assert_eq!(kills, [&Action::Kill(101)]);
}

#[test]
fn without_a_kill_nobody_is_killed() {
    let mut story = all_of_it();
    story.drain(5..12);
    let story: Vec<Observation> = story
        .into_iter()
        .filter(|observation| {
            !matches!(
                observation,
                Observation::Agent(AgentEvent::WorkerExited { .. })
            )
        })
        .chain([exited(0, 100, Exit::Code(0)), exited(1, 101, Exit::Code(0))])
        .collect();
    let (timeline, actions) = play(false, story.clone());
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::Kill(_)))
    );
    timeline.verdict(&Outcome::Succeeded).unwrap();
    assert_eq!(reason(true, story), "the victim did not die of SIGKILL");
}

#[test]
fn a_story_with_a_part_missing_is_reported_as_such() {
    let without = |index: usize| {
        let mut story = all_of_it();
        story.remove(index);
        reason(true, story)
    };
    assert_eq!(without(4), "no worker was killed");
    assert_eq!(without(5), "the victim did not die of SIGKILL");
    assert_eq!(without(10), "the workers did not continue");
    assert_eq!(without(12), "the training did not finish");
    assert_eq!(without(14), "still running: process 103");
    let mut restarted = all_of_it();
    restarted[10] = met(0);
    assert_eq!(
        reason(true, restarted),
        "the workers restarted without a checkpoint"
    );
}

#[test]
fn how_the_run_ended_counts_first() {
    let (timeline, _) = play(true, all_of_it());
    let signalled = Outcome::Signalled {
        signal: 2,
        workers_started: true,
    };
    assert_eq!(
        timeline.verdict(&signalled).unwrap_err(),
        "stopped by signal 2"
    );
}
