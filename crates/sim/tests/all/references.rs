//! Workers that refer to each other's values, in simulated worlds.

use rdzv_sim::Violation;
use rdzv_sim::references::plan::Plan;
use rdzv_sim::references::run;
use rdzv_sim::references::world::Report;
use rdzv_sim::trace::Trace;

use crate::{exceeds, occur, reports};

/// Runs the world of a seed, and shows the events before a violation.
fn shown(seed: u64) -> Result<Report, Violation> {
    run(seed, Trace::Nothing).or_else(|_| run(seed, Trace::Last))
}

#[test]
fn seeds_0_to_150_break_no_invariant() {
    let reports = reports("references", 0..150, shown);
    // Every kind of event occurs.
    exceeds(&reports, 100, "operations", |report| report.operations);
    exceeds(&reports, 100, "made", |report| report.made);
    exceeds(&reports, 100, "adopted", |report| report.adopted);
    exceeds(&reports, 100, "fetched", |report| report.fetched);
    exceeds(&reports, 100, "refused", |report| report.refused);
    exceeds(&reports, 100, "ended", |report| report.ended);
    exceeds(&reports, 100, "lost", |report| report.lost);
    exceeds(&reports, 100, "awaited", |report| report.awaited);
}

#[test]
fn seeds_150_to_300_break_no_invariant() {
    let reports = reports("references", 150..300, shown);
    exceeds(&reports, 10_000, "batches", |report| report.batches);
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let plans: Vec<Plan> = (0..300).map(Plan::of_seed).collect();
    let acts = plans.iter().flat_map(|plan| &plan.acts);
    let acts = acts.map(|(_, _, act)| act);
    occur(acts, &["Kill", "Leave", "Restart", "Cut"], 20);
    let is_bad =
        |plan: &&Plan| plan.lost > 0 && plan.doubled > 0 && plan.late > 0 && plan.bad_calls > 0;
    assert!(plans.iter().filter(is_bad).count() > 20);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7, Trace::Nothing), run(7, Trace::Nothing));
}
