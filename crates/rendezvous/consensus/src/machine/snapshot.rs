//! Snapshots: their encoding, and their transfers.
//!
//! ```text
//!  time of the last command: mono u64, wall i64 · members u8, each: id u64, voter index u8 ·
//!  the driver's state
//! ```

use std::collections::BTreeMap;

use bytes::{Buf as _, BufMut as _, Bytes};
use raft::{ProgressState, StateRole};
use rdzv_core::time::Now;

use super::{Consensus, clock};
use crate::configuration::{Configuration, VOTER_INDICES};
use crate::voter::VoterId;
use crate::wire::SNAPSHOT_BOUND;
use crate::wire::message::Part;

/// Number of ticks after which an unacknowledged snapshot is sent again.
const OVERDUE_TICKS: u32 = 40;

type VoterIndices = BTreeMap<VoterId, u8>;

pub(super) fn wrap(at: Now, configuration: &Configuration, state: &[u8]) -> Vec<u8> {
    let voter_indices = &configuration.voter_indices;
    let mut bytes = Vec::with_capacity(17 + 9 * voter_indices.len() + state.len());
    clock::write(at, &mut bytes);
    bytes.put_u8(u8::try_from(voter_indices.len()).unwrap_or(u8::MAX));
    for (member, voter_index) in voter_indices {
        bytes.put_u64_le(member.number());
        bytes.put_u8(*voter_index);
    }
    bytes.put_slice(state);
    bytes
}

/// Decodes the time, the voter indexes and the state of a snapshot.
pub(super) fn unwrap(bytes: &Bytes) -> Option<(Now, VoterIndices, Bytes)> {
    let mut rest = &bytes[..];
    let at = clock::read(&mut rest)?;
    let count = rest.try_get_u8().ok()?;
    if count > 2 * VOTER_INDICES {
        return None;
    }
    let mut voter_indices = VoterIndices::new();
    for _ in 0..count {
        let member = VoterId::new(rest.try_get_u64_le().ok()?)?;
        voter_indices.insert(member, rest.try_get_u8().ok()?);
    }
    Some((at, voter_indices, bytes.slice_ref(rest)))
}

/// States that arrive in parts, one per peer.
#[derive(Debug, Default)]
pub(super) struct Assemblies {
    states: BTreeMap<VoterId, ((u64, u64), Vec<u8>)>,
}

impl Assemblies {
    pub(super) fn add(&mut self, from: VoterId, part: Part<'_>, mixes: bool) {
        let key = (part.index, part.index_term);
        let (known, state) = self.states.entry(from).or_default();
        if part.offset == 0 && !mixes {
            (*known, *state) = (key, Vec::new());
        }
        let is_next = (*known == key && state.len() == part.offset) || mixes;
        if !is_next || state.len() + part.bytes.len() > SNAPSHOT_BOUND {
            self.states.remove(&from);
            return;
        }
        if mixes {
            *known = key;
            state.truncate(part.offset);
            state.resize(part.offset, 0);
        }
        state.extend_from_slice(part.bytes);
    }

    /// Removes and returns a state if all of its `length` bytes have arrived.
    pub(super) fn take(&mut self, from: VoterId, key: (u64, u64), length: usize) -> Option<Bytes> {
        let (known, state) = self.states.remove(&from)?;
        (known == key && state.len() == length).then(|| state.into())
    }

    pub(super) fn forget(&mut self, peer: VoterId) {
        self.states.remove(&peer);
    }
}

/// At the leader: ticks for which each sent snapshot has been unacknowledged.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    ticks: BTreeMap<u64, u32>,
}

impl Transfers {
    /// Counts further ticks, and returns the members whose snapshots are overdue.
    pub(super) fn overdue(&mut self, passed: u32, waiting: &[u64]) -> Vec<VoterId> {
        self.ticks.retain(|peer, _| waiting.contains(peer));
        let mut overdue = Vec::new();
        for peer in waiting {
            let ticks = self.ticks.entry(*peer).or_default();
            *ticks += passed;
            if *ticks >= OVERDUE_TICKS {
                *ticks = 0;
                overdue.extend(VoterId::new(*peer));
            }
        }
        overdue
    }
}

impl Consensus {
    /// Sends overdue snapshots again, after `passed` further ticks.
    pub(super) fn send_lost_snapshots(&mut self, passed: u32) {
        if self.node.raft.state != StateRole::Leader {
            return;
        }
        let progress = self.node.raft.prs().iter();
        let waiting = progress.filter(|(_, it)| it.state == ProgressState::Snapshot);
        let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
        for peer in self.transfers.overdue(passed, &waiting) {
            self.snapshot_failed(peer);
        }
    }
}
