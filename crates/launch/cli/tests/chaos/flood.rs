//! Tests of floods of log output, which must not delay heartbeats (INV-A7).
//!
//! A console that no process reads must not block the end of a run either.

use std::time::Duration;

use crate::plan::{Act, End, Plan, Rendezvous};
use crate::{cause, checks, job};

/// All workers of two nodes write as fast as their disk accepts it.
///
/// They write for longer than the detection of a lost node takes (five heartbeats of 1 s).
#[test]
fn a_flood_of_logs_costs_no_node_its_membership() {
    let mut acts = Vec::new();
    for rank in 0..3 {
        let before = (0..200).flat_map(|_| ["flood:400000", "pause:25"]);
        acts.push(Act {
            generation: 0,
            rank,
            before: before.map(str::to_owned).collect(),
            pause: 0,
            end: End::Success,
        });
    }
    let plan = Plan {
        rendezvous: Rendezvous::FirstAgent,
        nodes: vec![2, 1],
        elastic: true,
        max_restarts: 0,
        shutdown_timeout: 1,
        tee: true,
        stalled_console: false,
        acts,
        faults: Vec::new(),
        end: Duration::from_secs(120),
    };
    let record = job::run(&plan);
    let rounds: Vec<u32> = record
        .workers()
        .iter()
        .map(|life| life.process.round)
        .collect();
    assert_eq!(rounds, [0, 0, 0], "{record}");
    for (index, node) in record.nodes.iter().enumerate() {
        assert_eq!(node.code(), 0, "node {index}: {record}");
    }
    let mut complaints = record.complaints.clone();
    complaints.extend(checks::all(&plan, &record));
    complaints.extend(cause::all(&plan, &record));
    assert!(complaints.is_empty(), "{complaints:?}\n{record}");
}

#[test]
fn a_console_that_nobody_reads_does_not_keep_a_signal_from_ending_the_run() {
    ends_soon_after_a_signal(End::Hang);
}

// If the signal arrives while a failed group is being stopped, the failure remains the cause.
#[test]
fn nor_does_it_if_the_run_had_failed_already() {
    ends_soon_after_a_signal(End::Code(3));
}

fn ends_soon_after_a_signal(end_of_worker: End) {
    let act = |rank, before: &str, pause, end| Act {
        generation: 0,
        rank,
        before: vec![before.to_owned()],
        pause,
        end,
    };
    let end = Duration::from_millis(1500);
    let plan = Plan {
        rendezvous: Rendezvous::Standalone,
        nodes: vec![2],
        elastic: false,
        max_restarts: 0,
        shutdown_timeout: 2,
        tee: true,
        stalled_console: true,
        acts: vec![
            act(0, "flood:1000000", 600, end_of_worker),
            // This worker delays the stop of the group until the signal arrives.
            act(1, "ignore:2,15", 0, End::Hang),
        ],
        faults: Vec::new(),
        end,
    };
    let record = job::run(&plan);
    assert_eq!(record.complaints, [] as [&str; 0], "{record}");
    let node = &record.nodes[0];
    assert_eq!(node.code(), 1, "{record}");
    let took = node.ended.saturating_duration_since(record.began) - end;
    assert!(took < Duration::from_secs(20), "{took:?}\n{record}");
}
