//! Voter at one of several listed endpoints.

use std::io;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_store::{ServerOptions, StoreError, TcpStoreServer, resolve};
use rdzv_voters::FRAME_BOUND;

use super::voter::{VoterOptions, voter};
use crate::bind::loopback;
use crate::dynamic::node;
use crate::dynamic::options::Options;
use crate::{Onlookers, RendezvousError};

/// Pause between two attempts to bind a port.
const AGAIN: Duration = Duration::from_millis(10);

/// Time within which an agent with a killed keeper ends and releases its port.
const RELEASED_WITHIN: Duration = Duration::from_millis(1_000);

/// Starts the server of this agent, if it gets one of the endpoints.
///
/// If several endpoints are on one machine, each of them goes to another agent there.
pub(in crate::dynamic) fn serve(
    endpoints: &[Endpoint],
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Option<TcpStoreServer>, RendezvousError> {
    let explain = |error| RendezvousError::of_c10d_store(error, &options.endpoint());
    let kept = match &options.kept {
        Some(kept) => kept
            .listeners()
            .map_err(|source| explain(listen_error(options, source)))?,
        None => Vec::new(),
    };
    let timeout = options.read_timeout;
    let here = |endpoint: &Endpoint| node::is_this_machine(&endpoint.host, timeout);
    if !kept.is_empty() {
        // The previous agent was killed; the other voters connect to its sockets.
        let is_own = |endpoint: &Endpoint| {
            let mut sockets = kept.iter();
            sockets.any(|socket| is_at(socket, endpoint)) && here(endpoint)
        };
        let own = endpoints.iter().position(is_own);
        if let Some(own) = own {
            return start(endpoints, own, kept, options, onlookers)
                .map(Some)
                .map_err(explain);
        }
    }
    let Some((own, listeners)) = bind_endpoint(endpoints, timeout) else {
        return Ok(None);
    };
    if let Some(kept) = &options.kept {
        // Keep the sockets for the next agent before the server accepts any client.
        let keeps = kept.keep_listeners(&listeners);
        keeps.map_err(|source| explain(listen_error(options, source)))?;
    }
    start(endpoints, own, listeners, options, onlookers)
        .map(Some)
        .map_err(explain)
}

/// Binds the first free endpoint on this machine.
///
/// Returns its index and the sockets. A port that is in use may become free soon, so this retries
/// for [`RELEASED_WITHIN`].
pub(super) fn bind_endpoint(
    endpoints: &[Endpoint],
    timeout: Duration,
) -> Option<(usize, Vec<TcpListener>)> {
    let mut own: Vec<_> = endpoints
        .iter()
        .enumerate()
        .filter(|(_, endpoint)| node::is_this_machine(&endpoint.host, timeout))
        .collect();
    let deadline = Instant::now() + RELEASED_WITHIN;
    loop {
        let mut in_use = Vec::new();
        for (own, endpoint) in own {
            match TcpStoreServer::listen(loopback(&endpoint.host).as_deref(), endpoint.port) {
                Ok(listeners) => return Some((own, listeners)),
                Err(StoreError::Listen { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse =>
                {
                    in_use.push((own, endpoint));
                }
                Err(error) => {
                    tracing::warn!(
                        "this node is not a voter, because it cannot listen on {endpoint}: {error}"
                    );
                }
            }
        }
        if in_use.is_empty() {
            return None;
        }
        own = in_use;
        if Instant::now() >= deadline {
            tracing::info!("other processes listen on the ports of this machine's voter endpoints");
            return None;
        }
        // The kernel does not notify when a port becomes free.
        std::thread::sleep(AGAIN);
    }
}

fn listen_error(options: &Options, source: io::Error) -> StoreError {
    StoreError::Listen {
        address: options.endpoint(),
        source,
    }
}

/// `true` if a socket may belong to an endpoint.
///
/// A socket for all addresses may belong to any endpoint with the same port, unless the endpoint
/// is on a loopback address.
fn is_at(socket: &TcpListener, endpoint: &Endpoint) -> bool {
    let Ok(bound) = socket.local_addr() else {
        return false;
    };
    if bound.port() != endpoint.port {
        return false;
    }
    match loopback(&endpoint.host) {
        Some(address) => address == bound.ip().to_canonical().to_string(),
        None => {
            bound.ip().is_unspecified() || {
                let named = resolve(&endpoint.host, endpoint.port, None).unwrap_or_default();
                named.iter().any(|named| named.ip() == bound.ip())
            }
        }
    }
}

pub(super) fn become_voter(
    server: &mut ServerOptions,
    listeners: Vec<TcpListener>,
    options: VoterOptions,
) -> io::Result<()> {
    server.limits.max_extension_bytes = FRAME_BOUND;
    server.extension = Some(voter(options)?);
    server.listeners = listeners;
    Ok(())
}

fn start(
    endpoints: &[Endpoint],
    own: usize,
    listeners: Vec<TcpListener>,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<TcpStoreServer, StoreError> {
    let endpoint = &endpoints[own];
    let server = options
        .policy
        .server(loopback(&endpoint.host), endpoint.port);
    let voter = VoterOptions::of_agent(endpoints, own, options, onlookers);
    start_voter(server, listeners, voter)
}

/// Starts a server that is a voter.
pub(super) fn start_voter(
    mut server: ServerOptions,
    listeners: Vec<TcpListener>,
    voter: VoterOptions,
) -> Result<TcpStoreServer, StoreError> {
    let address = voter.settings.endpoints[voter.settings.own].clone();
    let onlookers = voter.onlookers.clone();
    let explain = |source| StoreError::Listen { address, source };
    become_voter(&mut server, listeners, voter).map_err(explain)?;
    let server = TcpStoreServer::start(server)?;
    if let Some(group) = &onlookers.group {
        group.ask(server.pinger());
    }
    Ok(server)
}
