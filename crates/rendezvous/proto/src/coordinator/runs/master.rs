//! The endpoint of the workers' store, which rank 0 provides.
//!
//! A native agent with rank 0 sends the endpoint in every round. A `torchrun` agent stores it under
//! two keys before it stores its role. If it had rank 0 before and shares its server with the
//! workers, it keeps the server and stores nothing. The endpoint of an earlier round then remains
//! valid. The coordinator recognises it by its host.

use std::time::Duration;

use super::{Effect, Output, Run};
use crate::NodeDesc;
use crate::coordinator::keys::{self, Field};
use crate::coordinator::wire::Event;
use rdzv_core::escape::is_plain;
use rdzv_core::time::{Mono, Now};

/// Time to wait for a `torchrun` rank 0 before searching earlier rounds.
///
/// Usually the search starts earlier, when rank 0 stores the port or its role. Rank 0 stores no
/// role if `TORCH_ELASTIC_WORKER_IDENTICAL` is 1.
const TORCHRUN_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of earlier rounds that the coordinator searches.
const ROUNDS: u64 = 64;

/// Maximum length of a host name or port under a key.
const LONGEST: usize = 1024;

/// Endpoint of the workers' store of a formed round.
#[derive(Debug, Default)]
pub(super) enum Master {
    /// Rank 0, a native agent, has not sent the endpoint yet.
    #[default]
    Unknown,
    /// Rank 0, an agent of torchrun, may store the endpoint until this time.
    Awaited(Mono),
    /// The coordinator reads endpoints of this and earlier rounds, newest first.
    Searched {
        /// Host of the round that is read now; `None` if its key has no valid host.
        host: Option<String>,
    },
    /// The endpoint is known: host and port.
    Known(String, u16),
}

impl Run {
    /// Starts the wait for the endpoint if rank 0 is an agent of torchrun.
    pub(super) fn seek_master(&mut self, now: Now) {
        let first = self.first();
        let is_torchrun = first.is_some_and(|first| !self.agents.contains_key(first));
        if let Some(formed) = self.round.formed_mut().filter(|_| is_torchrun) {
            formed.master = Master::Awaited(now.mono + TORCHRUN_TIMEOUT);
        }
    }

    fn first(&self) -> Option<&NodeDesc> {
        let mut participants = self.nodes.participants.iter();
        let first = participants.find(|(_, rank)| **rank == 0);
        first.map(|(node, _)| node)
    }

    fn master(&self) -> Option<&Master> {
        self.round.formed().map(|formed| &formed.master)
    }

    pub(super) fn known_master(&self) -> Option<(String, u16)> {
        match self.master()? {
            Master::Known(addr, port) => Some((addr.clone(), *port)),
            _ => None,
        }
    }

    pub(super) fn set_master(&mut self, addr: String, port: u16) {
        if let Some(formed) = self.round.formed_mut() {
            formed.master = Master::Known(addr, port);
        }
    }

    /// Handles the endpoint from rank 0, a native agent.
    ///
    /// An endpoint for another round comes too late and is ignored.
    pub(in crate::coordinator) fn publish_master(
        &mut self,
        from: &NodeDesc,
        round: u64,
        addr: String,
        port: u16,
    ) {
        let formed = self.round.formed();
        let is_current = formed.is_some_and(|formed| formed.number == round);
        if is_current && Some(from) == self.first() {
            self.store_master(addr, port);
        }
    }

    /// Stores the endpoint under torchrun's keys, and notifies the participants.
    pub(super) fn store_master(&mut self, addr: String, port: u16) {
        let round = self.round.number();
        for (field, value) in [(Field::Addr, addr.clone()), (Field::Port, port.to_string())] {
            let key = keys::master(&self.id, round, field);
            self.effects.push(Effect::store(key, value.into_bytes()));
        }
        self.announce_master(addr, port);
    }

    /// Handles a rank 0 of torchrun that has stored its port or its role.
    ///
    /// It stores no host after that.
    pub(in crate::coordinator) fn stored_by_first(&mut self, round: u64) {
        if self.master_deadline().is_some() && self.round.announced() == Some(round) {
            self.search_master();
        }
    }

    /// Returns the end of the wait for a rank 0 of torchrun.
    pub(super) fn master_deadline(&self) -> Option<Mono> {
        match self.master()? {
            Master::Awaited(ends) => Some(*ends),
            _ => None,
        }
    }

    pub(super) fn master_is_late(&mut self, now: Now) {
        if self.master_deadline().is_some_and(|ends| ends <= now.mono) {
            self.search_master();
        }
    }

    /// Reads the endpoints of this and earlier rounds, newest first.
    fn search_master(&mut self) {
        let Some(formed) = self.round.formed_mut() else {
            return;
        };
        formed.master = Master::Searched { host: None };
        let round = formed.number;
        for earlier in (round.saturating_sub(ROUNDS)..=round).rev() {
            for field in [Field::Addr, Field::Port] {
                let key = keys::master(&self.id, earlier, field);
                self.effects.push(Effect::Output(Output::Read(key)));
            }
        }
    }

    /// Handles one half of a round's endpoint, which the search has read.
    pub(in crate::coordinator) fn found_master(
        &mut self,
        round: u64,
        field: Field,
        value: Option<&[u8]>,
    ) {
        let text = value
            .filter(|value| value.len() <= LONGEST)
            .and_then(|value| std::str::from_utf8(value).ok())
            .filter(|text| is_plain(text));
        let first = self.first().map(|first| first.addr.clone());
        let Some(formed) = self.round.formed_mut() else {
            return;
        };
        let Master::Searched { host } = &mut formed.master else {
            return;
        };
        if field == Field::Addr {
            *host = text.map(str::to_owned);
        } else if let Some(addr) = host.take()
            && let Some(port) = text.and_then(|text| text.parse().ok())
            && (round == formed.number || first.as_ref() == Some(&addr))
        {
            self.announce_master(addr, port);
        }
    }

    fn announce_master(&mut self, addr: String, port: u16) {
        let event = Event::Master {
            round: self.round.number(),
            addr: addr.clone(),
            port,
        };
        self.notify_members(&event);
        self.set_master(addr, port);
    }
}
