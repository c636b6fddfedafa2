//! Where the workers of a round meet: rank 0 says it, everybody is told.
//!
//! A native rank 0 says it in every round. One of torchrun stores it under two keys before it stores its
//! role; but one that was rank 0 before, and shares its server with the workers, has kept that and
//! stores nothing. Then what it stored in an earlier round holds, which is recognised by its address.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Effect, Phase, Run};
use crate::NodeDesc;
use crate::coordinator::keys::{self, Field};
use crate::coordinator::wire::Event;
use rdzv_core::escape::is_plain;
use rdzv_core::machine::Outbox;
use rdzv_core::time::{Mono, Now};

/// How long a rank 0 of torchrun may take before earlier rounds are looked at. Its role is the usual sign;
/// it stores none if it was told that all nodes are alike.
const TORCHRUN_TIMEOUT: Duration = Duration::from_secs(10);

/// How many earlier rounds are looked at.
const ROUNDS: u64 = 64;

/// Longest host name or port that is taken from a key.
const LONGEST: usize = 1024;

/// What is known about where workers meet.
#[derive(Debug, Default)]
pub(super) struct Masters {
    /// Of the complete round.
    current: Option<(String, u16)>,
    /// What agents of torchrun have stored, by round.
    stored: BTreeMap<u64, Half>,
    /// Until when a rank 0 of torchrun may take its time.
    pub(super) until: Option<Mono>,
    /// Earlier rounds are being looked at.
    searching: bool,
}

/// As much as has been stored.
#[derive(Debug, Default)]
struct Half {
    addr: Option<String>,
    port: Option<u16>,
}

impl Half {
    fn take(&mut self, field: Field, value: Option<&[u8]>) {
        let text = value
            .filter(|value| value.len() <= LONGEST)
            .and_then(|value| std::str::from_utf8(value).ok())
            .filter(|text| is_plain(text));
        match field {
            Field::Addr => self.addr = text.map(str::to_owned),
            Field::Port => self.port = text.and_then(|text| text.parse().ok()),
        }
    }

    fn whole(&self) -> Option<(String, u16)> {
        Some((self.addr.clone()?, self.port?))
    }
}

impl Masters {
    /// Where the workers of the complete round meet, if that is known.
    pub(super) fn current(&self) -> Option<(String, u16)> {
        self.current.clone()
    }

    /// The round is another one than was thought.
    pub(super) fn forget(&mut self) {
        self.current = None;
    }

    /// A participant knows it.
    pub(super) fn set(&mut self, addr: String, port: u16) {
        self.current = Some((addr, port));
    }
}

impl Run {
    /// A round is complete: its rank 0 has to say where the workers meet.
    pub(super) fn seek_master(&mut self, now: Now) {
        let is_torchrun = self
            .first()
            .is_some_and(|first| !self.agents.contains_key(first));
        let round = self.state.round;
        self.masters.current = None;
        self.masters.searching = false;
        self.masters.until = is_torchrun.then(|| now.mono + TORCHRUN_TIMEOUT);
        self.masters
            .stored
            .retain(|stored, _| stored + ROUNDS > round);
    }

    /// The node with rank 0.
    fn first(&self) -> Option<&NodeDesc> {
        let mut participants = self.state.participants.iter();
        participants
            .find(|(_, rank)| **rank == 0)
            .map(|(node, _)| node)
    }

    /// A native rank 0 says it. A word about another round comes too late to be of use.
    pub(in crate::coordinator) fn publish_master(
        &mut self,
        from: &NodeDesc,
        round: u64,
        addr: String,
        port: u16,
        out: &mut Outbox<Effect>,
    ) {
        let is_first = Some(from) == self.first();
        if !is_first || self.announced != Some(round) || !self.state.complete {
            return;
        }
        for (field, value) in [(Field::Addr, addr.clone()), (Field::Port, port.to_string())] {
            out.push(Effect::Store {
                key: keys::master(&self.id, round, field),
                value: value.into_bytes(),
            });
        }
        self.announce_master(addr, port, out);
    }

    /// An agent of torchrun has stored one half of it.
    pub(in crate::coordinator) fn stored_master(
        &mut self,
        round: u64,
        field: Field,
        value: Option<&[u8]>,
        out: &mut Outbox<Effect>,
    ) {
        let half = self.masters.stored.entry(round).or_default();
        half.take(field, value);
        let whole = half.whole();
        if let Some((addr, port)) = whole
            && self.masters.until.is_some()
            && self.announced == Some(round)
        {
            self.announce_master(addr, port, out);
        }
    }

    /// A rank 0 of torchrun has stored its role, and with that has stored all it is going to.
    pub(in crate::coordinator) fn first_role(&mut self, round: u64, out: &mut Outbox<Effect>) {
        if self.announced == Some(round) && self.masters.until.take().is_some() {
            self.search_earlier(out);
        }
    }

    pub(super) fn master_is_late(&mut self, now: Now, out: &mut Outbox<Effect>) {
        if self.masters.until.is_some_and(|until| until <= now.mono) {
            self.masters.until = None;
            self.search_earlier(out);
        }
    }

    /// Looks at what earlier rounds left, newest first.
    fn search_earlier(&mut self, out: &mut Outbox<Effect>) {
        self.masters.searching = true;
        let round = self.state.round;
        for earlier in (round.saturating_sub(ROUNDS)..=round).rev() {
            for field in [Field::Addr, Field::Port] {
                out.push(Effect::Read(keys::master(&self.id, earlier, field)));
            }
        }
    }

    /// One half of what an earlier round left.
    pub(in crate::coordinator) fn found_master(
        &mut self,
        round: u64,
        field: Field,
        value: Option<&[u8]>,
        out: &mut Outbox<Effect>,
    ) {
        if !self.masters.searching || self.masters.current.is_some() {
            return;
        }
        let half = self.masters.stored.entry(round).or_default();
        half.take(field, value);
        if let Some((addr, port)) = half.whole()
            && field == Field::Port
            && self.first().is_some_and(|first| first.addr == addr)
        {
            self.announce_master(addr, port, out);
        }
    }

    pub(super) fn announce_master(&mut self, addr: String, port: u16, out: &mut Outbox<Effect>) {
        self.masters.until = None;
        for (node, agent) in &self.agents {
            if agent.phase == Phase::Member {
                let event = Event::Master {
                    round: self.state.round,
                    addr: addr.clone(),
                    port,
                };
                out.push(Effect::Notify(node.clone(), event));
            }
        }
        self.masters.current = Some((addr, port));
    }
}
