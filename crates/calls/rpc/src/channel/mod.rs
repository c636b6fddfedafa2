//! The calling side of a connection: requests, replies, deadlines, credit.
//!
//! | file | contents |
//! |---|---|
//! | [`request`] | a call before it is sent |
//! | [`calls`] | calls in flight, and calls that wait for credit |
//! | [`client`] | sends requests, receives replies, and lets a waiting thread read its reply |
//! | [`in_flight`] | count of an agent's calls, which a shutdown waits for |
//! | [`slot`] | the slot in which the answer of a call arrives |
//! | [`failure`] | an error on its way from callee to caller |
//! | [`span`], [`counters`] | calls in traces and in statistics |

mod calls;
pub(crate) mod client;
pub(crate) mod counters;
pub(crate) mod failure;
pub(crate) mod in_flight;
pub(crate) mod request;
pub(crate) mod slot;
pub(crate) mod span;
