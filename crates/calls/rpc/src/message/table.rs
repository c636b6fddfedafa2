//! What travels beside the value of a message, as the end of its body.

use rdzv_rpc_proto::device::Device;
use rdzv_rpc_proto::tensor::TensorMeta;
use serde::{Deserialize, Serialize};

/// The tensors and references of a message, by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Table {
    /// One for each tensor in the value.
    pub(super) tensors: Vec<Entry>,
    /// The forks that were made for the receiver.
    pub(super) references: Vec<Vec<u8>>,
}

/// A tensor of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// 1 + the number of the part it is in; 0 if it has no elements.
    pub(super) part: u32,
    /// Where the receiver is to put it.
    pub(super) device: Device,
    /// Where in the part it lies.
    pub(super) meta: TensorMeta,
}
