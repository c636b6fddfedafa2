//! Shares of the store: limits of the memory and keys that a peer may hold.
//!
//! | peer | its connection | its address | the store |
//! |---|---|---|---|
//! | an agent that has joined a run over this connection | | | everything |
//! | another peer at the address of such an agent | an eighth | | three quarters |
//! | any other | an eighth | a quarter | three quarters |
//!
//! A key counts for the connection that wrote it last, even after this connection has ended. The
//! server closes the connection of a peer that exceeds its share; other peers continue. The last
//! quarter is for agents and for replies. Each share has a minimum, and a limit of at most 1024
//! keys has no reserve.
//!
//! An address is an IPv4 address or the first 64 bits of an IPv6 address. A host can use any
//! address that begins with these bits.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::CloseReason;
use crate::limits::Limits;
use crate::meter::Meter;

/// Divisor of a limit for the share of one connection.
const OF_CONNECTION: usize = 8;

/// Divisor of a limit for the share of one address.
const OF_ADDRESS: usize = 4;

/// Divisor of a limit for the reserve of agents.
const RESERVE: usize = 4;

/// Smallest shares, so that a store with low limits is still usable.
const LEAST_BYTES: usize = 64 << 10;
const LEAST_KEYS: usize = 1024;
const LEAST_CONNECTIONS: usize = 64;

/// Minimum number of new addresses after which unused addresses are removed.
const ADDRESSES_STEP: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// The peer is not known to belong to the job.
    Unknown,
    /// An agent of the job has joined from the peer's address.
    Neighbour,
    /// The peer is an agent of the job.
    Agent,
}

/// Memory and keys of one connection, and the standing of its peer.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) meter: Meter,
    is_agent: bool,
    address: Meter,
    key: ShareKey,
    /// `true` if an agent has joined from the peer's address.
    has_agent: Arc<AtomicBool>,
}

/// An address as the table distinguishes it; `None` if it is unknown.
type ShareKey = Option<IpAddr>;

/// All addresses, and the meter of everything that is held.
#[derive(Debug, Default)]
pub(super) struct Shares {
    meter: Meter,
    addresses: BTreeMap<ShareKey, Address>,
    /// Number of addresses at which unused ones are removed.
    look_at: usize,
}

#[derive(Debug)]
struct Address {
    meter: Meter,
    connections: usize,
    /// `true` if an agent has joined from this address.
    /// All accounts of its connections share it; there may be ten thousand of them.
    has_agent: Arc<AtomicBool>,
}

impl Shares {
    /// Returns the meter of everything that is held.
    pub(super) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Opens the account of a connection.
    /// The result is an error if an address without an agent has too many connections.
    pub(super) fn open(
        &mut self,
        address: Option<IpAddr>,
        limits: &Limits,
    ) -> (Account, Result<(), CloseReason>) {
        self.forget_unused();
        let key = address.map(key_of);
        let entry = self.addresses.entry(key).or_insert_with(|| Address {
            meter: self.meter.part(),
            connections: 0,
            has_agent: Arc::default(),
        });
        entry.connections += 1;
        let account = Account {
            meter: entry.meter.part(),
            is_agent: false,
            address: entry.meter.clone(),
            key,
            has_agent: Arc::clone(&entry.has_agent),
        };
        let limit = part(limits.max_connections, OF_ADDRESS, LEAST_CONNECTIONS);
        let is_unknown = account.standing() == Standing::Unknown;
        let allowed = if is_unknown && entry.connections > limit {
            Err(CloseReason::TooManyConnectionsOfAddress { limit })
        } else {
            Ok(())
        };
        (account, allowed)
    }

    /// Closes the account of a connection. Its values continue to count.
    pub(super) fn close(&mut self, account: &Account) {
        if let Some(entry) = self.addresses.get_mut(&account.key) {
            entry.connections -= 1;
        }
    }

    /// Returns the addresses with the most connections.
    pub(super) fn busiest(&self, most: usize) -> Vec<(Option<IpAddr>, usize)> {
        let counted = self.addresses.iter();
        let mut counted: Vec<_> = counted
            .filter(|(_, entry)| entry.connections > 0)
            .map(|(key, entry)| (*key, entry.connections))
            .collect();
        counted.sort_by_key(|(_, connections)| std::cmp::Reverse(*connections));
        counted.truncate(most);
        counted
    }

    /// Checks that the peer of an account may store this many more bytes and keys.
    /// `memory` is the memory in use by all peers.
    #[inline]
    pub(super) fn admit(
        &self,
        account: &Account,
        bytes: usize,
        keys: usize,
        memory: usize,
        limits: &Limits,
    ) -> Result<(), CloseReason> {
        let left = |limit: usize| {
            if account.is_agent {
                limit
            } else {
                limit - limit / RESERVE
            }
        };
        let limit = left(limits.max_memory_bytes);
        if memory.saturating_add(bytes) > limit {
            return Err(CloseReason::OutOfMemory {
                wanted: bytes,
                used: memory,
                limit,
            });
        }
        let limit = if limits.max_keys > LEAST_KEYS {
            left(limits.max_keys)
        } else {
            limits.max_keys
        };
        if keys > 0 && self.meter.keys() + keys > limit {
            return Err(CloseReason::TooManyKeys { limit });
        }
        account.admit(bytes, keys, limits)
    }

    /// Checks that the buffers of a connection may have this many more bytes.
    pub(super) fn admit_reply(
        &self,
        account: &Account,
        bytes: usize,
        memory: usize,
        limits: &Limits,
    ) -> Result<(), CloseReason> {
        let limit = limits.max_memory_bytes;
        if memory.saturating_add(bytes) > limit {
            return Err(CloseReason::OutOfMemory {
                wanted: bytes,
                used: memory,
                limit,
            });
        }
        account.admit(bytes, 0, limits)
    }

    /// Removes addresses without connections and keys from time to time.
    fn forget_unused(&mut self) {
        if self.addresses.len() >= self.look_at {
            self.addresses
                .retain(|_, entry| entry.connections > 0 || entry.meter.is_in_use());
            self.look_at = 2 * self.addresses.len() + ADDRESSES_STEP;
        }
    }
}

impl Account {
    #[inline]
    pub(super) fn standing(&self) -> Standing {
        match (self.is_agent, self.has_agent.load(Relaxed)) {
            (true, _) => Standing::Agent,
            (false, true) => Standing::Neighbour,
            (false, false) => Standing::Unknown,
        }
    }

    /// Records that an agent has joined over this connection.
    /// The agent may use the whole store, and peers at its address count as neighbours.
    pub(super) fn join(&mut self) {
        self.is_agent = true;
        self.has_agent.store(true, Relaxed);
    }

    /// Checks the shares of the connection and of its address.
    #[inline]
    fn admit(&self, bytes: usize, keys: usize, limits: &Limits) -> Result<(), CloseReason> {
        let holds = |holder, meter: &Meter, of| within(holder, meter, of, bytes, keys, limits);
        match self.standing() {
            Standing::Agent => Ok(()),
            Standing::Neighbour => holds("its connection", &self.meter, OF_CONNECTION),
            Standing::Unknown => {
                holds("its connection", &self.meter, OF_CONNECTION)?;
                holds("its address", &self.address, OF_ADDRESS)
            }
        }
    }
}

/// Checks that the count of a meter stays within its share.
#[inline]
fn within(
    holder: &'static str,
    meter: &Meter,
    of: usize,
    bytes: usize,
    keys: usize,
    limits: &Limits,
) -> Result<(), CloseReason> {
    let held = meter.bytes();
    let limit = part(limits.max_memory_bytes, of, LEAST_BYTES);
    if held.saturating_add(bytes) > limit {
        return Err(CloseReason::OverShare {
            holder,
            wanted: bytes,
            held,
            limit,
        });
    }
    let limit = part(limits.max_keys, of, LEAST_KEYS);
    if keys > 0 && meter.keys() + keys > limit {
        return Err(CloseReason::TooManyKeysOf { holder, limit });
    }
    Ok(())
}

/// Returns the given fraction of a limit, but at least `least`.
fn part(limit: usize, of: usize, least: usize) -> usize {
    (limit / of).max(least)
}

fn key_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let network = u128::from(six) & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(shares: &mut Shares, address: &str) -> Account {
        let address = Some(address.parse().unwrap());
        shares.open(address, &Limits::default()).0
    }

    #[test]
    fn an_address_is_one_host() {
        let mut shares = Shares::default();
        let one = account(&mut shares, "2001:db8::1");
        let same_network = account(&mut shares, "2001:db8::ffff:1");
        let other = account(&mut shares, "2001:db8:0:1::1");
        let four = account(&mut shares, "10.0.0.1");
        let mapped = account(&mut shares, "::ffff:10.0.0.1");
        assert!(one.address.is(&same_network.address));
        assert!(!one.address.is(&other.address));
        assert!(four.address.is(&mapped.address));
    }

    #[test]
    fn addresses_without_connections_and_keys_are_forgotten() {
        let mut shares = Shares::default();
        let holder = account(&mut shares, "10.1.0.1");
        holder.meter.add_key(10);
        for number in 0..20_000_u32 {
            let address = Ipv6Addr::from(u128::from(number) << 64);
            let (account, _) = shares.open(Some(address.into()), &Limits::default());
            shares.close(&account);
        }
        shares.close(&holder);
        assert!(shares.addresses.len() < 4 * ADDRESSES_STEP);
        assert_eq!(account(&mut shares, "10.1.0.1").address.bytes(), 10);
    }
}
