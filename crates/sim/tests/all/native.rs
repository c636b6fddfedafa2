//! Agents that meet through a host, in simulated worlds.

use std::time::Duration;

use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::Rule;
use rdzv_sim::agents::plan::{Medium, Plan};
use rdzv_sim::report::Report;
use rdzv_sim::trace::Trace;
use rdzv_sim::{Violation, agents};

use crate::{are_noticed, exceeds, occur, report, reports};

fn run(seed: u64) -> Result<Report, Violation> {
    let plan = Plan::of_seed(seed, Medium::Coordinator);
    agents::run(plan, seed, Trace::Nothing)
}

#[test]
fn seeds_0_to_100_break_no_invariant() {
    let reports = reports("native", 0..100, run);
    exceeds(&reports, 300, "rounds", |report| report.rounds);
    exceeds(&reports, 4_000, "ordered", |report| report.ordered);
}

#[test]
fn seeds_100_to_200_break_no_invariant() {
    let reports = reports("native", 100..200, run);
    exceeds(&reports, 1000, "writes of torchrun", |report| report.won);
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let acts = (0..200).flat_map(|seed| Plan::of_seed(seed, Medium::Coordinator).acts);
    let kinds = "Restart Leave Close Crash Vanish Stall Cut Reset HostStalls";
    let kinds: Vec<&str> = kinds.split(' ').collect();
    occur(acts.map(|(_, _, act)| act), &kinds, 5);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7), run(7));
}

#[test]
fn a_thousand_agents_meet_with_two_operations_each() {
    let plan = Plan::of_many(1000, Medium::Coordinator);
    let report = report(agents::run(plan, 1, Trace::Nothing));
    assert_eq!((report.rounds, report.joined), (1, 1000));
    // During the 16 s after the last event, each agent sends three heartbeats.
    assert!(report.operations <= 5 * 1000, "{report:?}");
    assert!(report.last_joined < Duration::from_millis(10), "{report:?}");
}

/// Rules about spares and ranks.
const RULES: [Rule; 3] = [Rule::RanksStick, Rule::SparesStepIn, Rule::FormerComeFirst];

#[test]
fn every_broken_rule_is_noticed() {
    are_noticed(&RULES, |seed, rule| {
        let plan = Plan::of_seed(seed, Medium::Coordinator);
        let rules = Rules::without(rule);
        let result = agents::run(Plan { rules, ..plan }, seed, Trace::Nothing);
        result.err().map(|violation| violation.0)
    });
}
