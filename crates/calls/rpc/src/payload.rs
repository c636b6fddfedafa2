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

/// Takes an answer in any case: an error if this is dropped, since the agent stops then.
pub(crate) struct Then<F: FnOnce(Answer)>(Option<F>);

impl<F: FnOnce(Answer)> Then<F> {
    pub(crate) fn new(then: F) -> Self {
        Self(Some(then))
    }

    pub(crate) fn go_on(mut self, answer: Answer) {
        if let Some(then) = self.0.take() {
            then(answer);
        }
    }
}

impl<F: FnOnce(Answer)> Drop for Then<F> {
    fn drop(&mut self) {
        if let Some(then) = self.0.take() {
            then(Err(RpcError::stopping()));
        }
    }
}
