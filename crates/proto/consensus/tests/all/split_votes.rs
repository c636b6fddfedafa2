//! Votes that are split because clocks differ.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_consensus::{Consensus, Input, Output, Settings, VoterId};
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};

/// How long a frame takes, in milliseconds.
const LATENCY: u64 = 15;

/// Members with clocks of their own, which hand one another frames after a while.
struct Group {
    members: BTreeMap<VoterId, Consensus>,
    /// Thousandths of a second that pass for each member in a second.
    rates: BTreeMap<VoterId, u64>,
    millis: u64,
    frames: Vec<(u64, VoterId, VoterId, Vec<u8>)>,
}

fn id(number: u64) -> VoterId {
    VoterId::new(number).unwrap()
}

impl Group {
    /// A group of three, whose first leads.
    fn of(rates: [u64; 3]) -> Self {
        let ids = [id(1), id(2), id(3)];
        let (now, settings) = (Now::default(), Settings::default());
        let bootstrap = |one| Consensus::bootstrap(now, settings, one, &ids, b"");
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
        let now = Now {
            mono,
            ..Now::default()
        };
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

    /// Time passes until something is so. False if it is not so after this time.
    fn pass(&mut self, millis: u64, until: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..millis {
            self.millis += 1;
            let now = self.millis;
            let due = |frame: &(u64, VoterId, VoterId, Vec<u8>)| frame.0 <= now;
            let (due, later) = std::mem::take(&mut self.frames).into_iter().partition(due);
            self.frames = later;
            let due: Vec<_> = due;
            for (_, from, to, frame) in due {
                let (opcode, payload) = (frame[0], &frame[9..]);
                let input = Input::Received {
                    from,
                    opcode,
                    payload,
                };
                self.handle(to, input);
            }
            for it in self.members.keys().copied().collect::<Vec<_>>() {
                let deadline = self.members[&it].deadline();
                if deadline.is_some_and(|due| due <= self.clock(it)) {
                    self.handle(it, Input::Tick);
                }
            }
            if until(self) {
                return true;
            }
        }
        false
    }

    fn kill(&mut self, it: u64, is_noticed: bool) {
        self.members.remove(&id(it));
        for other in self.members.keys().copied().collect::<Vec<_>>() {
            if is_noticed {
                self.handle(other, Input::PeerDown(id(it)));
            }
        }
    }
}

#[test]
fn two_members_whose_clocks_make_their_waits_equal_do_not_split_votes_for_ever() {
    // 18 ticks of the second take as long as 20 of the third.
    let mut group = Group::of([1000, 950, 1056]);
    let term = group.term(1);
    group.kill(1, true);
    // Frames take longer than members wait for one another, so the first vote is split.
    group.pass(100, |_| false);
    assert_eq!(group.leaders(), []);
    assert_eq!((group.term(2), group.term(3)), (term + 1, term + 1));
    assert!(
        group.pass(2000, |group| !group.leaders().is_empty()),
        "nobody leads in term {} after {} ms",
        group.term(2),
        group.millis
    );
    assert!(group.term(2) <= term + 3, "{}", group.term(2));
}

#[test]
fn the_first_wait_after_a_leader_is_sixteen_ticks_and_the_place() {
    for (killed, next, millis) in [(1, 2, 900), (2, 1, 800)] {
        let mut group = Group::of([1000; 3]);
        if killed == 2 {
            // The member of place 2 leads, and the one of place 0 follows.
            group.handle(id(1), Input::Transfer(Some(id(2))));
            group.pass(1000, |_| false);
            assert_eq!(group.leaders(), [id(2)]);
        }
        group.kill(killed, false);
        let began = group.millis;
        assert!(group.pass(2000, |group| !group.leaders().is_empty()));
        assert_eq!(group.leaders(), [id(next)]);
        // A heartbeat is at most 7 ticks old, one was under way, and two round trips decide.
        let took = group.millis - began;
        let least = millis - 350;
        let most = millis + LATENCY + 4 * LATENCY;
        assert!((least..=most).contains(&took), "{took} ms");
    }
}
