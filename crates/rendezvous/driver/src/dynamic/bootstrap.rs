//! Endpoint of the workers' store in a round.
//!
//! Rank 0 offers a store and publishes its endpoint; the other nodes read it. If agents host the
//! store, torchelastic publishes the endpoint once and remembers it. A new node then never finds
//! it, and nodes disagree after a change of rank 0. In rdzv, rank 0 publishes the endpoint in every
//! round. Agents of torchelastic remember the first endpoint that they read. For them, the endpoint
//! stays the same while this node hosts the store, and the node empties the store instead.

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

/// Time without an endpoint after which the leader may belong to torchelastic.
///
/// Such a leader publishes its endpoint only once, in an earlier round. It notices within a second
/// that a round is complete; an agent of rdzv is usually faster.
const TORCHELASTIC_SILENCE: Duration = Duration::from_secs(3);

/// Time limit to connect to the workers' store, which already listens.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(30);

/// Maximum number of earlier rounds in which to search for an endpoint.
const MOST_ROUNDS_BACK: u64 = 1000;

/// Endpoint of the workers' store in a round.
#[derive(Debug, Clone)]
pub struct MasterEndpoint {
    /// Host of the store, for the workers.
    pub addr: String,
    /// Port of the store.
    pub port: u16,
    /// Store server, still empty, if this agent hosts it.
    pub server: Option<Arc<TcpStoreServer>>,
    /// Reservation of the port for the worker that hosts the store.
    pub reserved_port: Option<Arc<TcpListener>>,
}

/// The workers' store on this node, while this node has rank 0.
#[derive(Debug)]
pub struct WorkersStore {
    address: String,
    port: u16,
    policy: StorePolicy,
    server: Option<Arc<TcpStoreServer>>,
}

impl WorkersStore {
    /// Creates the value without a server.
    ///
    /// `address` is the address of this node for other nodes. On a loopback address, the store
    /// listens only there.
    pub fn new(address: impl Into<String>, policy: StorePolicy) -> Self {
        Self {
            address: address.into(),
            port: 0,
            policy,
            server: None,
        }
    }

    /// Returns the credentials that this node presents to the servers of the job.
    pub fn credentials(&self) -> &Credentials {
        &self.policy.credentials
    }

    /// Sets the port of later offers; `None` picks a free port.
    pub fn use_port(&mut self, port: Option<u16>) {
        self.port = port.unwrap_or(0);
    }

    /// Offers an empty store of rank 0, or reserves a port if `share` is `false`.
    ///
    /// The store keeps its port until a call of [`WorkersStore::step_down`].
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if this node cannot listen.
    pub fn offer(&mut self, share: bool) -> Result<MasterEndpoint, RendezvousError> {
        let (port, server, reserved_port) = if share {
            let server = self.emptied_server()?;
            (server.port(), Some(server), None)
        } else {
            let listener = self.reserve().map_err(|source| StoreError::Listen {
                address: self.endpoint(),
                source,
            })?;
            let port = listener.local_addr().map_err(|source| StoreError::Listen {
                address: self.endpoint(),
                source,
            })?;
            (port.port(), None, Some(Arc::new(listener)))
        };
        Ok(MasterEndpoint {
            addr: self.address.clone(),
            port,
            server,
            reserved_port,
        })
    }

    /// Ends the store, because another node has rank 0 now.
    pub fn step_down(&mut self) {
        self.server = None;
    }

    fn emptied_server(&mut self) -> Result<Arc<TcpStoreServer>, RendezvousError> {
        if let Some(server) = &self.server {
            // New workers must not find the values of dead workers.
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

    fn endpoint(&self) -> String {
        match self.port {
            0 => format!("a free port of {}", self.address),
            port => format!("{}:{port}", self.address),
        }
    }
}

/// Publishes the endpoint of the workers' store in the store of the round.
///
/// # Errors
///
/// [`RendezvousError`] if the store of the round fails.
pub fn publish(round: &dyn Store, master: &MasterEndpoint) -> Result<(), RendezvousError> {
    let port = master.port.to_string();
    let pairs = [(MASTER_ADDR, &master.addr), (MASTER_PORT, &port)];
    let pairs = pairs.map(|(key, value)| (key, value.as_bytes()));
    Ok(round.multi_set(&pairs)?)
}

/// Announces the addresses of this node's workers to the workers' store.
///
/// # Errors
///
/// [`RendezvousError`] if the workers' store cannot be reached.
pub fn announce(policy: &StorePolicy, addr: &str, port: u16) -> Result<(), RendezvousError> {
    Ok(policy.announce_workers(addr, port, ANNOUNCED_WITHIN)?)
}

/// Parameters of [`read`].
pub struct Reading<'a> {
    /// Store of the round. A wait occupies it, so it needs a separate connection.
    pub current: &'a dyn Store,
    /// Number of the round.
    pub round: u64,
    /// Closure that opens the store of an earlier round.
    pub earlier: &'a dyn Fn(u64) -> Result<Arc<dyn Store>, RendezvousError>,
    /// Address in the description of the node with rank 0.
    pub leader: &'a str,
    /// `true` if an agent hosts the workers' store.
    ///
    /// `false`: rank 0 publishes a new port in every round.
    pub share: bool,
    /// Time limit of the wait.
    pub timeout: Duration,
}

/// Reads the endpoint that rank 0 publishes.
///
/// A torchelastic agent that had rank 0 before publishes nothing. In this case, the latest earlier
/// endpoint of that agent is valid.
///
/// # Errors
///
/// [`RendezvousError`] if the store fails, or rank 0 publishes nothing before the timeout.
pub fn read(reading: &Reading<'_>) -> Result<MasterEndpoint, RendezvousError> {
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
            "the node with rank 0 did not publish the endpoint of the workers; using the endpoint \
             from an earlier round"
        );
        return Ok(master);
    }
    let left = reading.timeout.saturating_sub(started.elapsed());
    read_within(reading, reading.current, left)
}

fn said_earlier(reading: &Reading<'_>) -> Result<Option<MasterEndpoint>, RendezvousError> {
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
) -> Result<MasterEndpoint, RendezvousError> {
    let keys = [MASTER_ADDR, MASTER_PORT];
    wait_reminding(store, &keys, Some(timeout), &mut |_, left| {
        tracing::warn!(
            target: reminder::TARGET,
            left = left.as_secs(),
            "waiting for the node with rank 0 ({}) to publish the endpoint of the workers; {} s \
             left",
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
        (Some(addr), Some(port)) => Ok(MasterEndpoint {
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
        what: format!(
            "the keys {MASTER_ADDR} and {MASTER_PORT} do not contain a host and a port: {values:?}"
        ),
    })
}

/// Reserves a port at the first possible address, without listening on it.
///
/// Port 0 stands for a free port. While the socket is open, no other process gets this port as a
/// free one, or binds it without `SO_REUSEADDR`. A process that sets this option, as stores and
/// most servers do, can listen on the port immediately. The caller therefore keeps the socket until
/// the worker for this port has started.
///
/// # Errors
///
/// Returns the error of the last address if no address can be bound.
pub fn reserve_port(endpoint: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in endpoint.to_socket_addrs()? {
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

    fn master(addr: &str, port: u16) -> MasterEndpoint {
        MasterEndpoint {
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
        // The standard library's listeners set the option, on every address of the host.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind(address))
            .unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), port);
        assert!(std::net::TcpStream::connect(address).is_ok());
    }
}
