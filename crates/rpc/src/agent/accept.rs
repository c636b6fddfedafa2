//! Workers that connect to this one.

use std::sync::{Arc, Weak};
use std::time::Instant;

use rdzv_rpc_proto::frame::Limits;

use super::connect::{adopt, ends};
use super::core::Core;
use crate::connection::greeting::Greeting;
use crate::connection::link::{Link, fail};
use crate::connection::server::Server;
use crate::error::{RpcError, RpcErrorKind};
use crate::transport::{Carrier, Listener, TransportError};

/// So many peers may be about to say who they are; more are not listened to.
const MOST_STRANGERS: usize = 1024;

/// Where workers connect to, and those that have not said who they are yet.
pub(crate) struct Reception {
    /// None when it listens no more.
    listener: Option<Listener>,
    strangers: Vec<Weak<Server>>,
}

impl Reception {
    pub(crate) fn new(core: &Core, listener: Listener) -> std::io::Result<Self> {
        core.poller.listen(listener.descriptor())?;
        Ok(Self {
            listener: Some(listener),
            strangers: Vec::new(),
        })
    }

    /// Somebody connects.
    pub(crate) fn admit(&mut self, core: &Arc<Core>) {
        let Some(listener) = &mut self.listener else {
            return;
        };
        loop {
            match listener.accept() {
                Ok(Some(carrier)) => {
                    self.strangers.retain(is_stranger);
                    if self.strangers.len() >= MOST_STRANGERS {
                        tracing::warn!(
                            peer = carrier.peer,
                            "refused a connection: {MOST_STRANGERS} others have not said who they are"
                        );
                        continue;
                    }
                    let peer = carrier.peer.clone();
                    match welcome(core, carrier) {
                        Ok(server) => self.strangers.push(Arc::downgrade(&server)),
                        Err(error) => tracing::warn!(peer, %error, "could not take a connection"),
                    }
                }
                Ok(None) => return,
                // One peer did not get that far; there may be others behind it.
                Err(error @ TransportError::System { .. }) => {
                    tracing::warn!(%error, "could not take a connection");
                    return;
                }
                Err(error) => tracing::warn!(%error, "refused a connection"),
            }
        }
    }

    /// When somebody has to have said who it is.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let strangers = self.strangers.iter().filter_map(Weak::upgrade);
        strangers.filter_map(|server| server.greeted_until()).min()
    }

    /// Closes the connections of those who have not said who they are in time.
    pub(crate) fn expire(&mut self, now: Instant) {
        for server in self.strangers.iter().filter_map(Weak::upgrade) {
            if server.is_stalling(now) {
                let text = "the peer did not say who it is in time";
                server.say_goodbye(text);
                fail(&server, RpcError::new(RpcErrorKind::Protocol, text));
            }
        }
        self.strangers.retain(is_stranger);
    }

    /// Listens no more.
    pub(crate) fn close(&mut self, core: &Core) {
        if let Some(listener) = self.listener.take() {
            core.poller.deafen(listener.descriptor());
        }
    }
}

fn is_stranger(server: &Weak<Server>) -> bool {
    server
        .upgrade()
        .is_some_and(|server| server.greeted_until().is_some() && !server.is_over())
}

fn welcome(core: &Arc<Core>, carrier: Carrier) -> Result<Arc<Server>, RpcError> {
    let greeting = Greeting::acceptor(core.hello(), core.token.clone(), carrier.credentials());
    let ends = ends(core, carrier, Limits::UNAUTHENTICATED);
    let link = Link::new(Arc::clone(&core.poller), ends).map_err(|error| {
        let text = format!("this worker cannot look after another connection: {error}");
        RpcError::new(RpcErrorKind::Internal, text)
    })?;
    let server = Arc::new(Server::new(link, core.weak(), greeting));
    adopt(core, &server)?;
    Ok(server)
}
