//! Agents that meet over a compare-and-set store, in simulated worlds.

use std::ops::Range;
use std::time::Duration;

use rdzv_sim::agents::plan::{Place, Plan};
use rdzv_sim::report::Report;
use rdzv_sim::trace::Trace;
use rdzv_sim::{Violation, agents};

fn run(seed: u64) -> Result<Report, Violation> {
    agents::run(Plan::of_seed(seed, Place::Store), seed, Trace::Nothing)
}

fn no_seed_breaks_an_invariant(seeds: Range<u64>) -> Vec<Report> {
    seeds
        .map(|seed| {
            run(seed).unwrap_or_else(|violation| {
                panic!(
                    "seed {seed}: {}; replay: cargo run -p rdzv-sim -- rendezvous --seed {seed} \
                     --trace",
                    violation.0
                )
            })
        })
        .collect()
}

#[test]
fn seeds_0_to_120_break_no_invariant() {
    let reports = no_seed_breaks_an_invariant(0..120);
    let rounds: u64 = reports.iter().map(|report| report.rounds).sum();
    assert!(rounds > 200, "only {rounds} rounds were formed");
}

#[test]
fn seeds_120_to_240_break_no_invariant() {
    let reports = no_seed_breaks_an_invariant(120..240);
    let lost: u64 = reports.iter().map(|report| report.tried - report.won).sum();
    assert!(lost > 200, "only {lost} writes were lost");
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let plans: Vec<_> = (0..240)
        .map(|seed| Plan::of_seed(seed, Place::Store))
        .collect();
    let seen = |what: &str| {
        plans
            .iter()
            .flat_map(|plan| &plan.acts)
            .filter(|act| format!("{:?}", act.2).starts_with(what))
            .count()
    };
    for what in [
        "Restart",
        "Leave",
        "Close",
        "Crash",
        "Stall",
        "Cut",
        "ClockJump",
    ] {
        assert!(seen(what) > 5, "{what} happens {} times", seen(what));
    }
    let count = |is: fn(&Plan) -> bool| plans.iter().filter(|plan| is(plan)).count();
    assert!(count(|plan| plan.loses_one_of > 0) > 20);
    assert!(count(|plan| !plan.faulty) > 20);
    assert!(count(|plan| plan.clocks_are_wrong) > 3);
    assert!(count(|plan| !plan.notifies) > 20);
    assert!(count(|plan| plan.agents > 20) > 0);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(5), run(5));
}

#[test]
fn sixty_agents_that_start_together_meet_at_once() {
    let plan = Plan::of_many(60, Place::Store);
    let report =
        agents::run(plan, 1, Trace::Nothing).unwrap_or_else(|violation| panic!("{}", violation.0));
    assert_eq!((report.rounds, report.joined), (1, 60));
    assert!(
        report.last_joined < Duration::from_secs(1),
        "it took {:?}",
        report.last_joined
    );
}

#[test]
fn agents_whose_clocks_differ_by_twenty_seconds_meet_at_once() {
    let mut plan = Plan::of_many(4, Place::Store);
    plan.skew = vec![0.0, 20.0, -20.0, 40.0];
    let report =
        agents::run(plan, 1, Trace::Nothing).unwrap_or_else(|violation| panic!("{}", violation.0));
    assert_eq!((report.rounds, report.joined), (1, 4));
    assert!(
        report.last_joined < Duration::from_secs(1),
        "it took {:?}",
        report.last_joined
    );
}
