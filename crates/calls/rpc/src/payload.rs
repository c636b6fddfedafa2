//! What a message carries.

use bytes::Bytes;

use crate::error::RpcError;

/// The result of a call, before it is decoded.
pub(crate) type Answer = Result<Payload, RpcError>;

/// The content of a request or a reply: a serialised body, and what it refers to by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// The serialised value (postcard).
    pub body: Bytes,
    /// Bytes beside the body: those of tensors. They are shared, never copied together.
    pub parts: Vec<Bytes>,
}

impl Payload {
    /// How many bytes it has in all.
    pub fn len(&self) -> usize {
        self.body.len() + self.parts.iter().map(Bytes::len).sum::<usize>()
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
