//! Voters beside store servers: a group of processes that replicates the coordinator's record.
//!
//! The machines are those of `rdzv-voters`. Nothing here takes part in a round: agents find the
//! coordinator with a [`Search`], and are an agent of it like any other.
//!
//! | file | what |
//! |---|---|
//! | `voter.rs`, `link.rs` | what makes a store server a voter; its connections to the others |
//! | `listed.rs`, `store_voter.rs` | a voter at an endpoint of a list, in an agent and in a store |
//! | `open_group.rs` | a voter in a group that agents may join |
//! | `candidate.rs` | [`Candidate`]: an agent that may become a voter |
//! | `redirect.rs` | [`Redirect`]: the endpoint of a group whose members are elsewhere |
//! | `search.rs` | [`Search`]: finding the coordinator among the voters |

mod candidate;
mod link;
pub(super) mod listed;
pub(super) mod open_group;
mod redirect;
mod search;
mod store_voter;
mod voter;

pub use candidate::{Candidate, OwnVoter, StartVoter};
pub use redirect::Redirect;
pub use search::{Located, Search};
pub use store_voter::StoreVoter;
