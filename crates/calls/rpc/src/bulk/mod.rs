//! Large parts of messages, which do not travel in frames.
//!
//! | file | contents |
//! |---|---|
//! | [`registered`] | parts in shared memory, which the peer uses where they are and gives back |
//! | [`remote_read`] | parts that the peer reads out of the sender's memory |

pub(crate) mod registered;
pub(crate) mod remote_read;
