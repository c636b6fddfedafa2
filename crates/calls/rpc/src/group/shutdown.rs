//! How a static group ends: nobody leaves before all have drained, or before the deadline.
//!
//! Every worker says that it has drained and waits for the verdict: complete, or who is missing.
//! The last to drain says that it is complete; the first whose deadline is over says who is
//! missing. There is one verdict, so that all workers tell the same.

use std::time::Duration;

use rdzv_rpc_proto::directory::RoundKind;
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo};
use rdzv_store::{Store, StoreError};
use serde::{Deserialize, Serialize};

use super::access::{claim, count, peek, remove, replace_round, set};
use super::failure::store_failed;
use super::keys::Keys;
use super::limit::Limit;
use super::note::{read, written};
use super::static_group::StaticGroup;
use crate::RpcError;

/// How long the first worker, who usually hosts the store, waits for the others to read the
/// verdict.
const FAREWELL: Duration = Duration::from_millis(500);

/// What became of a shutdown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Verdict {
    /// Who had not drained in time; nobody means that the shutdown is complete.
    missing: Vec<WorkerInfo>,
    /// Those of them that the others waited for.
    blamed: Vec<WorkerInfo>,
    /// How long the worker that says so had waited.
    waited_ms: u64,
}

/// What an unreadable [`Verdict`] is called.
const VERDICT: &str = "how the group ended";

/// Waits until all workers of the group have drained.
///
/// # Errors
///
/// `Deadline` naming those who have not, the same on all workers that wait; `Store` if the store
/// fails.
pub(super) fn wait_for_all(group: &StaticGroup, deadline: Duration) -> Result<(), RpcError> {
    let store = &*group.store;
    let keys = Keys(group.round.epoch);
    let limit = Limit::of(deadline);
    let me = &group.view.me().info;
    set(store, &keys.drained_by(me.id), b"1")?;
    let members = group.view.members().len();
    let is_last = is_all(count(store, &keys.drained())?, members);
    let verdict = if is_last {
        let complete = written(&Verdict::default());
        read(VERDICT, &claim(store, &keys.verdict(), &complete)?)?
    } else {
        wait_for_verdict(group, keys, limit)?
    };
    part(group, keys, &verdict)?;
    if verdict.missing.is_empty() {
        return Ok(());
    }
    Err(not_drained(&verdict))
}

fn is_all(count: i64, members: usize) -> bool {
    usize::try_from(count).is_ok_and(|count| count >= members)
}

fn wait_for_verdict(group: &StaticGroup, keys: Keys, limit: Limit) -> Result<Verdict, RpcError> {
    let store = &*group.store;
    let key = keys.verdict();
    let failed = |error: StoreError| store_failed("wait for the group to shut down", &error);
    match store.wait(&[&key], Some(limit.left())) {
        Ok(()) => return read(VERDICT, &store.get(&key).map_err(failed)?),
        Err(StoreError::WaitTimeout { .. }) => {}
        Err(error) => return Err(failed(error)),
    }
    let mut missing = Vec::new();
    for member in group.view.members() {
        if peek(store, &keys.drained_by(member.info.id))?.is_none() {
            missing.push(member.info.clone());
        }
    }
    let verdict = Verdict {
        blamed: blamed(group, keys, &missing)?,
        missing,
        waited_ms: u64::try_from(limit.elapsed().as_millis()).unwrap_or(u64::MAX),
    };
    read(VERDICT, &claim(store, &key, &written(&verdict))?)
}

/// This worker cannot shut down before these have answered its calls.
///
/// # Errors
///
/// `Store` if the store fails.
pub(super) fn waits_for(group: &StaticGroup, others: &[WorkerId]) -> Result<(), RpcError> {
    let keys = Keys(group.round.epoch);
    let others = written(others);
    set(&*group.store, &keys.waits(group.view.me().info.id), &others)
}

/// Of those that have not drained, the ones that it is about: whoever only waits for another one
/// that has not drained either is not among them.
fn blamed(
    group: &StaticGroup,
    keys: Keys,
    missing: &[WorkerInfo],
) -> Result<Vec<WorkerInfo>, RpcError> {
    let mut blamed = Vec::new();
    for worker in missing {
        let others = peek(&*group.store, &keys.waits(worker.id))?;
        let others: Vec<WorkerId> = others
            .map(|held| read("whom a worker waits for", &held))
            .transpose()?
            .unwrap_or_default();
        let waits = |other: &WorkerInfo| other.id != worker.id && others.contains(&other.id);
        if !missing.iter().any(waits) {
            blamed.push(worker.clone());
        }
    }
    // They wait for one another.
    if blamed.is_empty() {
        blamed = missing.to_vec();
    }
    Ok(blamed)
}

fn not_drained(verdict: &Verdict) -> RpcError {
    let waited = Duration::from_millis(verdict.waited_ms).as_secs_f64();
    RpcError::late(&verdict.blamed, |names| {
        format!(
            "graceful shutdown of the RPC group: {names} did not drain within {waited:.1} s; this \
             worker has shut down all the same"
        )
    })
}

/// After the verdict: the last to have read it tells the first worker, and clears what the group
/// kept in the store. The first worker waits for that a little, because the store may end with it.
fn part(group: &StaticGroup, keys: Keys, verdict: &Verdict) -> Result<(), RpcError> {
    let store = &*group.store;
    let me = group.view.me().info.id;
    let mut members = group.view.members();
    let come = members.len() - verdict.missing.len();
    let is_first = members.next().is_some_and(|first| first.info.id == me);
    if is_all(count(store, &keys.departed())?, come) {
        if verdict.missing.is_empty() {
            clear(group, keys)?;
        }
        return match is_first {
            true => Ok(()),
            false => go(store, keys, b"last"),
        };
    }
    if !is_first {
        return Ok(());
    }
    match store.wait(&[&keys.gone()], Some(FAREWELL)) {
        // A timeout means that somebody is slow: that is no reason to fail.
        Ok(()) | Err(StoreError::WaitTimeout { .. }) => go(store, keys, b"first"),
        Err(error) => Err(store_failed("see the other workers off", &error)),
    }
}

/// The first worker goes, or the last one to have read the verdict: the second of the two removes
/// the key by which they tell one another.
fn go(store: &dyn Store, keys: Keys, as_whom: &[u8]) -> Result<(), RpcError> {
    let gone = keys.gone();
    match claim(store, &gone, as_whom)? == as_whom {
        true => Ok(()),
        false => remove(store, &gone),
    }
}

/// Marks the round as over, and removes its keys but the last.
fn clear(group: &StaticGroup, keys: Keys) -> Result<(), RpcError> {
    let store = &*group.store;
    replace_round(store, &group.round.encode(), group.round.ended())?;
    let RoundKind::Static { world_size } = group.round.kind else {
        return Ok(());
    };
    for id in (0..world_size).map(WorkerId) {
        remove(store, &keys.member(id))?;
        for key in [keys.drained_by(id), keys.ready_by(id), keys.waits(id)] {
            remove(store, &key)?;
        }
    }
    for key in [
        keys.ready(),
        keys.go(),
        keys.drained(),
        keys.verdict(),
        keys.departed(),
    ] {
        remove(store, &key)?;
    }
    Ok(())
}
