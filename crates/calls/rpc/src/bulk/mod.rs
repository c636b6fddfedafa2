//! Large parts of messages, which are not sent inside frames.
//!
//! | file | contents |
//! |---|---|
//! | [`registered`] | parts in shared memory, which the peer uses in place and gives back |
//! | [`remote_read`] | parts that the peer reads out of the sender's memory |

pub(crate) mod registered;
pub(crate) mod remote_read;
