//! Joining: one compare-and-set of the list of members.
//!
//! Before this operation, the store has no data of the new worker. After it, the worker is a member
//! with a running lease. A worker that dies during the join therefore either leaves no data, or the
//! others notice its death as usual.

use std::time::Duration;

use rdzv_rpc_proto::directory::{GroupView, JoinRefusal, Member, RoundDecision, RoundKind};
use rdzv_store::{Store, StoreError};

use super::super::access::{change, find_round, peek, remove, replace_round};
use super::super::failure::store_failed;
use super::super::keys::Keys;
use super::super::limit::Limit;
use super::BEATS_IN_A_LEASE;
use crate::{RpcError, RpcErrorKind};

/// Joins, and returns the round and the group with this member.
pub(super) fn join(
    store: &dyn Store,
    me: &Member,
    lease: Duration,
    deadline: Duration,
) -> Result<(Keys, GroupView), RpcError> {
    let limit = Limit::of(deadline);
    loop {
        let found = find_round(store, RoundKind::Dynamic)?;
        if let RoundDecision::Refuse(mismatch) = found.decision {
            return Err(mismatch.into());
        }
        let keys = Keys(found.round.epoch);
        let mut refusal = None;
        let joined = change(store, keys, |record| {
            let next = record.join(me);
            next.map_err(|why| refusal = Some((why, record.epoch())))
                .ok()
        })?;
        if let Some(record) = joined {
            let view = record.view(me.incarnation);
            return Ok((keys, view.expect("the newcomer is in the record")));
        }
        let (clash, holder, version) = match refusal.expect("what does not join is refused") {
            (JoinRefusal::Over, _) => {
                // The worker that ended the group may not have marked the round as ended.
                replace_round(store, &found.held, found.round.ended())?;
                continue;
            }
            // A member has the name or the id in that version.
            (JoinRefusal::Taken { clash, holder }, version) => (clash, holder, version),
            (refusal, _) => return Err(refusal.into()),
        };
        if is_alive(store, keys, holder, version, lease)? {
            return Err(clash.into());
        }
        if limit.is_over() {
            let message = format!(
                "{clash} The worker that uses it seems to be dead, but could not be replaced \
                 within {:.1} s",
                limit.elapsed().as_secs_f64()
            );
            return Err(RpcError::new(RpcErrorKind::Deadline, message));
        }
    }
}

/// `true` if a member increments its number within a lease.
///
/// Returns `false` if the list has changed, or after removing a silent member from the list.
fn is_alive(
    store: &dyn Store,
    keys: Keys,
    holder: u64,
    version: u64,
    lease: Duration,
) -> Result<bool, RpcError> {
    let limit = Limit::of(lease);
    let beat = keys.beat(holder);
    let first = peek(store, &beat)?;
    let changed = keys.changed(version + 1);
    while !limit.is_over() {
        match store.wait(&[&changed], Some(lease / BEATS_IN_A_LEASE)) {
            // The list has changed: retry with the new list.
            Ok(()) => return Ok(false),
            Err(StoreError::WaitTimeout { .. }) => {}
            Err(error) => return Err(store_failed("check whether a member is alive", &error)),
        }
        let now = peek(store, &beat)?;
        if now.is_some() && now != first {
            return Ok(true);
        }
    }
    remove(store, &beat)?;
    change(store, keys, |record| record.expire(&[holder]))?;
    Ok(false)
}
