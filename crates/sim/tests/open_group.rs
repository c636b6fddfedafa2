//! Rules of a group that agents may join, broken on purpose.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::cell::Cell;
use std::panic;

use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::Rule;

#[path = "../../rendezvous/voters/tests/voters/deaths.rs"]
mod deaths;
#[path = "../../rendezvous/voters/tests/voters/world.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod world;

/// Rules of a group that agents may join.
const RULES: [Rule; 8] = [
    Rule::MembersAreRecorded,
    Rule::MissingBlock,
    Rule::NewestTakesOver,
    Rule::GroupsAreNumbered,
    Rule::TermsGoOn,
    Rule::LostMayHaveKnown,
    Rule::LostGroupsAreLeft,
    Rule::LastVoterRecords,
];

/// Number of seeds within which each broken rule must be noticed.
const NOTICED_WITHIN: u64 = 2000;

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Returns the fault in the world of a seed, if there is one.
fn fault(seed: u64, rules: Rules<Rule>) -> Option<String> {
    IS_QUIET.set(true);
    let result = panic::catch_unwind(|| deaths::run(seed, rules));
    IS_QUIET.set(false);
    let fault = result.err()?;
    let text = fault.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| fault.downcast_ref().cloned());
    Some(text.unwrap_or_else(|| "a panic".to_owned()))
}

#[test]
fn every_broken_rule_is_noticed_and_none_without() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if !IS_QUIET.get() {
            hook(info);
        }
    }));
    let mut unnoticed = Vec::new();
    let mut within = 0;
    for rule in RULES {
        let noticed =
            (0..NOTICED_WITHIN).find_map(|seed| Some((seed, fault(seed, Rules::without(rule))?)));
        match noticed {
            Some((seed, what)) => {
                let what = what.lines().next().unwrap_or_default();
                println!("{rule:?}: seed {seed}: {what}");
                within = within.max(seed);
            }
            None => unnoticed.push(rule),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
    // With all rules in force, the same seeds find no fault.
    for seed in 0..=within {
        assert_eq!(fault(seed, Rules::default()), None, "seed {seed}");
    }
}
