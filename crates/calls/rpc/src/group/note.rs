//! What the workers of a static group leave for one another in the store.

use rdzv_core::escape::escape_lines;
use rdzv_rpc_proto::directory::Member;
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{RpcError, RpcErrorKind};

/// Why a group was not formed, as the worker that noticed it says to all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    /// Who noticed it.
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

    /// The error that every worker gets, in the same words.
    pub(super) fn error(&self) -> RpcError {
        RpcError::new(self.kind, escape_lines(&self.message))
    }
}

/// A value of a key that a worker waits for. Whoever ends the forming of a group writes its reason
/// where the others wait, so that each of them is told at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Note {
    /// A worker: it takes part.
    Member(Member),
    /// All have read all: the group is there.
    Formed,
    /// The group will not be.
    Refused(Refusal),
    /// It meets in the next round: a worker was started again while it was forming.
    Moved {
        /// The life of the worker that said so.
        by: u64,
    },
}

impl Note {
    pub(super) fn encode(&self) -> Vec<u8> {
        written(self)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, RpcError> {
        read("a note of a worker", bytes)
    }
}

/// Writes a value in the form that the store keeps.
pub(super) fn written(value: &(impl Serialize + ?Sized)) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are JSON")
}

/// Reads a value out of the store. `what` names the value in the error.
pub(super) fn read<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, RpcError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let text = format!(
            "{what} in the store cannot be read ({error}); do all workers run the same version?"
        );
        RpcError::new(RpcErrorKind::Store, text)
    })
}
