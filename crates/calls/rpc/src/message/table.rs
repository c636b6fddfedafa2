//! Table of tensors and references, at the end of a message body.

use rdzv_rpc_proto::device::Device;
use rdzv_rpc_proto::tensor::TensorMeta;
use serde::{Deserialize, Serialize};

/// Tensors and references in a message, by index.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Table {
    /// Entries of the tensors in the value, by index.
    pub(super) tensors: Vec<Entry>,
    /// Forks that were created for the receiver.
    pub(super) references: Vec<Vec<u8>>,
    /// Parts that describe device memory of the sender, in order.
    pub(super) loans: Vec<LoanPart>,
}

/// Description of one tensor in a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Index of the tensor's part plus 1; 0 for a tensor without elements.
    pub(super) part: u32,
    /// Device on which the receiver puts the tensor.
    pub(super) device: Device,
    /// Type, shape and location of the tensor in its part.
    pub(super) meta: TensorMeta,
}

/// Part that is a description of device memory, in place of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LoanPart {
    /// Index of the part.
    pub(super) part: u32,
    /// Number of bytes on the device.
    pub(super) len: u64,
}
