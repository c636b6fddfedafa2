//! Static rendezvous: the ranks are given, so it only remains to wait for one another.
//!
//! Node 0 hosts one TCP store at the endpoint, for the agents and for the workers of all nodes.
//! Everybody counts itself in under the key `init/`; node 0 waits until all have come, the others
//! go on at once. Then each puts its name under a key of its rank, so that a rank which is given
//! twice is noticed. Membership never changes. Where there are several nodes and an observer, they
//! tell one another of failures through the store (`failure_channel`), and that a node is gone is
//! noticed by the coordinator in the same server, which the agents join as well (`node_watch`).

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
    Change, Member, Observer, Onlookers, RendezvousBackend, RendezvousError, RendezvousInfo,
    RendezvousParameters,
};
use failure_channel::FailureChannel;
use node_watch::{Ending, NodeWatch};

/// How long to wait for the other nodes if nothing is configured.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// Time that the host of the store waits at the end until the other agents have read their last key.
const LINGER: Duration = Duration::from_secs(10);

/// Time that it waits until they have read that the run has failed, which is announced at once.
const UNTIL_READ: Duration = Duration::from_secs(1);

/// An [`Observer`] of two threads.
type SharedObserver = Arc<dyn Fn(Change) + Send + Sync>;

/// What a static rendezvous is made of.
#[derive(Debug, Clone)]
pub struct StaticParameters {
    /// Where node 0 listens. If the host is `localhost` or a loopback address, node 0 listens
    /// there only, else on all its addresses. With port 0, which one node alone can use, the
    /// system chooses.
    pub endpoint: Endpoint,
    /// The rank of this node.
    pub node_rank: GroupRank,
    /// How many nodes there are.
    pub nodes: u32,
    /// How long to wait for the others, in all; also the timeout of the store.
    pub timeout: Duration,
    /// The run, and with it the agents' part of the store.
    pub run_id: RunId,
    /// The policy of the store on node 0.
    pub policy: StorePolicy,
}

impl StaticParameters {
    /// A key of the agents, whose keys have the run id in front of them.
    fn key(&self, name: &str) -> String {
        join(self.run_id.as_str(), name)
    }

    /// The key under which a node is told that another one has failed for good: the other one, a
    /// newline, and the reason. It waits for that key.
    fn failure_key(&self, node: u32) -> String {
        self.key(&format!("rdzv/news/{node}"))
    }
}

/// A rendezvous of nodes whose ranks are given.
///
/// Node 0 hosts one TCP store at the endpoint, for agents and workers alike, and waits until all
/// nodes have joined; the others go on at once.
pub struct StaticRendezvous {
    parameters: StaticParameters,
    /// Name of this node for the others when it has failed; else its address.
    name: Option<String>,
    observer: Option<SharedObserver>,
    joined: Option<Arc<TcpStore>>,
    channel: Option<FailureChannel>,
    watch: Option<NodeWatch>,
    /// Why the run has failed, if one of its nodes has announced that.
    failed: Arc<OnceLock<String>>,
}

impl fmt::Debug for StaticRendezvous {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "StaticRendezvous({:?})", self.parameters)
    }
}

impl StaticRendezvous {
    /// The name of this backend.
    pub const NAME: &str = "static";

    /// Nothing is done before [`StaticRendezvous::join`].
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

    /// Sets the name of this node for the others when it has failed.
    #[must_use]
    pub fn named(mut self, name: String) -> Self {
        self.name = Some(name);
        self
    }

    /// From the general parameters: the options are `rank` (needed) and `timeout` in seconds
    /// (600); `max_nodes` is the number of nodes.
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

    /// Meets the other nodes the first time; later calls return the same, at once.
    pub fn join(&mut self) -> Result<RendezvousInfo, RendezvousError> {
        let store = match &self.joined {
            Some(store) => Arc::clone(store),
            None => Arc::new(self.meet()?),
        };
        self.joined = Some(Arc::clone(&store));
        Ok(RendezvousInfo {
            round: 0,
            assignment: None,
            reserved_port: None,
            rank: self.parameters.node_rank,
            world_size: self.parameters.nodes,
            master_addr: self.parameters.endpoint.host.clone(),
            master_port: store.port(),
            server: store.server().cloned(),
            // The agents' keys have the run id in front of them; the workers' have not.
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
        self.claim_rank(&store)?;
        Ok(store)
    }

    /// The address of this node in what the others say of it.
    fn address(&self, store: &TcpStore) -> String {
        node::advertised(
            None,
            Some(&self.parameters.endpoint.host),
            store.local_address(),
        )
    }

    /// Each rank has one node. Where it is given twice, the second one is refused, and the others are
    /// told, unless all nodes are there: a late one does not end a job that is complete.
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
            "2 agents say that they are node {node_rank} of run {run_id}: {first} and {ours}. Give each \
             node its own --node-rank, and 0 to the one on the host of {endpoint}"
        );
        let all: Vec<String> = (0..*nodes).map(name).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        if !store.check(&all)? {
            let text = format!("{ours} (node rank {node_rank})\n{sentence}");
            for node in 0..*nodes {
                let key = self.parameters.failure_key(node);
                store.compare_set(&key, b"", text.as_bytes())?;
            }
        }
        Err(RendezvousError::Argument(sentence))
    }

    /// Notices failures of the other nodes, and their end. The run can do without.
    fn watch_others(&mut self, store: &Arc<TcpStore>, observer: &SharedObserver, member: &Member) {
        let unnoticed =
            |error: &io::Error| warn!("failures of other nodes will not be noticed: {error}");
        let channel = FailureChannel::listen(self.parameters.clone(), Arc::clone(observer));
        self.channel = channel.inspect_err(unnoticed).ok();
        let member = Member {
            share_store: false,
            master_port: None,
            ..member.clone()
        };
        let watch = NodeWatch::start(self.watched_run(store), member, Arc::clone(observer));
        self.watch = watch.inspect_err(unnoticed).ok();
    }

    /// The run of its own at the coordinator in node 0's server that this node joins, so that the nodes
    /// notice when one of them is gone. Its local id is its rank.
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

    /// Leaves. If this node hosts the store, waits for those who still read, at most so long.
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
        // Only a thread that still waits in the store can hold it too; then nobody is waited for.
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

    fn join(&mut self, member: &Member) -> Result<RendezvousInfo, RendezvousError> {
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

    fn leave(&mut self) -> Result<(), RendezvousError> {
        self.end(Ending::Left, Duration::ZERO);
        Ok(())
    }

    fn shutdown(&mut self) -> bool {
        match self.failed.get().cloned() {
            None => self.end(Ending::Succeeded, LINGER),
            Some(reason) => self.end(Ending::Failed(reason), UNTIL_READ),
        }
        true
    }
}

fn endpoint_with_port(text: &str) -> Result<Endpoint, RendezvousError> {
    let parse = |default_port| {
        Endpoint::parse(text, default_port)
            .map_err(|error: EndpointError| RendezvousError::Argument(error.to_string()))
    };
    // The port is absent if the default shows through.
    let endpoint = parse(0)?;
    if parse(1)? != endpoint {
        return Err(RendezvousError::Argument(format!(
            "Port is absent in endpoint: {text}. Try launching with --master-port"
        )));
    }
    Ok(endpoint)
}
