//! Checks that block and report name the first failure (INV-G3, INV-A10).

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::checks::{exhausted, generations, own_failures};
use crate::plan::Plan;
use crate::record::{Life, Node, Record};

/// Maximum time between two exits on one node whose order is uncertain.
const TIE: Duration = Duration::from_millis(3);
/// Same limit for two nodes, whose agents read different clocks, possibly late.
const TIE_BETWEEN_NODES: Duration = Duration::from_millis(150);

/// Returns a sentence for each violation.
pub(crate) fn all(plan: &Plan, record: &Record) -> Vec<String> {
    let lives = record.workers();
    let mut complaints = Vec::new();
    for index in 0..record.nodes.len() {
        let node = &record.nodes[index];
        complaints.extend(report_is_complete(
            node,
            index,
            &record.fatal_signals(index),
        ));
        if node.code() != 1 {
            continue;
        }
        let printed = printed(&node.stderr);
        if record.fatal_signals(index).is_empty() && !record.infrastructure_broke() {
            let expected = first_failures(plan, record, &lives, index);
            complaints.extend(printed_cause(node, index, printed, &expected));
        } else {
            // The job may have ended for another reason, but a named worker must have failed.
            let all: Vec<(u32, Vec<i64>)> = lives
                .iter()
                .filter(|life| life.ended.is_some())
                .map(|life| (life.process.rank, own_failures(plan, record, life)))
                .collect();
            complaints.extend(printed.filter(|blamed| !explains(&all, *blamed)).map(
                |(rank, code)| format!("node {index}: blames rank {rank} with {code} for nothing"),
            ));
        }
        if !node.stderr.lines().any(|line| !line.trim().is_empty()) {
            complaints.push(format!("node {index}: fails without a word"));
        }
    }
    complaints
}

/// Checks that the report exists and agrees with the exit status.
///
/// There is no report if no process was left to write it. The same is true for a launch that ended
/// before it had read its command line.
fn report_is_complete(
    node: &Node,
    index: usize,
    signals: &[(std::time::Instant, Signal)],
) -> Option<String> {
    if signals.iter().any(|(_, signal)| *signal == Signal::KILL) {
        // The report of a killed launcher may show an earlier state of the run.
        return None;
    }
    let Some(report) = &node.report else {
        return (node.code() >= 0).then(|| format!("node {index}: no report ({})", node.status));
    };
    let outcome = report["outcome"].as_str().unwrap_or_default();
    let explained = !report["first_failure"].is_null() || !report["error"].is_null();
    let fine = match outcome {
        "succeeded" => node.code() == 0,
        "failed" | "error" => node.code() != 0 && explained,
        "signalled" => node.code() != 0 && explained && !signals.is_empty(),
        _ => false,
    };
    (!fine).then(|| format!("node {index}: {} and {report}", node.status))
}

/// Returns the ranks that a node may report as the first failure.
///
/// Each rank has its possible exit codes. There are several ranks if their order is uncertain.
fn first_failures(
    plan: &Plan,
    record: &Record,
    lives: &[Life],
    node: usize,
) -> Vec<(u32, Vec<i64>)> {
    let mut expected = Vec::new();
    for any in 0..record.nodes.len() {
        // Without a dynamic rendezvous, each node has separate failures, and the report may name
        // the failures of another node. A node with restarts left did not end by its failures.
        if !exhausted(plan, record, lives, any) {
            continue;
        }
        let groups = generations(lives, any);
        let last = groups.last().expect("who failed has begun");
        let round = last[0].process.round;
        let everywhere = |life: &Life| plan.rendezvous.is_dynamic() && life.process.round == round;
        let mut ended: Vec<&Life> = lives
            .iter()
            .filter(|life| everywhere(life) || last.iter().any(|own| own.is(life)))
            .filter(|life| life.ended.is_some() && !own_failures(plan, record, life).is_empty())
            .collect();
        ended.sort_by_key(|life| life.ended.map(|(position, _)| position));
        let first = ended[0];
        let first_here = ended.iter().find(|life| life.node == any);
        for life in &ended {
            let tie = |other: &Life| {
                let at = |life: &Life| life.ended.map(|(_, at)| at).expect("all of these ended");
                let apart = at(life).saturating_duration_since(at(other));
                apart
                    < if life.node == other.node {
                        TIE
                    } else {
                        TIE_BETWEEN_NODES
                    }
            };
            // The report may name the node that could still restart, or the node that could not.
            if tie(first) || first_here.is_some_and(|first| first.node == life.node && tie(first)) {
                expected.push((life.process.rank, own_failures(plan, record, life)));
            }
        }
    }
    let _ = node;
    expected
}

fn printed_cause(
    node: &Node,
    index: usize,
    printed: Option<(u32, i64)>,
    expected: &[(u32, Vec<i64>)],
) -> Vec<String> {
    let mut complaints = Vec::new();
    if let Some((rank, code)) = printed
        && !explains(expected, (rank, code))
    {
        complaints.push(format!(
            "node {index}: prints rank {rank} with {code} as the first failure, not {expected:?}"
        ));
    }
    if let Some(report) = &node.report {
        let first = &report["first_failure"];
        let blamed = as_u32(&first["rank"]).zip(first["exit_code"].as_i64());
        if !blamed.is_some_and(|blamed| explains(expected, blamed)) {
            complaints.push(format!(
                "node {index}: reports {blamed:?} as the first failure, not {expected:?}"
            ));
        }
        let kind = first["cause"]["kind"].as_str();
        if !matches!(kind, Some("exception" | "exit_code" | "signal")) {
            complaints.push(format!("node {index}: {kind:?} is not what happened"));
        }
    }
    complaints
}

fn explains(expected: &[(u32, Vec<i64>)], (rank, code): (u32, i64)) -> bool {
    expected
        .iter()
        .any(|(any, codes)| *any == rank && codes.contains(&code))
}

fn as_u32(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// Returns rank and exit code of the root cause in the printed block, if any.
fn printed(stderr: &str) -> Option<(u32, i64)> {
    let (_, root) = stderr.rsplit_once("Root Cause (first observed failure):")?;
    let field = |name: &str| {
        let line = root
            .lines()
            .find(|line| line.trim_start().starts_with(name))?;
        let (_, value) = line.split_once(": ")?;
        value.split(' ').next().map(str::to_owned)
    };
    Some((
        field("rank")?.parse().ok()?,
        field("exitcode")?.parse().ok()?,
    ))
}
