//! Test of processes that become workers repeatedly (SCN-S28).

use serde::Deserialize;
use serde_json::json;

use super::worker::{Scenario, Worker};

const LIVES: usize = 20;

/// Maximum growth of memory from the first lives to the last.
const GROWTH: usize = 4 << 20;

#[derive(Debug, Deserialize)]
struct Lives {
    threads: usize,
    lives: Vec<Life>,
}

#[derive(Debug, Deserialize)]
struct Life {
    /// Time that the end of the life took, in seconds.
    ended: f64,
    process: Process,
}

#[derive(Debug, Deserialize)]
struct Process {
    threads: usize,
    descriptors: usize,
    bytes: usize,
}

#[test]
fn twenty_groups_of_the_same_processes_leave_nothing_and_end_as_fast() {
    let scenario = Scenario::new();
    let workers = scenario.started(["a", "b"]);
    for worker in &workers {
        let init = json!({ "name": worker.name, "world_size": 2 });
        worker.tell(&json!({ "do": "lives", "init": init, "lives": LIVES }));
    }
    for worker in &workers {
        let Lives { threads, lives } = serde_json::from_value(worker.succeeds()).unwrap();
        assert_eq!(lives.len(), LIVES);
        // Descriptors that a process opens only once are open after the first life.
        let descriptors = lives[0].process.descriptors;
        for life in &lives {
            assert_eq!(life.process.threads, threads, "{life:?}");
            assert!(
                life.process.descriptors <= descriptors,
                "{life:?} {descriptors}"
            );
        }
        let (early, last) = (&lives[LIVES / 4], &lives[LIVES - 1]);
        let most = early.process.bytes + GROWTH;
        assert!(last.process.bytes < most, "{early:?}, then {last:?}");
        let mut ends: Vec<f64> = lives.iter().map(|life| life.ended).collect();
        let late = ends.split_off(LIVES / 2);
        let quickest = |ends: &[f64]| ends.iter().copied().fold(f64::INFINITY, f64::min);
        let (early, late) = (quickest(&ends), quickest(&late));
        assert!(late < 2.0 * early + 0.05, "{early} s, then {late} s");
    }
    assert_eq!(scenario.keys(), ["rdzv/rpc/round"]);
}

#[test]
fn a_process_started_again_meets_one_that_has_been_in_other_groups() {
    let scenario = Scenario::new();
    let [old] = scenario.started(["old"]);
    for _ in 0..3 {
        let new = scenario.start("new", 1);
        let both: [&Worker; 2] = [&old, &new];
        for worker in both {
            worker.begin_init(&json!({ "world_size": 2 }));
        }
        for worker in both {
            worker.succeeds();
        }
        assert_eq!(old.calls("new", "double", json!(1)), Ok(json!(2)));
        assert_eq!(new.calls("old", "double", json!(1)), Ok(json!(2)));
        for worker in both {
            worker.tell(&json!({ "do": "shutdown", "seconds": 20 }));
        }
        for worker in both {
            worker.succeeds();
        }
    }
}
