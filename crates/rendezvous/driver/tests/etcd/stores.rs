//! The stores of this crate, for the contract that every store is held to.

use std::sync::Arc;

use rdzv_rendezvous::etcd::EtcdStore;
use rdzv_store::Store;

use crate::server::Server;

/// One shared store, of which any number of members can get handles of their own.
pub(crate) trait Shared: Default + Sync {
    /// Whether `queue_*` work.
    const HAS_QUEUES: bool;
    /// Whether it appends, and reads and writes several keys at once.
    const IS_EXTENDED: bool;
    /// Whether `delete_key` says what it found.
    const DELETE_TELLS: bool;

    /// A handle for one more member.
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

/// Runs every behaviour that is named against it.
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
