//! Static rendezvous: the ranks are given, so it only remains to wait for one another.
//!
//! Node 0 hosts one TCP store at the endpoint, for the agents and for the workers of all nodes.
//! Everybody counts itself in under the key `init/`; node 0 waits until all have come, the others
//! go on at once. Then each puts its name under a key of its rank, so that a rank which is given twice
//! is noticed. Membership never changes; that a node is gone is noticed by the coordinator in the same
//! server, which the agents join as well ([`StaticRendezvous::liveness`]).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rdzv_core::endpoint::{Endpoint, EndpointError};
use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store::{Limits, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions};
use rdzv_store_proto::prefix::join;

use crate::bind::loopback;
use crate::dynamic::native::{self, NativeOptions};
use crate::dynamic::node;
use crate::{Member, RendezvousBackend, RendezvousError, RendezvousInfo, RendezvousParameters};

/// How long to wait for the other nodes if nothing is configured.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// What a static rendezvous is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

/// A rendezvous of nodes whose ranks are given.
///
/// Node 0 hosts one TCP store at the endpoint, for agents and workers alike, and waits until all
/// nodes have joined; the others go on at once.
#[derive(Debug)]
pub struct StaticRendezvous {
    parameters: StaticParameters,
    joined: Option<Arc<TcpStore>>,
}

impl StaticRendezvous {
    /// The name of this backend.
    pub const NAME: &str = "static";

    /// Nothing is done before [`StaticRendezvous::join`].
    pub fn new(parameters: StaticParameters) -> Self {
        Self {
            parameters,
            joined: None,
        }
    }

    /// From the general parameters: the options are `rank` (needed) and `timeout` in seconds
    /// (600); `max_nodes` is the number of nodes.
    pub fn from_parameters(parameters: &RendezvousParameters) -> Result<Self, RendezvousError> {
        let wrong = |what: String| Err(RendezvousError::Argument(what));
        let Some(rank) = parameters.config.get_as_int("rank")? else {
            return wrong(
                "rank is absent in RendezvousParameters. Try add --node-rank to the cmd request"
                    .to_owned(),
            );
        };
        let Ok(rank) = u32::try_from(rank) else {
            return wrong(format!(
                "The node rank must not be negative, but was {rank}."
            ));
        };
        let endpoint = parameters.endpoint.trim();
        if endpoint.is_empty() {
            return wrong(
                "endpoint is absent in RendezvousParameters. Try add --master-port and \
                 --master-addr to the cmd request"
                    .to_owned(),
            );
        }
        let seconds = parameters.config.get_as_int("timeout")?;
        let timeout = match seconds.map(u64::try_from) {
            None => DEFAULT_TIMEOUT,
            Some(Ok(seconds)) => Duration::from_secs(seconds),
            Some(Err(_)) => return wrong("The timeout must not be negative.".to_owned()),
        };
        Ok(Self::new(StaticParameters {
            endpoint: endpoint_with_port(endpoint)?,
            node_rank: GroupRank(rank),
            nodes: parameters.max_nodes,
            timeout,
            run_id: RunId::new(&parameters.run_id),
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
            store: Arc::new(self.part_of_run(store)),
        })
    }

    fn meet(&self) -> Result<TcpStore, RendezvousError> {
        let StaticParameters {
            endpoint,
            node_rank,
            nodes,
            timeout,
            ..
        } = &self.parameters;
        if node_rank.0 >= *nodes {
            return Err(RendezvousError::Argument(format!(
                "the node rank {node_rank} must be less than the number of nodes, which is {nodes}"
            )));
        }
        let options = TcpStoreOptions {
            world_size: Some(*nodes),
            is_master: node_rank.0 == 0,
            bind: loopback(&endpoint.host),
            timeout: *timeout,
            multi_tenant: true,
            extension: Some(native::extension()),
            ..TcpStoreOptions::new(&endpoint.host, endpoint.port)
        };
        let store = TcpStore::connect(options).map_err(|error| self.explain(error))?;
        self.claim_rank(&store)?;
        Ok(store)
    }

    /// A key of the agents, whose keys have the run id in front of them.
    fn key(&self, name: &str) -> String {
        join(self.parameters.run_id.as_str(), name)
    }

    /// The agents' key under which a node is told that another one has failed for good: the other one,
    /// a newline, and the reason. It waits for that key.
    pub fn failure_key(node: u32) -> String {
        format!("rdzv/news/{node}")
    }

    /// The name of this node in what the others say of it.
    fn name(&self, store: &TcpStore) -> String {
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
        let ours = node::describe(self.name(store)).to_string();
        let name = |rank: u32| self.key(&format!("rdzv/nodes/{rank}"));
        let key = name(node_rank.0);
        let first = store.compare_set(&key, b"", ours.as_bytes())?;
        if first == ours.as_bytes() {
            return Ok(());
        }
        let first = String::from_utf8_lossy(&first);
        let sentence = format!(
            "2 agents say that they are node {node_rank} of run {run_id}: {first} and {ours}. Give each \
             node its own --node-rank, and 0 to the one on the host of {endpoint}"
        );
        let all: Vec<String> = (0..*nodes).map(name).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        if !store.check(&all)? {
            let text = format!("{ours} (node rank {node_rank})\n{sentence}");
            for node in 0..*nodes {
                let key = self.key(&Self::failure_key(node));
                store.compare_set(&key, b"", text.as_bytes())?;
            }
        }
        Err(RendezvousError::Argument(sentence))
    }

    /// The run that this node joins beside the rendezvous, so that the nodes notice when one of them is gone:
    /// a run of its own at the coordinator in node 0's server. Its local id is its rank. Nothing before
    /// the join.
    pub fn liveness(&self) -> Option<NativeOptions> {
        let store = self.joined.as_ref()?;
        let StaticParameters {
            node_rank,
            nodes,
            timeout,
            run_id,
            ..
        } = &self.parameters;
        let mut settings = Settings::new(*nodes, *nodes);
        settings.join_timeout = *timeout;
        Some(NativeOptions {
            store: Arc::clone(store),
            run_id: RunId::new(format!("{run_id}.static")),
            settings,
            node: NodeDesc {
                local_id: i64::from(node_rank.0),
                ..node::describe(self.name(store))
            },
            limits: Limits::default(),
            program: None,
        })
    }

    /// The agents' keys have the run id in front of them; the workers' have not.
    fn part_of_run(&self, store: Arc<TcpStore>) -> PrefixStore {
        PrefixStore::new(self.parameters.run_id.as_str(), store)
    }

    fn explain(&self, error: StoreError) -> RendezvousError {
        let StaticParameters {
            endpoint,
            node_rank,
            nodes,
            ..
        } = &self.parameters;
        match error {
            StoreError::Listen { ref source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                RendezvousError::AddressInUse {
                    address: endpoint.to_string(),
                    rank: node_rank.0,
                    source: Box::new(error),
                }
            }
            StoreError::Join {
                joined,
                expected,
                elapsed,
            } => RendezvousError::NodesMissing {
                address: endpoint.to_string(),
                joined,
                expected,
                elapsed,
            },
            StoreError::Connect { .. }
            | StoreError::NotAStore { .. }
            | StoreError::Silent { .. }
                if node_rank.0 != 0 =>
            {
                RendezvousError::NoNodeZero {
                    rank: node_rank.0,
                    nodes: *nodes,
                    host: endpoint.host.clone(),
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

    fn join(&mut self, _: &Member) -> Result<RendezvousInfo, RendezvousError> {
        Self::join(self)
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

    fn shutdown(&mut self) -> bool {
        self.joined = None;
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
