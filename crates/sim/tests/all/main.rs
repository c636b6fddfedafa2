//! Seeds of each world, and rules that are broken on purpose.

mod consensus;
mod fence;
mod native;
mod recovery;
mod references;
mod rendezvous;
mod restarts;
mod store;

use std::fmt::Debug;
use std::ops::Range;

use rdzv_sim::Violation;

/// Number of seeds within which each broken rule must be noticed.
const NOTICED_WITHIN: u64 = 2000;

/// Runs the worlds of seeds, and returns their reports.
///
/// `world` is the name of the world on the simulator's command line.
fn reports<R>(world: &str, seeds: Range<u64>, run: impl Fn(u64) -> Result<R, Violation>) -> Vec<R> {
    let report = |seed| {
        run(seed).unwrap_or_else(|violation| {
            panic!(
                "seed {seed}: {}; replay: cargo run -p rdzv-sim -- {world} --seed {seed} --trace",
                violation.0
            )
        })
    };
    seeds.map(report).collect()
}

/// Returns the report of a world that breaks no invariant.
fn report<R>(result: Result<R, Violation>) -> R {
    result.unwrap_or_else(|violation| panic!("{}", violation.0))
}

/// Fails unless the sum of a figure over all reports exceeds `least`.
fn exceeds<R>(reports: &[R], least: u64, what: &str, figure: impl Fn(&R) -> u64) {
    let sum: u64 = reports.iter().map(figure).sum();
    assert!(sum > least, "{what}: only {sum}");
}

/// Fails unless each kind has more than `least` acts.
///
/// The text of an act begins with its kind.
fn occur<A: Debug>(acts: impl Iterator<Item = A>, kinds: &[&str], least: usize) {
    let acts: Vec<String> = acts.map(|act| format!("{act:?}")).collect();
    for kind in kinds {
        let seen = acts.iter().filter(|act| act.starts_with(kind)).count();
        assert!(seen > least, "{kind}: only {seen} times");
    }
}

/// Breaks one rule at a time, and fails unless each broken rule is noticed.
///
/// `fault` returns the text of a violation in a seed's worlds with one rule broken.
fn are_noticed<R: Copy + Debug>(rules: &[R], fault: impl Fn(u64, R) -> Option<String>) {
    let mut unnoticed = Vec::new();
    for rule in rules {
        match (0..NOTICED_WITHIN).find_map(|seed| Some((seed, fault(seed, *rule)?))) {
            Some((seed, what)) => println!("{rule:?}: seed {seed}: {what:.100}"),
            None => unnoticed.push(rule),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
