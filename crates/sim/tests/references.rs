//! Workers that refer to one another's values, in simulated worlds.

use std::ops::Range;

use rdzv_sim::references::plan::Plan;
use rdzv_sim::references::run;
use rdzv_sim::references::world::Report;
use rdzv_sim::trace::Trace;

fn no_seed_breaks_an_invariant(seeds: Range<u64>) -> Vec<Report> {
    seeds
        .map(|seed| {
            run(seed, Trace::Nothing).unwrap_or_else(|violation| {
                // Once more, to show how it came about.
                let _ = run(seed, Trace::Last);
                panic!(
                    "seed {seed}: {}; replay: cargo run -p rdzv-sim -- references --seed {seed} --trace",
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
    for (what, times) in [
        ("operations", sum(|report| report.operations)),
        ("made", sum(|report| report.made)),
        ("adopted", sum(|report| report.adopted)),
        ("fetched", sum(|report| report.fetched)),
        ("refused", sum(|report| report.refused)),
        ("ended", sum(|report| report.ended)),
        ("lost", sum(|report| report.lost)),
        ("awaited", sum(|report| report.awaited)),
    ] {
        assert!(times > 100, "{what}: only {times} times");
    }
}

#[test]
fn seeds_150_to_300_break_no_invariant() {
    let reports = no_seed_breaks_an_invariant(150..300);
    let batches: u64 = reports.iter().map(|report| report.batches).sum();
    assert!(batches > 10_000, "only {batches} batches");
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let plans: Vec<Plan> = (0..300).map(Plan::of_seed).collect();
    for kind in ["Kill", "Leave", "Restart", "Cut"] {
        let acts = plans.iter().flat_map(|plan| &plan.acts);
        let seen = acts.filter(|(_, _, act)| format!("{act:?}").starts_with(kind));
        assert!(seen.count() > 20, "{kind}");
    }
    let is_bad =
        |plan: &&Plan| plan.lost > 0 && plan.doubled > 0 && plan.late > 0 && plan.bad_calls > 0;
    assert!(plans.iter().filter(is_bad).count() > 20);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(run(7, Trace::Nothing), run(7, Trace::Nothing));
}
