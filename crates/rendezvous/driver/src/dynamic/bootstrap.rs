//! Where the workers of a round meet: rank 0 offers a store, everybody else reads where it is.
//!
//! torchelastic publishes the address once and remembers it, so that a newcomer waits in vain and
//! nodes disagree after a change of rank 0. Here it is published and read in every round. To agents
//! of torchelastic, which remember the first address they saw, it stays the same for as long as
//! this node hosts; the store itself is emptied instead.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_core::env::{MASTER_ADDR, MASTER_PORT};
use rdzv_core::escape::{escape, is_plain};
use rdzv_core::reminder;
use rdzv_store::{Credentials, Store, StoreError, StorePolicy, TcpStoreServer, wait_reminding};

use socket2::{Domain, Protocol, Socket, Type};

use crate::RendezvousError;
use crate::bind::loopback;

/// After so long without an address in the current round, a leader that has published one in an
/// earlier round is taken to be one of torchelastic's, which does so only once. It notices within a
/// second that a round is complete; ours never gets so late.
const TORCHELASTIC_SILENCE: Duration = Duration::from_secs(3);

/// Time to reach the workers' store, which listens before anybody knows of it.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(30);

/// How many earlier rounds are looked at for the address of a leader of torchelastic's.
const MOST_ROUNDS_BACK: u64 = 1000;

/// Where the workers of a round meet.
#[derive(Debug, Clone)]
pub struct Master {
    /// Host, as the workers are told.
    pub addr: String,
    /// Port.
    pub port: u16,
    /// The store there, empty, if this agent hosts it.
    pub server: Option<Arc<TcpStoreServer>>,
    /// Keeps the port free for the worker that hosts the store.
    pub reserved_port: Option<Arc<TcpListener>>,
}

/// The workers' store as far as this node hosts it.
#[derive(Debug)]
pub struct WorkersStore {
    address: String,
    port: u16,
    policy: StorePolicy,
    server: Option<Arc<TcpStoreServer>>,
}

impl WorkersStore {
    /// Hosts nothing yet. `address` is what the other nodes reach this one by; if that is a loopback
    /// address, the store listens there only.
    pub fn new(address: impl Into<String>, policy: StorePolicy) -> Self {
        Self {
            address: address.into(),
            port: 0,
            policy,
            server: None,
        }
    }

    /// The credentials that this node shows to the servers of the job.
    pub fn credentials(&self) -> &Credentials {
        &self.policy.credentials
    }

    /// Offers this port from the next offer on; `None` is one that is free.
    pub fn use_port(&mut self, port: Option<u16>) {
        self.port = port.unwrap_or(0);
    }

    /// What rank 0 offers: an empty store, at the same port for as long as [`WorkersStore::step_down`]
    /// is not called; or, if `share` is false, a port that is free now.
    pub fn offer(&mut self, share: bool) -> Result<Master, RendezvousError> {
        let (port, server, reserved_port) = if share {
            let server = self.emptied_server()?;
            (server.port(), Some(server), None)
        } else {
            let listener = self.reserve().map_err(|source| StoreError::Listen {
                address: self.place(),
                source,
            })?;
            let port = listener.local_addr().map_err(|source| StoreError::Listen {
                address: self.place(),
                source,
            })?;
            (port.port(), None, Some(Arc::new(listener)))
        };
        Ok(Master {
            addr: self.address.clone(),
            port,
            server,
            reserved_port,
        })
    }

    /// Another node has rank 0 now.
    pub fn step_down(&mut self) {
        self.server = None;
    }

    fn emptied_server(&mut self) -> Result<Arc<TcpStoreServer>, RendezvousError> {
        if let Some(server) = &self.server {
            // What dead workers left must not be found by new ones.
            server.purge(&[]);
            return Ok(Arc::clone(server));
        }
        let options = self.policy.server(loopback(&self.address), self.port);
        let server = TcpStoreServer::start(options)?;
        Ok(Arc::clone(self.server.insert(Arc::new(server))))
    }

    fn reserve(&self) -> io::Result<TcpListener> {
        match loopback(&self.address) {
            Some(address) => reserve_port((address, self.port)),
            None => reserve_port((Ipv6Addr::UNSPECIFIED, self.port))
                .or_else(|_| reserve_port((Ipv4Addr::UNSPECIFIED, self.port))),
        }
    }

    fn place(&self) -> String {
        match self.port {
            0 => format!("a free port of {}", self.address),
            port => format!("{}:{port}", self.address),
        }
    }
}

/// Tells the others where to meet, in the store of the round.
pub fn publish(round: &dyn Store, master: &Master) -> Result<(), RendezvousError> {
    let port = master.port.to_string();
    let pairs = [(MASTER_ADDR, &master.addr), (MASTER_PORT, &port)];
    let pairs = pairs.map(|(key, value)| (key, value.as_bytes()));
    Ok(round.multi_set(&pairs)?)
}

/// Has the workers' store know where the workers of this node come from.
pub fn announce(policy: &StorePolicy, addr: &str, port: u16) -> Result<(), RendezvousError> {
    Ok(policy.announce_workers(addr, port, ANNOUNCED_WITHIN)?)
}

/// What a node needs that reads where to meet.
pub struct Reading<'a> {
    /// The store of the round; waited in, so on a connection of its own.
    pub current: &'a dyn Store,
    /// The number of the round.
    pub round: u64,
    /// The stores of earlier rounds.
    pub earlier: &'a dyn Fn(u64) -> Result<Arc<dyn Store>, RendezvousError>,
    /// The address in the description of the node with rank 0.
    pub leader: &'a str,
    /// Whether an agent hosts the workers' store; else rank 0 always publishes a new port.
    pub share: bool,
    /// How long to wait.
    pub timeout: Duration,
}

/// Reads where rank 0 says that the workers meet.
///
/// A leader of torchelastic's that was one before says nothing; then the latest of the earlier
/// rounds counts in which it did.
pub fn read(reading: &Reading<'_>) -> Result<Master, RendezvousError> {
    let started = Instant::now();
    let first = if reading.share && reading.round > 0 {
        TORCHELASTIC_SILENCE.min(reading.timeout)
    } else {
        reading.timeout
    };
    match read_within(reading, reading.current, first) {
        Err(RendezvousError::Store(StoreError::WaitTimeout { .. })) if first < reading.timeout => {}
        other => return other,
    }
    if let Some(master) = said_earlier(reading)? {
        tracing::info!(
            leader = escape(reading.leader),
            addr = master.addr,
            port = master.port,
            "the node with rank 0 did not say where workers meet, so it is where it said before"
        );
        return Ok(master);
    }
    let left = reading.timeout.saturating_sub(started.elapsed());
    read_within(reading, reading.current, left)
}

fn said_earlier(reading: &Reading<'_>) -> Result<Option<Master>, RendezvousError> {
    let oldest = reading.round.saturating_sub(MOST_ROUNDS_BACK);
    for round in (oldest..reading.round).rev() {
        let store = (reading.earlier)(round)?;
        if store.check(&[MASTER_ADDR, MASTER_PORT])? {
            let master = read_within(reading, &*store, Duration::ZERO)?;
            if master.addr == reading.leader {
                return Ok(Some(master));
            }
        }
    }
    Ok(None)
}

fn read_within(
    reading: &Reading<'_>,
    store: &dyn Store,
    timeout: Duration,
) -> Result<Master, RendezvousError> {
    let keys = [MASTER_ADDR, MASTER_PORT];
    wait_reminding(store, &keys, Some(timeout), &mut |_, left| {
        tracing::warn!(
            target: reminder::TARGET,
            left = left.as_secs(),
            "waiting for the node with rank 0 ({}) to say where the workers meet; {} s left",
            escape(reading.leader),
            left.as_secs()
        );
    })?;
    let values = store.multi_get(&keys)?;
    let [addr, port] = &values[..] else {
        return Err(not_published(store, &values));
    };
    let addr = str::from_utf8(addr).ok();
    let addr = addr.filter(|addr| !addr.is_empty() && is_plain(addr));
    let port = str::from_utf8(port)
        .ok()
        .and_then(|port| port.trim().parse().ok());
    match (addr, port) {
        (Some(addr), Some(port)) => Ok(Master {
            addr: addr.to_owned(),
            port,
            server: None,
            reserved_port: None,
        }),
        _ => Err(not_published(store, &values)),
    }
}

fn not_published(store: &dyn Store, values: &[Bytes]) -> RendezvousError {
    RendezvousError::Store(StoreError::Corrupt {
        store: format!("{store:?}"),
        what: format!("keys {MASTER_ADDR} and {MASTER_PORT} are no host and port: {values:?}"),
    })
}

/// Takes a port, 0 for a free one, at the first address that can be had, without listening at it.
///
/// Nobody gets this port by asking for a free one, or without the option to share addresses, for as
/// long as the socket is held. But who sets that option (`SO_REUSEADDR`), as stores and most
/// servers do, can listen there at once: so the socket may be held until the worker that the port
/// is for has been started, however soon that listens.
pub fn reserve_port(place: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in place.to_socket_addrs()? {
        result = bind(address);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use rdzv_store::{HashStore, PrefixStore, TcpStore, TcpStoreOptions};

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn rounds() -> impl Fn(u64) -> Result<Arc<dyn Store>, RendezvousError> {
        let store: Arc<dyn Store> = Arc::new(HashStore::new());
        move |round| Ok(Arc::new(PrefixStore::new(round.to_string(), Arc::clone(&store))) as _)
    }

    fn master(addr: &str, port: u16) -> Master {
        Master {
            addr: addr.to_owned(),
            port,
            server: None,
            reserved_port: None,
        }
    }

    fn read_in(
        rounds: &dyn Fn(u64) -> Result<Arc<dyn Store>, RendezvousError>,
        round: u64,
        leader: &str,
        timeout: Duration,
    ) -> Result<(String, u16), RendezvousError> {
        let current = rounds(round)?;
        let read = read(&Reading {
            current: &*current,
            round,
            earlier: rounds,
            leader,
            share: true,
            timeout,
        })?;
        Ok((read.addr, read.port))
    }

    #[test]
    fn a_leader_that_stays_keeps_its_port_and_empties_the_store() {
        let mut workers = WorkersStore::new("127.0.0.1", StorePolicy::default());
        let first = workers.offer(true).unwrap();
        let client = TcpStore::connect(TcpStoreOptions::new("127.0.0.1", first.port)).unwrap();
        client.set("of-dead-worker", b"x").unwrap();
        let again = workers.offer(true).unwrap();
        assert_eq!((again.addr.as_str(), again.port), ("127.0.0.1", first.port));
        assert!(!client.check(&["of-dead-worker"]).unwrap());
        assert!(first.server.unwrap().local_addr().ip().is_loopback());
    }

    #[test]
    fn a_worker_that_hosts_gets_another_free_port_every_time() {
        let mut workers = WorkersStore::new("127.0.0.1", StorePolicy::default());
        let (first, second) = (workers.offer(false).unwrap(), workers.offer(false).unwrap());
        assert!(first.server.is_none());
        assert_ne!(first.port, second.port);
        let held = first.reserved_port.unwrap().local_addr().unwrap();
        assert_eq!(held.port(), first.port);
    }

    #[test]
    fn a_port_that_was_asked_for_is_the_one() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        let mut workers = WorkersStore::new("127.0.0.1", StorePolicy::default());
        workers.use_port(Some(port));
        let taken = workers.offer(true).unwrap_err().to_string();
        assert!(taken.contains(&port.to_string()), "{taken}");
        drop(free);
        assert_eq!(workers.offer(false).unwrap().port, port);
        assert_eq!(workers.offer(true).unwrap().port, port);
    }

    #[test]
    fn the_current_round_counts() {
        let rounds = rounds();
        publish(&*rounds(0).unwrap(), &master("a", 1)).unwrap();
        publish(&*rounds(1).unwrap(), &master("a", 2)).unwrap();
        let read = read_in(&rounds, 1, "a", LONG).unwrap();
        assert_eq!(read, ("a".to_owned(), 2));
    }

    #[test]
    fn a_silent_leader_is_where_it_said_last() {
        let rounds = rounds();
        publish(&*rounds(0).unwrap(), &master("a", 1)).unwrap();
        publish(&*rounds(1).unwrap(), &master("b", 2)).unwrap();
        publish(&*rounds(2).unwrap(), &master("c", 3)).unwrap();
        let read = read_in(&rounds, 4, "b", LONG).unwrap();
        assert_eq!(read, ("b".to_owned(), 2));
    }

    #[test]
    fn a_leader_that_never_said_anything_is_waited_for_and_named() {
        let rounds = rounds();
        publish(&*rounds(0).unwrap(), &master("a", 1)).unwrap();
        let timeout = TORCHELASTIC_SILENCE + Duration::from_millis(50);
        let error = read_in(&rounds, 1, "new", timeout).unwrap_err();
        assert!(error.to_string().contains(MASTER_ADDR), "{error}");
    }

    #[test]
    fn an_address_that_is_none_is_refused() {
        let rounds = rounds();
        let store = rounds(0).unwrap();
        store.set(MASTER_ADDR, b"a").unwrap();
        store.set(MASTER_PORT, b"70000").unwrap();
        let error = read_in(&rounds, 0, "a", LONG).unwrap_err().to_string();
        assert!(error.contains("70000"), "{error}");
    }

    #[test]
    fn whoever_shares_addresses_can_listen_at_a_port_that_is_kept_and_others_cannot_take_it() {
        let loopback = Ipv4Addr::LOCALHOST;
        let kept = reserve_port((loopback, 0)).unwrap();
        let port = kept.local_addr().unwrap().port();
        let without = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let address = SocketAddr::from((loopback, port));
        assert!(without.bind(&address.into()).is_err());
        // The standard library's listeners share, on every address of the host.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind(address))
            .unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), port);
        assert!(std::net::TcpStream::connect(address).is_ok());
    }
}
