//! One process: the driver of its machine.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_consensus::{Consensus, VoterId};
use rdzv_core::time::{Mono, Now, Wall};

use super::counters::{Addition, Counters};

/// A thing that crosses a connection.
#[derive(Debug, Clone)]
pub(super) enum Packet {
    /// A frame of the machine.
    Frame(Vec<u8>),
    /// The receiver may become a member, with this place.
    Invite(u8),
    /// The sender is there. True: it is about to end.
    Ping(bool),
}

/// Another process, as one process knows it.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) id: VoterId,
    pub(super) slot: usize,
    /// The number of the connection to it.
    pub(super) connection: Option<u64>,
    pub(super) since: u64,
    pub(super) heard: u64,
    /// It has certainly ended, or said that it ends, since then.
    pub(super) ended: Option<u64>,
}

/// A command that was begun, for a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proposal {
    pub(super) addition: Addition,
    pub(super) since: u64,
}

#[derive(Debug)]
pub(super) struct Process {
    /// Of a process that has ended, only its place and its id are left.
    pub(super) runs: bool,
    pub(super) slot: usize,
    pub(super) id: VoterId,
    /// `None` until it is invited.
    pub(super) consensus: Option<Consensus>,
    pub(super) place: u8,
    /// Its clock: nanoseconds at the beginning of the world, and how fast it goes.
    pub(super) clock: (u64, f64),
    pub(super) since: u64,
    pub(super) counters: Counters,
    pub(super) peers: BTreeMap<usize, Peer>,
    pub(super) proposals: BTreeMap<u64, Proposal>,
    /// Client, number and key of questions that are not confirmed.
    pub(super) reads: BTreeMap<u64, (usize, u64, u64)>,
    /// It is killed after so many more outputs; with its machine or not.
    pub(super) dies: Option<(u32, bool)>,
    pub(super) stalled_until: u64,
    pub(super) slow_until: u64,
    /// It ends in order, at the latest then.
    pub(super) ends: Option<u64>,
    pub(super) wake: Option<u64>,
    /// When it last heard from a leader, and since when it leads.
    pub(super) heard: Option<u64>,
    pub(super) leads_since: u64,
    /// Everything up to here was seen to be committed.
    pub(super) committed: u64,
    pub(super) inspected: u64,
    pub(super) term: u64,
}

impl Process {
    pub(super) fn new(slot: usize, id: VoterId, clock: (u64, f64), since: u64) -> Self {
        Self {
            runs: true,
            slot,
            id,
            consensus: None,
            place: 0,
            clock,
            since,
            counters: Counters::default(),
            peers: BTreeMap::new(),
            proposals: BTreeMap::new(),
            reads: BTreeMap::new(),
            dies: None,
            stalled_until: 0,
            slow_until: 0,
            ends: None,
            wake: None,
            heard: None,
            leads_since: 0,
            committed: 1,
            inspected: 0,
            term: 0,
        }
    }

    /// The end of its log; `None` if it has none.
    pub(super) fn last(&self) -> Option<u64> {
        Some(self.consensus.as_ref()?.last().0)
    }

    pub(super) fn leads(&self) -> bool {
        self.consensus.as_ref().is_some_and(|it| it.role().leads)
    }

    /// Its clocks at a time of the world.
    pub(super) fn now(&self, time: u64) -> Now {
        let nanos = self.clock.0 + (time as f64 * self.clock.1) as u64;
        Now {
            mono: Mono::from_origin(Duration::from_nanos(nanos)),
            wall: Wall::from_unix_micros((nanos / 1000) as i64),
        }
    }

    /// The time of the world at which its clock shows `mono`.
    pub(super) fn time(&self, mono: Mono) -> u64 {
        let nanos = mono.since(Mono::ZERO).as_nanos() as u64;
        (nanos.saturating_sub(self.clock.0) as f64 / self.clock.1).ceil() as u64 + 1
    }
}
