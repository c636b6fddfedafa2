//! One call, seen from both ends.
//!
//! | file | what |
//! |---|---|
//! | [`method`] | the typed name of a function |
//! | [`methods`] | the functions that a worker offers |
//! | [`run`] | one run of such a function |
//! | [`context`] | what a function is told beside its argument |
//! | [`cancellation`] | how a function learns that nobody waits for it any more |
//! | [`slot`] | where the answer of a call arrives |
//! | [`future`] | the caller's handle of that |
//! | [`codec`] | values to messages and back |
//! | [`span`] | a call in a trace |
//! | [`failure`] | an error on its way from callee to caller |

pub(crate) mod cancellation;
pub(crate) mod codec;
pub(crate) mod context;
pub(crate) mod failure;
pub(crate) mod future;
pub(crate) mod method;
pub(crate) mod methods;
pub(crate) mod run;
pub(crate) mod slot;
pub(crate) mod span;
