//! Static rendezvous: the ranks are fixed, so nodes only wait for one another.
//!
//! Node 0 hosts one TCP store at the endpoint, for the agents and the workers of all nodes. Each
//! node increments the counter `init/`. Node 0 waits until all have joined; the others continue
//! immediately. Then each node writes its name under a key of its rank, to detect a rank that is
//! used twice. Membership never changes.
//!
//! With several nodes and an observer, the nodes report failures to one another through the store
//! (`failure_channel`). They also join the coordinator in the same server, which notices the loss
//! of a node (`node_watch`).

mod failure_channel;
mod node_watch;

use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, io};

use rdzv_core::endpoint::{Endpoint, EndpointError};
use rdzv_core::escape::escape_bytes;
use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store::{PrefixStore, Store, StoreError, StorePolicy, TcpStore, TcpStoreOptions};
use rdzv_store_proto::prefix::join;
use tracing::warn;

use crate::bind::loopback;
use crate::dynamic::native::{self, NativeOptions};
use crate::dynamic::node;
use crate::{
    Change, JoiningAgent, Observer, Onlookers, RendezvousBackend, RendezvousError, RendezvousInfo,
    RendezvousParameters,
};
use failure_channel::FailureChannel;
use node_watch::{Ending, NodeWatch};

/// Default time to wait for the other nodes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Maximum time that the host waits at the end for readers of the last keys.
const LINGER: Duration = Duration::from_secs(10);

/// Maximum time that the host waits after a failure for readers of the notice.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// [`Observer`] that two threads share.
type SharedObserver = Arc<dyn Fn(Change) + Send + Sync>;

/// Parameters of a static rendezvous.
#[derive(Debug, Clone)]
pub struct StaticParameters {
    /// Endpoint of node 0.
    ///
    /// If the host is `localhost` or a loopback address, node 0 listens only there. Otherwise it
    /// listens on all its addresses. With port 0, the system chooses a port; only a single node can
    /// use port 0.
    pub endpoint: Endpoint,
    /// Rank of this node.
    pub node_rank: GroupRank,
    /// Number of nodes.
    pub nodes: u32,
    /// Total time to wait for the other nodes; also the timeout of the store.
    pub timeout: Duration,
    /// Run, whose id also separates the agents' keys in the store.
    pub run_id: RunId,
    /// Policy of the store on node 0, and of the connections to it.
    pub policy: StorePolicy,
}

impl StaticParameters {
    /// Returns a key of the agents, which starts with the run id.
    fn key(&self, name: &str) -> String {
        join(self.run_id.as_str(), name)
    }

    /// Returns the key under which `node` receives the failure of another node.
    ///
    /// The value is the name of the other node, a newline, and the reason. Each node waits for its
    /// key.
    fn failure_key(&self, node: u32) -> String {
        self.key(&format!("rdzv/news/{node}"))
    }
}

/// Rendezvous of nodes with fixed ranks.
///
/// Node 0 hosts one TCP store at the endpoint, for agents and workers, and waits until all nodes
/// have joined. The other nodes continue immediately.
pub struct StaticRendezvous {
    parameters: StaticParameters,
    /// Name of this node in its failure notice; `None` uses its address.
    name: Option<String>,
    observer: Option<SharedObserver>,
    joined: Option<Arc<TcpStore>>,
    channel: Option<FailureChannel>,
    watch: Option<NodeWatch>,
    /// Reason of the failure that a node has announced.
    failed: Arc<OnceLock<String>>,
}

impl fmt::Debug for StaticRendezvous {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StaticRendezvous({:?})", self.parameters)
    }
}

impl StaticRendezvous {
    /// Name of this backend.
    pub const NAME: &str = "static";

    /// Creates the rendezvous. [`StaticRendezvous::join`] opens the connection.
    pub fn new(parameters: StaticParameters) -> Self {
        Self {
            parameters,
            name: None,
            observer: None,
            joined: None,
            channel: None,
            watch: None,
            failed: Arc::default(),
        }
    }

    /// Sets the name of this node in its failure notice.
    #[must_use]
    pub fn named(mut self, name: String) -> Self {
        self.name = Some(name);
        self
    }

    /// Reads the general parameters.
    ///
    /// The options are `rank` (required) and `timeout` in seconds (600). `max_nodes` is the number
    /// of nodes.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] names the option or parameter that is invalid.
    pub fn from_parameters(parameters: &RendezvousParameters) -> Result<Self, RendezvousError> {
        let Some(rank) = parameters.config.get_as_int("rank")? else {
            return Err(RendezvousError::argument(
                "rank is absent in RendezvousParameters. Try add --node-rank to the cmd request",
            ));
        };
        let Ok(rank) = u32::try_from(rank) else {
            return Err(RendezvousError::argument(format!(
                "The node rank must not be negative, but was {rank}."
            )));
        };
        let endpoint = parameters.endpoint.trim();
        if endpoint.is_empty() {
            return Err(RendezvousError::argument(
                "endpoint is absent in RendezvousParameters. Try add --master-port and \
                 --master-addr to the cmd request",
            ));
        }
        if parameters.run_id.is_empty() {
            return Err(RendezvousError::argument(
                "The run id must be a non-empty string.",
            ));
        }
        let seconds = parameters.config.get_as_int("timeout")?;
        let timeout = match seconds.map(u64::try_from) {
            None => DEFAULT_TIMEOUT,
            Some(Ok(seconds)) => Duration::from_secs(seconds),
            Some(Err(_)) => {
                let text = "The timeout must not be negative.";
                return Err(RendezvousError::argument(text));
            }
        };
        Ok(Self::new(StaticParameters {
            endpoint: endpoint_with_port(endpoint)?,
            node_rank: GroupRank(rank),
            nodes: parameters.max_nodes,
            timeout,
            run_id: RunId::new(&parameters.run_id),
            policy: parameters.store_policy()?,
        }))
    }

    /// Joins the other nodes on the first call.
    ///
    /// Later calls return the same round immediately.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the rank is too high or used twice, if the store cannot be reached or
    /// hosted, or if nodes are missing when the timeout has passed.
    pub fn join(&mut self) -> Result<RendezvousInfo, RendezvousError> {
        let store = match &self.joined {
            Some(store) => Arc::clone(store),
            None => Arc::new(self.meet()?),
        };
        self.joined = Some(Arc::clone(&store));
        Ok(RendezvousInfo {
            round: 0,
            assignment: None,
            replaced: Vec::new(),
            reserved_port: None,
            rank: self.parameters.node_rank,
            world_size: self.parameters.nodes,
            master_addr: self.parameters.endpoint.host.clone(),
            master_port: store.port(),
            server: store.server().cloned(),
            // The keys of the agents start with the run id; the keys of the workers do not.
            store: Arc::new(PrefixStore::new(self.parameters.run_id.as_str(), store)),
        })
    }

    fn meet(&self) -> Result<TcpStore, RendezvousError> {
        let own = &self.parameters;
        if own.node_rank.0 >= own.nodes {
            return Err(RendezvousError::Argument(format!(
                "the node rank {} must be less than the number of nodes, which is {}",
                own.node_rank, own.nodes
            )));
        }
        let options = TcpStoreOptions {
            world_size: Some(own.nodes),
            is_master: own.node_rank.0 == 0,
            bind: loopback(&own.endpoint.host),
            timeout: own.timeout,
            multi_tenant: true,
            extension: Some(native::extension()),
            agent_prefix: Some(format!("/{}", own.key("")).into_bytes()),
            ..own.policy.client(&own.endpoint.host, own.endpoint.port)
        };
        let store = TcpStore::connect(options).map_err(|error| self.explain(error))?;
        if let Err(error) = self.claim_rank(&store) {
            if store.server().is_some() {
                std::thread::sleep(READ_PAUSE);
            }
            return Err(error);
        }
        Ok(store)
    }

    /// Returns the address of this node for the messages of other nodes.
    fn address(&self, store: &TcpStore) -> String {
        node::advertised(
            None,
            Some(&self.parameters.endpoint.host),
            store.local_address(),
        )
    }

    /// Claims the rank of this node. A rank can have only one node.
    ///
    /// The second node with the same rank gets an error. It also notifies the other nodes, unless
    /// all nodes have joined: a late node does not end a complete job.
    fn claim_rank(&self, store: &TcpStore) -> Result<(), RendezvousError> {
        let StaticParameters {
            endpoint,
            node_rank,
            nodes,
            run_id,
            ..
        } = &self.parameters;
        let ours = node::describe(self.address(store)).to_string();
        let name = |rank: u32| self.parameters.key(&format!("rdzv/nodes/{rank}"));
        let key = name(node_rank.0);
        let first = store.compare_set(&key, b"", ours.as_bytes())?;
        if first == ours.as_bytes() {
            return Ok(());
        }
        let first = escape_bytes(&first);
        let sentence = format!(
            "two agents of run {run_id} have node rank {node_rank}: {first} and {ours}; give each \
             node a different --node-rank, and 0 to the node on the host of {endpoint}"
        );
        let all: Vec<String> = (0..*nodes).map(name).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        if !store.check(&all)? {
            let text = format!("{ours} (node rank {node_rank})\n{sentence}");
            for node in 0..*nodes {
                let key = self.parameters.failure_key(node);
                // The host exits, and its store with it, soon after it reads the first of them.
                if store.compare_set(&key, b"", text.as_bytes()).is_err() {
                    break;
                }
            }
        }
        Err(RendezvousError::Argument(sentence))
    }

    /// Starts to watch the other nodes for failures and losses.
    ///
    /// The run works without this.
    fn watch_others(
        &mut self,
        store: &Arc<TcpStore>,
        observer: &SharedObserver,
        member: &JoiningAgent,
    ) {
        let unnoticed = |error: &io::Error| warn!("cannot detect failures of other nodes: {error}");
        let channel = FailureChannel::listen(self.parameters.clone(), Arc::clone(observer));
        self.channel = channel.inspect_err(unnoticed).ok();
        let member = JoiningAgent {
            share_store: false,
            master_port: None,
            ..member.clone()
        };
        let watch = NodeWatch::start(self.watched_run(store), member, Arc::clone(observer));
        self.watch = watch.inspect_err(unnoticed).ok();
    }

    /// Returns the options of a separate run that detects lost nodes.
    ///
    /// The coordinator is in the server of node 0. The local id of each node is its rank.
    fn watched_run(&self, store: &Arc<TcpStore>) -> NativeOptions {
        let own = &self.parameters;
        let mut settings = Settings::new(own.nodes, own.nodes);
        settings.join_timeout = own.timeout;
        NativeOptions {
            store: Arc::clone(store),
            run_id: RunId::new(format!("{}.static", own.run_id)),
            settings,
            node: NodeDesc {
                local_id: i64::from(own.node_rank.0),
                ..node::describe(self.address(store))
            },
            policy: own.policy.clone(),
            program: None,
            kept: None,
            ends_workers: false,
            voters: None,
            candidate: None,
            onlookers: Onlookers::default(),
        }
    }

    /// A node that hosts the store waits at most `most` for its readers.
    fn end(&mut self, ending: Ending, most: Duration) {
        let several = self.channel.is_some();
        if let Some(channel) = self.channel.take() {
            channel.end();
        }
        if let Some(watch) = self.watch.take() {
            watch.end(ending);
        }
        let store = self.joined.take();
        let server = store.and_then(|store| store.server().cloned());
        // Only a thread that still waits in the store can hold it too; then the wait is skipped.
        if let Some(server) = server.and_then(Arc::into_inner) {
            server.shutdown(if several { most } else { Duration::ZERO });
        }
    }

    fn explain(&self, error: StoreError) -> RendezvousError {
        let own = &self.parameters;
        let (address, rank) = (own.endpoint.to_string(), own.node_rank.0);
        match error {
            StoreError::Listen { ref source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                RendezvousError::AddressInUse {
                    address,
                    rank,
                    source: Box::new(error),
                }
            }
            StoreError::Join {
                joined,
                expected,
                elapsed,
            } => RendezvousError::NodesMissing {
                address,
                joined,
                expected,
                elapsed,
            },
            StoreError::Connect { .. }
            | StoreError::NotAStore { .. }
            | StoreError::Silent { .. }
                if rank != 0 =>
            {
                RendezvousError::NoNodeZero {
                    rank,
                    nodes: own.nodes,
                    host: own.endpoint.host.clone(),
                    source: Box::new(error),
                }
            }
            other => other.into(),
        }
    }
}

impl RendezvousBackend for StaticRendezvous {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn run_id(&self) -> &RunId {
        &self.parameters.run_id
    }

    fn join(&mut self, member: &JoiningAgent) -> Result<RendezvousInfo, RendezvousError> {
        if let Some(lost) = self.watch.as_ref().and_then(NodeWatch::failure) {
            return Err(lost);
        }
        let is_first = self.joined.is_none();
        let info = Self::join(self)?;
        if is_first
            && self.parameters.nodes > 1
            && let (Some(store), Some(observer)) = (self.joined.clone(), self.observer.clone())
        {
            self.watch_others(&store, &observer, member);
        }
        Ok(info)
    }

    fn set_observer(&mut self, observer: Observer) {
        let failed = Arc::clone(&self.failed);
        self.observer = Some(Arc::new(move |change| {
            if let Change::PeerFailed { reason, .. } = &change {
                let _the_first_one_counts = failed.set(reason.clone());
            }
            observer(change);
        }));
    }

    fn shares_store_with_workers(&self) -> bool {
        true
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        Ok(false)
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        Ok(())
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        Ok(0)
    }

    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        let _the_first_one_counts = self.failed.set(reason.to_owned());
        if let (Some(channel), Some(store)) = (&self.channel, &self.joined) {
            let name = self.name.clone().unwrap_or_else(|| self.address(store));
            channel.announce(&name, reason)?;
        }
        Ok(())
    }

    fn report_success(&mut self) {
        if let Some(watch) = &self.watch {
            watch.succeeded();
        }
    }

    fn leave(&mut self) -> Result<(), RendezvousError> {
        self.end(Ending::Left, Duration::ZERO);
        Ok(())
    }

    fn shutdown(&mut self) -> bool {
        match self.failed.get().cloned() {
            None => self.end(Ending::Succeeded, LINGER),
            Some(reason) => self.end(Ending::Failed(reason), READ_PAUSE),
        }
        true
    }
}

fn endpoint_with_port(text: &str) -> Result<Endpoint, RendezvousError> {
    let parse = |default_port| {
        Endpoint::parse(text, default_port)
            .map_err(|error: EndpointError| RendezvousError::Argument(error.to_string()))
    };
    // If the text has no port, each default shows in the result.
    let endpoint = parse(0)?;
    if parse(1)? != endpoint {
        return Err(RendezvousError::Argument(format!(
            "Port is absent in endpoint: {text}. Try launching with --master-port"
        )));
    }
    Ok(endpoint)
}
