//! Nodes that join together and hear of changes.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{Change, Interrupter, RendezvousBackend, RendezvousError, RendezvousInfo};

use crate::places::Place;
use crate::support::member;

/// Far longer than anything here takes; only a defect makes a test wait for it.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// A node, and what it was told.
pub(crate) struct Node {
    pub(crate) backend: Box<dyn RendezvousBackend>,
    changes: Receiver<Change>,
}

impl Node {
    pub(crate) fn new(place: &dyn Place, nodes: (u32, u32), config: &str) -> Self {
        let mut backend = place.node(nodes, config);
        let (sender, changes) = channel();
        backend.set_observer(Box::new(move |change| {
            // A node whose test is over.
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

    /// Waits for a change that the closure makes something of.
    pub(crate) fn hears<T>(&self, mut take: impl FnMut(Change) -> Option<T>) -> T {
        let end = Instant::now() + LONG;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let change = self.changes.recv_timeout(left).expect("a change is told");
            if let Some(taken) = take(change) {
                return taken;
            }
        }
    }

    /// Waits until that round is said not to hold any more, and returns the reason.
    pub(crate) fn hears_end_of(&self, ended: u64) -> String {
        self.hears(|change| match change {
            Change::Membership { round, reason } if round == ended => Some(reason),
            _ => None,
        })
    }

    /// The first change that is told in that time.
    pub(crate) fn hears_within(&self, time: Duration) -> Option<Change> {
        self.changes.recv_timeout(time).ok()
    }

    /// What has been told so far.
    pub(crate) fn heard(&self) -> Vec<Change> {
        self.changes.try_iter().collect()
    }
}

/// So many nodes at a place.
pub(crate) fn nodes(place: &dyn Place, count: usize, nodes: (u32, u32), config: &str) -> Vec<Node> {
    (0..count)
        .map(|_| Node::new(place, nodes, config))
        .collect()
}

/// All of them join at the same time; returns the results in their order.
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

/// All of them join, and agree on everything; returns the results in the order of their ranks.
pub(crate) fn form<'a>(nodes: impl IntoIterator<Item = &'a mut Node>) -> Vec<RendezvousInfo> {
    let infos: Vec<RendezvousInfo> = join_all(nodes).into_iter().map(Result::unwrap).collect();
    agree(&infos);
    let mut infos = infos;
    infos.sort_by_key(|info| info.rank);
    infos
}

/// One round, one master, and the ranks from 0 without a gap.
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
