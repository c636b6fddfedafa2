//! Values of all members for all members, and barriers, over calls.
//!
//! The member with the smallest name leads. Every other one makes a single call to it, with its
//! value; the answers are held back until all have reported, and carry all values. So nobody can
//! have some of the values: it is all of them, or an error that names who is missing.
//!
//! Which gather a report belongs to is said by the members (names and incarnations) and by how many
//! gathers of exactly these members came before. Nothing is derived from names by putting them
//! together, and a member that was started again does not continue where its predecessor was.
//!
//! Which members have reported and which are missing is decided by [`rdzv_rpc_proto::gather`].
//!
//! * [`message`]: reports and their answers as bytes.
//! * [`leader`]: reports that come in, members that are lost, time that is over.
//! * [`participant`]: what the application calls.

pub(crate) mod leader;
mod message;
mod participant;
