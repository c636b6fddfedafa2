//! A consensus group in simulated worlds, with rules broken on purpose.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rdzv_consensus::ConsensusRule;
use rdzv_core::rules::Rules;
use rdzv_sim::consensus::plan::Plan;
use rdzv_sim::consensus::world::Report;
use rdzv_sim::consensus::{hostile, run};
use rdzv_sim::rules;
use rdzv_sim::trace::Trace;

use crate::{are_noticed, exceeds, occur, reports};

fn of_seeds(seeds: Range<u64>) -> Vec<Report> {
    let run = |seed| run(Plan::of_seed(seed), seed, Trace::Nothing);
    reports("consensus", seeds, run)
}

#[test]
fn seeds_0_to_150_break_no_invariant() {
    let reports = of_seeds(0..150);
    // Every kind of event occurs.
    exceeds(&reports, 20_000, "operations", |report| report.operations);
    exceeds(&reports, 300, "terms", |report| report.terms);
    exceeds(&reports, 150, "deaths", |report| report.deaths);
    exceeds(&reports, 500, "joint configurations", |report| report.joint);
    exceeds(&reports, 200, "restored states", |report| report.restored);
    exceeds(&reports, 50, "hand-overs", |report| report.handed_over);
}

#[test]
fn seeds_150_to_300_break_no_invariant() {
    let reports = of_seeds(150..300);
    let fast = |report: &&Report| {
        !report.fail_over.is_zero() && report.fail_over < Duration::from_millis(60)
    };
    let fast = reports.iter().filter(fast).count();
    assert!(fast > 40, "only {fast} groups lost their last leader");
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let acts = (0..300).flat_map(|seed| Plan::of_seed(seed).acts);
    let kinds = "Kill( KillLeader Start End( EndLeader Stall CutOneWay Split IsolateLeader \
                 Chain Hub Reset Slow RemoveLeader HandOver";
    let kinds: Vec<&str> = kinds.split_whitespace().collect();
    occur(acts.map(|(_, act)| act), &kinds, 20);
    let lossy = (0..300).filter(|seed| Plan::of_seed(*seed).lossy > 0);
    assert!(lossy.count() > 50);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let once = || run(Plan::of_seed(seed), seed, Trace::Nothing);
        assert_eq!(once(), once());
    }
}

#[test]
fn no_lie_ends_a_process() {
    let refused: u64 = (0..200)
        .map(|seed| hostile::run(seed, 2000, Rules::default()))
        .sum();
    assert!(refused > 2000, "only {refused} lies were refused");
}

/// Returns the text of a violation in a seed's world with one broken rule.
fn fault(seed: u64, rule: ConsensusRule) -> Option<String> {
    let mut plan = Plan::of_seed(seed);
    plan.rules = Rules::without(rule);
    let lies = || hostile::run(seed, 2000, plan.rules);
    let result = match rule {
        ConsensusRule::CommitsAreBounded => catch_unwind(lies).map(|_| Ok(Report::default())),
        _ => catch_unwind(AssertUnwindSafe(|| run(plan, seed, Trace::Nothing))),
    };
    match result {
        Ok(result) => result.err().map(|violation| violation.0),
        Err(_) => Some("a process ended".to_owned()),
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    are_noticed(&rules::CONSENSUS, fault);
}
