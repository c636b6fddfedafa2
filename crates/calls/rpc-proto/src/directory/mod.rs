//! Who is in a group, how to reach them, and what each change means.
//!
//! * [`member`]: what a worker tells of itself, and how it is written into a store.
//! * [`view`]: the group as one member sees it: never changed, only replaced.
//! * [`round`]: one store may serve several groups one after the other; which of them is this?
//! * [`membership`]: the record of a dynamic group, that its members change by compare-and-set.
//! * [`lease`]: expiry: members that have been silent for too long.
//!
//! A change of a dynamic group is one new version of one record: whoever writes it first has
//! decided. A worker is in the group exactly if it is in the record, so there is nothing to clean
//! up if it dies on the way in or out.

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
