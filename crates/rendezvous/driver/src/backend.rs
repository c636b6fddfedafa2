//! What every way of finding one another offers to an agent.

use std::sync::Arc;
use std::time::Duration;

use rdzv_core::ident::RunId;
use rdzv_core::rank::{Assignment, GroupRank};
use rdzv_core::time::Mono;
use rdzv_store::{Pinger, Store, TcpStoreServer};

use crate::RendezvousError;
use crate::event::Recorder;

/// A rendezvous as an agent sees it.
///
/// Used by one thread, except for what [`RendezvousBackend::interrupter`] returns. To be one's own
/// backend, implement this and register a constructor in a
/// [`BackendRegistry`](crate::BackendRegistry).
pub trait RendezvousBackend: Send {
    /// The name that it is registered under.
    fn name(&self) -> &str;

    /// The run that it belongs to.
    fn run_id(&self) -> &RunId;

    /// Takes part in the next round; returns when the nodes have found one another, when that has
    /// failed, or soon after an interruption ([`RendezvousError::Interrupted`]), with this node no
    /// longer taking part. A node that is in a round leaves it first.
    fn join(&mut self, member: &Member) -> Result<RendezvousInfo, RendezvousError>;

    /// Ends a [`RendezvousBackend::join`] that is under way in another thread, and all later ones.
    /// `None` if it cannot be ended.
    fn interrupter(&self) -> Option<Interrupter> {
        None
    }

    /// Who is told what becomes of a round after [`RendezvousBackend::join`] has returned it, from
    /// some thread. Set once, before the first join. A backend whose membership never changes does
    /// not call it.
    fn set_observer(&mut self, observer: Observer) {
        let _ = observer;
    }

    /// The recorder of what only this backend knows: that this process hosts the store. Set once,
    /// before the first join; everything else is recorded by
    /// [`BackendRegistry::create_recorded`](crate::BackendRegistry::create_recorded).
    fn set_recorder(&mut self, recorder: Recorder) {
        let _ = recorder;
    }

    /// How long after a node has vanished the others are told, at the latest, if that is longer than
    /// it takes to notice a broken connection. Workers that fail in between may do so because of it.
    fn losses_known_within(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// The threads that this rendezvous keeps, by name, and how to find out whether they are alive.
    /// Asked for after each [`RendezvousBackend::join`].
    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        Vec::new()
    }

    /// The exit barrier of the round that the last [`RendezvousBackend::join`] returned, if this backend has one
    /// of its own, which then has it on all nodes of the round. Without one, agents meet in the store
    /// of the round.
    fn exit_barrier(&self) -> Option<ExitBarrier> {
        None
    }

    /// Whether the workers meet at the very store that the agents meet at.
    fn shares_store_with_workers(&self) -> bool {
        false
    }

    /// Whether nobody can join any more.
    fn is_closed(&self) -> Result<bool, RendezvousError>;

    /// Ends it for everybody.
    fn set_closed(&mut self) -> Result<(), RendezvousError>;

    /// How many nodes wait for the next round.
    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError>;

    /// Tells the others that this node has failed for good, and why (one line), so that they end at
    /// once ([`Change::PeerFailed`]). Where nobody can be told, nothing happens.
    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        let _ = reason;
        Ok(())
    }

    /// Leaves without ending it for the others, who are told at once where that is possible.
    fn leave(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// The same because a process around this one was killed, so that nobody starts another one here by itself. What this
    /// node hosts for the others ends with the process, as if that had been killed too: they wait for a successor
    /// at its address.
    fn leave_to_successor(&mut self) -> Result<(), RendezvousError> {
        self.leave()
    }

    /// Ends it for everybody and frees what it holds; true if that went well. The stores that it has
    /// returned cannot be used any more. Whoever hosts the store waits a while for the others.
    fn shutdown(&mut self) -> bool;
}

/// What ends a join from another thread; may be called more than once.
pub type Interrupter = Arc<dyn Fn() + Send + Sync>;

/// Says that all workers of this node have succeeded, and waits until those of all nodes of the round have, for
/// so long at most. Called on a thread of its own.
pub type ExitBarrier = Arc<dyn Fn(Duration) -> Result<(), RendezvousError> + Send + Sync>;

/// Who is told of [`Change`]s.
pub type Observer = Box<dyn Fn(Change) + Send + Sync>;

/// What an agent brings to a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The role of its workers.
    pub role: String,
    /// The number of workers that it starts. 0: not known here, so the agents of the round exchange their ranks in its store.
    pub local_world_size: u32,
    /// Whether an agent hosts the store that the workers meet at; if not, the worker with rank 0
    /// does, at a port that is free now.
    pub share_store: bool,
    /// The port that the workers meet at if this node has rank 0; `None` is one that is free.
    pub master_port: Option<u16>,
}

/// What became of a round after it was complete. The texts are one sentence for people.
#[derive(Debug)]
pub enum Change {
    /// Nodes wait for the next round, or participants are gone: whoever wants to go on joins again.
    Membership {
        /// The round that does not hold any more ([`RendezvousInfo::round`]). A change may be told
        /// before the join that brought the round has returned, or after a later one has begun.
        round: u64,
        /// Which nodes, and how that was noticed.
        reason: String,
    },
    /// A participant has failed for good.
    PeerFailed {
        /// Which node.
        node: String,
        /// What it said.
        reason: String,
    },
    /// The run was ended.
    Closed,
    /// A lease of the workers of a round, which may run until its end.
    ///
    /// They are to be suspended then, until another such change ([`fence`](crate::fence)). The
    /// first comes before the join returns. Only from an agent that accepts a fence.
    Lease {
        /// The round.
        round: u64,
        /// The end of the lease, on the clock of [`fence::now`](crate::fence::now).
        ///
        /// `None`: the round has no fence, or none any more.
        ends: Option<Mono>,
    },
    /// What the rendezvous stands on is gone, so that no round can ever be formed again.
    Lost(RendezvousError),
}

/// The result of a round.
#[derive(Debug, Clone)]
pub struct RendezvousInfo {
    /// Number of the round, from 0.
    pub round: u64,
    /// Shared by the agents of the round; keys of different runs and rounds do not meet.
    pub store: Arc<dyn Store>,
    /// This agent's rank.
    pub rank: GroupRank,
    /// The number of agents.
    pub world_size: u32,
    /// The ranks of this agent's workers, where the rendezvous knows them; else the agents exchange
    /// them through the store.
    pub assignment: Option<Assignment>,
    /// Host of the store that workers shall meet at.
    pub master_addr: String,
    /// Its port.
    pub master_port: u16,
    /// The server of that store, if this agent hosts it, with nothing in it. It ends when the last
    /// holder drops it.
    pub server: Option<Arc<TcpStoreServer>>,
    /// Keeps the port free until the worker that hosts the store is being started.
    pub reserved_port: Option<Arc<std::net::TcpListener>>,
}
