//! Interface of a rendezvous backend to its agent.

use std::sync::Arc;
use std::time::Duration;

use rdzv_core::ident::RunId;
use rdzv_core::rank::{Assignment, GroupRank};
use rdzv_core::time::Mono;
use rdzv_store::{Pinger, Store, TcpStoreServer};

use crate::RendezvousError;
use crate::event::Recorder;

/// Rendezvous backend, as an agent uses it.
///
/// One thread uses a backend, except for the closure that [`RendezvousBackend::interrupter`]
/// returns. To add a backend, implement this trait and register a constructor in a
/// [`BackendRegistry`](crate::BackendRegistry).
pub trait RendezvousBackend: Send {
    /// Returns the name under which the backend is registered.
    fn name(&self) -> &str;

    /// Returns the run of this rendezvous.
    fn run_id(&self) -> &RunId;

    /// Joins the next round and returns when the round is complete.
    ///
    /// A node that is in a round leaves that round first.
    ///
    /// # Errors
    ///
    /// The reason why this node could not join, or [`RendezvousError::Interrupted`] soon after an
    /// interruption. After an error, this node no longer participates.
    fn join(&mut self, member: &Member) -> Result<RendezvousInfo, RendezvousError>;

    /// Returns a closure that ends a running [`RendezvousBackend::join`].
    ///
    /// The closure also ends all later joins, and may run in another thread. `None` if this backend
    /// cannot interrupt a join.
    fn interrupter(&self) -> Option<Interrupter> {
        None
    }

    /// Sets the receiver of all later changes to rounds.
    ///
    /// The agent calls this once, before its first [`RendezvousBackend::join`]. The backend calls
    /// the observer from any thread. A backend whose membership never changes does not call it.
    fn set_observer(&mut self, observer: Observer) {
        let _ = observer;
    }

    /// Sets the recorder of events that only this backend knows.
    ///
    /// An example of such an event: this process hosts the store. The agent calls this once, before
    /// its first join. All other events come from
    /// [`BackendRegistry::create_recorded`](crate::BackendRegistry::create_recorded).
    fn set_recorder(&mut self, recorder: Recorder) {
        let _ = recorder;
    }

    /// Longest time until the other nodes are notified of a lost node.
    ///
    /// This matters if it is longer than the time to notice a broken connection. A worker that
    /// fails within this time may have failed because of the lost node.
    fn losses_known_within(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Returns the name of each thread of this rendezvous, with a liveness check.
    ///
    /// The agent calls this after each [`RendezvousBackend::join`].
    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        Vec::new()
    }

    /// Returns the exit barrier of the last round, if this backend implements one.
    ///
    /// The round is the one that the last [`RendezvousBackend::join`] returned. All nodes of a
    /// round have the same kind of barrier: with `None`, agents use the store of the round.
    fn exit_barrier(&self) -> Option<ExitBarrier> {
        None
    }

    /// `true` if the workers use the same store as the agents.
    fn shares_store_with_workers(&self) -> bool {
        false
    }

    /// `true` if the run is closed, so that no node can join.
    fn is_closed(&self) -> Result<bool, RendezvousError>;

    /// Closes the run for all nodes.
    fn set_closed(&mut self) -> Result<(), RendezvousError>;

    /// Returns the number of nodes that wait for the next round.
    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError>;

    /// Reports the final failure of this node, so that all nodes stop immediately.
    ///
    /// They receive `reason`, which is one line, with [`Change::PeerFailed`]. A backend that cannot
    /// notify other nodes does nothing.
    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        let _ = reason;
        Ok(())
    }

    /// Leaves the run without closing it.
    ///
    /// The other nodes are notified immediately if possible.
    fn leave(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// Leaves the run because a parent process of this agent was killed.
    ///
    /// No process on this node restarts the agent then. Everything that this node hosts for other
    /// nodes ends with the agent, as if the agent had been killed. The other nodes then wait for a
    /// successor at its address.
    fn leave_to_successor(&mut self) -> Result<(), RendezvousError> {
        self.leave()
    }

    /// Closes the run for all nodes and frees the resources of this backend.
    ///
    /// Returns `true` on success. The stores that this backend has returned become unusable. A node
    /// that hosts the store waits for a short time for the other nodes.
    fn shutdown(&mut self) -> bool;
}

/// Closure that ends a join from another thread.
///
/// It can be called several times.
pub type Interrupter = Arc<dyn Fn() + Send + Sync>;

/// Barrier at the end of a round, for the workers of all its nodes.
///
/// A call reports that all workers of this node have succeeded. The call then waits, at most for
/// the given time, until the workers of all nodes have succeeded. The agent calls it on a separate
/// thread.
pub type ExitBarrier = Arc<dyn Fn(Duration) -> Result<(), RendezvousError> + Send + Sync>;

/// Receiver of [`Change`]s.
pub type Observer = Box<dyn Fn(Change) + Send + Sync>;

/// Properties of an agent that joins a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Role of the workers of this agent.
    pub role: String,
    /// Number of workers that this agent starts.
    ///
    /// 0: the number is not known here, and the agents exchange their ranks in the round's store.
    pub local_world_size: u32,
    /// `true` if an agent hosts the store of the workers.
    ///
    /// `false`: the worker with rank 0 hosts it, at a port that is free when the round completes.
    pub share_store: bool,
    /// Port of the workers' store if this node has rank 0; `None`: a free port.
    pub master_port: Option<u16>,
}

/// Change to a round after its completion.
///
/// Each text is one sentence for the user.
#[derive(Debug)]
pub enum Change {
    /// Nodes wait for the next round, or members are lost.
    ///
    /// Every node that wants to continue must join again.
    Membership {
        /// Round that has ended ([`RendezvousInfo::round`]).
        ///
        /// This change can arrive before the join of that round has returned, or after a later join
        /// has begun.
        round: u64,
        /// Nodes that caused the change, and how the backend noticed it.
        reason: String,
    },
    /// A member has failed permanently.
    PeerFailed {
        /// Failed node.
        node: String,
        /// Reason that the node reported.
        reason: String,
    },
    /// A node has closed the run.
    Closed,
    /// New lease of the workers of a round.
    ///
    /// The agent suspends the workers at the end of the lease, until the next such change
    /// ([`fence`](crate::fence)). The first lease arrives before the join returns. Leases come only
    /// to an agent that accepts a fence.
    Lease {
        /// Round of the lease.
        round: u64,
        /// End of the lease, on the clock of [`fence::now`](crate::fence::now).
        ///
        /// `None` if the round has no fence, or no longer has one.
        ends: Option<Mono>,
    },
    /// The store of the rendezvous is lost, so no further round can form.
    Lost(RendezvousError),
}

/// Result of a join.
#[derive(Debug, Clone)]
pub struct RendezvousInfo {
    /// Number of the round, from 0.
    pub round: u64,
    /// Store that the agents of this round share.
    ///
    /// Keys of different runs and rounds are separate.
    pub store: Arc<dyn Store>,
    /// Rank of this agent.
    pub rank: GroupRank,
    /// Number of agents.
    pub world_size: u32,
    /// Ranks of the workers of this agent, if the rendezvous knows them.
    ///
    /// `None`: the agents exchange the ranks through the store.
    pub assignment: Option<Assignment>,
    /// Host of the store that the workers use.
    pub master_addr: String,
    /// Port of the store that the workers use.
    pub master_port: u16,
    /// Server of that store, still empty, if this agent hosts it.
    ///
    /// The server ends when its last holder drops it.
    pub server: Option<Arc<TcpStoreServer>>,
    /// Reservation of the port until the worker that hosts the store starts.
    pub reserved_port: Option<Arc<std::net::TcpListener>>,
}
