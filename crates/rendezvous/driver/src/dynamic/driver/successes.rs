//! Notices of members that leave after all of their workers have succeeded.
//!
//! Such a member writes a key below the prefix of the round before it leaves. The other members do
//! not treat it as lost. Agents of torchelastic neither write nor read the key.

use rdzv_rendezvous_proto::NodeDesc;
use rdzv_store::{Store, StoreError};

fn key(node: &NodeDesc) -> String {
    format!("rdzv/succeeded/{node}")
}

pub(super) fn report(round: &dyn Store, node: &NodeDesc) -> Result<(), StoreError> {
    round.set(&key(node), b"1")
}

/// Removes the nodes that have reported their success.
pub(super) fn without_reported(round: &dyn Store, mut lost: Vec<NodeDesc>) -> Vec<NodeDesc> {
    lost.retain(|node| match round.check(&[&key(node)]) {
        Ok(has_succeeded) => !has_succeeded,
        Err(error) => {
            tracing::debug!(%error, "cannot check whether {node} has succeeded");
            true
        }
    });
    lost
}
