//! Starting the server that a master's store object brings along.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use super::options::TcpStoreOptions;
use super::server::{ServerOptions, TcpStoreServer};
use crate::StoreError;

/// The shared servers of this process, by port. The table does not keep them alive.
static SHARED: LazyLock<Mutex<HashMap<u16, Weak<TcpStoreServer>>>> = LazyLock::new(Mutex::default);

/// Starts the server, or finds the one to share. `None`: the agent hosts it.
pub(super) fn host(
    options: &mut TcpStoreOptions,
) -> Result<Option<Arc<TcpStoreServer>>, StoreError> {
    // Held while the server starts, so that of two masters at a time one starts it and both share it.
    let mut shared = options
        .multi_tenant
        .then(|| SHARED.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(shared) = &mut shared {
        shared.retain(|_, server| server.strong_count() > 0);
        if let Some(server) = shared.get(&options.port).and_then(Weak::upgrade) {
            return Ok(Some(server));
        }
    }
    let server = TcpStoreServer::start(ServerOptions {
        host: options.bind.clone(),
        port: options.port,
        listener: options.listener.take(),
        limits: options.limits,
        extension: None,
    });
    match server {
        Ok(server) => {
            let server = Arc::new(server);
            if let Some(shared) = &mut shared {
                shared.insert(server.port(), Arc::downgrade(&server));
            }
            Ok(Some(server))
        }
        Err(error @ StoreError::Listen { .. }) if options.agent_hosts => {
            tracing::info!(%error, "the agent hosts the store; going on as its client");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
