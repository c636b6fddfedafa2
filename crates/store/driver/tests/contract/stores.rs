//! The kinds of stores that the contract is run against.

use std::sync::Arc;

use rdzv_store::{
    FileStore, HashStore, PrefixStore, ServerOptions, Store, TcpStore, TcpStoreOptions,
    TcpStoreServer,
};
use tempfile::TempDir;

/// One shared store, with a separate handle for each member.
pub(crate) trait Shared: Default + Sync {
    /// `true` if the store has `queue_*`.
    const HAS_QUEUES: bool;
    /// `true` if it can append, and read and write several keys in one operation.
    const IS_EXTENDED: bool = Self::HAS_QUEUES;
    /// `true` if `delete_key` reports whether the key existed.
    const DELETE_TELLS: bool;

    /// Returns a handle for one more member.
    fn member(&self) -> Box<dyn Store>;
}

#[derive(Default)]
pub(crate) struct Hash(HashStore);

impl Shared for Hash {
    const HAS_QUEUES: bool = true;
    const DELETE_TELLS: bool = true;

    fn member(&self) -> Box<dyn Store> {
        self.0.try_clone().unwrap()
    }
}

pub(crate) struct File(TempDir);

impl Default for File {
    fn default() -> Self {
        Self(TempDir::new().unwrap())
    }
}

impl Shared for File {
    const HAS_QUEUES: bool = false;
    const DELETE_TELLS: bool = false;

    fn member(&self) -> Box<dyn Store> {
        Box::new(FileStore::open(self.0.path().join("store"), None).unwrap())
    }
}

pub(crate) struct Tcp(TcpStoreServer);

impl Default for Tcp {
    fn default() -> Self {
        let options = ServerOptions {
            host: Some("127.0.0.1".to_owned()),
            ..ServerOptions::default()
        };
        Self(TcpStoreServer::start(options).unwrap())
    }
}

impl Shared for Tcp {
    const HAS_QUEUES: bool = true;
    const DELETE_TELLS: bool = true;

    fn member(&self) -> Box<dyn Store> {
        let options = TcpStoreOptions::new("127.0.0.1", self.0.port());
        Box::new(TcpStore::connect(options).unwrap())
    }
}

#[derive(Default)]
pub(crate) struct Prefixed<S>(S);

impl<S: Shared> Shared for Prefixed<S> {
    const HAS_QUEUES: bool = S::HAS_QUEUES;
    const DELETE_TELLS: bool = S::DELETE_TELLS;

    fn member(&self) -> Box<dyn Store> {
        Box::new(PrefixStore::new("prefix", Arc::from(self.0.member())))
    }
}

#[test]
fn a_prefix_store_has_a_prefix_and_a_store_below_it() {
    let below: Arc<dyn Store> = Arc::from(Hash::default().member());
    let store = PrefixStore::new("prefix", Arc::clone(&below));
    assert_eq!(store.prefix(), "prefix");
    assert!(Arc::ptr_eq(store.inner(), &below));
}
