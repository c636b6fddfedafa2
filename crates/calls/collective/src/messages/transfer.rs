//! The buffers of messages, and the operations that have them.

use std::time::Instant;

use zerocopy::IntoBytes;

use crate::element::{Element, ElementType};
use crate::error::Result;
use crate::running::Running;
use crate::work::Completer;

/// Values that a message carries: a `Vec` of elements, or memory of another owner. The operation
/// has it until it has ended, and gives it back.
pub trait SendBuffer: Send + 'static {
    /// The type of the values.
    fn element(&self) -> ElementType;

    /// The values as they are in memory, a multiple of [`ElementType::size`] of bytes; always the
    /// same.
    fn bytes(&self) -> &[u8];
}

/// Room for the values of a message: a `Vec` of elements, or memory of another owner.
pub trait ReceiveBuffer: Send + 'static {
    /// The type of the values.
    fn element(&self) -> ElementType;

    /// The room, a multiple of [`ElementType::size`] of bytes; always the same.
    ///
    /// A receive that fails may have changed a part.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: Element> SendBuffer for Vec<T> {
    fn element(&self) -> ElementType {
        T::TYPE
    }

    fn bytes(&self) -> &[u8] {
        self.as_slice().as_bytes()
    }
}

impl<T: Element> ReceiveBuffer for Vec<T> {
    fn element(&self) -> ElementType {
        T::TYPE
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice().as_mut_bytes()
    }
}

/// The result of a receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<B> {
    /// The buffer, full.
    pub buffer: B,
    /// The sender.
    pub from: u32,
}

/// A send or a receive that has not ended.
pub(super) struct Transfer {
    pub(super) running: Running,
    pub(super) values: Box<dyn Values>,
    /// The rank at the other end, once it is known.
    pub(super) peer: Option<u32>,
    /// `true` if a message and a receive have been matched.
    pub(super) is_matched: bool,
}

impl Transfer {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.running.started.checked_add(self.running.timeout)
    }
}

/// The buffer of an operation with the end of its work.
pub(super) trait Values: Send {
    /// Nothing if it is received into.
    fn bytes(&self) -> &[u8] {
        &[]
    }

    /// Nothing if it is sent from.
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Ends the work; with the rank at the other end if it succeeded.
    fn end(self: Box<Self>, outcome: Result<u32>);
}

pub(super) struct Sending<B> {
    pub(super) buffer: B,
    pub(super) completer: Completer<B>,
}

pub(super) struct Receiving<B> {
    pub(super) buffer: B,
    pub(super) completer: Completer<Received<B>>,
}

impl<B: SendBuffer> Values for Sending<B> {
    fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    fn end(self: Box<Self>, outcome: Result<u32>) {
        let Self { buffer, completer } = *self;
        completer.complete(outcome.map(|_| buffer));
    }
}

impl<B: ReceiveBuffer> Values for Receiving<B> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    fn end(self: Box<Self>, outcome: Result<u32>) {
        let Self { buffer, completer } = *self;
        completer.complete(outcome.map(|from| Received { buffer, from }));
    }
}
