//! Bootstrap: the ranks find each other through keys in a store.
//!
//! ```text
//!   rdzv/process_group/<name>/<epoch>/group    rank 0: "<group id> <world size>"
//!   rdzv/process_group/<name>/<epoch>/<rank>   that rank: "<address>:<port> <port> <name> <host>"
//! ```
//!
//! The first port is for collectives, the second for messages. The name identifies this rank's Unix
//! sockets. The host is an identity that only processes of one host and network namespace share;
//! see `socket`. Name and host may be missing.
//!
//! The group id authorises a rank to join, and is published only in the store. Every user of the
//! host can read the socket names, so they are drawn independently of the group id.
//!
//! The store is needed only for the bootstrap. Connections are opened at their first use.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_store::{Store, StoreError};
use uuid::Uuid;

use crate::acceptor::Member;
use crate::error::{CollectiveError, Result};
use crate::interrupt::Interrupt;
use crate::mesh::Mesh;
use crate::socket::{Endpoint, Listener, Setup, host_name, local_name, messages_name};

/// Options for a group. All ranks must choose the same name and epoch.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// Name that distinguishes the groups in one store (default `default`).
    pub name: String,
    /// Sequence number of this group among groups of the same name (default 0).
    ///
    /// After a failure, the ranks form the next group
    /// ([`ProcessGroup::rebuild`](crate::ProcessGroup::rebuild)).
    pub epoch: u64,
    /// Timeout for joining, and then for each operation (default 5 minutes).
    pub timeout: Duration,
    /// Address at which the other ranks can reach this host.
    ///
    /// The default is the address from which this host reaches the store. It is the loopback
    /// address if the store has no [connection](Store::connection), or if its URL names
    /// `localhost` or a loopback address. If another name of the store leads to a loopback
    /// address, the default is the address towards other networks, if there is a route.
    /// [`address_towards`](rdzv_store::address_towards) finds the address towards another host.
    pub address: Option<IpAddr>,
    /// `true` if ranks on one host use Unix sockets, not TCP (default `true`).
    pub local: bool,
    /// `true` if ranks with Unix sockets also share memory (default `true`).
    ///
    /// Ranks that cannot share memory use the sockets.
    pub shared: bool,
    /// Maximum number of bytes that one operation reserves for all ranks' values.
    ///
    /// The limit applies if the other ranks specify the size (default 16 GiB).
    pub largest: u64,
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            epoch: 0,
            timeout: Duration::from_secs(300),
            address: None,
            local: true,
            shared: true,
            largest: 16 << 30,
        }
    }
}

/// Joins the group, and returns when all ranks have joined.
pub(crate) fn join(
    store: &dyn Store,
    rank: u32,
    world_size: u32,
    options: &GroupOptions,
) -> Result<(Mesh, Setup)> {
    if rank >= world_size {
        return Err(CollectiveError::Argument(format!(
            "rank {rank} of {world_size}: ranks are 0 to one less than the world size"
        )));
    }
    let joining = Joining {
        store,
        rank,
        world_size,
        options,
        started: Instant::now(),
    };
    let of_store = || store.connection()?.address_of_this_host();
    let ip = options.address.or_else(of_store);
    let ip = ip.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let name = &options.name;
    let listening = |error| {
        let what = format!("listen on {ip} for the other ranks of process group {name}");
        CollectiveError::system(what, error)
    };
    let mut listener = Listener::bind((ip, 0).into()).map_err(listening)?;
    let mut messages = Listener::bind((ip, 0).into()).map_err(listening)?;
    let address = listener.address().map_err(listening)?;
    let port = messages.address().map_err(listening)?.port();
    let group = *joining.agree_on_group()?.as_bytes();
    let local = local_name(Uuid::new_v4());
    let host = options.local.then(host_name).flatten().filter(|_| {
        // Without a Unix socket, TCP is sufficient.
        let bound = listener
            .bind_local(&local)
            .and_then(|()| messages.bind_local(&messages_name(&local)));
        bound
            .inspect_err(|error| tracing::debug!(%error, "no Unix socket"))
            .is_ok()
    });
    let local = host.as_ref().map(|host| format!(" {local} {host}"));
    let published = format!("{address} {port}{}", local.unwrap_or_default());
    joining.claim(&joining.key(rank), &published)?;
    let (endpoints, for_messages) = joining.all_endpoints(host.as_deref())?;
    let member = Member {
        rank,
        world_size,
        group,
    };
    let interrupt = Interrupt::new().map_err(|error| {
        CollectiveError::system(format!("create an eventfd for process group {name}"), error)
    })?;
    let interrupt = Arc::new(interrupt);
    let setup = |listener, endpoints| Setup {
        listener,
        endpoints,
        share: options.shared,
    };
    let mesh = Mesh::new(member, setup(listener, endpoints), interrupt);
    Ok((mesh, setup(messages, for_messages)))
}

/// State of a rank that is joining a group.
struct Joining<'a> {
    store: &'a dyn Store,
    rank: u32,
    world_size: u32,
    options: &'a GroupOptions,
    started: Instant,
}

impl Joining<'_> {
    fn key(&self, what: impl std::fmt::Display) -> String {
        let GroupOptions { name, epoch, .. } = self.options;
        format!("rdzv/process_group/{name}/{epoch}/{what}")
    }

    /// Returns the group id, which rank 0 draws.
    ///
    /// The other ranks compare the world size.
    fn agree_on_group(&self) -> Result<Uuid> {
        let key = self.key("group");
        if self.rank == 0 {
            let group = Uuid::new_v4();
            self.claim(&key, &format!("{group} {}", self.world_size))?;
            return Ok(group);
        }
        self.wait(&[&key])?;
        let value = self.store.get(&key).map_err(|error| self.failed(error))?;
        let parsed = str::from_utf8(&value).ok().and_then(|text| {
            let (group, world_size) = text.split_once(' ')?;
            Some((Uuid::parse_str(group).ok()?, world_size.parse().ok()?))
        });
        let (group, found) = parsed.ok_or_else(|| self.corrupt(&key, &value))?;
        if found != self.world_size {
            return Err(CollectiveError::WorldSize {
                group: self.options.name.clone(),
                rank: self.rank,
                world_size: self.world_size,
                found,
            });
        }
        Ok(group)
    }

    /// Writes a key that no rank may have written before.
    fn claim(&self, key: &str, value: &str) -> Result<()> {
        let held = self.store.compare_set(key, b"", value.as_bytes());
        let held = held.map_err(|error| self.failed(error))?;
        if held[..] == *value.as_bytes() {
            return Ok(());
        }
        Err(CollectiveError::AlreadyJoined {
            group: self.options.name.clone(),
            rank: self.rank,
            found: beginning(&held),
        })
    }

    /// Returns the endpoints of all ranks for collectives and messages.
    ///
    /// Endpoints of ranks on this host also have a socket name, if both ranks use Unix sockets.
    fn all_endpoints(&self, host: Option<&str>) -> Result<(Vec<Endpoint>, Vec<Endpoint>)> {
        let keys: Vec<String> = (0..self.world_size).map(|rank| self.key(rank)).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        self.wait(&keys)?;
        let values = self.store.multi_get(&keys);
        let values = values.map_err(|error| self.failed(error))?;
        let publisheds = (0..).zip(keys.iter().zip(&values));
        let endpoints = publisheds.map(|(rank, (key, value))| {
            let (address, port, local) =
                parse_endpoints(value).ok_or_else(|| self.corrupt(key, value))?;
            let (name, theirs) = local.unzip();
            if host.is_some() && theirs.is_some() && host != theirs && address.ip().is_loopback() {
                return Err(self.elsewhere(rank, address));
            }
            let name = name.filter(|_| host.is_some() && host == theirs);
            let endpoint = |address, local| Endpoint { address, local };
            let for_messages = SocketAddr::new(address.ip(), port);
            Ok((
                endpoint(address, name.map(str::to_owned)),
                endpoint(for_messages, name.map(messages_name)),
            ))
        });
        endpoints.collect()
    }

    fn wait(&self, keys: &[&str]) -> Result<()> {
        let left = self.options.timeout;
        let left = left.saturating_sub(self.started.elapsed());
        self.store
            .wait(keys, Some(left))
            .map_err(|error| self.failed(error))
    }

    fn failed(&self, source: StoreError) -> CollectiveError {
        if let StoreError::WaitTimeout { missing, .. } = &source {
            // A missing key of the group means that rank 0 has not arrived. In this case nothing is
            // known about the other ranks.
            let rank_of = |key: &String| match key.rsplit('/').next()? {
                "group" => Some(0),
                rank => rank.parse().ok(),
            };
            let missing: Vec<u32> = missing.iter().filter_map(rank_of).collect();
            if !missing.is_empty() {
                return CollectiveError::Missing {
                    group: self.options.name.clone(),
                    rank: self.rank,
                    world_size: self.world_size,
                    missing,
                    elapsed: self.started.elapsed(),
                };
            }
        }
        CollectiveError::Store {
            group: self.options.name.clone(),
            source: Box::new(source),
        }
    }

    fn elsewhere(&self, peer: u32, address: SocketAddr) -> CollectiveError {
        CollectiveError::System {
            what: format!(
                "join process group {} as rank {}: rank {peer} is on another host but listens only \
                 on {address} there; give each rank the address of its host, or use a store that \
                 all ranks reach by its host's address",
                self.options.name, self.rank
            ),
            source: ErrorKind::AddrNotAvailable.into(),
        }
    }

    fn corrupt(&self, key: &str, value: &[u8]) -> CollectiveError {
        self.failed(StoreError::Corrupt {
            store: format!("{:?}", self.store),
            what: format!("key {key} has the value {:?}", beginning(value)),
        })
    }
}

/// Address, port for messages, and the name of the Unix sockets with the host.
type PublishedEndpoints<'a> = (SocketAddr, u16, Option<(&'a str, &'a str)>);

/// Parses the endpoints that a rank has published.
fn parse_endpoints(value: &[u8]) -> Option<PublishedEndpoints<'_>> {
    let text = str::from_utf8(value).ok()?;
    let (address, rest) = text.split_once(' ')?;
    let (port, local) = match rest.split_once(' ') {
        Some((port, local)) => (port, Some(local.split_once(' ')?)),
        None => (rest, None),
    };
    Some((address.parse().ok()?, port.parse().ok()?, local))
}

fn beginning(value: &[u8]) -> String {
    String::from_utf8_lossy(&value[..value.len().min(64)]).into_owned()
}
