//! Python's pickle, as far as the state of a rendezvous needs it.
//!
//! A pickle is a program for a small stack machine. Agents of PyTorch write the state that they
//! share as one, with classes of theirs and of `datetime` in it. What runs here is that machine with
//! nothing dangerous left in it: it builds plain data and instances of five known classes, calls
//! nothing, and refuses every other name.
//!
//! * [`opcode`]: the instructions. [`value`]: what can be in a pickle, and the list of classes.
//! * [`time`]: dates and times in Python's ten bytes.
//! * [`decode`]: the machine; bytes to a [`Document`]. [`document`]: what can be asked of that.
//!   `call`: the three calls it may make.
//! * [`encode`]: the other way, as protocol 4, with the sharing that keeps Python's pickles small.
//!
//! Which attributes make a state is the business of
//! [`rendezvous::codec`](crate::codec), not of this module.

mod call;
pub mod decode;
pub mod document;
pub mod encode;
pub mod error;
pub mod opcode;
pub mod time;
pub mod value;

pub use document::{Budget, Document, Item};
pub use encode::{Memo, Writer};
pub use error::{PickleError, Problem};
pub use time::Time;
pub use value::{Class, Value};
