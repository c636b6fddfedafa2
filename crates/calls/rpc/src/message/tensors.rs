//! Serialisation of a tensor in a message, as its index in a slot.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::context::{give, take};
use crate::tensor::Tensor;

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let outside = "a tensor can only be serialised within an RPC message; elsewhere, use its \
                       bytes, type and shape";
        give(
            |given| &mut given.tensors,
            self.clone(),
            outside,
            serializer,
        )
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        take(|arrived| &arrived.tensors, "tensor", deserializer)
    }
}
