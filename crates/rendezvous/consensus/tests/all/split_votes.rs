//! Votes that are split.
//!
//! Clocks differ, or members notice at different times that the leader is lost.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_consensus::{Consensus, Input, Output, Settings, VoterId};
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};

use crate::group::{id, received};

/// Time that a frame takes, in milliseconds.
const LATENCY: u64 = 8;

/// Members with separate clocks that exchange frames with a delay.
struct Group {
    members: BTreeMap<VoterId, Consensus>,
    /// Milliseconds that pass for each member in one second.
    rates: BTreeMap<VoterId, u64>,
    millis: u64,
    frames: Vec<(u64, VoterId, VoterId, Vec<u8>)>,
}

impl Group {
    /// Creates a group whose first member leads.
    fn of<const N: usize>(rates: [u64; N]) -> Self {
        let ids: [VoterId; N] = std::array::from_fn(|index| id(index as u64 + 1));
        let (now, settings) = (Now::default(), Settings::default());
        let bootstrap = |one| Consensus::bootstrap(now, settings, one, &ids, b"", 1);
        let mut group = Self {
            members: ids.map(|one| (one, bootstrap(one))).into(),
            rates: ids.into_iter().zip(rates).collect(),
            millis: 0,
            frames: Vec::new(),
        };
        group.pass(1000, |_| false);
        assert_eq!(group.leaders(), [id(1)]);
        group
    }

    fn leaders(&self) -> Vec<VoterId> {
        let members = self.members.iter();
        let leaders = members.filter(|(_, member)| member.role().leads);
        leaders.map(|(id, _)| *id).collect()
    }

    fn term(&self, it: u64) -> u64 {
        self.members[&id(it)].role().term
    }

    fn clock(&self, it: VoterId) -> Mono {
        Mono::from_origin(Duration::from_micros(self.millis * self.rates[&it]))
    }

    fn handle(&mut self, it: VoterId, input: Input<'_>) {
        let mono = self.clock(it);
        let now = Now::at(mono);
        let Some(member) = self.members.get_mut(&it) else {
            return;
        };
        member.handle(now, input);
        while let Some(output) = member.poll_output() {
            if let Output::Send { to, frame } = output {
                self.frames.push((self.millis + LATENCY, it, to, frame));
            }
        }
    }

    /// Lets time pass until a condition holds; `false` after the time limit.
    fn pass(&mut self, millis: u64, holds: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..millis {
            self.millis += 1;
            let now = self.millis;
            let due = |frame: &(u64, VoterId, VoterId, Vec<u8>)| frame.0 <= now;
            let (due, later) = std::mem::take(&mut self.frames).into_iter().partition(due);
            self.frames = later;
            let due: Vec<_> = due;
            for (_, from, to, frame) in due {
                self.handle(to, received(from, &frame));
            }
            for it in self.members.keys().copied().collect::<Vec<_>>() {
                let deadline = self.members[&it].deadline();
                if deadline.is_some_and(|due| due <= self.clock(it)) {
                    self.handle(it, Input::Tick);
                }
            }
            if holds(self) {
                return true;
            }
        }
        false
    }

    fn kill(&mut self, it: u64) {
        self.members.remove(&id(it));
    }

    /// Lets a member notice that the first member is lost.
    fn notice(&mut self, it: u64) {
        self.handle(id(it), Input::PeerDown(id(1)));
    }

    /// Returns the time until a member leads, which must be within two seconds.
    fn time_to_leader(&mut self) -> u64 {
        let began = self.millis;
        assert!(self.pass(2000, |group| !group.leaders().is_empty()));
        self.millis - began
    }
}

#[test]
fn two_members_whose_clocks_make_their_waits_equal_do_not_split_votes_for_ever() {
    let mut splits = 0;
    // After each heartbeat the members are at other points of their ticks.
    for began in (0..20).map(|beats| 350 * beats) {
        // 18 ticks of the second member take as long as 20 of the third.
        let mut group = Group::of([1000, 950, 1056]);
        let term = group.term(1);
        group.pass(began, |_| false);
        group.kill(1);
        group.pass(2000, |group| group.term(2) > term && group.term(3) > term);
        group.pass(100, |_| false);
        if !group.leaders().is_empty() {
            continue;
        }
        // Frames take longer than the difference of the waits.
        assert_eq!((group.term(2), group.term(3)), (term + 1, term + 1));
        splits += 1;
        assert!(
            group.pass(2000, |group| !group.leaders().is_empty()),
            "no member leads in term {} after {} ms",
            group.term(2),
            group.millis
        );
        assert!(group.term(2) <= term + 3, "{}", group.term(2));
    }
    assert!(splits > 0);
}

#[test]
fn the_first_successor_leads_although_it_notices_later_that_the_leader_is_gone() {
    // The other member receives the request just before its own campaign, and just after.
    for later in [20, 28] {
        let mut group = Group::of([1000; 3]);
        group.kill(1);
        group.notice(3);
        group.pass(later, |_| false);
        group.notice(2);
        // Two round trips.
        let took = group.time_to_leader();
        assert!(took <= 4 * LATENCY + 2, "{took} ms after {later} ms");
        assert_eq!(group.leaders(), [id(2)]);
    }
}

#[test]
fn the_first_successor_leads_although_the_other_one_refuses_its_vote_at_first() {
    let mut group = Group::of([1000; 3]);
    group.kill(1);
    group.notice(2);
    group.pass(LATENCY + 1, |_| false);
    group.notice(3);
    // The member asks again after 25 ms.
    let took = group.time_to_leader();
    assert!(took <= 25 - LATENCY + 4 * LATENCY + 2, "{took} ms");
    assert_eq!(group.leaders(), [id(2)]);
}

#[test]
fn after_a_split_vote_the_first_successor_stands_again_at_once() {
    let mut group = Group::of([1000; 5]);
    let term = group.term(1);
    group.kill(1);
    // The second and the third member ask the others, and do not receive from each other.
    (3..=5).for_each(|it| group.notice(it));
    group.pass(29, |_| false);
    group.notice(2);
    let is_between = |from, to| [(id(2), id(3)), (id(3), id(2))].contains(&(from, to));
    let terms = |group: &Group| (group.term(2), group.term(3));
    while terms(&group) != (term + 1, term + 1) {
        (group.frames).retain(|(_, from, to, _)| !is_between(*from, *to));
        group.pass(1, |_| false);
    }
    // Each of the two gets one vote.
    let is_lost = |from, to| [(id(2), id(5)), (id(3), id(4))].contains(&(from, to));
    (group.frames).retain(|(_, from, to, _)| !is_lost(*from, *to));
    group.pass(2 * LATENCY, |_| false);
    assert_eq!(group.leaders(), []);
    let took = group.time_to_leader();
    assert!(took <= 25 + 4 * LATENCY, "{took} ms");
    assert_eq!((group.leaders(), group.term(2)), (vec![id(2)], term + 2));
}

#[test]
fn the_first_wait_after_a_leader_is_sixteen_ticks_and_the_index() {
    for (killed, next, millis) in [(1, 2, 900), (2, 1, 800)] {
        let mut group = Group::of([1000; 3]);
        if killed == 2 {
            // The member with index 2 leads, and the member with index 0 follows.
            group.handle(id(1), Input::Transfer(Some(id(2))));
            group.pass(1000, |_| false);
            assert_eq!(group.leaders(), [id(2)]);
        }
        group.kill(killed);
        let took = group.time_to_leader();
        assert_eq!(group.leaders(), [id(next)]);
        // A heartbeat is at most 7 ticks old, one was on its way, and two round trips decide.
        let least = millis - 350;
        let most = millis + LATENCY + 4 * LATENCY;
        assert!((least..=most).contains(&took), "{took} ms");
    }
}
