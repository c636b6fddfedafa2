//! Interface to the state of a rendezvous that every agent can change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdzv_rendezvous_proto::NodeDesc;
use rdzv_store::{Breaker, Store};

use crate::RendezvousError;

/// Version of a value that was read. Only the backend interprets the bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateToken(pub Vec<u8>);

/// Result of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Stored value, as plain pickle, with its token; `None` if there is no value.
    pub now: Option<(Bytes, StateToken)>,
    /// `true` if this write stored that value.
    pub won: bool,
}

/// Value that all agents of a run can read, and change by compare-and-set.
///
/// To add a backend, implement this trait and pass the value to the driver in a constructor. Add a
/// line to the registry, and run the contract suite.
pub trait SharedState: Send {
    /// Returns the name of the backend.
    fn name(&self) -> &str;

    /// Returns the stored value (plain pickle) and its token; `None` if absent.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach its service.
    fn get(&mut self) -> Result<Option<(Bytes, StateToken)>, RendezvousError>;

    /// Stores `state` if the value has not changed since `token`.
    ///
    /// With a token of `None`, it stores only if there is no value yet.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach its service.
    fn set(&mut self, state: &[u8], token: Option<&StateToken>)
    -> Result<Written, RendezvousError>;

    /// Registers `notice`, for changes of the state and for nodes that have ended.
    ///
    /// The backend calls it from any thread. Returns `false` if the backend can miss changes; the
    /// driver then polls at least once a second.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach its service.
    fn watch(&mut self, notice: Arc<dyn Fn(Notice) + Send + Sync>)
    -> Result<bool, RendezvousError>;

    /// Notifies the other agents of a change that they wait for.
    ///
    /// The default does nothing, for a backend that detects changes automatically or cannot notify.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach its service.
    fn notify(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// Announces a node whose life the backend watches, for instance with a lease.
    ///
    /// `None` retracts the announcement. The default does nothing.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach its service.
    fn announce(&mut self, node: Option<&NodeDesc>) -> Result<(), RendezvousError> {
        let _ = node;
        Ok(())
    }

    /// Returns the longest time until the other nodes are notified of a lost node.
    ///
    /// See
    /// [`RendezvousBackend::losses_known_within`](crate::RendezvousBackend::losses_known_within).
    fn losses_known_within(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Returns the time limit of a request with its retries.
    fn gives_up_after(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// Returns the agents' store of one round.
    ///
    /// Keys of different rounds are separate. A wait in this store blocks no reads or writes of the
    /// state.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the backend cannot reach its service.
    fn round_store(&self, round: u64) -> Result<Arc<dyn Store>, RendezvousError>;

    /// Returns a breaker that ends all running requests, in any thread.
    ///
    /// The breaker also ends all later requests. `None` if requests cannot be ended.
    fn breaker(&self) -> Option<Breaker> {
        None
    }

    /// Returns the local address of the connection to the backend, if there is one.
    fn local_address(&self) -> Option<std::net::IpAddr>;

    /// Returns the name of the store in errors, such as kind and numeric address.
    fn endpoint(&self) -> String;
}

/// Observation of the backend.
#[derive(Debug)]
pub enum Notice {
    /// The state may have changed.
    Changed,
    /// These nodes have ended without having left.
    Gone(Vec<NodeDesc>),
    /// The backend is no longer reachable.
    Lost(RendezvousError),
}
