//! Notes that the workers of a static group write to each other in the store.

use rdzv_core::escape::escape_lines;
use rdzv_rpc_proto::directory::Member;
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{RpcError, RpcErrorKind};

/// Reason why a group was not formed, for all workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    /// Worker that noticed the reason.
    pub(super) by: WorkerInfo,
    pub(super) kind: RpcErrorKind,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(by: &WorkerInfo, error: &RpcError) -> Self {
        Self {
            by: by.clone(),
            kind: error.kind,
            message: error.message.clone(),
        }
    }

    /// Returns the error that every worker gets, with the same text.
    pub(super) fn error(&self) -> RpcError {
        RpcError::new(self.kind, escape_lines(&self.message))
    }
}

/// Value of a key that a worker waits for.
///
/// A worker that ends the forming of a group writes the reason to the keys that the others wait
/// for. Each waiting worker then receives the reason immediately.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Note {
    /// A worker that joins the group.
    Member(Member),
    /// All workers have read all notes: the group has formed.
    Formed,
    /// The group does not form.
    Refused(Refusal),
    /// The group forms in the next round: a worker restarted or was refused.
    Moved {
        /// Incarnation of the worker that wrote this note.
        by: u64,
    },
}

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        written(self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, RpcError> {
        read("the record of a worker", bytes)
    }
}

/// Serialises a value for the store.
pub(super) fn written(value: &(impl Serialize + ?Sized)) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are JSON")
}

/// Reads a value from the store. `what` names the value in the error.
pub(super) fn read<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, RpcError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let text = format!(
            "cannot parse {what} in the store ({error}); check that all workers run the same \
             version"
        );
        RpcError::new(RpcErrorKind::Store, text)
    })
}
