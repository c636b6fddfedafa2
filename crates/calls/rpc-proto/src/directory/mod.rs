//! Members of a group, their addresses, and the meaning of each change.
//!
//! * [`member`]: what a worker tells of itself, and how it is written into a store.
//! * [`view`]: the group as one member sees it: never changed, only replaced.
//! * [`round`]: the current one of several successive groups in one store.
//! * [`membership`]: the record of a dynamic group, that its members change by compare-and-set.
//! * [`lease`]: expiry: members that have been silent for too long.
//!
//! A change of a dynamic group is a new version of one record: the first writer decides. A worker
//! is in the group exactly if it is in the record, so nothing has to be cleaned up if it dies while
//! it joins or leaves.

pub mod lease;
pub mod member;
pub mod membership;
pub mod round;
pub mod view;

pub use lease::LeaseWatch;
pub use member::{BadRecord, Departure, Member};
pub use membership::{JoinRefusal, Membership};
pub use round::{Mismatch, Round, RoundDecision, RoundKind};
pub use view::{Change, GroupView, NotUnique};
