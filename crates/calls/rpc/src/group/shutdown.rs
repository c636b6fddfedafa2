//! End of a static group: each worker waits until all have drained.
//!
//! Each worker that has drained records this, and waits for the verdict: complete, or the missing
//! workers. The last worker to drain writes the verdict that the shutdown is complete. The first
//! worker whose deadline passes writes the missing workers instead. There is only one verdict, so
//! all waiting workers report the same result.

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

/// Longest time that the first worker waits for others to read the verdict.
/// The first worker usually hosts the store.
const FAREWELL: Duration = Duration::from_millis(500);

/// Result of a shutdown, the same for all workers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Verdict {
    /// Workers that had not drained in time; empty if the shutdown is complete.
    missing: Vec<WorkerInfo>,
    /// Missing workers that do not wait for another missing worker.
    ///
    /// If each of them waits for another one, this contains all missing workers.
    blamed: Vec<WorkerInfo>,
    /// Time that the writer of this verdict had waited.
    waited_ms: u64,
}

/// Name of a [`Verdict`] in the error if the verdict cannot be read.
const VERDICT: &str = "the outcome of the group";

/// Waits until all workers of the group have drained.
///
/// # Errors
///
/// `Deadline` with the names of the missing workers, the same on all waiting workers; `Store` if
/// the store fails.
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

/// Records the workers that must answer before this worker can shut down.
///
/// # Errors
///
/// `Store` if the store fails.
pub(super) fn waits_for(group: &StaticGroup, others: &[WorkerId]) -> Result<(), RpcError> {
    let keys = Keys(group.round.epoch);
    let others = written(others);
    set(&*group.store, &keys.waits(group.view.me().info.id), &others)
}

/// Selects the missing workers that cause the delay.
/// A worker that only waits for another missing worker is not among them.
fn blamed(
    group: &StaticGroup,
    keys: Keys,
    missing: &[WorkerInfo],
) -> Result<Vec<WorkerInfo>, RpcError> {
    let mut blamed = Vec::new();
    for worker in missing {
        let others = peek(&*group.store, &keys.waits(worker.id))?;
        let others: Vec<WorkerId> = others
            .map(|held| read("the list of workers for which a worker waits", &held))
            .transpose()?
            .unwrap_or_default();
        let waits = |other: &WorkerInfo| other.id != worker.id && others.contains(&other.id);
        if !missing.iter().any(waits) {
            blamed.push(worker.clone());
        }
    }
    // All missing workers wait for one another.
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
             worker has shut down anyway"
        )
    })
}

/// Leaves the group after the verdict.
/// The last worker to read the verdict removes the group's keys if the shutdown is complete, and
/// notifies the first worker. The first worker waits up to `FAREWELL` for this, because the store
/// may end with the first worker.
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
        return if is_first {
            Ok(())
        } else {
            go(store, keys, b"last")
        };
    }
    if !is_first {
        return Ok(());
    }
    match store.wait(&[&keys.gone()], Some(FAREWELL)) {
        // A timeout means that a worker is slow, which is no error.
        Ok(()) | Err(StoreError::WaitTimeout { .. }) => go(store, keys, b"first"),
        Err(error) => Err(store_failed("wait for the other workers to leave", &error)),
    }
}

/// Records that the first worker ends, or that the last has read the verdict.
/// The later of these two workers removes the key.
fn go(store: &dyn Store, keys: Keys, as_whom: &[u8]) -> Result<(), RpcError> {
    let gone = keys.gone();
    if claim(store, &gone, as_whom)? == as_whom {
        Ok(())
    } else {
        remove(store, &gone)
    }
}

/// Marks the round as ended, and removes the keys of its workers except `gone`.
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
