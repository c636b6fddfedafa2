//! Interface between an agent and a rendezvous backend.

use std::sync::Arc;
use std::time::Duration;

use rdzv_core::ident::RunId;
use rdzv_core::rank::{Assignment, GroupRank};
use rdzv_core::time::Mono;
use rdzv_store::{Pinger, Store, TcpStoreServer};

use crate::RendezvousError;
use crate::event::Recorder;

/// Rendezvous backend that an agent uses.
///
/// A backend is used from a single thread. Only the closures that its methods return can be called
/// from other threads. To add a backend, implement this trait and register a constructor in a
/// [`BackendRegistry`](crate::BackendRegistry).
pub trait RendezvousBackend: Send {
    /// Returns the name under which the backend is registered.
    fn name(&self) -> &str;

    /// Returns the id of the run that this rendezvous belongs to.
    fn run_id(&self) -> &RunId;

    /// Joins the next round, and returns when the round is complete.
    ///
    /// A node that is already in a round first leaves that round. A backend with only one round
    /// returns it again.
    ///
    /// # Errors
    ///
    /// Returns an error if this node could not join, or [`RendezvousError::Interrupted`] soon after
    /// an interruption. After an error, this node no longer participates.
    fn join(&mut self, member: &JoiningAgent) -> Result<RendezvousInfo, RendezvousError>;

    /// Returns a closure that aborts a running [`RendezvousBackend::join`].
    ///
    /// The closure also aborts all later joins, and can be called from any thread. Returns `None`
    /// if this backend cannot interrupt a join.
    fn interrupter(&self) -> Option<Interrupter> {
        None
    }

    /// Sets the observer, which receives all later changes to rounds.
    ///
    /// The agent calls this method once, before its first [`RendezvousBackend::join`]. The backend
    /// calls the observer from any thread. A backend that cannot detect changes never calls it.
    fn set_observer(&mut self, observer: Observer) {
        let _ = observer;
    }

    /// Sets the recorder for events that only this backend knows about.
    ///
    /// For example, only the backend knows that this process hosts the store.
    /// [`BackendRegistry::create_recorded`](crate::BackendRegistry::create_recorded) calls this
    /// method once, and records all other events.
    fn set_recorder(&mut self, recorder: Recorder) {
        let _ = recorder;
    }

    /// Returns the maximum time until the other nodes are notified of a lost node.
    ///
    /// This time matters if it is longer than the time to detect a broken connection. A worker that
    /// fails within this time may have failed because of the lost node.
    fn losses_known_within(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Returns each thread of this rendezvous by name, with a liveness check.
    ///
    /// The agent calls this method after each successful [`RendezvousBackend::join`].
    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        Vec::new()
    }

    /// Returns the exit barrier for the last round, if this backend implements one.
    ///
    /// The last round is the one that the most recent [`RendezvousBackend::join`] returned. All
    /// nodes in a round use the same kind of barrier. If this method returns `None`, the agents use
    /// a barrier in the round's store.
    fn exit_barrier(&self) -> Option<ExitBarrier> {
        None
    }

    /// Returns `true` if the workers use the same store as the agents.
    fn shares_store_with_workers(&self) -> bool {
        false
    }

    /// Returns `true` if the run is closed, so that no node can join.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach the rendezvous.
    fn is_closed(&self) -> Result<bool, RendezvousError>;

    /// Closes the run for all nodes.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach the rendezvous.
    fn set_closed(&mut self) -> Result<(), RendezvousError>;

    /// Returns the number of nodes that are waiting for the next round.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach the rendezvous.
    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError>;

    /// Reports the final failure of this node, so that all nodes stop immediately.
    ///
    /// The other nodes receive `reason`, a single line, in [`Change::PeerFailed`]. A backend that
    /// cannot notify other nodes does nothing.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach the rendezvous.
    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        let _ = reason;
        Ok(())
    }

    /// Reports that all workers of this node have succeeded in the last round.
    ///
    /// If the node then leaves, it ends the round for no other node. The agent calls this method if
    /// [`RendezvousBackend::exit_barrier`] returns `None`. A backend that cannot use the report
    /// does nothing.
    fn report_success(&mut self) {}

    /// Leaves the run without closing it.
    ///
    /// The other nodes are notified immediately if possible.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach the rendezvous.
    fn leave(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// Leaves the run because a parent process of this agent was killed.
    ///
    /// After that, no process on this node restarts the agent. A voter hands over to the other
    /// voters. Without other voters, everything that this node hosts for other nodes stops with the
    /// agent, as if the agent had been killed. The other nodes then wait for a successor at its
    /// address, unless another voter coordinates the run.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach the rendezvous.
    fn leave_to_successor(&mut self) -> Result<(), RendezvousError> {
        self.leave()
    }

    /// Closes the run for all nodes and releases the resources of this backend.
    ///
    /// Returns `true` on success. After this call, the caller must no longer use stores that this
    /// backend has returned. A node that hosts the store waits briefly for the other nodes.
    fn shutdown(&mut self) -> bool;
}

/// Closure that aborts a join from another thread.
///
/// It can be called several times.
pub type Interrupter = Arc<dyn Fn() + Send + Sync>;

/// Barrier at the end of a round for the workers on all nodes.
///
/// A call reports that all workers on this node have succeeded. It then waits, for at most the
/// specified time, until the workers on all nodes have succeeded. `None` is no limit. The agent
/// calls it on a separate thread.
pub type ExitBarrier = Arc<dyn Fn(Option<Duration>) -> Result<(), RendezvousError> + Send + Sync>;

/// Function that receives [`Change`]s.
pub type Observer = Box<dyn Fn(Change) + Send + Sync>;

/// Properties of an agent that joins a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoiningAgent {
    /// Role of this agent's workers.
    pub role: String,
    /// Number of workers that this agent starts.
    ///
    /// 0 means that the number is not known here. The agents then exchange their ranks through the
    /// round's store.
    pub local_world_size: u32,
    /// `true` if an agent hosts the workers' store.
    ///
    /// If `false`, the worker with rank 0 hosts the store, on a port that its agent reserves when
    /// the round completes.
    pub share_store: bool,
    /// Port of the workers' store if this node has rank 0; `None` for any port.
    pub master_port: Option<u16>,
    /// Ranks of this agent's workers that exited in its last round.
    ///
    /// It is empty unless workers recover in their processes.
    pub lost: Vec<u32>,
}

/// Change to a round that is already complete.
///
/// Each text is one sentence for users.
#[derive(Debug)]
pub enum Change {
    /// Nodes are waiting for the next round, or members have left or are lost.
    ///
    /// Every node that wants to continue must join again.
    Membership {
        /// Round that is over ([`RendezvousInfo::round`]).
        ///
        /// This change can arrive before the join for that round has returned, or after a later
        /// join has begun.
        round: u64,
        /// Reason for the change, usually with the nodes that caused it.
        reason: String,
    },
    /// A member has failed permanently.
    PeerFailed {
        /// Node that failed.
        node: String,
        /// Reason that the node reported.
        reason: String,
    },
    /// A node has closed the run.
    Closed,
    /// The lease for the workers of a round was granted or renewed.
    ///
    /// The agent suspends the workers when the lease expires, until it receives the next lease
    /// ([`fence`](crate::fence)). If the round forms with a fence, the first lease arrives before
    /// the join returns. Only an agent that supports a fence receives leases.
    Lease {
        /// Round that the lease applies to.
        round: u64,
        /// Expiry time of the lease on the clock of [`fence::now`](crate::fence::now).
        ///
        /// `None` if the round does not have a fence, or no longer has one.
        ends: Option<Mono>,
    },
    /// In this round, the loss of a node becomes known within this time.
    ///
    /// It replaces [`RendezvousBackend::losses_known_within`] after the contact to the coordinator
    /// was lost, and again after the contact is back.
    LossesKnownWithin(Duration),
    /// The rendezvous store was lost, so no further round can form.
    Lost(RendezvousError),
}

/// Result of a join.
#[derive(Debug, Clone)]
pub struct RendezvousInfo {
    /// Number of the round.
    ///
    /// The first round is 0, unless an earlier coordinator may have had rounds that are unknown.
    pub round: u64,
    /// Store that the agents in this round share.
    ///
    /// Keys of different runs and rounds are kept separate.
    pub store: Arc<dyn Store>,
    /// Rank of this agent.
    pub rank: GroupRank,
    /// Number of agents in the round.
    pub world_size: u32,
    /// Ranks of this agent's workers, if the rendezvous assigned them.
    ///
    /// If `None`, the agents exchange the ranks through the store.
    pub assignment: Option<Assignment>,
    /// Ranks of workers whose node was not in the last round.
    ///
    /// Empty in the first round, and if the backend does not know them.
    pub replaced: Vec<u32>,
    /// Host of the store that the workers use.
    pub master_addr: String,
    /// Port of the store that the workers use.
    pub master_port: u16,
    /// Server of the workers' store, if this agent hosts it.
    ///
    /// The server stops when its last owner drops it.
    pub server: Option<Arc<TcpStoreServer>>,
    /// Socket that reserves the port until the worker that hosts the store starts.
    pub reserved_port: Option<Arc<std::net::TcpListener>>,
}
