//! A client, as the world knows it.

use crate::history::Operation;
use crate::history::counter::Counter;

#[derive(Debug, Clone, Copy)]
pub(super) struct Current {
    pub(super) adds: bool,
    pub(super) key: u64,
    pub(super) called: u64,
}

#[derive(Debug, Default)]
pub(super) struct Client {
    /// The number of the operation.
    pub(super) sequence: u64,
    pub(super) current: Option<Current>,
    /// Where it asks next.
    pub(super) slot: usize,
    /// Where it asked last of itself, and not because another one said so.
    pub(super) turn: usize,
    /// Each operation that was answered, with its key.
    pub(super) history: Vec<(u64, Operation<Counter>)>,
}

/// The answer to a client.
#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Value(u64),
    /// It is to ask this process, or any other.
    Elsewhere(Option<usize>),
}
