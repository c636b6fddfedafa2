//! One process: the driver of its machine.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_consensus::{Consensus, VoterId};
use rdzv_core::time::{Mono, Now, Wall};

use super::counters::{Addition, Counters};

#[derive(Debug, Clone)]
pub(super) enum Packet {
    Frame(Vec<u8>),
    /// Invitation: the receiver may become a member with this voter index.
    Invite(u8),
    /// Keep-alive; `true` if the sender is ending.
    Ping(bool),
}

/// Another process, as one process knows it.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) id: VoterId,
    pub(super) slot: usize,
    pub(super) connection: Option<u64>,
    pub(super) since: u64,
    pub(super) heard: u64,
    /// Time since which the process has certainly ended; 0 if it announced its end.
    pub(super) ended: Option<u64>,
}

/// Command that was proposed for a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Proposal {
    pub(super) addition: Addition,
    pub(super) since: u64,
}

#[derive(Debug)]
pub(super) struct Process {
    /// `true` if the process runs.
    ///
    /// Only the slot, the id, the voter index, the clock and `since` of an ended process are kept.
    pub(super) runs: bool,
    pub(super) slot: usize,
    pub(super) id: VoterId,
    /// Machine; `None` until the process is invited.
    pub(super) consensus: Option<Consensus>,
    pub(super) voter_index: u8,
    /// Clock: nanoseconds at the beginning of the world, and its speed.
    pub(super) clock: (u64, f64),
    pub(super) since: u64,
    pub(super) counters: Counters,
    pub(super) peers: BTreeMap<usize, Peer>,
    pub(super) proposals: BTreeMap<u64, Proposal>,
    /// Client, number and key of reads that are not confirmed.
    pub(super) reads: BTreeMap<u64, (usize, u64, u64)>,
    /// Number of outputs after which the process is killed.
    ///
    /// The flag is `true` if its machine is lost too.
    pub(super) dies: Option<(u32, bool)>,
    pub(super) stall_end: u64,
    pub(super) slow_end: u64,
    /// Latest time at which an ending process ends.
    pub(super) ends: Option<u64>,
    pub(super) wake: Option<u64>,
    /// Time of the last contact with a leader.
    ///
    /// If the process leads, it has led since `leads_since`.
    pub(super) heard: Option<u64>,
    pub(super) leads_since: u64,
    /// Index up to which the entries are known to be committed.
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
            voter_index: 0,
            clock,
            since,
            counters: Counters::default(),
            peers: BTreeMap::new(),
            proposals: BTreeMap::new(),
            reads: BTreeMap::new(),
            dies: None,
            stall_end: 0,
            slow_end: 0,
            ends: None,
            wake: None,
            heard: None,
            leads_since: 0,
            committed: 1,
            inspected: 0,
            term: 0,
        }
    }

    /// Returns the last index of the log; `None` if there is no log.
    pub(super) fn last(&self) -> Option<u64> {
        Some(self.consensus.as_ref()?.last().0)
    }

    pub(super) fn leads(&self) -> bool {
        self.consensus.as_ref().is_some_and(|it| it.role().leads)
    }

    /// Returns its clocks at a time of the world.
    pub(super) fn now(&self, time: u64) -> Now {
        let nanos = self.clock.0 + (time as f64 * self.clock.1) as u64;
        Now {
            mono: Mono::from_origin(Duration::from_nanos(nanos)),
            wall: Wall::from_unix_micros((nanos / 1000) as i64),
        }
    }

    /// Returns the time of the world at which its clock shows `mono`.
    pub(super) fn time(&self, mono: Mono) -> u64 {
        let nanos = mono.since(Mono::ZERO).as_nanos() as u64;
        (nanos.saturating_sub(self.clock.0) as f64 / self.clock.1).ceil() as u64 + 1
    }
}
