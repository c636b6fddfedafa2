//! A tensor within a message: a number, while the tensor itself waits beside.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use super::context::{give_tensor, take_tensor};
use crate::tensor::Tensor;

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let number = give_tensor(self).map_err(ser::Error::custom)?;
        serializer.serialize_u32(number)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        take_tensor(number).map_err(de::Error::custom)
    }
}
