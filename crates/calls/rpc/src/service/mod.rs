//! The functions that an agent offers, and the threads that run them.
//!
//! | file | contents |
//! |---|---|
//! | [`functions`] | the functions that an agent offers, by number |
//! | [`executor`] | the threads that they run on |
//! | [`cancellation`] | how a function learns that its result is no longer needed |
//! | [`place`] | the kind of code that a thread runs, and its trace |

pub(crate) mod cancellation;
pub(crate) mod executor;
pub(crate) mod functions;
pub(crate) mod place;
