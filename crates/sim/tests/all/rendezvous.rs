//! Agents that meet over a compare-and-set store, in simulated worlds.

use std::time::Duration;

use rdzv_sim::agents::plan::{Medium, Plan};
use rdzv_sim::report::Report;
use rdzv_sim::trace::Trace;
use rdzv_sim::{Violation, agents};

use crate::{exceeds, occur, report, reports};

fn run(seed: u64) -> Result<Report, Violation> {
    agents::run(Plan::of_seed(seed, Medium::Store), seed, Trace::Nothing)
}

#[test]
fn seeds_0_to_120_break_no_invariant() {
    let reports = reports("rendezvous", 0..120, run);
    exceeds(&reports, 200, "rounds", |report| report.rounds);
}

#[test]
fn seeds_120_to_240_break_no_invariant() {
    let reports = reports("rendezvous", 120..240, run);
    let lost = |report: &Report| report.tried - report.won;
    exceeds(&reports, 200, "lost writes", lost);
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let plans: Vec<_> = (0..240)
        .map(|seed| Plan::of_seed(seed, Medium::Store))
        .collect();
    let acts = plans.iter().flat_map(|plan| &plan.acts);
    let kinds = "Restart Leave Close Crash Stall Cut ClockJump";
    let kinds: Vec<&str> = kinds.split(' ').collect();
    occur(acts.map(|(_, _, act)| act), &kinds, 5);
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

/// Fails unless the agents of a plan without faults meet within one second.
fn meet_at_once(plan: Plan) {
    let agents = plan.agents as u64;
    let report = report(agents::run(plan, 1, Trace::Nothing));
    assert_eq!((report.rounds, report.joined), (1, agents));
    assert!(report.last_joined < Duration::from_secs(1), "{report:?}");
}

#[test]
fn sixty_agents_that_start_together_meet_at_once() {
    meet_at_once(Plan::of_many(60, Medium::Store));
}

#[test]
fn agents_whose_clocks_differ_by_twenty_seconds_meet_at_once() {
    meet_at_once(Plan {
        skew: vec![0.0, 20.0, -20.0, 40.0],
        ..Plan::of_many(4, Medium::Store)
    });
}
