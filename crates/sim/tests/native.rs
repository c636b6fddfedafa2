//! Agents that meet through a host, in simulated worlds.

use std::ops::Range;
use std::time::Duration;

use rdzv_sim::agents::plan::{Act, Place, Plan};
use rdzv_sim::report::Report;
use rdzv_sim::trace::Trace;
use rdzv_sim::{Violation, agents};

fn run(seed: u64) -> Result<Report, Violation> {
    agents::run(
        Plan::of_seed(seed, Place::Coordinator),
        seed,
        Trace::Nothing,
    )
}

fn no_seed_breaks_an_invariant(seeds: Range<u64>) -> Vec<Report> {
    seeds
        .map(|seed| {
            run(seed).unwrap_or_else(|violation| {
                panic!(
                    "seed {seed}: {}; replay: cargo run -p rdzv-sim -- native --seed {seed} --trace",
                    violation.0
                )
            })
        })
        .collect()
}

#[test]
fn seeds_0_to_100_break_no_invariant() {
    let reports = no_seed_breaks_an_invariant(0..100);
    let rounds: u64 = reports.iter().map(|report| report.rounds).sum();
    assert!(rounds > 300, "only {rounds} rounds were formed");
    let ordered: u64 = reports.iter().map(|report| report.ordered).sum();
    assert!(
        ordered > 4_000,
        "the order of only {ordered} operations was looked for"
    );
}

#[test]
fn seeds_100_to_200_break_no_invariant() {
    let reports = no_seed_breaks_an_invariant(100..200);
    let won: u64 = reports.iter().map(|report| report.won).sum();
    assert!(won > 1000, "torchrun agents wrote only {won} times");
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let acts: Vec<Act> = (0..200)
        .flat_map(|seed| Plan::of_seed(seed, Place::Coordinator).acts)
        .map(|(_, _, act)| act)
        .collect();
    for kind in [
        "Restart",
        "Leave",
        "Close",
        "Crash",
        "Vanish",
        "Stall",
        "Cut",
        "Reset",
        "HostStalls",
    ] {
        let seen = acts
            .iter()
            .filter(|act| format!("{act:?}").starts_with(kind));
        assert!(seen.count() > 5, "{kind}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7), run(7));
}

#[test]
fn a_thousand_agents_meet_with_two_operations_each() {
    let plan = Plan::of_many(1000, Place::Coordinator);
    let report =
        agents::run(plan, 1, Trace::Nothing).unwrap_or_else(|violation| panic!("{}", violation.0));
    assert_eq!((report.rounds, report.joined), (1, 1000));
    // While the world is watched for 16 s afterwards, each says three times that it lives.
    assert!(
        report.operations <= 5 * 1000,
        "{} operations",
        report.operations
    );
    assert!(
        report.last_joined < Duration::from_millis(10),
        "{:?}",
        report.last_joined
    );
}
