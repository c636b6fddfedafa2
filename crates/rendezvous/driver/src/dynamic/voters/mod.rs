//! Voters in store servers, which replicate the coordinator's record.
//!
//! The machines are those of `rdzv-voters`.
//!
//! A voter does not join rounds. Agents find the coordinator with a [`Search`], and join there as
//! with any coordinator.
//!
//! | file | contents |
//! |---|---|
//! | `voter.rs`, `link.rs` | the voter in a store server; its connections to the others |
//! | `listed.rs`, `store_voter.rs` | a voter at an endpoint of a list, in an agent and in a store |
//! | `open_group.rs` | a voter in a group that agents may join |
//! | `candidate.rs` | [`VoterCandidate`]: an agent that may become a voter |
//! | `redirect.rs` | [`Redirect`]: the endpoint of a group whose members are elsewhere |
//! | `search.rs` | [`Search`]: the search for the coordinator among the voters |

mod candidate;
mod link;
pub(super) mod listed;
pub(super) mod open_group;
mod redirect;
mod search;
mod store_voter;
mod voter;

pub use candidate::{OwnVoter, StartVoter, VoterCandidate};
pub use redirect::Redirect;
pub use search::{Located, Search};
pub use store_voter::StoreVoter;
