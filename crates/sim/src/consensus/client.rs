//! State of a client in the world.

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
    /// Number of the current operation.
    pub(super) sequence: u64,
    pub(super) current: Option<Current>,
    /// Slot of the process that the client asks next.
    pub(super) slot: usize,
    /// Slot that the client chose last, without a hint from a process.
    pub(super) turn: usize,
    /// Answered operations with their keys.
    pub(super) history: Vec<(u64, Operation<Counter>)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Answer {
    Value(u64),
    /// Request to ask this process, or any other.
    Elsewhere(Option<usize>),
}
