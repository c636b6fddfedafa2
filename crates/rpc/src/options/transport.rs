//! The options of the way between workers: which it is, and how they know one another on it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use super::{RpcOptions, invalid};
use crate::RpcError;

/// Fewer bytes could be tried out.
const SHORTEST_TOKEN: usize = 16;

/// A way for bytes from one worker to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportName {
    /// Shared memory, on one host.
    Shm,
    /// Unix sockets, on one host.
    Unix,
    /// TCP.
    Tcp,
}

impl FromStr for TransportName {
    type Err = RpcError;

    /// Knows `shm`, `unix` and `tcp`; the reference's `uv`, its TCP, is ours.
    fn from_str(text: &str) -> Result<Self, RpcError> {
        match text {
            "shm" => Ok(Self::Shm),
            "unix" => Ok(Self::Unix),
            "tcp" | "uv" => Ok(Self::Tcp),
            _ => Err(invalid(format!("Unknown transport: {text}"))),
        }
    }
}

impl fmt::Display for TransportName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Shm => "shm",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
        })
    }
}

/// The token of a job: a text that only its workers know. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// This text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// The files by which workers prove to one another who they are, over TCP. All are PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of this worker.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificates of those who may have signed the others'.
    pub authorities: PathBuf,
}

impl RpcOptions {
    /// The transports that may be used, the preferred one first; `None` is all.
    pub fn transports(&self) -> Option<&[TransportName]> {
        self.transports.as_deref()
    }

    /// Changes [`Self::transports`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for an empty list: nobody could be reached.
    pub fn set_transports(
        &mut self,
        transports: Option<Vec<TransportName>>,
    ) -> Result<(), RpcError> {
        if transports.as_ref().is_some_and(Vec::is_empty) {
            return Err(invalid(
                "the list of transports is empty; give none at all to use every one that works",
            ));
        }
        self.transports = transports;
        Ok(())
    }

    /// The address of this host that the other workers can reach; `None` is found out.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Changes [`Self::address`].
    pub fn set_address(&mut self, address: Option<IpAddr>) {
        self.address = address;
    }

    /// The token that all workers of the job show one another, if there is one.
    pub fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// Changes [`Self::token`].
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for less than 16 bytes.
    pub fn set_token(&mut self, token: Option<Secret>) -> Result<(), RpcError> {
        let bytes = token.as_ref().map_or(usize::MAX, |token| token.0.len());
        if bytes < SHORTEST_TOKEN {
            return Err(invalid(format!(
                "a job token of {bytes} bytes can be guessed: take {SHORTEST_TOKEN} random bytes or \
                 more"
            )));
        }
        self.token = token;
        Ok(())
    }

    /// The files for TLS over TCP, if it is to be used.
    pub fn tls(&self) -> Option<&TlsFiles> {
        self.tls.as_ref()
    }

    /// Changes [`Self::tls`].
    pub fn set_tls(&mut self, tls: Option<TlsFiles>) {
        self.tls = tls;
    }
}
