//! Python's pickle, as far as the state of a rendezvous needs it.
//!
//! A pickle is a program for a small stack machine. Agents of PyTorch write the state that they
//! share as one, with classes of theirs and of `datetime` in it. What runs here is that machine
//! with nothing dangerous left in it: it builds plain data and instances of five known classes,
//! calls nothing, and refuses every other name.
//!
//! * [`opcode`]: the instructions. [`value`]: what can be in a pickle, and the list of classes.
//! * [`time`]: dates and times in Python's ten bytes.
//! * [`decode`]: the machine; bytes to a [`Document`]. [`document`]: what can be asked of that.
//! * [`encode`]: the other way, as protocol 4, with the sharing that keeps Python's pickles small.
//!
//! Which attributes make a state is the business of `rendezvous-proto::codec`, not of this crate.
//! Its API follows the releases of `rdzv-rendezvous`.

pub mod decode;
pub mod document;
pub mod encode;
pub mod opcode;
pub mod time;
pub mod value;

use thiserror::Error;

pub use document::{Budget, Document, Item};
pub use encode::{Memo, Writer};
pub use time::Time;
pub use value::{Class, Value};

/// Where a pickle cannot be read, and why.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("at byte {at} of the pickle, {problem}")]
pub struct PickleError {
    /// Offset of the instruction.
    pub at: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// Something of the beginning, the middle or the end is missing.
    #[error("it ends in the middle of an instruction")]
    CutShort,
    /// The instruction does not occur in a rendezvous state.
    #[error("there is the instruction 0x{0:02x}, which no rendezvous state has")]
    Opcode(u8),
    /// Something outside of the list of classes is named.
    #[error("{module:?}.{name:?} is named; a rendezvous state may name five classes only")]
    Forbidden {
        /// Its module, or the beginning of it.
        module: String,
        /// Its name, or the beginning of it.
        name: String,
    },
    /// A version that is not known.
    #[error("protocol {0} is announced; known are those up to 5")]
    Protocol(u8),
    /// A text is not UTF-8.
    #[error("a text is not UTF-8")]
    NotText,
    /// Something is used that was never remembered.
    #[error("item {0} is recalled, which was never remembered")]
    Memo(usize),
    /// The stack holds less than the instruction takes.
    #[error("an instruction takes more than there is")]
    Missing,
    /// Something is of another kind than the instruction needs.
    #[error("there is {found} where {wanted} belongs")]
    Expected {
        /// What belongs there.
        wanted: &'static str,
        /// What is there.
        found: &'static str,
    },
    /// It is larger than any state can be.
    #[error("there are more than {most} {what}, which no rendezvous state has")]
    TooMuch {
        /// Of what there is too much.
        what: &'static str,
        /// The limit.
        most: usize,
    },
}
