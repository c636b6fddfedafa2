//! Agents that meet at a coordinator that is killed and restarted.
//!
//! All of this happens in simulated worlds.

use std::time::Duration;

use rdzv_core::rules::Rules;
use rdzv_rendezvous_proto::Rule;
use rdzv_sim::agents::plan::{Act, Medium, Plan};
use rdzv_sim::report::Report;
use rdzv_sim::trace::Trace;
use rdzv_sim::{Violation, agents};

use crate::{are_noticed, exceeds, report, reports};

/// Rules of a coordinator and of its recovery.
const RULES: [Rule; 13] = [
    Rule::RecordsBeforeNotice,
    Rule::EndIsRecorded,
    Rule::MostRestore,
    Rule::MissingAreAwaited,
    Rule::WindowIsKept,
    Rule::NumbersJump,
    Rule::SuccessorsProve,
    Rule::SilenceIsNoEnd,
    Rule::SuccessIsKept,
    Rule::DetachIsSent,
    Rule::ResetProvesNothing,
    Rule::ProxyProvesNothing,
    Rule::OthersMayCoordinate,
];

fn run(plan: Plan, seed: u64) -> Result<Report, Violation> {
    agents::run(plan, seed, Trace::Nothing)
}

#[test]
fn seeds_0_to_200_break_no_invariant() {
    let run = |seed| run(Plan::of_seed(seed, Medium::Restartable), seed);
    let reports = reports("restarts", 0..200, run);
    exceeds(&reports, 300, "rounds", |report| report.rounds);
    exceeds(&reports, 10_000, "ordered", |report| report.ordered);
}

/// Returns a plan without agent faults; the coordinator is killed 100 times.
fn hundred_deaths(seed: u64) -> Plan {
    let mut plan = Plan::of_many(2 + seed as usize, Medium::Restartable);
    for death in 0..100 {
        let at = Duration::from_millis(1000 + death * 617);
        plan.acts.push((at, 0, Act::HostDies(0)));
        plan.end = at;
    }
    plan
}

#[test]
fn a_round_outlives_a_hundred_coordinators() {
    for seed in 0..20 {
        let report = report(run(hundred_deaths(seed), seed));
        assert_eq!((report.rounds, report.joined), (1, 2 + seed), "{report:?}");
    }
}

/// Returns a plan with a round that no agent can report.
///
/// The next coordinator has no record. The only agent that returns was cut off before.
fn unknown_round() -> Plan {
    let mut plan = Plan::of_many(3, Medium::Restartable);
    (plan.settings.min_nodes, plan.faulty) = (1, true);
    plan.settings.last_call_timeout = Duration::from_millis(100);
    let seconds = Duration::from_secs;
    plan.acts.extend([
        (seconds(5), 2, Act::Cut(seconds(40))),
        (seconds(35), 0, Act::Crash),
        (seconds(35), 1, Act::Crash),
        (seconds(35), 0, Act::NoteLost),
        (seconds(60), 0, Act::Recover),
    ]);
    plan.end = seconds(60);
    plan
}

#[test]
fn no_number_is_used_twice_though_nobody_knows_it() {
    for seed in 0..20 {
        let report = report(run(unknown_round(), seed));
        assert_eq!(report.rounds, 3, "{report:?}");
    }
}

#[test]
fn wherever_the_coordinator_dies_everybody_comes_together() {
    // Every output while four agents join, and while they join again after a failure.
    for death in 1..60 {
        for seed in 0..3 {
            let mut plan = Plan::of_many(4, Medium::Restartable);
            plan.end = Duration::from_secs(20);
            plan.acts.extend([
                (Duration::ZERO, 0, Act::HostDies(death)),
                (plan.end, 1, Act::Restart),
                (plan.end, 0, Act::HostDies(death)),
            ]);
            let report = run(plan, seed).unwrap_or_else(|violation| {
                panic!("killed at output {death}, seed {seed}: {}", violation.0)
            });
            assert!(report.rounds >= 2 && report.rounds <= 6, "{report:?}");
        }
    }
}

/// Returns a plan in which two live agents lose their connections.
///
/// Both are in a round and silent, but their workers run. There are two spares. The agents hang up
/// after a long silence, or their connections are broken, perhaps by a proxy.
fn living_without_connection(how: u64) -> Plan {
    let mut plan = Plan::of_many(4, Medium::Restartable);
    (
        plan.settings.min_nodes,
        plan.settings.max_nodes,
        plan.faulty,
    ) = (1, 2, true);
    plan.settings.last_call_timeout = Duration::from_millis(100);
    let seconds = Duration::from_secs;
    for (at, agent, _) in &mut plan.acts {
        *at = seconds(if *agent < 2 { 0 } else { 2 });
    }
    if how == 0 {
        plan.acts
            .push((seconds(5), 0, Act::HostStalls(seconds(20))));
    }
    for agent in 0..2 {
        if how == 0 {
            // The agents have hung up and reconnected.
            plan.acts.push((seconds(22), agent, Act::Cut(seconds(30))));
            continue;
        }
        if how == 2 {
            plan.proxies.insert(agent);
        }
        plan.acts.extend([
            (seconds(23), agent, Act::Stall(seconds(30))),
            (seconds(23), agent, Act::Reset),
        ]);
    }
    plan.end = seconds(60);
    plan
}

#[test]
fn agents_that_live_are_waited_for_however_their_connections_end() {
    for how in 0..3 {
        for seed in 0..20 {
            let plan = living_without_connection(how);
            let report = run(plan, seed)
                .unwrap_or_else(|violation| panic!("{how}, seed {seed}: {}", violation.0));
            assert!(report.rounds >= 2, "{report:?}");
        }
    }
}

/// The same round, but its agents are killed with their keepers.
#[test]
fn agents_that_were_killed_are_not_waited_for() {
    for seed in 0..20 {
        let mut plan = living_without_connection(1);
        plan.acts.retain(|(_, _, act)| *act == Act::Start);
        for agent in 0..2 {
            plan.acts.push((Duration::from_secs(23), agent, Act::Crash));
        }
        plan.end = Duration::from_secs(30);
        let report = report(run(plan, seed));
        assert_eq!(report.rounds, 2, "{report:?}");
        assert!(report.last_joined < Duration::from_secs(24), "{report:?}");
    }
}

/// Returns a plan in which the coordinator moves to another address.
///
/// Later the operator confirms that the previous coordinator has ended.
fn moved() -> Plan {
    let mut plan = Plan::of_many(3, Medium::Restartable);
    plan.acts.push((Duration::from_secs(20), 0, Act::Moved));
    plan.acts.push((Duration::from_secs(60), 0, Act::Recover));
    plan.end = Duration::from_secs(60);
    plan
}

#[test]
fn a_round_outlives_a_coordinator_that_moves() {
    for seed in 0..20 {
        let report = report(run(moved(), seed));
        assert_eq!((report.rounds, report.joined), (1, 3), "{report:?}");
    }
}

/// Returns the fault in the worlds of a seed, if there is one.
fn fault(seed: u64, rules: Rules<Rule>) -> Option<String> {
    let run = |plan, seed| run(Plan { rules, ..plan }, seed);
    if seed < 20 {
        for plan in [hundred_deaths(seed), moved()] {
            match run(plan, seed) {
                Ok(report) if report.rounds == 1 => {}
                Ok(_) => return Some("a round is over, but none of its agents ended".to_owned()),
                Err(violation) => return Some(violation.0),
            }
        }
        let plans = (0..3).map(living_without_connection);
        for plan in plans.chain([unknown_round()]) {
            if let Err(violation) = run(plan, seed) {
                return Some(violation.0);
            }
        }
    }
    let result = run(Plan::of_seed(seed, Medium::Restartable), seed);
    result.err().map(|violation| violation.0)
}

#[test]
fn every_broken_rule_is_noticed() {
    are_noticed(&RULES, |seed, rule| fault(seed, Rules::without(rule)));
}
