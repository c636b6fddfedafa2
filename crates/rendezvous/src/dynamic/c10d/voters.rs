//! Being a voter, if this machine has one of the places, and finding the coordinator.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_core::reminder::{self, Reminder};
use rdzv_rendezvous_proto::group::{Case, Wait};
use rdzv_rendezvous_proto::voter::FRAME_BOUND;
use rdzv_store::{ServerOptions, Store as _, StoreError, TcpStoreServer, resolve};

use super::Connection;
use super::connect::{call, say_who_hosts};
use super::options::Options;
use crate::bind::loopback;
use crate::dynamic::native::{self, Located, Native, NativeOptions, Search, VoterOptions};
use crate::dynamic::node;
use crate::group_status::Waits;
use crate::{Onlookers, RendezvousError};

/// Time between two searches for the coordinator, at first and at most. Nobody tells when another machine has one.
const AGAIN: Duration = Duration::from_millis(10);
const AGAIN_AT_MOST: Duration = Duration::from_millis(250);

/// The time in which an agent whose keeper was killed ends, so that the next one gets its port.
const RELEASED_WITHIN: Duration = Duration::from_millis(1_000);

/// Becomes a voter if this is one of the places, and connects to the coordinator, once all voters are there and
/// have elected one.
pub(super) fn connect(
    places: &[Endpoint],
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Connection, RendezvousError> {
    let server = serve(places, options, onlookers)?;
    if server.is_some() {
        say_who_hosts(onlookers);
    }
    let mut search = Search::new(places.to_vec());
    let started = Instant::now();
    // The other voters are nodes of the job, and are waited for like those.
    let timeout = options.settings.join_timeout.max(options.read_timeout);
    let (mut reminder, mut again) = (Reminder::default(), AGAIN);
    loop {
        let found = search.find(&options.policy.credentials, || false);
        let what = match found.map(|located| meet(places, &located, options, onlookers)) {
            Ok(Ok(native)) => {
                onlookers.wait_for(None);
                return Ok(Connection {
                    backend: Box::new(native),
                    server: server.map(Arc::new),
                    is_observed: false,
                });
            }
            Ok(Err(error)) => error.to_string(),
            Err(why) => why,
        };
        let elapsed = started.elapsed();
        if let Some(refusals) = search.refusals() {
            return Err(RendezvousError::Unreachable {
                what: format!("more than half of the voters cannot be talked to ({refusals})"),
                place: options.place(),
                elapsed: Some(elapsed),
                remedy: "give this agent the --token-file and the --tls-* files that the others have",
            });
        }
        if elapsed >= timeout {
            return Err(RendezvousError::Unreachable {
                what,
                place: options.place(),
                elapsed: Some(elapsed),
                remedy: "check that an agent with the same list of endpoints runs at each of them",
            });
        }
        onlookers.wait_for(Some(waits(places, &what, started, timeout)));
        if reminder.is_due(elapsed) {
            let left = timeout.saturating_sub(elapsed).as_secs();
            tracing::warn!(
                target: reminder::TARGET,
                left,
                "waiting until all voters are there and have elected a coordinator ({what}); {left} s left"
            );
        }
        std::thread::sleep(again);
        again = (again * 2).min(AGAIN_AT_MOST);
    }
}

/// The wait of an agent whose job has not begun.
fn waits(places: &[Endpoint], what: &str, started: Instant, timeout: Duration) -> Waits {
    let (missing, what) = (
        places.iter().map(Endpoint::to_string).collect::<Vec<_>>(),
        what.to_owned(),
    );
    Arc::new(move || Wait {
        case: Case::W5,
        sentence: format!(
            "waiting until all voters are there and have elected a coordinator ({what}); {} s left",
            timeout.saturating_sub(started.elapsed()).as_secs()
        ),
        missing: missing.clone(),
    })
}

/// Takes part at the coordinator.
fn meet(
    places: &[Endpoint],
    located: &Located,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Native, RendezvousError> {
    let explain = |error| RendezvousError::of_c10d_store(error, &options.place());
    let (timeout, port) = (options.read_timeout, located.address.port());
    let reached = Endpoint {
        host: located.address.ip().to_string(),
        port,
    };
    let store = call(&reached, port, timeout, &options.policy).map_err(explain)?;
    store.set_timeout(timeout);
    let store = Arc::new(store);
    let host = places.get(located.place).map(|place| place.host.as_str());
    let own = node::advertised(options.local_addr.as_deref(), host, store.local_address());
    let native = Native::connect(
        NativeOptions {
            store: Arc::clone(&store),
            run_id: options.run_id.clone(),
            settings: options.settings,
            node: node::describe(own),
            policy: options.policy.clone(),
            program: options.program.clone(),
            kept: options.kept.clone(),
            ends_workers: options.ends_workers,
            voters: Some(Search::new(places.to_vec()).beginning_at(located.place)),
            onlookers: onlookers.clone(),
        },
        timeout,
    )?;
    native.ok_or_else(|| RendezvousError::Unreachable {
        what: "there is a store that is no voter".to_owned(),
        place: options.place(),
        elapsed: None,
        remedy: "check that an agent with the same list of endpoints runs at each of them",
    })
}

/// The server of this agent, if it gets one of the places. Several places may be on one machine; the agents there get
/// one each.
fn serve(
    places: &[Endpoint],
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Option<TcpStoreServer>, RendezvousError> {
    let explain = |error| RendezvousError::of_c10d_store(error, &options.place());
    let kept = match &options.kept {
        Some(kept) => kept
            .listeners()
            .map_err(|source| explain(listen_error(options, source)))?,
        None => Vec::new(),
    };
    let timeout = options.read_timeout;
    let here = |place: &Endpoint| node::is_this_machine(&place.host, timeout);
    if !kept.is_empty() {
        // The agent before this one was killed; the other voters connect to its sockets.
        let is_own = |place: &Endpoint| {
            let mut sockets = kept.iter();
            sockets.any(|socket| is_at(socket, place)) && here(place)
        };
        let own = places.iter().position(is_own);
        if let Some(own) = own {
            return start(places, own, kept, options, onlookers)
                .map(Some)
                .map_err(explain);
        }
    }
    let Some((own, listeners)) = take_place(places, timeout) else {
        return Ok(None);
    };
    if let Some(kept) = &options.kept {
        // Before anybody is accepted.
        let keeps = kept.keep_listeners(&listeners);
        keeps.map_err(|source| explain(listen_error(options, source)))?;
    }
    start(places, own, listeners, options, onlookers)
        .map(Some)
        .map_err(explain)
}

/// The first of these places that is this machine and free, by its index, and the sockets there. One that is in use may be
/// free in a moment.
pub(super) fn take_place(
    places: &[Endpoint],
    timeout: Duration,
) -> Option<(usize, Vec<TcpListener>)> {
    let mut own: Vec<_> = places
        .iter()
        .enumerate()
        .filter(|(_, place)| node::is_this_machine(&place.host, timeout))
        .collect();
    let until = Instant::now() + RELEASED_WITHIN;
    loop {
        let mut in_use = Vec::new();
        for (own, place) in own {
            match TcpStoreServer::listen(loopback(&place.host).as_deref(), place.port) {
                Ok(listeners) => return Some((own, listeners)),
                Err(StoreError::Listen { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse =>
                {
                    in_use.push((own, place));
                }
                Err(error) => {
                    tracing::warn!(
                        "this node cannot listen at {place} ({error}), so it is no voter"
                    );
                }
            }
        }
        if in_use.is_empty() {
            return None;
        }
        own = in_use;
        if Instant::now() >= until {
            tracing::info!("other processes have the ports of this machine's places");
            return None;
        }
        // Nobody tells when a port is free.
        std::thread::sleep(AGAIN);
    }
}

fn listen_error(options: &Options, source: io::Error) -> StoreError {
    StoreError::Listen {
        address: options.place(),
        source,
    }
}

/// Whether a socket may be that of a place: one for all addresses does not say which of a port's it has.
fn is_at(socket: &TcpListener, place: &Endpoint) -> bool {
    let Ok(bound) = socket.local_addr() else {
        return false;
    };
    if bound.port() != place.port {
        return false;
    }
    match loopback(&place.host) {
        Some(address) => address == bound.ip().to_canonical().to_string(),
        None => {
            bound.ip().is_unspecified() || {
                let named = resolve(&place.host, place.port, None).unwrap_or_default();
                named.iter().any(|named| named.ip() == bound.ip())
            }
        }
    }
}

/// Makes a server a voter.
pub(super) fn become_voter(
    server: &mut ServerOptions,
    listeners: Vec<TcpListener>,
    options: VoterOptions,
) -> io::Result<()> {
    server.limits.max_extension_bytes = FRAME_BOUND;
    server.extension = Some(native::voter(options)?);
    server.listeners = listeners;
    Ok(())
}

fn start(
    places: &[Endpoint],
    own: usize,
    listeners: Vec<TcpListener>,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<TcpStoreServer, StoreError> {
    let place = &places[own];
    let voter = VoterOptions {
        places: places.to_vec(),
        own,
        is_store: false,
        timeout: options.coordinator_timeout,
        node_timeout: options.settings.node_timeout,
        credentials: options.policy.credentials.clone(),
        onlookers: onlookers.clone(),
    };
    let mut server = options.policy.server(loopback(&place.host), place.port);
    become_voter(&mut server, listeners, voter).map_err(|source| listen_error(options, source))?;
    let server = TcpStoreServer::start(server)?;
    if let Some(group) = &onlookers.group {
        group.ask(server.pinger());
    }
    Ok(server)
}
