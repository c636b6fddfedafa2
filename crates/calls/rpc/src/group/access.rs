//! The steps of a group in its store.

use bytes::Bytes;
use rdzv_rpc_proto::directory::{Membership, Round, RoundDecision, RoundKind};
use rdzv_store::Store;

use super::failure::store_failed;
use super::keys::{Keys, ROUND};
use super::note::Note;
use crate::RpcError;

/// Versions whose keys are kept for members that are slow to look.
const KEPT_VERSIONS: u64 = 16;

/// What no key holds.
const NOTHING: &[u8] = b"?";

/// The value of a key if it is there, without waiting for it.
pub(super) fn peek(store: &dyn Store, key: &str) -> Result<Option<Bytes>, RpcError> {
    // What is expected is not there, so nothing is ever stored.
    let held = store.compare_set(key, NOTHING, NOTHING);
    let held = held.map_err(|error| store_failed("read what the group has written", &error))?;
    Ok(Some(held).filter(|held| held[..] != *NOTHING))
}

/// Writes a key that nobody may have written before; gives what it holds then.
pub(super) fn claim(store: &dyn Store, key: &str, value: &[u8]) -> Result<Bytes, RpcError> {
    let held = store.compare_set(key, b"", value);
    held.map_err(|error| store_failed("write what the group will read", &error))
}

/// Writes a key without looking at what it held.
pub(super) fn set(store: &dyn Store, key: &str, value: &[u8]) -> Result<(), RpcError> {
    let set = store.set(key, value);
    set.map_err(|error| store_failed("write what the group will read", &error))
}

/// Adds one to a number.
pub(super) fn count(store: &dyn Store, key: &str) -> Result<i64, RpcError> {
    let count = store.add(key, 1);
    count.map_err(|error| store_failed("count this worker", &error))
}

/// Removes a key; whether it was there does not matter.
pub(super) fn remove(store: &dyn Store, key: &str) -> Result<(), RpcError> {
    let removed = store.delete_key(key);
    removed
        .map(drop)
        .map_err(|error| store_failed("remove what the group has written", &error))
}

/// The round that a worker has found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) round: Round,
    /// As the store holds it.
    pub(super) held: Bytes,
    /// What to do about it; never to open another one.
    pub(super) decision: RoundDecision,
}

/// The round that a worker of this kind of group meets the others in, opened if need be.
pub(super) fn find_round(store: &dyn Store, kind: RoundKind) -> Result<Found, RpcError> {
    let mut held = claim(store, ROUND, &Round::first(kind).encode())?;
    loop {
        let round = Round::decode(&held)?;
        let next = match round.decide(kind) {
            RoundDecision::Open(next) => next,
            // A dynamic group whose members are all gone can be ended.
            RoundDecision::Refuse(_)
                if round.kind == RoundKind::Dynamic && end(store, round.epoch)? =>
            {
                round.ended()
            }
            // Nobody is in a static group whose forming has failed.
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

/// The note under a key, if there is one.
pub(super) fn note(store: &dyn Store, key: &str) -> Result<Option<Note>, RpcError> {
    let held = peek(store, key)?;
    held.map(|held| Note::decode(&held)).transpose()
}

/// Whether the workers of a static group have been told why it was not formed.
fn has_failed(store: &dyn Store, round: Round) -> Result<bool, RpcError> {
    let go = note(store, &Keys(round.epoch).go())?;
    Ok(matches!(go, Some(Note::Refused(_))))
}

/// Puts a round in the place of another, unless somebody was faster; gives what holds then.
pub(super) fn replace_round(
    store: &dyn Store,
    held: &[u8],
    next: Round,
) -> Result<Bytes, RpcError> {
    let held = store.compare_set(ROUND, held, &next.encode());
    held.map_err(|error| store_failed("open a round of the group", &error))
}

/// Ends a dynamic group for ever, if nobody is in it.
fn end(store: &dyn Store, epoch: u64) -> Result<bool, RpcError> {
    let keys = Keys(epoch);
    change(store, keys, Membership::end)?;
    Ok(members(store, keys)?.is_over())
}

/// The members of a dynamic group.
pub(super) fn members(store: &dyn Store, keys: Keys) -> Result<Membership, RpcError> {
    let held = peek(store, &keys.members())?;
    Ok(Membership::decode(&held.unwrap_or_default())?)
}

/// Changes the record of a dynamic group, however often somebody else is faster. `decide` says what
/// to make of the record that is there, and is asked again for each that it finds instead; `None`
/// leaves it as it is. Gives the record that was written.
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
        // The key itself is gone if we are told what we expected: that is the empty group.
        held = if found == held { Bytes::new() } else { found };
    }
}

/// Wakes whoever waits for a version.
pub(super) fn announce(store: &dyn Store, keys: Keys, version: u64) -> Result<(), RpcError> {
    set(store, &keys.changed(version), b"1")?;
    if let Some(old) = version.checked_sub(KEPT_VERSIONS) {
        remove(store, &keys.changed(old))?;
    }
    Ok(())
}
