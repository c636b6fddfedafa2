//! Nodes that join together and receive changes.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{Change, Interrupter, RendezvousBackend, RendezvousError, RendezvousInfo};

use crate::backends::RunBackend;
use crate::support::member;

/// Far longer than any step of these tests.
///
/// Only a defect makes a test wait for it.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Node with the changes that it has received.
pub(crate) struct Node {
    pub(crate) backend: Box<dyn RendezvousBackend>,
    changes: Receiver<Change>,
}

impl Node {
    pub(crate) fn new(backend: &dyn RunBackend, nodes: (u32, u32), config: &str) -> Self {
        let mut backend = backend.node(nodes, config);
        let (sender, changes) = channel();
        backend.set_observer(Box::new(move |change| {
            // The send fails once the test is over.
            let _ = sender.send(change);
        }));
        Self { backend, changes }
    }

    pub(crate) fn join(&mut self) -> Result<RendezvousInfo, RendezvousError> {
        self.backend.join(&member())
    }

    pub(crate) fn interrupter(&self) -> Interrupter {
        self.backend.interrupter().unwrap()
    }

    /// Waits for a change that `take` accepts, and returns its result.
    pub(crate) fn hears<T>(&self, mut take: impl FnMut(Change) -> Option<T>) -> T {
        let end = Instant::now() + LONG;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let change = self.changes.recv_timeout(left).expect("no change arrived");
            if let Some(taken) = take(change) {
                return taken;
            }
        }
    }

    /// Waits for the end of the round `ended`, and returns the reason.
    pub(crate) fn hears_end_of(&self, ended: u64) -> String {
        self.hears(|change| match change {
            Change::Membership { round, reason } if round == ended => Some(reason),
            _ => None,
        })
    }

    /// Returns the first change that arrives within this time.
    pub(crate) fn hears_within(&self, time: Duration) -> Option<Change> {
        self.changes.recv_timeout(time).ok()
    }

    /// Returns all changes that have arrived and are not yet read.
    pub(crate) fn heard(&self) -> Vec<Change> {
        self.changes.try_iter().collect()
    }
}

/// Creates `count` nodes of one backend.
pub(crate) fn nodes(
    backend: &dyn RunBackend,
    count: usize,
    nodes: (u32, u32),
    config: &str,
) -> Vec<Node> {
    (0..count)
        .map(|_| Node::new(backend, nodes, config))
        .collect()
}

/// Joins all nodes at the same time; returns the results in the same order.
pub(crate) fn join_all<'a>(
    nodes: impl IntoIterator<Item = &'a mut Node>,
) -> Vec<Result<RendezvousInfo, RendezvousError>> {
    thread::scope(|scope| {
        let joins: Vec<_> = nodes
            .into_iter()
            .map(|node| scope.spawn(|| node.join()))
            .collect();
        joins.into_iter().map(|join| join.join().unwrap()).collect()
    })
}

/// Joins all nodes, checks that they agree, and returns the results by rank.
pub(crate) fn form<'a>(nodes: impl IntoIterator<Item = &'a mut Node>) -> Vec<RendezvousInfo> {
    let infos: Vec<RendezvousInfo> = join_all(nodes).into_iter().map(Result::unwrap).collect();
    agree(&infos);
    let mut infos = infos;
    infos.sort_by_key(|info| info.rank);
    infos
}

/// Checks for one round, one master, and the ranks from 0 without a gap.
pub(crate) fn agree(infos: &[RendezvousInfo]) {
    let mut ranks: Vec<GroupRank> = infos.iter().map(|info| info.rank).collect();
    ranks.sort();
    let count = u32::try_from(infos.len()).unwrap();
    assert_eq!(ranks, (0..count).map(GroupRank).collect::<Vec<_>>());
    for info in infos {
        assert_eq!(info.world_size, count, "{info:?}");
        assert_eq!(info.round, infos[0].round, "{info:?}");
        assert_eq!(info.master_addr, infos[0].master_addr, "{info:?}");
        assert_eq!(info.master_port, infos[0].master_port, "{info:?}");
        assert_eq!(info.server.is_some(), info.rank == GroupRank(0), "{info:?}");
    }
}
