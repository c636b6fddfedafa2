//! Init-method URLs, which provide a store, a rank and a world size.
//!
//! | URL | store | source of rank and world size |
//! |---|---|---|
//! | `env://` | TCP, at `MASTER_ADDR`:`MASTER_PORT` | query, or `RANK` and `WORLD_SIZE` |
//! | `tcp://host:port?rank=R&world_size=N` | TCP, at `host:port` | query |
//! | `file:///path?rank=R&world_size=N` | the file | query |
//! | `rdzv://host:port/job?world_size=N` | TCP, hosted by a worker | `rank=R`, or the rendezvous |
//!
//! `handlers` decides which process hosts a TCP store.
//!
//! In PyTorch, the query name `use_libuv` and the variable `USE_LIBUV` choose between two servers.
//! rdzv has one server, so it accepts both names and ignores them, like all unknown names.

mod handlers;
mod native;
mod parse;
mod registry;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use rdzv_core::rank::Rank;
use rdzv_store::{Credentials, FileStore, PrefixStore, Store, TcpStore};

pub use handlers::{EnvHandler, FileHandler, TcpHandler, UrlHandler};
pub use native::NativeHandler;
pub use parse::Url;
pub use registry::{Registry, UrlRendezvous, open, register_handler, rendezvous};

use crate::{Environment, RendezvousError};

/// Key prefix of the default process group of a job.
const DEFAULT_GROUP: &str = "default_pg";

/// Options for a rendezvous that are not part of the URL.
#[derive(Debug, Clone)]
pub struct UrlOptions {
    /// Timeout for the rendezvous and for the store (except `file`).
    ///
    /// The default is 30 minutes, as for a process group.
    pub timeout: Duration,
    /// Source of environment variables; default: the environment of the process.
    pub environment: Environment,
    /// Credentials that this worker presents to its peer, and requires from it.
    ///
    /// The peer is a TCP store or a rendezvous server. The default is the credentials in the
    /// environment ([`Environment::credentials`]).
    pub credentials: Option<Credentials>,
    /// Keyword arguments for user-defined handlers, as in PyTorch's `rendezvous()`.
    ///
    /// The built-in handlers ignore these arguments.
    pub keywords: BTreeMap<String, String>,
}

impl Default for UrlOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30 * 60),
            environment: Environment::of_process(),
            credentials: None,
            keywords: BTreeMap::new(),
        }
    }
}

impl UrlOptions {
    fn credentials(&self) -> Result<Credentials, RendezvousError> {
        match &self.credentials {
            Some(given) => Ok(given.clone()),
            None => self.environment.credentials(),
        }
    }
}

/// Store of a URL, with its class.
#[derive(Debug)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "a job has one")]
pub enum UrlStore {
    /// Store of `tcp://` and `env://`, and of `rdzv://`.
    Tcp(TcpStore),
    /// Store of `file://`.
    File(FileStore),
    /// Store of a registered handler.
    Other(Box<dyn Store>),
}

impl Deref for UrlStore {
    type Target = dyn Store;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Tcp(store) => store,
            Self::File(store) => store,
            Self::Other(store) => &**store,
        }
    }
}

impl From<UrlStore> for Arc<dyn Store> {
    fn from(store: UrlStore) -> Self {
        match store {
            UrlStore::Tcp(store) => Arc::new(store),
            UrlStore::File(store) => Arc::new(store),
            UrlStore::Other(store) => Arc::from(store),
        }
    }
}

/// Result of a rendezvous.
#[derive(Debug)]
pub struct Joined {
    /// Store that all members of the job share.
    pub store: UrlStore,
    /// Rank of this worker.
    pub rank: Rank,
    /// Number of workers.
    pub world_size: u32,
}

/// Store that was opened without waiting for other workers.
#[derive(Debug)]
pub struct Opened {
    /// Store that all members share.
    pub store: UrlStore,
    /// Rank of this worker.
    pub rank: Rank,
}

impl Joined {
    /// Returns a view of the store for the default process group (`default_pg/`).
    ///
    /// PyTorch processes in the same job use the same keys.
    pub fn into_group_store(self) -> PrefixStore {
        PrefixStore::new(DEFAULT_GROUP, self.store.into())
    }
}

/// Returns an error for a URL, with the same prefix as in PyTorch.
fn wrong(scheme: &str, what: &str) -> RendezvousError {
    RendezvousError::Argument(format!(
        "Error initializing torch.distributed using {scheme}:// rendezvous: {what}"
    ))
}
