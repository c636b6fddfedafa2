//! Connected peers without identification, bounded in total and per source.
//!
//! A new peer is never refused. If a limit is reached, the new peer evicts the oldest peer of one
//! source. That source is the source of the new peer if it has reached its limit, and otherwise the
//! source with the most peers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Process(u32),
    /// An address; of an IPv6 address only the first 64 bits.
    Address(IpAddr),
    /// Anything else.
    Unknown,
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let network = u128::from(address) >> 64 << 64;
                IpAddr::V6(Ipv6Addr::from(network))
            }
            address => address,
        })
    }
}

impl Source {
    /// Returns the source of a peer: its process if that is known, or its address.
    pub(crate) fn of(peer: &str, process: Option<u32>) -> Self {
        let address = || peer.parse::<SocketAddr>().ok();
        match process {
            Some(process) => Self::Process(process),
            None => address().map_or(Self::Unknown, |address| address.ip().into()),
        }
    }
}

/// Peers that have not identified themselves yet, in order of arrival.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    most: usize,
    most_of_one: usize,
    next: u64,
    peers: BTreeMap<u64, (Source, T)>,
    sources: BTreeMap<Source, BTreeSet<u64>>,
}

impl<T> Pending<T> {
    /// Creates the set with limits in total and per source.
    /// Numbers start at `first`.
    pub(crate) fn new(most: usize, most_of_one: usize, first: u64) -> Self {
        Self {
            most,
            most_of_one,
            next: first,
            peers: BTreeMap::new(),
            sources: BTreeMap::new(),
        }
    }

    /// Makes room for one more peer of a source; returns the evicted peer, if any.
    pub(crate) fn make_room(&mut self, source: Source) -> Option<T> {
        let of_one = self.sources.get(&source).map_or(0, BTreeSet::len);
        let full = if of_one >= self.most_of_one {
            self.sources.get(&source)
        } else if self.peers.len() >= self.most {
            self.sources.values().max_by_key(|numbers| numbers.len())
        } else {
            None
        };
        let oldest = *full?.first()?;
        self.remove(oldest)
    }

    /// Adds a peer, and returns its number.
    pub(crate) fn insert(&mut self, source: Source, peer: T) -> u64 {
        let number = self.next;
        self.next += 1;
        self.peers.insert(number, (source, peer));
        self.sources.entry(source).or_default().insert(number);
        number
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.peers.get_mut(&number).map(|(_, peer)| peer)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<T> {
        let (source, peer) = self.peers.remove(&number)?;
        if let Some(numbers) = self.sources.get_mut(&source) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.sources.remove(&source);
            }
        }
        Some(peer)
    }

    pub(crate) fn retain(&mut self, is_pending: impl Fn(&T) -> bool) {
        let over: Vec<u64> = self
            .peers
            .iter()
            .filter(|(_, (_, peer))| !is_pending(peer))
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.remove(number);
        }
    }

    /// Returns the peer that arrived first.
    pub(crate) fn first(&self) -> Option<(u64, &T)> {
        let (number, (_, peer)) = self.peers.first_key_value()?;
        Some((*number, peer))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.peers.values().map(|(_, peer)| peer)
    }

    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(address: &str) -> Source {
        Source::of(address, None)
    }

    #[test]
    fn who_says_nothing_is_pushed_out_by_its_like_and_not_by_others() {
        let mut pending = Pending::new(8, 4, 0);
        let mut add = |source, name: &'static str| {
            let gone = pending.make_room(source);
            pending.insert(source, name);
            gone
        };
        let (attacker, worker) = (from("10.0.0.1:1"), from("10.0.0.2:1"));
        assert_eq!(add(worker, "worker"), None);
        for (name, gone) in [
            ("a", None),
            ("b", None),
            ("c", None),
            ("d", None),
            ("e", Some("a")),
            ("f", Some("b")),
        ] {
            assert_eq!(add(attacker, name), gone);
        }
        // With attackers at many addresses, the address with the most peers loses its oldest peer.
        for (address, gone) in [
            ("10.0.1.1:1", None),
            ("10.0.1.2:1", None),
            ("10.0.1.3:1", None),
            ("10.0.1.4:1", Some("c")),
            ("10.0.1.5:1", Some("d")),
        ] {
            assert_eq!(add(from(address), "other"), gone);
        }
    }

    #[test]
    fn addresses_that_one_host_has_are_one_source() {
        assert_eq!(from("10.0.0.1:1"), from("10.0.0.1:2"));
        assert_eq!(from("[2001:db8::1]:1"), from("[2001:db8::2:3]:1"));
        assert_ne!(from("[2001:db8::1]:1"), from("[2001:db8:0:1::1]:1"));
        assert_eq!(from("[::ffff:10.0.0.1]:1"), from("10.0.0.1:1"));
        assert_eq!(Source::of("process 7", Some(7)), Source::Process(7));
        assert_eq!(from("nonsense"), Source::Unknown);
    }

    #[test]
    fn who_is_pending_no_more_leaves_nothing_behind() {
        let mut pending = Pending::new(2, 2, 3);
        let source = from("10.0.0.1:1");
        assert_eq!(pending.insert(source, 1), 3);
        assert_eq!(pending.insert(source, 2), 4);
        pending.retain(|peer| *peer == 2);
        assert_eq!((pending.len(), pending.first()), (1, Some((4, &2))));
        assert_eq!(pending.make_room(source), None);
        *pending.get_mut(4).unwrap() = 5;
        assert_eq!(pending.iter().copied().collect::<Vec<_>>(), [5]);
        assert_eq!(pending.remove(4), Some(5));
        assert!(pending.sources.is_empty());
    }
}
