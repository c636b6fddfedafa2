//! The answering side of a connection: from a request to its function, and from its answer to the reply.
//!
//! | file | contents |
//! |---|---|
//! | [`server`] | requests, their order, their limits, and replies; [`server::Service`] is what it needs of the agent |
//! | [`functions`] | the functions that an agent offers, by number |
//! | [`executor`] | the threads that they run on |
//! | [`cancellation`] | how a function learns that nobody waits for its result any more |
//! | [`place`] | the kind of code that a thread runs, and its trace |

pub(crate) mod cancellation;
pub(crate) mod executor;
pub(crate) mod functions;
pub(crate) mod place;
pub(crate) mod server;
