//! Hosting the store, or finding it.

use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rdzv_core::endpoint::Endpoint;
use rdzv_store::{
    FileStore, ServerOptions, Store, StoreError, TcpStore, TcpStoreOptions, TcpStoreServer,
};

use super::Meeting;
use super::explain::explain;
use super::options::{Medium, Options};
use super::stored::{Place, StoredState};
use crate::RendezvousError;
use crate::bind::loopback;
use crate::dynamic::driver::{Driver, DriverOptions};
use crate::dynamic::{SharedState as _, host, node};

/// A store that the agents meet at.
pub(super) struct Connected {
    place: Place,
    server: Option<Arc<TcpStoreServer>>,
}

/// Connects to the store, hosting it if that is this node's part.
pub(super) fn connect(options: &Options) -> Result<Connected, RendezvousError> {
    match &options.medium {
        Medium::Tcp { endpoint, is_host } => to_tcp(endpoint, *is_host, options),
        Medium::File(path) => to_file(path, options),
    }
}

fn to_tcp(
    endpoint: &Endpoint,
    is_host: Option<bool>,
    options: &Options,
) -> Result<Connected, RendezvousError> {
    let explain = |error| explain(error, &options.place());
    let server = match is_host {
        Some(true) => Some(serve(endpoint).map_err(explain)?),
        Some(false) => None,
        None if host::is_this_machine(&endpoint.host, options.read_timeout) => {
            serve_if_free(endpoint).map_err(explain)?
        }
        None => None,
    };
    let port = server.as_ref().map_or(endpoint.port, TcpStoreServer::port);
    let store = TcpStore::connect(TcpStoreOptions {
        timeout: options.read_timeout,
        ..TcpStoreOptions::new(&endpoint.host, port)
    })
    .map_err(explain)?;
    tracing::debug!(peer = %store.peer(), hosted = server.is_some(), "connected to the c10d store");
    Ok(Connected {
        place: Place::Tcp(Arc::new(store)),
        server: server.map(Arc::new),
    })
}

fn serve(endpoint: &Endpoint) -> Result<TcpStoreServer, StoreError> {
    TcpStoreServer::start(ServerOptions {
        host: loopback(&endpoint.host),
        port: endpoint.port,
        ..ServerOptions::default()
    })
}

/// Of several agents on the host of the endpoint, one gets its port.
fn serve_if_free(endpoint: &Endpoint) -> Result<Option<TcpStoreServer>, StoreError> {
    match serve(endpoint) {
        Ok(server) => Ok(Some(server)),
        Err(StoreError::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn to_file(path: &Path, options: &Options) -> Result<Connected, RendezvousError> {
    let store = FileStore::open(path, None).map_err(|error| explain(error, &options.place()))?;
    store.set_timeout(options.read_timeout);
    Ok(Connected {
        place: Place::File(Arc::new(store)),
        server: None,
    })
}

impl Connected {
    /// The rendezvous over this store.
    pub(super) fn into_backend(self, options: &Options) -> Result<Meeting, RendezvousError> {
        let state = StoredState::new(self.place, &options.run_id)?;
        let me = node::describe(advertised(options, state.local_address()));
        let driver = Driver::start(
            Box::new(state),
            DriverOptions {
                run_id: options.run_id.clone(),
                settings: options.settings,
                me,
                patience: options.read_timeout,
            },
        )?;
        Ok(Meeting {
            backend: Box::new(driver),
            server: self.server,
        })
    }
}

fn advertised(options: &Options, connected_from: Option<IpAddr>) -> String {
    let endpoint_host = match &options.medium {
        Medium::Tcp { endpoint, .. } => Some(endpoint.host.as_str()),
        Medium::File(_) => None,
    };
    node::advertised(options.local_addr.as_deref(), endpoint_host, connected_from)
}
