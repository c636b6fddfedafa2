//! Buffers of messages, and the operations that own these buffers.

use std::time::Instant;

use zerocopy::IntoBytes;

use crate::element::{Element, ElementType};
use crate::error::Result;
use crate::running::Running;
use crate::work::Completer;

/// Values to send: a `Vec` of elements, or memory that another type owns.
///
/// The operation owns the buffer until it has finished. If it succeeds, it returns the buffer.
pub trait SendBuffer: Send + 'static {
    /// Returns the type of the values.
    fn element(&self) -> ElementType;

    /// Returns the values in their in-memory representation.
    ///
    /// The length is a multiple of [`ElementType::size`]. Every call returns the same bytes.
    fn bytes(&self) -> &[u8];
}

/// Buffer for received values: a `Vec` of elements, or memory of another type.
pub trait ReceiveBuffer: Send + 'static {
    /// Returns the type of the values.
    fn element(&self) -> ElementType;

    /// Returns the memory for the values.
    ///
    /// The length is a multiple of [`ElementType::size`]. Every call returns the same memory. A
    /// failed receive may have changed part of it.
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

/// Result of a completed receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<B> {
    /// Buffer that contains the received values.
    pub buffer: B,
    /// Rank that sent the message.
    pub from: u32,
}

/// Send or receive that has not ended.
pub(super) struct Transfer {
    pub(super) running: Running,
    pub(super) values: Box<dyn Values>,
    /// Rank at the other end; `None` while it is unknown.
    pub(super) peer: Option<u32>,
    /// `true` if a message and a receive have been matched.
    pub(super) is_matched: bool,
}

impl Transfer {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.running.started.checked_add(self.running.timeout)
    }
}

/// Buffer of an operation, with the end of its work.
pub(super) trait Values: Send {
    /// Returns the values to send; empty for a receive.
    fn bytes(&self) -> &[u8] {
        &[]
    }

    /// Returns the memory to receive into; empty for a send.
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut []
    }

    /// Ends the work; on success, `outcome` is the rank at the other end.
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
