//! The store server in simulated worlds.

use rdzv_sim::trace::Trace;

use crate::{exceeds, reports};

#[test]
fn no_seed_breaks_an_invariant() {
    let reports = reports("", 0..200, |seed| rdzv_sim::run(seed, Trace::Nothing));
    exceeds(&reports, 200 * 1000, "answers", |report| report.answers);
    exceeds(&reports, 200 * 100, "ordered", |report| report.operations);
    exceeds(&reports, 200, "resets", |report| report.resets);
    exceeds(&reports, 200, "pauses", |report| report.pauses);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let once = || rdzv_sim::run(5, Trace::Nothing);
    assert_eq!(once(), once());
}
