//! Frames: what two workers send each other over a connection, as bytes.
//!
//! ```text
//! ┌──────────────┬───────────────────────────┬────────┬─────────────────────────────┐
//! │ header, 64 B │ one section per part, 32 B│  body  │ bytes of the inline parts   │
//! └──────────────┴───────────────────────────┴────────┴─────────────────────────────┘
//! ```
//!
//! All numbers are little endian. The *body* is a serialised value. *Parts* are what it refers to
//! by number and what is not worth copying together with it: the bytes of tensors. A part is
//! inline, or it is somewhere that the receiver can reach, in memory that both share or in the
//! memory of the sender; then the frame only says where.
//!
//! The sections have one size, so the header alone tells how many bytes come before the parts.
//!
//! Reading order: [`header`], [`part`] and [`method`] (the words), [`encode()`], then the way back:
//! [`limits`] (what is refused before anything is reserved for it), `staging` and [`decoder`]; last
//! [`hello`] (what two workers tell each other first), [`release`] (what they give back) and
//! [`refusal`] (what they say last).

pub mod decoder;
pub mod error;
pub mod header;
pub mod hello;
pub mod limits;
pub mod method;
pub mod part;
pub mod refusal;
pub mod release;
mod staging;

pub use decoder::{Decoder, Supply};
pub use error::FrameError;
pub use header::{FrameKind, Header};
pub use limits::Limits;
pub use method::method_hash;
pub use part::{Frame, Part, PartHead, PartLocation, encode};

/// What every frame begins with: `rdzc` in the order of the bytes.
pub const MAGIC: u32 = u32::from_le_bytes(*b"rdzc");

/// The version of the frame format. A peer with another one is refused.
pub const VERSION: u8 = 1;
