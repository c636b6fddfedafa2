//! Nodes that are cut off in simulated worlds.
//!
//! Some worlds break the rules of the fence on purpose.

use std::time::Duration;

use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::Rule;
use rdzv_sim::Violation;
use rdzv_sim::fence::Plan;
use rdzv_sim::fence::world::{Report, World};
use rdzv_sim::trace::Trace;

use crate::{are_noticed, exceeds, report, reports};

/// Rules of the fence and of its users.
const RULES: [Rule; 6] = [
    Rule::LeasesAreAwaited,
    Rule::ClocksDrift,
    Rule::VotersConfirm,
    Rule::AnswersContinue,
    Rule::ElectorsCount,
    Rule::ResetProvesNothing,
];

/// Runs the world of a seed, and shows the events before a violation.
fn run(plan: Plan, seed: u64) -> Result<Report, Violation> {
    let run = |plan, trace| World::new(plan, seed, trace).run();
    run(plan.clone(), Trace::Nothing).or_else(|_| run(plan, Trace::Last))
}

#[test]
fn seeds_0_to_300_break_no_invariant() {
    let reports = reports("fence", 0..300, |seed| run(Plan::of_seed(seed), seed));
    // Every kind of event occurs.
    exceeds(&reports, 50, "stops", |report| report.stops);
    exceeds(&reports, 50, "continued", |report| report.continued);
    exceeds(&reports, 50, "kills", |report| report.kills);
    exceeds(&reports, 50, "rounds", |report| report.rounds);
    exceeds(&reports, 50, "ended", |report| report.ended);
    exceeds(&reports, 50, "lifted", |report| report.lifted);
}

#[test]
fn without_faults_no_fence_fires() {
    let plan = Plan {
        node_timeout: Duration::from_secs(3),
        acts: Vec::new(),
        end: Duration::from_secs(60),
        rules: Rules::default(),
        is_open: false,
    };
    for seed in 0..20 {
        let report = report(run(plan.clone(), seed));
        assert_eq!((report.rounds, report.stops), (1, 0), "seed {seed}");
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    are_noticed(&RULES, |seed, rule| {
        let plan = Plan {
            rules: Rules::without(rule),
            ..Plan::of_seed(seed)
        };
        let result = World::new(plan, seed, Trace::Nothing).run();
        result.err().map(|violation| violation.0)
    });
}
