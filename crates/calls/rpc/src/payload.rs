//! Content of messages.

use bytes::Bytes;

use crate::error::{RemoteError, RpcError};

/// Result of a call, before it is decoded.
pub(crate) type Answer = Result<Payload, RpcError>;

/// Content of a request or a reply: a serialised body and its numbered parts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload {
    /// Serialised value (postcard).
    pub body: Bytes,
    /// Bytes of the tensors, in addition to the body.
    ///
    /// The parts are shared, never copied into one buffer.
    pub parts: Vec<Bytes>,
}

impl Payload {
    /// Returns the total number of bytes.
    pub fn len(&self) -> usize {
        self.body.len() + self.parts.iter().map(Bytes::len).sum::<usize>()
    }

    /// `true` if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Continuation that receives an answer in every case.
///
/// If `Then` is dropped before it has received an answer, the function receives the error of a
/// stopping agent, or of a panic.
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
            then(Err(if std::thread::panicking() {
                let text = "the function panicked before it answered";
                RpcError::of_function(RemoteError::panic(text.to_owned()))
            } else {
                RpcError::stopping()
            }));
        }
    }
}
