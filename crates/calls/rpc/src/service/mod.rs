//! Functions that an agent offers, and the threads that run them.
//!
//! | file | contents |
//! |---|---|
//! | [`functions`] | the offered functions, by method hash |
//! | [`executor`] | the threads that run the functions |
//! | [`cancellation`] | notification of a function that its result is no longer needed |
//! | [`code_kind`] | the kind of code that a thread runs, and its trace |

pub(crate) mod cancellation;
pub(crate) mod code_kind;
pub(crate) mod executor;
pub(crate) mod functions;
