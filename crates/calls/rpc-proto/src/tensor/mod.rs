//! Tensors without their memory: what their elements are, where they lie, which bytes to send.
//!
//! Reading order: [`data_type`] (what an element is), [`meta`] (where the elements lie in a
//! storage), [`coverage`] (which bytes of the storage that is), [`transfer`] (how the tensors of
//! one message are turned into parts). No module here sees a byte except [`Part::write`], which
//! copies them.

pub mod coverage;
pub mod data_type;
pub mod meta;
pub mod transfer;

pub use coverage::Coverage;
pub use data_type::{DataType, UnknownDataType};
pub use meta::{MetaError, TensorMeta};
pub use transfer::{Content, Part, Placement, Plan, View, plan};
