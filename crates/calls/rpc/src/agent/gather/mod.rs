//! Exchange of values among all members, and barriers, over calls.
//!
//! The member with the smallest name leads. Each other member makes one call to the leader and
//! passes its value. The leader answers after all members have reported, and every answer has all
//! values. Each member therefore gets either all values or an error that names the missing member.
//!
//! A report identifies its gather by the members (names and incarnations) and by the number of
//! earlier gathers of exactly these members. No key is built by joining names. A restarted member
//! does not continue where its predecessor stopped.
//!
//! [`rdzv_rpc_proto::gather`] decides which members have reported and which are missing.
//!
//! * [`message`]: reports and their answers as bytes.
//! * [`leader`]: incoming reports.
//! * [`participant`]: the functions that the application calls.

pub(crate) mod leader;
mod message;
mod participant;
