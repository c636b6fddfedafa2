//! Init-method URLs: from a URL to a store, a rank and a world size.
//!
//! | URL | the store | rank and world size |
//! |---|---|---|
//! | `env://` | TCP, at `MASTER_ADDR`:`MASTER_PORT` | query, else `RANK` and `WORLD_SIZE` |
//! | `tcp://host:port?rank=R&world_size=N` | TCP, there | query |
//! | `file:///path?rank=R&world_size=N` | that file | query |
//! | `rdzv://host:port/job?world_size=N` | TCP, at one of the workers | the rendezvous gives ranks, unless `rank=R` is in the query |
//!
//! Who hosts a TCP store is decided in `handlers`. The query name `use_libuv` and the variable of
//! the same name choose between PyTorch's two servers; ours is one, so they are accepted and change
//! nothing, like all names that are not known.

mod handlers;
mod native;
mod parse;
mod registry;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdzv_core::rank::Rank;
use rdzv_store::{Credentials, PrefixStore, Store};

pub use handlers::{EnvHandler, FileHandler, TcpHandler, UrlHandler};
pub use native::NativeHandler;
pub use parse::Url;
pub use registry::{Registry, UrlRendezvous, open, register_handler, rendezvous};

use crate::{Environment, RendezvousError};

/// The key prefix of a job's default process group.
const DEFAULT_GROUP: &str = "default_pg";

/// What every handler gets besides the URL.
#[derive(Debug, Clone)]
pub struct UrlOptions {
    /// Limit of the rendezvous and timeout of the store (all but `file`). Default 30 minutes,
    /// that of a process group.
    pub timeout: Duration,
    /// Where variables are looked up. Default: the environment of the process.
    pub environment: Environment,
    /// The credentials that this worker shows at a TCP store or a rendezvous, and demands of it. Default: those of
    /// the environment ([`Environment::credentials`]).
    pub credentials: Option<Credentials>,
    /// Keyword arguments for handlers of schemes of one's own, as those of PyTorch's `rendezvous()`.
    /// The built-in handlers ignore them.
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

/// What a rendezvous yields.
#[derive(Debug)]
pub struct Joined {
    /// The store that all members share; its keys are the job's.
    pub store: Box<dyn Store>,
    /// This worker's rank.
    pub rank: Rank,
    /// The number of workers.
    pub world_size: u32,
}

/// A store that was opened without waiting for anybody.
#[derive(Debug)]
pub struct Opened {
    /// The store that all members share.
    pub store: Box<dyn Store>,
    /// This worker's rank.
    pub rank: Rank,
}

impl Joined {
    /// The part of the store that belongs to the job's default process group (`default_pg/`),
    /// where a peer of PyTorch's reads it.
    pub fn into_group_store(self) -> PrefixStore {
        PrefixStore::new(DEFAULT_GROUP, Arc::from(self.store))
    }
}

/// PyTorch's beginning of everything that can be wrong with a URL of a scheme.
fn wrong(scheme: &str, what: &str) -> RendezvousError {
    RendezvousError::Argument(format!(
        "Error initializing torch.distributed using {scheme}:// rendezvous: {what}"
    ))
}
