//! What the server knows about one connection.

use super::outgoing::Outgoing;
use crate::wire::assemble::Assembler;
use crate::wire::opcode::{Opcode, VALIDATE_MAGIC};

/// Length of `VALIDATE`, which every connection starts with.
pub const PREAMBLE_LENGTH: usize = 5;

const PREAMBLE: [u8; PREAMBLE_LENGTH] = {
    let [a, b, c, d] = VALIDATE_MAGIC.to_le_bytes();
    [Opcode::Validate as u8, a, b, c, d]
};

/// One connection of the server.
#[derive(Debug)]
pub(super) struct Connection {
    /// Tells this connection from an earlier one with the same id.
    pub(super) serial: u64,
    pub(super) stage: Stage,
    /// The request that has not come in whole yet.
    pub(super) assembler: Assembler,
    /// Input that came while the connection was paused.
    pub(super) held: Vec<u8>,
    /// Not read from, because too many replies are unsent.
    pub(super) paused: bool,
    pub(super) outgoing: Outgoing,
    /// A `Flush` is among the outputs already.
    pub(super) flushing: bool,
    /// What of this connection is included in the server's sum of memory.
    pub(super) counted: usize,
}

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// So many bytes of `VALIDATE` have come, all of them right.
    Validating(usize),
    /// Requests are carried out.
    Serving,
    /// It is being closed: what still comes is ignored.
    Closing,
}

impl Connection {
    pub(super) fn new(serial: u64) -> Self {
        Self {
            serial,
            stage: Stage::Validating(0),
            assembler: Assembler::default(),
            held: Vec::new(),
            paused: false,
            outgoing: Outgoing::default(),
            flushing: false,
            counted: 0,
        }
    }

    /// Memory held for this connection, large values aside.
    #[inline]
    pub(super) fn memory(&self) -> usize {
        self.assembler.buffered() + self.held.capacity() + self.outgoing.memory()
    }
}

/// Compares input with what is left of `VALIDATE`. Returns how much of it was used and how far
/// the connection has come, or the first bytes if they are wrong.
pub(super) fn validate(matched: usize, input: &[u8]) -> Result<(usize, Stage), Vec<u8>> {
    let expected = &PREAMBLE[matched..];
    let used = input.len().min(expected.len());
    if input[..used] != expected[..used] {
        return Err([&PREAMBLE[..matched], &input[..used]].concat());
    }
    Ok(match matched + used {
        PREAMBLE_LENGTH => (used, Stage::Serving),
        matched => (used, Stage::Validating(matched)),
    })
}
