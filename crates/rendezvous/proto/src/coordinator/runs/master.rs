//! The address of the workers' store: rank 0 sends it, and all participants are notified.
//!
//! An agent of ours with rank 0 sends it in every round. One of torchrun stores it under two keys
//! before it stores its role; but one that was rank 0 before, and shares its server with the
//! workers, has kept that and stores nothing. Then the address of an earlier round holds, which is
//! recognised by its host.

use std::time::Duration;

use super::{Effect, Run};
use crate::NodeDesc;
use crate::coordinator::keys::{self, Field};
use crate::coordinator::wire::Event;
use rdzv_core::escape::is_plain;
use rdzv_core::machine::Outbox;
use rdzv_core::time::{Mono, Now};

/// Time for a rank 0 of torchrun before earlier rounds are searched.
///
/// Its role is the usual sign; it stores none if all nodes are alike.
const TORCHRUN_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of earlier rounds that are searched.
const ROUNDS: u64 = 64;

/// Longest host name or port that is taken from a key.
const LONGEST: usize = 1024;

/// Address of the workers' store of a formed round.
#[derive(Debug, Default)]
pub(super) enum Master {
    /// Rank 0, an agent of ours, has not sent it yet.
    #[default]
    Unknown,
    /// Rank 0, an agent of torchrun, may take until then to store it.
    Awaited(Mono),
    /// Earlier rounds are searched for it.
    Searched,
    /// Host and port.
    Known(String, u16),
}

/// Host and port as far as an agent of torchrun has stored them.
pub(super) type Stored = (Option<String>, Option<u16>);

/// Takes a stored value over; returns host and port if both are there.
fn take(stored: &mut Stored, field: Field, value: Option<&[u8]>) -> Option<(String, u16)> {
    let text = value
        .filter(|value| value.len() <= LONGEST)
        .and_then(|value| std::str::from_utf8(value).ok())
        .filter(|text| is_plain(text));
    match field {
        Field::Addr => stored.0 = text.map(str::to_owned),
        Field::Port => stored.1 = text.and_then(|text| text.parse().ok()),
    }
    Some((stored.0.clone()?, stored.1?))
}

impl Run {
    /// A round is complete.
    ///
    /// Its rank 0 has to send the address of the workers' store.
    pub(super) fn seek_master(&mut self, now: Now) {
        let first = self.first();
        let is_torchrun = first.is_some_and(|first| !self.agents.contains_key(first));
        if let Some(formed) = self.round.formed_mut() {
            formed.master = if is_torchrun {
                Master::Awaited(now.mono + TORCHRUN_TIMEOUT)
            } else {
                Master::Unknown
            };
            let round = formed.number;
            self.stored_masters
                .retain(|stored, _| stored + ROUNDS > round);
        }
    }

    /// The node with rank 0.
    fn first(&self) -> Option<&NodeDesc> {
        let mut participants = self.nodes.participants.iter();
        let first = participants.find(|(_, rank)| **rank == 0);
        first.map(|(node, _)| node)
    }

    fn master(&self) -> Option<&Master> {
        self.round.formed().map(|formed| &formed.master)
    }

    /// The address, if it is known.
    pub(super) fn known_master(&self) -> Option<(String, u16)> {
        match self.master()? {
            Master::Known(addr, port) => Some((addr.clone(), *port)),
            _ => None,
        }
    }

    /// A participant knows the address.
    pub(super) fn set_master(&mut self, addr: String, port: u16) {
        if let Some(formed) = self.round.formed_mut() {
            formed.master = Master::Known(addr, port);
        }
    }

    /// Rank 0, an agent of ours, sends the address.
    ///
    /// One of another round comes too late to be of use.
    pub(in crate::coordinator) fn publish_master(
        &mut self,
        from: &NodeDesc,
        round: u64,
        addr: String,
        port: u16,
        out: &mut Outbox<Effect>,
    ) {
        let formed = self.round.formed();
        let is_current = formed.is_some_and(|formed| formed.number == round);
        if is_current && Some(from) == self.first() {
            self.store_master(addr, port, out);
        }
    }

    /// Stores the address under torchrun's keys, and notifies the participants.
    pub(super) fn store_master(&mut self, addr: String, port: u16, out: &mut Outbox<Effect>) {
        let round = self.round.number();
        for (field, value) in [(Field::Addr, addr.clone()), (Field::Port, port.to_string())] {
            out.push(Effect::Store {
                key: keys::master(&self.id, round, field),
                value: value.into_bytes(),
            });
        }
        self.announce_master(addr, port, out);
    }

    /// An agent of torchrun has stored one half of the address.
    pub(in crate::coordinator) fn stored_master(
        &mut self,
        round: u64,
        field: Field,
        value: Option<&[u8]>,
        out: &mut Outbox<Effect>,
    ) {
        let stored = self.stored_masters.entry(round).or_default();
        let whole = take(stored, field, value);
        if let Some((addr, port)) = whole
            && matches!(self.master(), Some(Master::Awaited(_)))
            && self.round.announced() == Some(round)
        {
            self.announce_master(addr, port, out);
        }
    }

    /// A rank 0 of torchrun has stored its role.
    ///
    /// It stores nothing after that.
    pub(in crate::coordinator) fn first_role(&mut self, round: u64, out: &mut Outbox<Effect>) {
        let is_awaited = matches!(self.master(), Some(Master::Awaited(_)));
        if is_awaited && self.round.announced() == Some(round) {
            self.search_earlier(out);
        }
    }

    /// The end of the wait for a rank 0 of torchrun.
    pub(super) fn master_deadline(&self) -> Option<Mono> {
        match self.master()? {
            Master::Awaited(ends) => Some(*ends),
            _ => None,
        }
    }

    pub(super) fn master_is_late(&mut self, now: Now, out: &mut Outbox<Effect>) {
        if self.master_deadline().is_some_and(|ends| ends <= now.mono) {
            self.search_earlier(out);
        }
    }

    /// Reads what earlier rounds left, newest first.
    fn search_earlier(&mut self, out: &mut Outbox<Effect>) {
        let Some(formed) = self.round.formed_mut() else {
            return;
        };
        formed.master = Master::Searched;
        let round = formed.number;
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
        if !matches!(self.master(), Some(Master::Searched)) {
            return;
        }
        let stored = self.stored_masters.entry(round).or_default();
        if let Some((addr, port)) = take(stored, field, value)
            && field == Field::Port
            && self.first().is_some_and(|first| first.addr == addr)
        {
            self.announce_master(addr, port, out);
        }
    }

    fn announce_master(&mut self, addr: String, port: u16, out: &mut Outbox<Effect>) {
        let event = Event::Master {
            round: self.round.number(),
            addr: addr.clone(),
            port,
        };
        self.notify_members(&event, out);
        self.set_master(addr, port);
    }
}
