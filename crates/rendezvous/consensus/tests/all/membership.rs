//! Table of group states and the next change of each.
//!
//! A member is a digit. `*` leads, `-` has been lost for 2 s, `~` for less than 1 s, `?` is silent,
//! `+` has the log.

use std::collections::BTreeSet;
use std::time::Duration;

use rdzv_consensus::membership::{
    Candidate, MemberStanding, MembershipStep, MembershipView, next, target,
};
use rdzv_consensus::{Configuration, VoterId};
use rdzv_core::time::Mono;

/// Table rows: voters, learners, other candidates, and the next step.
const TABLE: [(&str, &str, &str, &str); 19] = [
    // Growth.
    ("1*", "", "", "nothing"),
    ("1*", "", "2", "learner 2"),
    ("1*", "2", "", "nothing"),
    ("1*", "2", "3", "learner 3"),
    ("1*", "2+ 3", "", "nothing"),
    ("1*", "2+ 3+", "", "voters 1 2 3"),
    ("1* 2 3", "", "4", "nothing"),
    ("1* 2 3", "", "4 5", "learner 4"),
    ("1* 2 3", "4+ 5+", "", "voters 1 2 3 4 5"),
    // A lost voter.
    ("1* 2 3-", "4+", "", "voters 1 2 4"),
    ("1* 2 3-", "4", "", "nothing"),
    ("1* 2 3-", "", "4", "learner 4"),
    ("1* 2 3~", "", "", "nothing"),
    ("1* 2 3-", "", "", "voters 1"),
    ("1* 2 3?", "", "", "nothing"),
    ("1* 2 3- 4- 5", "6+", "7", "voters 1 2 4 5 6"),
    // A lost learner, or one learner too many.
    ("1*", "2-", "", "without 2"),
    ("1* 2 3", "4+", "", "without 4"),
    // Candidates that do not answer do not become learners.
    ("1*", "", "2?", "nothing"),
];

fn id(text: &str) -> VoterId {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    VoterId::new(digits.parse().unwrap()).unwrap()
}

fn candidate(text: &str) -> Candidate {
    let standing = match text.chars().last().unwrap() {
        '-' => MemberStanding::Gone(Duration::from_secs(2)),
        '~' => MemberStanding::Gone(Duration::from_millis(500)),
        '?' => MemberStanding::Silent,
        _ => MemberStanding::Present,
    };
    let id = id(text);
    Candidate {
        position: None,
        id,
        standing,
        is_store: false,
        has_workers: true,
        machine: id.number(),
        network: 1,
        since: Mono::from_origin(Duration::from_secs(id.number())),
    }
}

fn configuration(voters: &str, learners: &str) -> Configuration {
    let mut configuration =
        Configuration::of_voters(&voters.split(' ').map(id).collect::<Vec<_>>());
    let voter_indices = configuration.voters.len() as u8..;
    for (voter_index, learner) in voter_indices.zip(learners.split_whitespace().map(id)) {
        configuration.learners.insert(learner);
        configuration.voter_indices.insert(learner, voter_index);
    }
    configuration
}

fn decide(voters: &str, learners: &str, others: &str, ends: bool) -> MembershipStep {
    let configuration = configuration(voters, learners);
    let all = [voters, learners, others].join(" ");
    let all: Vec<&str> = all.split_whitespace().collect();
    let candidates: Vec<Candidate> = all.iter().map(|text| candidate(text)).collect();
    let leader = all.iter().find(|text| text.ends_with('*')).unwrap();
    let caught_up: BTreeSet<VoterId> = all
        .iter()
        .filter(|text| text.ends_with('+') || voters.contains(**text))
        .map(|text| id(text))
        .collect();
    next(&MembershipView {
        leader: id(leader),
        leader_ends: ends,
        configuration: &configuration,
        candidates: &candidates,
        caught_up: &caught_up,
        most: 5,
    })
}

fn text(next: &MembershipStep, before: &Configuration) -> String {
    let numbers = |members: &BTreeSet<VoterId>| {
        let numbers: Vec<String> = members.iter().map(|it| it.number().to_string()).collect();
        numbers.join(" ")
    };
    match next {
        MembershipStep::Nothing(_) => "nothing".into(),
        MembershipStep::HandOver(to) => format!("to {}", to.number()),
        MembershipStep::Change(change) => {
            let after = before.after(change);
            if after.voters != before.voters {
                return format!("voters {}", numbers(&after.voters));
            }
            let new: BTreeSet<_> = after
                .learners
                .difference(&before.learners)
                .copied()
                .collect();
            let old: BTreeSet<_> = before
                .learners
                .difference(&after.learners)
                .copied()
                .collect();
            if old.is_empty() {
                format!("learner {}", numbers(&new))
            } else {
                format!("without {}", numbers(&old))
            }
        }
    }
}

#[test]
fn the_next_step_is_that_of_the_table() {
    for (voters, learners, others, expected) in TABLE {
        let before = configuration(voters, learners);
        let next = decide(voters, learners, others, false);
        let seen = text(&next, &before);
        assert_eq!(seen, expected, "{voters} | {learners} | {others}");
    }
}

#[test]
fn a_leader_that_ends_hands_over_to_a_voter_or_makes_one() {
    for (voters, learners, others, expected) in [
        ("1* 2 3", "", "", "to 2"),
        ("1*", "2+", "", "voters 1 2"),
        ("1*", "2", "", "nothing"),
        ("1*", "", "2", "learner 2"),
        ("1*", "", "", "nothing"),
        ("1* 2? 3", "", "", "to 3"),
    ] {
        let before = configuration(voters, learners);
        let next = decide(voters, learners, others, true);
        let seen = text(&next, &before);
        assert_eq!(seen, expected, "{voters} | {learners} | {others}");
    }
}

#[test]
fn groups_are_odd_and_not_larger_than_allowed() {
    let sizes: Vec<usize> = (1..=12).map(|count| target(count, 9)).collect();
    assert_eq!(sizes, [1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 9, 9]);
    assert_eq!(target(12, 5), 5);
    assert_eq!(target(12, 1), 1);
    assert_eq!(target(12, 4), 3);
}

#[test]
fn stores_come_before_nodes_and_other_machines_before_the_same_one() {
    let configuration = Configuration::of_voters(&[id("1")]);
    let mut candidates: Vec<Candidate> = ["1*", "2", "3", "4"].map(candidate).to_vec();
    candidates[1].machine = 1;
    candidates[3].is_store = true;
    let view = MembershipView {
        leader: id("1"),
        leader_ends: false,
        configuration: &configuration,
        candidates: &candidates,
        caught_up: &BTreeSet::new(),
        most: 3,
    };
    let first = next(&view);
    assert_eq!(text(&first, &configuration), "learner 4");
    let mut after = configuration.clone();
    after.learners.insert(id("4"));
    let view = MembershipView {
        configuration: &after,
        ..view
    };
    assert_eq!(text(&next(&view), &after), "learner 3");
}

#[test]
fn a_process_that_replaces_another_has_its_position_in_the_order() {
    let mut configuration = Configuration::of_voters(&["1", "2", "3"].map(id));
    // Each member is replaced twice, in the order of the list or in another order.
    for (position, old, new) in [
        (1, "2", "5"),
        (0, "1", "4"),
        (2, "3", "6"),
        (1, "5", "8"),
        (2, "6", "9"),
        (0, "4", "7"),
    ] {
        let voter_index = configuration.free_voter_index(Some(position)).unwrap();
        configuration.voter_indices.insert(id(new), voter_index);
        configuration.voter_indices.remove(&id(old));
    }
    assert_eq!(configuration.succession(id("8")), ["9", "7"].map(id));
    assert_eq!(configuration.succession(id("9")), ["7", "8"].map(id));
    assert_eq!(configuration.succession(id("7")), ["8", "9"].map(id));
}
