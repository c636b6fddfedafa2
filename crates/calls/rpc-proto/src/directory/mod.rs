//! Members of a group, their addresses, and the meaning of each change.
//!
//! * [`member`]: data that a worker publishes, and its form in the store.
//! * [`view`]: the group as one member sees it: never changed, only replaced.
//! * [`round`]: the current one of several successive groups in one store.
//! * [`membership`]: the record of a dynamic group. Workers change it by compare-and-set.
//! * [`lease`]: expiry: members that have been silent for too long.
//!
//! A change of a dynamic group is a new version of one record: the first writer decides. A worker
//! is in the group exactly if it is in the record. So a worker that dies while it joins or leaves
//! needs no special cleanup.

pub mod lease;
pub mod member;
pub mod membership;
pub mod round;
pub mod view;

pub use lease::LeaseWatch;
pub use member::{BadRecord, Departure, Member};
pub use membership::{JoinRefusal, Membership};
pub use round::{DirectoryRound, Mismatch, RoundDecision, RoundKind};
pub use view::{GroupView, NotUnique, ViewChange};
