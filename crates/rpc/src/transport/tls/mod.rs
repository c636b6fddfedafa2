//! TLS 1.3 over TCP, with certificates on both sides. Only the files of this folder know rustls.
//!
//! Both sides show a certificate that the authority of the job has signed. Which worker it is for
//! stands in its subject alternative name, as `DNS:NAME`, or as `URI:rdzv:NAME` for names that no host
//! can have. Addresses are not compared: workers move, and have names of their own. So the name is
//! looked at when the peer has said who it is, see [`super::Carrier::check_name`].
//!
//! | file | what |
//! |---|---|
//! | `identity` | what a worker shows, and whom it believes |
//! | `session` | one connection: the handshake, bytes in and out |
//! | `halves` | the two halves of a carrier |

mod halves;
mod identity;
mod session;

pub(super) use halves::halves;
pub use identity::Identity;
pub(super) use session::Session;
