//! Exchange of values among all members, and barriers, built on calls.
//!
//! The member with the smallest name leads. Each other member makes one call to the leader and
//! passes its value. The leader replies once all members have reported, one is lost or the time is
//! over. A reply contains either all values or an error. If a member is missing, the error names
//! it.
//!
//! A report identifies its gather by the members (names and incarnations) and by the number of
//! earlier gathers among exactly these members. Keys are never built by joining names. A restarted
//! member has a new incarnation, so its gathers have new keys.
//!
//! [`rdzv_rpc_proto::gather`] decides which members have reported and which are missing.
//!
//! * [`message`]: encoding of reports and replies.
//! * [`leader`]: incoming reports.
//! * [`participant`]: the functions that the application calls.

pub(crate) mod leader;
mod message;
mod participant;
