//! Tensors without their memory: element types, layouts, and the bytes to send.
//!
//! Reading order: [`data_type`] (types of elements), [`meta`] (layout of the elements in a
//! storage), [`coverage`] (bytes of the storage that the elements cover), [`transfer`] (conversion
//! of the tensors of one message to parts). No module here reads a byte, except [`Part::write`],
//! which copies the bytes.

pub mod coverage;
pub mod data_type;
pub mod meta;
pub mod transfer;

pub use coverage::Coverage;
pub use data_type::{DataType, UnknownDataType};
pub use meta::{MetaError, TensorMeta};
pub use transfer::{Content, Part, Placement, Plan, View, plan};
