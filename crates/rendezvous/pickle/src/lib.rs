#![doc = include_str!("../README.md")]
//!
//! A pickle is a program for a small stack machine. Agents of PyTorch write their shared state as a
//! pickle that contains PyTorch's own classes and classes of `datetime`. This crate runs that
//! machine without its dangerous parts. It builds plain data and instances of five known classes,
//! calls no other code, and refuses every other name.
//!
//! - [`opcode`]: the instructions. [`class`]: the classes that a pickle can name.
//! - [`time`]: dates and times in Python's ten bytes.
//! - [`decode`]: the machine, from bytes to a [`Document`]. [`document`]: access to its contents.
//! - [`encode`]: the opposite direction, as protocol 4, with the sharing that keeps Python's
//!   pickles small.
//!
//! `rdzv_rendezvous_proto::codec` decides which attributes make a state; this crate does not.

pub mod class;
pub mod decode;
pub mod document;
pub mod encode;
pub mod opcode;
pub mod time;

use thiserror::Error;

pub use class::Class;
pub use document::{Budget, Document, Item};
pub use encode::{Memo, Writer};
pub use time::Time;

/// Error in a pickle, with its location.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("at byte {at} of the pickle, {problem}")]
pub struct PickleError {
    /// Offset of the instruction.
    pub at: usize,
    /// Cause of the error.
    pub problem: Problem,
}

/// Cause of a [`PickleError`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// Part of the pickle is missing.
    #[error("it ends in the middle of an instruction")]
    CutShort,
    /// Instruction that does not occur in a rendezvous state.
    #[error("the instruction 0x{0:02x} does not occur in a rendezvous state")]
    Opcode(u8),
    /// Name that is not in the list of classes.
    #[error("the class {module:?}.{name:?} does not occur in a rendezvous state")]
    Forbidden {
        /// Module of the named object, or the beginning of the module.
        module: String,
        /// Name of the object, or the beginning of the name.
        name: String,
    },
    /// Unknown version of the protocol.
    #[error("the pickle uses protocol {0}, but only protocols 0 to 5 are supported")]
    Protocol(u8),
    /// Text that is not UTF-8.
    #[error("a string is not valid UTF-8")]
    NotText,
    /// Reference to an item that was never remembered.
    #[error("memo item {0} is used before it is stored")]
    Memo(usize),
    /// Instruction that takes more items than the stack holds.
    #[error("an instruction takes more items than the stack has")]
    Missing,
    /// Item of another kind than the instruction needs.
    #[error("found {found} instead of {wanted}")]
    Expected {
        /// Kind that the instruction needs.
        wanted: &'static str,
        /// Kind of the item.
        found: &'static str,
    },
    /// Size that exceeds a limit.
    #[error("a rendezvous state never has more than {most} {what}")]
    TooMuch {
        /// Name of the counted things.
        what: &'static str,
        /// Maximum count.
        most: usize,
    },
}
