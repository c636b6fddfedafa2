//! Accepts connections from other workers.

use std::sync::{Arc, Weak};
use std::time::Instant;

use rdzv_rpc_proto::frame::FrameLimits;

use crate::error::{RpcError, RpcErrorKind};
use crate::runtime::connect::{adopt, ends};
use crate::runtime::core::Core;
use crate::runtime::server::Server;
use crate::transport::pending::{Pending, Source};
use crate::transport::{Carrier, Listener, TransportError};
use crate::wire::handshake::Greeting;
use crate::wire::link::{Link, fail};

/// Maximum number of peers that have not identified themselves yet.
///
/// If one more peer connects, the agent closes one of these connections.
const MOST_UNAUTHENTICATED: usize = 1024;

/// Maximum number of such peers from one source.
const MOST_OF_ONE: usize = 256;

/// Maximum number of connections accepted before the driver serves known peers.
const AT_ONCE: usize = 64;

/// The listener, and the peers that have not identified themselves yet.
pub(crate) struct Reception {
    /// `None` after the listener was closed.
    listener: Option<Listener>,
    unauthenticated: Pending<Weak<Server>>,
    /// `true` if the listener may hold peers that its descriptor does not signal.
    has_more: bool,
}

impl Reception {
    pub(crate) fn new(core: &Core, listener: Listener) -> std::io::Result<Self> {
        core.poller.listen(listener.descriptor())?;
        Ok(Self {
            listener: Some(listener),
            unauthenticated: Pending::new(MOST_UNAUTHENTICATED, MOST_OF_ONE, 0),
            has_more: false,
        })
    }

    pub(crate) fn admit(&mut self, core: &Arc<Core>) {
        let Some(listener) = &mut self.listener else {
            return;
        };
        self.has_more = false;
        for _ in 0..AT_ONCE {
            match listener.accept() {
                Ok(Some(carrier)) => {
                    self.unauthenticated.retain(is_unauthenticated);
                    let process = carrier.process.map(|peer| peer.process);
                    let source = Source::of(&carrier.peer, process);
                    if let Some(silent) = self.unauthenticated.make_room(source) {
                        give_up(
                            &silent,
                            "the peer did not identify itself, and many other peers are connecting",
                        );
                    }
                    let peer = carrier.peer.clone();
                    match welcome(core, carrier) {
                        Ok(server) => {
                            self.unauthenticated.insert(source, Arc::downgrade(&server));
                        }
                        Err(error) => tracing::warn!(peer, %error, "cannot accept a connection"),
                    }
                }
                Ok(None) => return,
                Err(error @ TransportError::System { .. }) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.has_more = listener.has_outcomes();
                    return;
                }
                // One peer failed; other peers may follow.
                Err(error) => tracing::warn!(%error, "refused a connection"),
            }
        }
        self.has_more = true;
    }

    /// Accepts the peers that the previous pass left waiting.
    pub(crate) fn go_on(&mut self, core: &Arc<Core>) {
        if self.has_more {
            self.admit(core);
        }
    }

    /// Returns the time of the next run: for a deadline or for waiting peers.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        if self.has_more {
            return Some(Instant::now());
        }
        let unauthenticated = self.unauthenticated.iter().filter_map(Weak::upgrade);
        unauthenticated
            .filter_map(|server| server.greeting_deadline())
            .min()
    }

    /// Closes the connections of peers that did not identify themselves in time.
    pub(crate) fn expire(&mut self, now: Instant) {
        for silent in self.unauthenticated.iter() {
            let deadline = silent
                .upgrade()
                .and_then(|server| server.greeting_deadline());
            if deadline.is_some_and(|deadline| deadline <= now) {
                give_up(silent, "the peer did not identify itself in time");
            }
        }
        self.unauthenticated.retain(is_unauthenticated);
    }

    pub(crate) fn close(&mut self, core: &Core) {
        if let Some(listener) = self.listener.take() {
            core.poller.deafen(listener.descriptor());
        }
    }
}

/// Closes the connection of a peer that did not identify itself.
fn give_up(silent: &Weak<Server>, text: &str) {
    if let Some(server) = silent.upgrade() {
        server.say_goodbye(text);
        fail(&server, RpcError::new(RpcErrorKind::Protocol, text));
    }
}

fn is_unauthenticated(server: &Weak<Server>) -> bool {
    server
        .upgrade()
        .is_some_and(|server| server.greeting_deadline().is_some() && !server.is_over())
}

fn welcome(core: &Arc<Core>, carrier: Carrier) -> Result<Arc<Server>, RpcError> {
    let deadline = Instant::now() + core.transports.greeting;
    let token = core.token.clone();
    let greeting = Greeting::acceptor(core.hello(), token, carrier.credentials(), deadline);
    let ends = ends(core, carrier, FrameLimits::UNAUTHENTICATED);
    let link = Link::new(Arc::clone(&core.poller), ends).map_err(RpcError::internal(
        "this worker cannot handle another connection",
    ))?;
    let server = Arc::new(Server::new(link, core, greeting));
    adopt(core, &server)?;
    Ok(server)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::Methods;
    use crate::agent::tests::group;
    use crate::transport::{TransportOptions, same_process};

    #[test]
    fn a_peer_behind_a_failed_accept_is_admitted_without_another_event() {
        let agents = group(1, Methods::new);
        let core = agents[0].core();
        let options = TransportOptions::default();
        let mut listener = Listener::new(Ipv4Addr::LOCALHOST.into(), options).unwrap();
        let (ready, _peer) = same_process::pair().unwrap();
        listener.push_outcome(Err(TransportError::System {
            what: "accept a connection".to_owned(),
            source: std::io::ErrorKind::OutOfMemory.into(),
        }));
        listener.push_outcome(Ok(ready));
        let mut reception = Reception::new(core, listener).unwrap();
        reception.admit(core);
        assert_eq!(reception.unauthenticated.len(), 0);
        assert!(reception.deadline().is_some_and(|at| at <= Instant::now()));
        reception.go_on(core);
        assert_eq!(reception.unauthenticated.len(), 1);
        reception.admit(core);
        assert!(!reception.has_more);
    }
}
