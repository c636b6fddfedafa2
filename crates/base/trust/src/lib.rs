#![doc = include_str!("../README.md")]
//!
//! A job can use the job token, and TLS with certificates on both sides.
//!
//! [`token`] proves possession of the token: with a keyed hash over the first messages of both
//! sides. The token itself is never sent. [`handshake`] proves the token on connections of the
//! store and of the rendezvous. Connections of RPC have separate hellos. [`credentials`] holds the
//! token and the certificates of a process.
//!
//! [`session`] is TLS 1.3 over a stream, which may be non-blocking. [`channel`] is a TCP connection
//! with or without TLS. [`identity`] holds this process's certificate and the authority that it
//! trusts. Both sides present a certificate that the job's authority has signed. The subject
//! alternative name of a certificate is the name of the worker: `DNS:NAME`, or `URI:rdzv:NAME` for
//! names that no host can have. Addresses are not compared, because workers move and have their own
//! names. An RPC connection compares the name with [`Session::certified`] once the peer has sent
//! its name.
//!
//! No other crate uses `ring` or `rustls` directly.

#![warn(clippy::missing_errors_doc)]

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
