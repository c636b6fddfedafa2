//! What every way of finding one another offers to an agent.

use std::sync::Arc;

use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_store::{Store, TcpStoreServer};

use crate::RendezvousError;

/// A rendezvous as an agent sees it.
pub trait RendezvousBackend: Send {
    /// The name that it is registered under.
    fn name(&self) -> &str;

    /// The run that it belongs to.
    fn run_id(&self) -> &RunId;

    /// Takes part in the next round; returns when the nodes have found one another.
    fn join(&mut self) -> Result<RendezvousInfo, RendezvousError>;

    /// Whether the workers meet at the very store that the agents meet at.
    fn shares_store_with_workers(&self) -> bool;

    /// Whether nobody can join any more.
    fn is_closed(&self) -> Result<bool, RendezvousError>;

    /// Ends it for everybody.
    fn set_closed(&mut self) -> Result<(), RendezvousError>;

    /// How many nodes wait for the next round.
    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError>;

    /// Frees what it holds; true if that went well.
    fn shutdown(&mut self) -> bool;
}

/// The result of a round.
#[derive(Debug, Clone)]
pub struct RendezvousInfo {
    /// Shared by the agents of the round; keys of different runs do not meet.
    pub store: Arc<dyn Store>,
    /// This agent's rank.
    pub rank: GroupRank,
    /// The number of agents.
    pub world_size: u32,
    /// Host of the store that workers shall meet at.
    pub master_addr: String,
    /// Its port.
    pub master_port: u16,
    /// The server of that store, if this agent hosts it. It ends when the last holder drops it.
    pub server: Option<Arc<TcpStoreServer>>,
}
