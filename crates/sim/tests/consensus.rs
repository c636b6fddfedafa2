//! A consensus group in simulated worlds, and the rules that are broken on purpose.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rdzv_consensus::Rule;
use rdzv_core::rules::Rules;
use rdzv_sim::consensus::plan::{Act, Plan};
use rdzv_sim::consensus::world::Report;
use rdzv_sim::consensus::{hostile, run};
use rdzv_sim::rules;
use rdzv_sim::trace::Trace;

/// Seeds within which each broken rule has to be noticed.
const NOTICED_WITHIN: u64 = 2000;

fn no_seed_breaks_an_invariant(seeds: Range<u64>) -> Vec<Report> {
    seeds
        .map(|seed| {
            run(Plan::of_seed(seed), seed, Trace::Nothing).unwrap_or_else(|violation| {
                panic!(
                    "seed {seed}: {}; replay: cargo run -p rdzv-sim -- consensus --seed {seed} --trace",
                    violation.0
                )
            })
        })
        .collect()
}

#[test]
fn seeds_0_to_150_break_no_invariant() {
    let reports = no_seed_breaks_an_invariant(0..150);
    let sum = |of: fn(&Report) -> u64| reports.iter().map(of).sum::<u64>();
    // Whatever can happen does.
    for (what, times, least) in [
        ("operations", sum(|report| report.operations), 20_000),
        ("terms", sum(|report| report.terms), 300),
        ("deaths", sum(|report| report.deaths), 150),
        ("joint configurations", sum(|report| report.joint), 500),
        ("restored states", sum(|report| report.restored), 200),
        ("hand-overs", sum(|report| report.handed_over), 50),
    ] {
        assert!(times > least, "{what}: only {times} times");
    }
}

#[test]
fn seeds_150_to_300_break_no_invariant() {
    let reports = no_seed_breaks_an_invariant(150..300);
    let fast = |report: &&Report| {
        !report.fail_over.is_zero() && report.fail_over < Duration::from_millis(60)
    };
    let fast = reports.iter().filter(fast).count();
    assert!(fast > 40, "only {fast} groups lost their last leader");
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let acts: Vec<Act> = (0..300)
        .flat_map(|seed| Plan::of_seed(seed).acts)
        .map(|(_, act)| act)
        .collect();
    for kind in [
        "Kill(",
        "KillLeader",
        "Start",
        "End(",
        "EndLeader",
        "Stall",
        "CutOneWay",
        "Split",
        "IsolateLeader",
        "Chain",
        "Hub",
        "Reset",
        "Slow",
        "RemoveLeader",
        "HandOver",
    ] {
        let seen = acts
            .iter()
            .filter(|act| format!("{act:?}").starts_with(kind));
        assert!(seen.count() > 20, "{kind}");
    }
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

/// The first seed at which a broken rule is noticed, and by what.
fn noticed(rule: Rule) -> Option<(u64, String)> {
    for seed in 0..NOTICED_WITHIN {
        let mut plan = Plan::of_seed(seed);
        plan.rules = Rules::without(rule);
        let lies = || hostile::run(seed, 2000, plan.rules);
        let result = match rule {
            Rule::CommitsAreBounded => catch_unwind(lies).map(|_| Ok(Report::default())),
            _ => catch_unwind(AssertUnwindSafe(|| run(plan, seed, Trace::Nothing))),
        };
        match result {
            Ok(Ok(_)) => {}
            Ok(Err(violation)) => return Some((seed, violation.0)),
            Err(_) => return Some((seed, "a process ended".to_owned())),
        }
    }
    None
}

#[test]
fn every_broken_rule_is_noticed() {
    let mut unnoticed = Vec::new();
    for rule in rules::CONSENSUS {
        match noticed(rule) {
            Some((seed, what)) => {
                let what: String = what.chars().take(100).collect();
                println!("{rule:?}: seed {seed}: {what}");
            }
            None => unnoticed.push(rule),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
