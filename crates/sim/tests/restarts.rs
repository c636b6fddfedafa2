//! Agents that meet at a coordinator which is killed and started again, in simulated worlds.

use std::time::Duration;

use rdzv_rendezvous_proto::mutant::{Mutant, break_rule};
use rdzv_sim::agents::plan::{Act, Place, Plan};
use rdzv_sim::report::Report;
use rdzv_sim::trace::Trace;
use rdzv_sim::{Violation, agents};

/// Seeds within which each mutant has to be noticed.
const NOTICED_WITHIN: u64 = 2000;

fn run(plan: Plan, seed: u64) -> Result<Report, Violation> {
    agents::run(plan, seed, Trace::Nothing)
}

#[test]
fn seeds_0_to_200_break_no_invariant() {
    let (mut rounds, mut ordered) = (0, 0);
    for seed in 0..200 {
        let plan = Plan::of_seed(seed, Place::Restartable);
        let report = run(plan, seed).unwrap_or_else(|violation| {
            panic!(
                "seed {seed}: {}; replay: cargo run -p rdzv-sim -- restarts --seed {seed} --trace",
                violation.0
            )
        });
        rounds += report.rounds;
        ordered += report.ordered;
    }
    assert!(rounds > 300, "only {rounds} rounds were formed");
    assert!(
        ordered > 10_000,
        "the order of only {ordered} operations was looked for"
    );
}

/// Agents that nothing happens to, and a coordinator that is killed a hundred times.
fn hundred_deaths(seed: u64) -> Plan {
    let mut plan = Plan::of_many(2 + seed as usize, Place::Restartable);
    for death in 0..100 {
        let at = Duration::from_millis(1000 + death * 617);
        plan.acts.push((at, 0, Act::HostDies(0)));
        plan.end = at;
    }
    plan
}

#[test]
fn a_round_outlives_a_hundred_coordinators() {
    for seed in 0..20 {
        let report =
            run(hundred_deaths(seed), seed).unwrap_or_else(|violation| panic!("{}", violation.0));
        assert_eq!((report.rounds, report.joined), (1, 2 + seed), "{report:?}");
    }
}

/// A round of which nobody is left who could tell the next coordinator, which has no note: an agent that was cut off before
/// is the only one that comes back.
fn unknown_round() -> Plan {
    let mut plan = Plan::of_many(3, Place::Restartable);
    (plan.settings.min_nodes, plan.faulty) = (1, true);
    plan.settings.last_call_timeout = Duration::from_millis(100);
    let seconds = Duration::from_secs;
    plan.acts.extend([
        (seconds(5), 2, Act::Cut(seconds(40))),
        (seconds(35), 0, Act::Crash),
        (seconds(35), 1, Act::Crash),
        (seconds(35), 0, Act::NoteLost),
        (seconds(60), 0, Act::Recover),
    ]);
    plan.end = seconds(60);
    plan
}

#[test]
fn no_number_is_used_twice_though_nobody_knows_it() {
    for seed in 0..20 {
        let report =
            run(unknown_round(), seed).unwrap_or_else(|violation| panic!("{}", violation.0));
        assert_eq!(report.rounds, 3, "{report:?}");
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

/// The fault in the worlds of a seed, if there is one.
fn fault(seed: u64) -> Option<String> {
    if seed < 20 {
        match run(hundred_deaths(seed), seed) {
            Ok(report) if report.rounds == 1 => {}
            Ok(_) => return Some("a round is over though nobody of it has ended".to_owned()),
            Err(violation) => return Some(violation.0),
        }
        if let Err(violation) = run(unknown_round(), seed) {
            return Some(violation.0);
        }
    }
    let result = run(Plan::of_seed(seed, Place::Restartable), seed);
    result.err().map(|violation| violation.0)
}

#[test]
fn every_broken_rule_is_noticed() {
    let mut unnoticed = Vec::new();
    for mutant in Mutant::RECOVERY {
        break_rule(Some(mutant));
        let mut seeds = 0..NOTICED_WITHIN;
        let noticed = seeds.find_map(|seed| Some((seed, fault(seed)?)));
        break_rule(None);
        match noticed {
            Some((seed, what)) => println!("{mutant:?}: seed {seed}: {what}"),
            None => unnoticed.push(mutant),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
