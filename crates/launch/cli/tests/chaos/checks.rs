//! Checks of a run after its end, for any faults.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::plan::{Act, End, Plan};
use crate::record::{Life, Record};

/// Maximum duration of an exit that can no longer be prevented.
const EXITING: Duration = Duration::from_millis(100);

/// Returns a sentence for each violation.
pub(crate) fn all(plan: &Plan, record: &Record) -> Vec<String> {
    let lives = record.workers();
    let mut complaints = Vec::new();
    for node in 0..record.nodes.len() {
        let of_node = generations(&lives, node);
        complaints.extend(restarts(plan, record, node, &of_node));
        complaints.extend(status(plan, record, node, &lives));
    }
    complaints.extend(ranks(plan, &lives));
    complaints
}

/// Returns the workers of a node, one list for each start of its group.
pub(crate) fn generations(lives: &[Life], node: usize) -> Vec<Vec<&Life>> {
    let mut generations: Vec<Vec<&Life>> = Vec::new();
    for life in lives.iter().filter(|life| life.node == node) {
        match generations.last_mut() {
            Some(last) if generation(last[0]) == generation(life) => last.push(life),
            _ => generations.push(vec![life]),
        }
    }
    generations
}

fn generation(life: &Life) -> (u32, u32) {
    (life.process.attempt, life.process.round)
}

/// Returns exit codes or negative signals that a worker's own failure can have.
///
/// A worker's own failure comes from its plan or a fault, but not from its agent.
pub(crate) fn own_failures(plan: &Plan, record: &Record, life: &Life) -> Vec<i64> {
    let by_itself = act(plan, life).and_then(|act| act.end.failure());
    let mut reasons: Vec<i64> = by_itself.into_iter().collect();
    for fired in &record.fired {
        if let Some((pid, signal)) = fired.pid
            && pid == life.process.pid
            && signal != Signal::STOP
            && life.ended.is_some_and(|(_, at)| at >= fired.at)
        {
            reasons.push(i64::from(-signal.as_raw()));
        }
    }
    reasons
}

/// `true` if the worker cannot have succeeded.
fn must_fail(plan: &Plan, record: &Record, life: &Life) -> bool {
    let act = act(plan, life);
    if act.is_some_and(|act| act.end != End::Success) {
        return true;
    }
    // A worker may ignore other signals. Even these signals arrive too late if the worker is
    // already exiting.
    let deadly = [Signal::KILL, Signal::ABORT];
    let pause = Duration::from_millis(act.map_or(0, |act| act.pause.into()));
    record.fired.iter().any(|fired| {
        fired
            .pid
            .is_some_and(|(pid, signal)| pid == life.process.pid && deadly.contains(&signal))
            && fired.at < life.began + pause
    })
}

/// Returns the planned act of the worker.
fn act<'a>(plan: &'a Plan, life: &Life) -> Option<&'a Act> {
    let count = if plan.rendezvous.is_dynamic() {
        life.process.round
    } else {
        life.process.attempt
    };
    plan.act(count, life.process.rank)
}

/// `true` if at least one of these workers has an own failure.
pub(crate) fn any_failed(plan: &Plan, record: &Record, group: &[&Life]) -> bool {
    group
        .iter()
        .any(|life| life.ended.is_some() && !own_failures(plan, record, life).is_empty())
}

/// `true` if a node's last workers failed and no restart is left.
///
/// With a dynamic rendezvous, the job has one budget. Otherwise each node has a separate budget.
pub(crate) fn exhausted(plan: &Plan, record: &Record, lives: &[Life], node: usize) -> bool {
    let restarts = |node| {
        let own = lives.iter().filter(|life| life.node == node);
        own.map(|life| life.process.attempt).max().unwrap_or(0)
    };
    let others =
        (0..record.nodes.len()).filter(|other| *other != node && plan.rendezvous.is_dynamic());
    let elsewhere: u32 = others.map(restarts).sum();
    generations(lives, node).last().is_some_and(|last| {
        last[0].process.attempt + elsewhere >= plan.max_restarts && any_failed(plan, record, last)
    })
}

/// Checks the number of restarts and the reason for each (INV-G1).
fn restarts(plan: &Plan, record: &Record, node: usize, groups: &[Vec<&Life>]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut before: Option<&Vec<&Life>> = None;
    for group in groups {
        let (attempt, round) = generation(group[0]);
        if attempt > plan.max_restarts {
            complaints.push(format!(
                "node {node}: attempt {attempt} is beyond the budget"
            ));
        }
        let (last, last_round) = before.map_or((0, 0), |group| generation(group[0]));
        let failed = before.is_none_or(|group| any_failed(plan, record, group));
        if attempt > last + 1 || attempt < last {
            complaints.push(format!("node {node}: attempt {attempt} follows {last}"));
        } else if attempt == last + 1 && !failed {
            complaints.push(format!("node {node}: attempt {attempt} though none failed"));
        } else if attempt == last && before.is_some() {
            // The membership changed: another node was lost, or the link of this node broke.
            let changed = plan.nodes.len() > 1 || record.infrastructure_broke();
            if !plan.rendezvous.is_dynamic() || !changed || round <= last_round {
                complaints.push(format!(
                    "node {node}: attempt {attempt}, round {round} came twice"
                ));
            }
        }
        before = Some(group);
    }
    complaints
}

/// Checks that the events of the run explain the exit status.
fn status(plan: &Plan, record: &Record, node: usize, lives: &[Life]) -> Option<String> {
    let code = record.nodes[node].code();
    let signals = record.fatal_signals(node);
    let killed = signals.iter().any(|(_, signal)| *signal == Signal::KILL);
    // A fault does not change the status of a launcher that is already exiting.
    let ended = record.nodes[node].ended;
    let in_time = |at: &Instant| ended.saturating_duration_since(*at) > EXITING;
    let surely = signals
        .iter()
        .any(|(at, signal)| *signal == Signal::KILL && in_time(at));
    let groups = generations(lives, node);
    let last = groups.last().map(Vec::as_slice).unwrap_or_default();
    let fine = match code {
        -9 => killed,
        _ if surely => false,
        0 => last
            .iter()
            .all(|life| life.ended.is_some() && !must_fail(plan, record, life)),
        1 => {
            !signals.is_empty()
                || record.infrastructure_broke()
                || (0..record.nodes.len()).any(|any| exhausted(plan, record, lives, any))
        }
        // Before the workers start, a signal ends the launcher like any other program.
        _ => signals.iter().any(|(at, signal)| {
            code == -signal.as_raw()
                && lives
                    .iter()
                    .all(|life| life.node != node || life.began > *at)
        }),
    };
    (!fine).then(|| format!("node {node}: nothing explains the exit status {code}"))
}

/// Checks that no two workers have the same rank (INV-R2).
fn ranks(plan: &Plan, lives: &[Life]) -> Vec<String> {
    let mut taken = std::collections::BTreeSet::new();
    let mut complaints = Vec::new();
    for life in lives {
        let (attempt, round) = generation(life);
        let generation = if plan.rendezvous.is_dynamic() {
            (0, round)
        } else {
            (life.node, attempt)
        };
        if !taken.insert((generation, life.process.rank)) {
            complaints.push(format!(
                "rank {} of attempt {attempt}, round {round} was given twice",
                life.process.rank
            ));
        }
    }
    complaints
}
