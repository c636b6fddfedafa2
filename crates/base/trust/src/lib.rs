//! Proof that a peer belongs to the job: the job token, and TLS with certificates on both sides.
//!
//! [`token`] is a keyed hash over the first messages of both sides. The token itself is never sent.
//! [`handshake`] is how it is proven on connections of the store and of the rendezvous; those of RPC
//! have hellos of their own. [`credentials`] is what a process has of all this.
//!
//! [`session`] is TLS 1.3 over a stream that never blocks; [`identity`] is what this process shows and
//! which certificates it accepts. Both sides show a certificate that the authority of the job has
//! signed. The subject alternative name says which worker it is for: `DNS:NAME`, or `URI:rdzv:NAME`
//! for names that no host can have. Addresses are not compared, because workers move and have names
//! of their own; the caller compares the name with [`Session::certified`] once the peer has said
//! who it is.
//!
//! No other crate uses `ring` or `rustls` directly.

pub mod channel;
pub mod credentials;
pub mod handshake;
pub mod identity;
pub mod session;
pub mod token;

pub use channel::Channel;
pub use credentials::{Credentials, TokenError};
pub use identity::{Identity, IdentityError};
pub use session::Session;
pub use token::Token;
