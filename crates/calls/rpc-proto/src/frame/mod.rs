//! Frames: the bytes that two workers send each other over a connection.
//!
//! ```text
//! ┌──────────────┬───────────────────────────┬────────┬─────────────────────────────┐
//! │ header, 64 B │ one section per part, 32 B│  body  │ bytes of the inline parts   │
//! └──────────────┴───────────────────────────┴────────┴─────────────────────────────┘
//! ```
//!
//! All numbers are little endian. The *body* is usually a serialised value. *Parts* are the bytes
//! of tensors, or descriptions of lent device memory. The body refers to them by number, because
//! copying them together with the body would cost too much. A part is inline, or it is in memory
//! that the receiver can reach: shared memory or the memory of the sender. In the second case the
//! frame has only its location and length.
//!
//! All sections have the same size, so the header alone gives the number of bytes before the parts.
//!
//! Reading order: [`header`], [`part`] and [`method`] (the fields), [`encode()`]. Then the other
//! direction: [`limits`] (checks before memory is reserved), `staging` and [`decoder`]. Last
//! [`hello`] (the first messages), [`release`] (returned parts) and [`refusal`] (the last message).

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
pub use limits::FrameLimits;
pub use method::method_hash;
pub use part::{Frame, Part, PartHead, PartLocation, encode};

/// First four bytes of every frame: `rdzc`, read as little endian.
pub const MAGIC: u32 = u32::from_le_bytes(*b"rdzc");

/// Version of the frame format. A peer with another version is refused.
pub const VERSION: u8 = 1;
