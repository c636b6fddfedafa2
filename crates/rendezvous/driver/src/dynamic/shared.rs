//! Where agents share the state of a rendezvous that every one of them may change.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdzv_rendezvous_proto::NodeDesc;
use rdzv_store::{Breaker, Store};

use crate::RendezvousError;

/// Proof of the version that was read. What is in it is the backend's business.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token(pub Vec<u8>);

/// How a write ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// What is stored now, as plain pickle, and its token; `None` if nothing is.
    pub now: Option<(Bytes, Token)>,
    /// Whether that is what was written.
    pub won: bool,
}

/// One value that all agents of a run may read, and change by compare-and-set.
///
/// To add a backend: implement this, hand it to the driver in a constructor, add a line to the
/// registry, run the contract suite.
pub trait SharedState: Send {
    /// The name of the backend.
    fn name(&self) -> &str;

    /// What is stored (plain pickle) and its token; `None` if nothing is yet.
    fn get(&mut self) -> Result<Option<(Bytes, Token)>, RendezvousError>;

    /// Stores if nobody has stored since `token` (`None`: if nothing is stored yet).
    fn set(&mut self, state: &[u8], token: Option<&Token>) -> Result<Written, RendezvousError>;

    /// Has `notice` called, from any thread, whenever the state may have changed or nodes are known
    /// to be gone. False if the backend cannot tell; then it is asked once a second.
    fn watch(&mut self, notice: Arc<dyn Fn(Notice) + Send + Sync>)
    -> Result<bool, RendezvousError>;

    /// Tells the other agents that something has happened which they wait for. Nothing to do where
    /// the backend notices by itself, or nobody can be told.
    fn notify(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }

    /// Announces the node whose life the backend shall watch by its own means (a lease), if it has
    /// any; `None` takes it back.
    fn announce(&mut self, node: Option<&NodeDesc>) -> Result<(), RendezvousError> {
        let _ = node;
        Ok(())
    }

    /// As for [`RendezvousBackend::losses_known_within`](crate::RendezvousBackend::losses_known_within).
    fn losses_known_within(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Time for which a request is repeated while there is no answer.
    fn gives_up_after(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// The agents' store for one round; keys of different rounds do not meet. Whoever waits in it
    /// keeps nobody from reading and writing the state.
    fn round_store(&self, round: u64) -> Result<Arc<dyn Store>, RendezvousError>;

    /// Ends whatever is under way at the backend, in any thread, and all later uses; `None` if nothing
    /// there waits for long.
    fn breaker(&self) -> Option<Breaker> {
        None
    }

    /// The address of this machine that a connection to the backend comes from, if there is one.
    fn local_address(&self) -> Option<std::net::IpAddr>;

    /// What errors call the place: kind and numeric address, for instance.
    fn place(&self) -> String;
}

/// What a backend notices by itself.
#[derive(Debug)]
pub enum Notice {
    /// The state may have changed.
    Changed,
    /// The life of these nodes has ended.
    Gone(Vec<NodeDesc>),
    /// The backend cannot be reached any more.
    Lost(RendezvousError),
}
