//! Nodes that are cut off in simulated worlds, and the rules of the fence that are broken on purpose.

use rdzv_core::rules::Rules;
use rdzv_sim::Violation;
use rdzv_sim::fence::Plan;
use rdzv_sim::fence::world::{Report, World};
use rdzv_sim::rules;
use rdzv_sim::trace::Trace;

/// Seeds within which each broken rule has to be noticed.
const NOTICED_WITHIN: u64 = 2000;

fn run(plan: Plan, seed: u64) -> Result<Report, Violation> {
    World::new(plan, seed, Trace::Last).run()
}

#[test]
fn seeds_0_to_300_break_no_invariant() {
    let (mut stops, mut continued, mut kills, mut rounds, mut ended) = (0, 0, 0, 0, 0);
    let mut lifted = 0;
    for seed in 0..300 {
        let report = run(Plan::of_seed(seed), seed)
            .unwrap_or_else(|violation| panic!("seed {seed}: {}", violation.0));
        stops += report.stops;
        continued += report.continued;
        kills += report.kills;
        rounds += report.rounds;
        ended += report.ended;
        lifted += report.lifted;
    }
    // Whatever can happen does.
    let counts = [stops, continued, kills, rounds, ended, lifted];
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
}

#[test]
fn without_faults_no_fence_fires() {
    for seed in 0..20 {
        let report = run(Plan::calm(), seed).unwrap_or_else(|violation| panic!("{}", violation.0));
        assert_eq!((report.rounds, report.stops), (1, 0), "seed {seed}");
    }
}

#[test]
fn every_broken_rule_is_noticed() {
    for rule in rules::FENCE {
        let mut seeds = 0..NOTICED_WITHIN;
        let noticed = seeds.find_map(|seed| {
            let plan = Plan {
                rules: Rules::without(rule),
                ..Plan::of_seed(seed)
            };
            let result = World::new(plan, seed, Trace::Nothing).run();
            result.err().map(|violation| (seed, violation.0))
        });
        match noticed {
            Some((seed, what)) => println!("{rule:?}: seed {seed}: {what}"),
            None => panic!("not noticed: {rule:?}"),
        }
    }
}
