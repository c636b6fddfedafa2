//! Thread that waits for the next version of the member list.

use rdzv_rpc_proto::directory::{GroupView, ViewChange};
use rdzv_store::{Store, StoreError};

use super::super::access::{members, remove, set};
use super::super::failure::store_failed;
use super::Shared;
use crate::{RpcError, RpcErrorKind};

/// Runs until this member leaves or is detached from the group.
pub(super) fn run(shared: &Shared, store: &dyn Store) {
    while !shared.is_over() {
        if let Err(error) = next_version(shared, store) {
            shared.detach(error);
        }
    }
}

fn next_version(shared: &Shared, store: &dyn Store) -> Result<(), RpcError> {
    let keys = shared.keys;
    let changed = keys.changed(shared.view().epoch() + 1);
    // After one lease the list is read in any case. A worker that was stopped for a long time may
    // have missed the key, because old keys are removed.
    match store.wait(&[&changed], Some(shared.lease)) {
        Ok(()) | Err(StoreError::WaitTimeout { .. }) => {}
        Err(error) => return Err(store_failed("wait for changes of the RPC group", &error)),
    }
    if shared.is_over() {
        return Ok(());
    }
    let record = members(store, keys)?;
    if let Some(view) = record.view(shared.incarnation) {
        let before = shared.view();
        shared.show(view);
        return confirm(shared, store, &before);
    }
    if shared.is_over() {
        return Ok(());
    }
    // This member may have written its number after the others had removed the number.
    remove(store, &keys.beat(shared.incarnation))?;
    let message = format!(
        "{} is no longer in its RPC group: it did not renew its lease for {:.1} s, so the other \
         members removed it; it must join again",
        shared.view().me().info,
        shared.lease.as_secs_f64()
    );
    Err(RpcError::new(RpcErrorKind::PeerLost, message))
}

/// Confirms the new members since `before`, once all listeners know them.
fn confirm(shared: &Shared, store: &dyn Store, before: &GroupView) -> Result<(), RpcError> {
    for change in shared.view().changes_since(before) {
        match change {
            ViewChange::Joined(newcomer) => {
                let key = shared.keys.known(newcomer.incarnation, shared.incarnation);
                set(store, &key, b"1")?;
            }
            // A newcomer that died, or stopped waiting, has not removed the key.
            ViewChange::Left(gone) | ViewChange::Lost(gone) => {
                let key = shared.keys.known(gone.incarnation, shared.incarnation);
                remove(store, &key)?;
            }
        }
    }
    Ok(())
}
