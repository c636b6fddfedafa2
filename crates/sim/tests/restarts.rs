//! Agents that meet at a coordinator which is killed and started again, in simulated worlds.

use std::time::Duration;

use rdzv_sim::agents::plan::{Act, Place, Plan};
use rdzv_sim::report::Report;
use rdzv_sim::trace::Trace;
use rdzv_sim::{Violation, agents};

fn run(plan: Plan, seed: u64) -> Result<Report, Violation> {
    agents::run(plan, seed, Trace::Nothing)
}

#[test]
fn seeds_0_to_200_break_no_invariant() {
    let mut rounds = 0;
    for seed in 0..200 {
        let plan = Plan::of_seed(seed, Place::Restartable);
        let report = run(plan, seed).unwrap_or_else(|violation| {
            panic!(
                "seed {seed}: {}; replay: cargo run -p rdzv-sim -- restarts --seed {seed} --trace",
                violation.0
            )
        });
        rounds += report.rounds;
    }
    assert!(rounds > 300, "only {rounds} rounds were formed");
}

#[test]
fn a_round_outlives_a_hundred_coordinators() {
    for seed in 0..20 {
        let mut plan = Plan::of_many(2 + seed as usize, Place::Restartable);
        for death in 0..100 {
            let at = Duration::from_millis(1000 + death * 617);
            plan.acts.push((at, 0, Act::HostDies(0)));
            plan.end = at;
        }
        let report = run(plan, seed).unwrap_or_else(|violation| panic!("{}", violation.0));
        assert_eq!((report.rounds, report.joined), (1, 2 + seed), "{report:?}");
    }
}

#[test]
fn wherever_the_coordinator_dies_everybody_comes_together() {
    // Every output while four agents join, and while they join again after a failure.
    for death in 1..60 {
        for seed in 0..3 {
            let mut plan = Plan::of_many(4, Place::Restartable);
            plan.acts.push((Duration::ZERO, 0, Act::HostDies(death)));
            plan.acts.push((Duration::from_secs(20), 1, Act::Restart));
            let at = Duration::from_secs(20);
            plan.acts.push((at, 0, Act::HostDies(death)));
            plan.end = at;
            let report = run(plan, seed).unwrap_or_else(|violation| {
                panic!("killed at output {death}, seed {seed}: {}", violation.0)
            });
            assert!(report.rounds >= 2 && report.rounds <= 6, "{report:?}");
        }
    }
}
