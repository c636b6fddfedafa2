//! Tests of references: a few members on a network that the test controls.

mod flows;
mod losses;

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::worker::WorkerId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};

/// Members 0, 1, …, their network, and a record of all messages.
struct Town {
    members: Vec<References>,
    now: Now,
    /// Batches that were sent and have not arrived.
    network: Vec<Batch>,
    /// Members whose batches are all lost, in both directions.
    cut: BTreeSet<Member>,
    /// Messages, once each, as `1→0 ForkRequest`.
    said: Vec<String>,
    seen: BTreeSet<(Member, Member, u64)>,
    /// Outputs other than sends, with the number of the member.
    outputs: Vec<(usize, Output)>,
}

fn member(id: u32, incarnation: u64) -> Member {
    Member::new(WorkerId(id), incarnation)
}

fn fork_of(handle: Handle) -> ForkId {
    match handle {
        Handle::User(_, fork) => fork,
        Handle::Owner(_) => panic!("{handle} is no fork"),
    }
}

/// Creates the first batch from one member to another.
fn batch(from: Member, to: Member, messages: Vec<Control>) -> Batch {
    Batch {
        from,
        to,
        first: 0,
        received: 0,
        urgent: false,
        disowned: false,
        messages,
    }
}

impl Town {
    fn of(count: u32) -> Self {
        let settings = Settings::default();
        Self {
            members: (0..count)
                .map(|id| References::new(member(id, 1), settings))
                .collect(),
            now: Now::default(),
            network: Vec::new(),
            cut: BTreeSet::new(),
            said: Vec::new(),
            seen: BTreeSet::new(),
            outputs: Vec::new(),
        }
    }

    fn me(&self, who: usize) -> Member {
        self.members[who].me()
    }

    fn collect(&mut self, who: usize) {
        while let Some(output) = self.members[who].poll_output() {
            match output {
                Output::Send(batch) => {
                    for (number, message) in (batch.first..).zip(&batch.messages) {
                        if self.seen.insert((batch.from, batch.to, number)) {
                            let text = format!("{message:?}");
                            let name = text.split([' ', '(']).next().unwrap_or_default();
                            self.said
                                .push(format!("{}→{} {name}", batch.from.id, batch.to.id));
                        }
                    }
                    self.network.push(batch);
                }
                other => self.outputs.push((who, other)),
            }
        }
    }

    fn send(&mut self, who: usize, input: Input<'_>) {
        self.members[who].handle(self.now, input);
        self.collect(who);
    }

    /// Reports the success of the function that creates a value.
    fn made(&mut self, owner: usize, rref: RRefId) {
        let failed = false;
        self.send(owner, Input::Made { rref, failed });
    }

    /// Sends `who` a request for a value, as number 1.
    fn fetch(&mut self, who: usize, owner: Member, rref: RRefId, creator: Option<Member>) {
        let question = Fetch {
            owner,
            rref,
            creator,
        };
        self.send(who, Input::Fetch(FetchId(1), question));
    }

    fn fork(&mut self, from: usize, handle: Handle, to: usize) -> ForkData {
        let to = self.me(to);
        let data = self.members[from].fork(self.now, handle, to).unwrap();
        self.collect(from);
        data
    }

    fn adopt(&mut self, at: usize, data: &ForkData) -> io::Result<Adopted> {
        let adopted = self.members[at].adopt(self.now, data);
        self.collect(at);
        adopted
    }

    /// Delivers a fork, and returns the handle and `true` if it is confirmed.
    fn pass_on(&mut self, from: usize, handle: Handle, to: usize) -> (Handle, bool) {
        let data = self.fork(from, handle, to);
        match self.adopt(to, &data).unwrap() {
            Adopted::Owner(rref) => (Handle::Owner(rref), true),
            Adopted::User {
                rref,
                fork,
                confirmed,
            } => (Handle::User(rref, fork), confirmed),
        }
    }

    /// Runs F1 up to the owner's answer.
    fn create_on(&mut self, caller: usize, owner: usize) -> (RRefId, ForkId) {
        let (to, from) = (self.me(owner), self.me(caller));
        let (rref, fork) = self.members[caller].create_on(to).unwrap();
        self.members[owner]
            .creation_arrived(from, rref, fork)
            .unwrap();
        self.send(caller, Input::Accepted(fork));
        (rref, fork)
    }

    /// Creates members with a value of member 0 that member 1 uses.
    fn with_value(count: u32) -> (Self, RRefId, Handle) {
        let mut town = Self::of(count);
        let (rref, user) = town.value_used_by_1();
        (town, rref, user)
    }

    /// Creates a value on worker 0, with a single fork on worker 1.
    fn value_used_by_1(&mut self) -> (RRefId, Handle) {
        let rref = self.members[0].create().unwrap();
        let (user, _) = self.pass_on(0, Handle::Owner(rref), 1);
        self.send(0, Input::Dropped(Handle::Owner(rref)));
        (rref, user)
    }

    /// Lets time pass; every batch arrives immediately, unless it is lost.
    fn pass(&mut self, time: Duration) {
        let end = self.now.mono + time;
        loop {
            while !self.network.is_empty() {
                let batch = self.network.remove(0);
                let to = (0..self.members.len()).find(|who| self.me(*who) == batch.to);
                let is_cut = self.cut.contains(&batch.to) || self.cut.contains(&batch.from);
                if let (Some(who), false) = (to, is_cut) {
                    self.send(who, Input::Received(&batch));
                }
            }
            let deadlines = self.members.iter().filter_map(References::deadline);
            let next = deadlines.min().unwrap_or(end).min(end);
            self.now.mono = self.now.mono.max(next);
            for who in 0..self.members.len() {
                if self.members[who]
                    .deadline()
                    .is_some_and(|at| at <= self.now.mono)
                {
                    self.send(who, Input::Tick);
                }
            }
            if next >= end && self.network.is_empty() {
                return;
            }
        }
    }

    fn soon(&mut self) {
        self.pass(Duration::from_millis(5));
    }

    fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    fn has(&self, who: usize, output: &Output) -> bool {
        self.outputs.contains(&(who, output.clone()))
    }

    /// Checks that nothing is left after a second.
    fn is_empty_soon(&mut self) {
        self.pass(Duration::from_secs(1));
        for machine in &self.members {
            assert_eq!(machine.counters(), Counters::default());
            assert!(machine.is_empty(), "{machine:#?}");
        }
    }
}

#[test]
fn ids_of_two_lives_of_a_worker_differ() {
    let settings = Settings::default();
    let mut first = References::new(member(3, 1), settings);
    let mut second = References::new(member(3, 2), settings);
    let ids: BTreeSet<_> = (0..100)
        .flat_map(|_| [first.create().unwrap(), second.create().unwrap()])
        .collect();
    assert_eq!(ids.len(), 200);
}

#[test]
fn references_print_as_in_the_reference() {
    let id = |local_id| GlobalId {
        created_on: WorkerId(2),
        local_id,
    };
    assert_eq!(
        Handle::User(RRefId(id(5)), ForkId(id(6))).to_string(),
        "UserRRef(RRefId = GloballyUniqueId(created_on=2, local_id=5), \
         ForkId = GloballyUniqueId(created_on=2, local_id=6))"
    );
    assert_eq!(
        Handle::Owner(RRefId(id(5))).to_string(),
        "OwnerRRef(GloballyUniqueId(created_on=2, local_id=5))"
    );
}

#[test]
fn a_batch_of_another_life_or_with_impossible_numbers_is_ignored() {
    let (mut town, rref, user) = Town::with_value(2);
    let fork = fork_of(user);
    let deletes = vec![Control::UserDelete { rref, fork }; 2];
    let delete = batch(member(1, 1), member(0, 7), deletes);
    town.send(0, Input::Received(&delete));
    let ends = Batch {
        to: member(0, 1),
        first: u64::MAX,
        received: 99,
        ..delete.clone()
    };
    town.send(0, Input::Received(&ends));
    let stranger = Batch {
        from: member(2, 1),
        to: member(0, 1),
        ..delete
    };
    town.send(0, Input::Received(&stranger));
    assert!(!town.has(0, &Output::Free(rref)));
    assert_eq!(town.members[0].counters().num_forks, 1);
}

#[test]
fn what_overtakes_is_put_in_order_and_what_comes_twice_counts_once() {
    let (mut town, rref, user) = Town::with_value(3);
    // Worker 2 requests its fork and deletes it; the messages arrive in the wrong order.
    let (second, _) = town.pass_on(1, user, 2);
    let request = town.network.pop().unwrap();
    town.send(2, Input::Dropped(second));
    let fork = fork_of(second);
    let delete = Batch {
        first: 1,
        messages: vec![Control::UserDelete { rref, fork }],
        ..request.clone()
    };
    town.send(0, Input::Received(&delete));
    town.send(0, Input::Received(&delete));
    town.send(0, Input::Received(&request));
    assert_eq!(town.members[0].counters().num_forks, 1, "that of worker 1");
    town.send(0, Input::Received(&request));
    assert_eq!(town.members[0].counters().num_forks, 1);
    assert!(Mono::ZERO == town.now.mono);
}
