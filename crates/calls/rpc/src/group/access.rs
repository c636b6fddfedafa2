//! Operations of a group on its store.

use bytes::Bytes;
use rdzv_rpc_proto::directory::{DirectoryRound, Membership, RoundDecision, RoundKind};
use rdzv_store::Store;

use super::failure::store_failed;
use super::keys::{Keys, ROUND};
use super::note::Note;
use crate::RpcError;

/// Number of versions whose keys are kept for slow members.
const KEPT_VERSIONS: u64 = 16;

/// Value that no key holds.
const NOTHING: &[u8] = b"?";

/// Returns the value of a key if it exists, without waiting for it.
pub(super) fn peek(store: &dyn Store, key: &str) -> Result<Option<Bytes>, RpcError> {
    // The expected value never exists, so this never writes.
    let held = store.compare_set(key, NOTHING, NOTHING);
    let held = held.map_err(|error| store_failed("read the group's records", &error))?;
    Ok(Some(held).filter(|held| held[..] != *NOTHING))
}

/// Writes a key unless it exists; returns the value that it then holds.
pub(super) fn claim(store: &dyn Store, key: &str, value: &[u8]) -> Result<Bytes, RpcError> {
    let held = store.compare_set(key, b"", value);
    held.map_err(|error| store_failed("write the group's records", &error))
}

/// Writes a key without reading its previous value.
pub(super) fn set(store: &dyn Store, key: &str, value: &[u8]) -> Result<(), RpcError> {
    let set = store.set(key, value);
    set.map_err(|error| store_failed("write the group's records", &error))
}

/// Increments a counter, and returns its new value.
pub(super) fn count(store: &dyn Store, key: &str) -> Result<i64, RpcError> {
    let count = store.add(key, 1);
    count.map_err(|error| store_failed("count this worker", &error))
}

pub(super) fn remove(store: &dyn Store, key: &str) -> Result<(), RpcError> {
    let removed = store.delete_key(key);
    removed
        .map(drop)
        .map_err(|error| store_failed("remove the group's records", &error))
}

/// Round that a worker has found in the store.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) round: DirectoryRound,
    pub(super) held: Bytes,
    /// Decision about the round; never `RoundDecision::Open`.
    pub(super) decision: RoundDecision,
}

/// Returns the round in which the group forms, and opens it if necessary.
pub(super) fn find_round(store: &dyn Store, kind: RoundKind) -> Result<Found, RpcError> {
    let mut held = claim(store, ROUND, &DirectoryRound::first(kind).encode())?;
    loop {
        let round = DirectoryRound::decode(&held)?;
        let next = match round.decide(kind) {
            RoundDecision::Open(next) => next,
            // A dynamic group that has lost all its members can be ended.
            RoundDecision::Refuse(_)
                if round.kind == RoundKind::Dynamic && end(store, round.epoch)? =>
            {
                round.ended()
            }
            // A static group that failed to form has no workers.
            RoundDecision::Refuse(_) if kind == RoundKind::Dynamic && has_failed(store, round)? => {
                round.next(kind)
            }
            decision => {
                return Ok(Found {
                    round,
                    held,
                    decision,
                });
            }
        };
        held = replace_round(store, &held, next)?;
    }
}

/// Returns the note under a key, if the key exists.
pub(super) fn note(store: &dyn Store, key: &str) -> Result<Option<Note>, RpcError> {
    let held = peek(store, key)?;
    held.map(|held| Note::decode(&held)).transpose()
}

/// `true` if the workers of a static group have recorded why it was not formed.
fn has_failed(store: &dyn Store, round: DirectoryRound) -> Result<bool, RpcError> {
    let go = note(store, &Keys(round.epoch).go())?;
    Ok(matches!(go, Some(Note::Refused(_))))
}

/// Replaces a round unless another worker was faster; returns the new round.
pub(super) fn replace_round(
    store: &dyn Store,
    held: &[u8],
    next: DirectoryRound,
) -> Result<Bytes, RpcError> {
    let held = store.compare_set(ROUND, held, &next.encode());
    held.map_err(|error| store_failed("open a round of the group", &error))
}

/// Ends a dynamic group permanently, if it has no members.
fn end(store: &dyn Store, epoch: u64) -> Result<bool, RpcError> {
    let keys = Keys(epoch);
    change(store, keys, Membership::end)?;
    Ok(members(store, keys)?.is_over())
}

pub(super) fn members(store: &dyn Store, keys: Keys) -> Result<Membership, RpcError> {
    let held = peek(store, &keys.members())?;
    Ok(Membership::decode(&held.unwrap_or_default())?)
}

/// Changes the record of a dynamic group, and returns the written record.
///
/// `decide` returns the new record for the current one; `None` leaves it unchanged. `change` calls
/// `decide` again each time another worker was faster.
pub(super) fn change(
    store: &dyn Store,
    keys: Keys,
    mut decide: impl FnMut(&Membership) -> Option<Membership>,
) -> Result<Option<Membership>, RpcError> {
    let key = keys.members();
    let mut held = peek(store, &key)?.unwrap_or_default();
    loop {
        let record = Membership::decode(&held)?;
        let Some(next) = decide(&record) else {
            return Ok(None);
        };
        let desired = next.encode();
        let found = store.compare_set(&key, &held, &desired);
        let found = found.map_err(|error| store_failed("change the list of members", &error))?;
        if found[..] == desired[..] {
            announce(store, keys, next.epoch())?;
            return Ok(Some(next));
        }
        // If the store returns the expected value, the key does not exist, so the group is empty.
        held = if found == held { Bytes::new() } else { found };
    }
}

/// Wakes the workers that wait for a version.
pub(super) fn announce(store: &dyn Store, keys: Keys, version: u64) -> Result<(), RpcError> {
    set(store, &keys.changed(version), b"1")?;
    if let Some(old) = version.checked_sub(KEPT_VERSIONS) {
        remove(store, &keys.changed(old))?;
    }
    Ok(())
}
