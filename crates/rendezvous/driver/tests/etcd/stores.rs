//! Stores of this crate, for the contract of all stores.

use std::sync::Arc;

use rdzv_rendezvous::etcd::EtcdStore;
use rdzv_store::Store;

use crate::server::Server;

/// Shared store from which any number of members can get separate handles.
pub(crate) trait Shared: Default + Sync {
    /// `true` if `queue_*` work.
    const HAS_QUEUES: bool;
    /// `true` if the store appends, and reads and writes several keys in one call.
    const IS_EXTENDED: bool;
    /// `true` if `delete_key` reports whether the key existed.
    const DELETE_TELLS: bool;

    /// Returns a handle for one more member.
    fn member(&self) -> Box<dyn Store>;
}

pub(crate) struct Etcd {
    server: Arc<Server>,
    folder: String,
}

impl Default for Etcd {
    fn default() -> Self {
        Self {
            server: Server::shared(),
            folder: format!("store/{:016x}", fastrand::u64(..)),
        }
    }
}

impl Shared for Etcd {
    const HAS_QUEUES: bool = false;
    const IS_EXTENDED: bool = true;
    const DELETE_TELLS: bool = true;

    fn member(&self) -> Box<dyn Store> {
        Box::new(EtcdStore::open(&self.server.options(), &self.folder).unwrap())
    }
}

/// Runs every listed behaviour against the etcd store.
macro_rules! behaviours {
    ($module:ident: $($behaviour:ident),* $(,)?) => {
        mod etcd { $(
            #[test]
            #[ignore = "needs etcd: cargo xtask test"]
            fn $behaviour() {
                super::$behaviour(&crate::stores::Etcd::default());
            }
        )* }
    };
}
pub(crate) use behaviours;
