//! Workers that recover in their processes, in simulated worlds.

use rdzv_agent_proto::group::RecoveryRule;
use rdzv_core::rules::Rules;
use rdzv_sim::Violation;
use rdzv_sim::recovery::Plan;
use rdzv_sim::recovery::world::{Report, World};
use rdzv_sim::trace::Trace;

use crate::{are_noticed, exceeds, occur, reports};

const RULES: [RecoveryRule; 5] = [
    RecoveryRule::AllLeave,
    RecoveryRule::OnlyConnectedStay,
    RecoveryRule::TimeoutIsKept,
    RecoveryRule::GoEndsReadiness,
    RecoveryRule::ExitIsForgotten,
];

/// Runs the world of a seed, and shows the events before a violation.
fn run(seed: u64) -> Result<Report, Violation> {
    let run = |trace| World::new(Plan::of_seed(seed), seed, trace).run();
    run(Trace::Nothing).or_else(|_| run(Trace::Last))
}

#[test]
fn seeds_0_to_500_break_no_invariant() {
    let reports = reports("recovery", 0..500, run);
    exceeds(&reports, 1000, "rounds", |report| report.rounds);
    exceeds(&reports, 500, "kept", |report| report.kept);
    exceeds(&reports, 1000, "started", |report| report.started);
    exceeds(&reports, 50, "killed", |report| report.killed);
    exceeds(&reports, 20, "ended", |report| report.ended);
}

#[test]
fn seeds_have_faults_of_every_kind() {
    let acts = (0..100).flat_map(|seed| Plan::of_seed(seed).acts);
    let kinds = ["Kill", "Raise", "Hold", "Atomic", "Stick", "Lose", "Signal"];
    occur(acts.map(|(_, act)| act), &kinds, 20);
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
