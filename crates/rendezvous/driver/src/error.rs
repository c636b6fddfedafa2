//! Why a rendezvous failed. The texts are PyTorch's where it has one.

use std::time::Duration;

use rdzv_store::StoreError;
use thiserror::Error;

/// Why a rendezvous failed.
#[derive(Debug, Error)]
pub enum RendezvousError {
    /// A URL, option or parameter is not usable; the text says which and why.
    #[error("{0}")]
    Argument(String),
    /// The address of the store is taken, most likely by another agent with the same rank.
    #[error(
        "[Errno 98] Address already in use: node {rank} has to host the store at {address} \
         ({source}). Is another agent running with --node-rank {rank}, or is the port taken by \
         something else? Give each node its own --node-rank, or choose another --master-port"
    )]
    AddressInUse {
        /// Where it should listen.
        address: String,
        /// The rank of this node.
        rank: u32,
        /// What the system said.
        #[source]
        source: Box<StoreError>,
    },
    /// Not all nodes came.
    #[error(
        "Timed out after {} seconds waiting for clients. {joined}/{expected} clients joined. Node 0 \
         waits at {address} for {} more: check that they run with the same --nnodes and \
         --master-addr/--master-port (or --rdzv-endpoint), and that they can reach this host",
        .elapsed.as_secs(),
        .expected - .joined
    )]
    NodesMissing {
        /// Where node 0 listens.
        address: String,
        /// How many nodes have come, node 0 among them.
        joined: i64,
        /// How many were expected.
        expected: i64,
        /// How long was waited.
        elapsed: Duration,
    },
    /// Node 0 could not be reached.
    #[error(
        "node {rank} of {nodes} could not join node 0: failed to {source}. Start the agent with \
         --node-rank 0 on {host}, and give all nodes the same address and port"
    )]
    NoNodeZero {
        /// The rank of this node.
        rank: u32,
        /// Number of nodes.
        nodes: u32,
        /// The host that node 0 should be on.
        host: String,
        /// What happened.
        #[source]
        source: Box<StoreError>,
    },
    /// The run is over: somebody has closed it.
    #[error(
        "the rendezvous of run '{run_id}' at {place} is closed: the job has ended. To start a new \
         one, use another --rdzv-id or a new store"
    )]
    Closed {
        /// The run.
        run_id: String,
        /// Kind and address of what the nodes meet at.
        place: String,
    },
    /// The run ended while this node waited as a surplus one. Nothing is wrong.
    #[error("the job of run '{run_id}' has ended without needing this node")]
    NotNeeded {
        /// The run.
        run_id: String,
    },
    /// The run ended without this node, which its own job needs: it is the run of another job.
    #[error(
        "the job of run '{run_id}' has ended without this node, which its own job needs: another job has the same \
         run id. Give each job its own --rdzv-id"
    )]
    OtherJob {
        /// The run.
        run_id: String,
    },
    /// Too few nodes came in time.
    #[error(
        "run '{run_id}' had {} of at least {min_nodes} nodes after {:.1} s of waiting at {place} \
         (joined: {}). Check that the other agents run with the same --rdzv-id and --rdzv-endpoint \
         and can reach it, or wait longer with --rdzv-conf join_timeout=SECONDS",
        .joined.len(),
        .elapsed.as_secs_f64(),
        if .joined.is_empty() { "none".to_owned() } else { .joined.join(", ") }
    )]
    JoinTimeout {
        /// The run.
        run_id: String,
        /// Kind and address of what the nodes meet at.
        place: String,
        /// The nodes that had come.
        joined: Vec<String>,
        /// How many were needed.
        min_nodes: u32,
        /// How long was waited.
        elapsed: Duration,
    },
    /// A round is complete, but its node with rank 0 has not told the others what they need.
    #[error(
        "round {round} of run '{run_id}' at {place} is complete, but the agent with rank 0 \
         ({leader}) did not say within {:.1} s where the workers meet: see what happened to that \
         agent",
        .elapsed.as_secs_f64()
    )]
    SilentLeader {
        /// The run.
        run_id: String,
        /// Kind and address of what the nodes meet at.
        place: String,
        /// The round.
        round: u64,
        /// The node with rank 0.
        leader: String,
        /// How long was waited.
        elapsed: Duration,
    },
    /// Another node is gone, and none can take its place.
    #[error("node {node} has failed for good: {reason}")]
    PeerFailed {
        /// Which.
        node: String,
        /// The evidence for it.
        reason: String,
    },
    /// A join was interrupted on purpose; this node does not take part.
    #[error("the rendezvous was interrupted")]
    Interrupted,
    /// What the nodes meet at cannot be reached, or is not what it should be.
    #[error("{what} at {place}{}: {remedy}", after(.elapsed))]
    Unreachable {
        /// What was found there.
        what: String,
        /// Kind and numeric address.
        place: String,
        /// How long was tried.
        elapsed: Option<Duration>,
        /// What to try.
        remedy: &'static str,
    },
    /// The state that the nodes share is none; something else has written there.
    #[error("{what} at {place}: use another --rdzv-id, or a new store")]
    Corrupt {
        /// Which state, and the reason.
        what: String,
        /// Kind and numeric address.
        place: String,
    },
    /// The store behind the rendezvous failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn after(elapsed: &Option<Duration>) -> String {
    elapsed.map_or_else(String::new, |elapsed| {
        format!(" after {:.1} s", elapsed.as_secs_f64())
    })
}

impl RendezvousError {
    /// A URL, option or parameter is not usable.
    pub(crate) fn argument(what: impl Into<String>) -> Self {
        Self::Argument(what.into())
    }

    /// The name of torchelastic's exception for it.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Argument(_) => "ValueError",
            Self::Closed { .. } | Self::OtherJob { .. } => "RendezvousClosedError",
            Self::JoinTimeout { .. } | Self::SilentLeader { .. } => "RendezvousTimeoutError",
            Self::Unreachable { .. } => "RendezvousConnectionError",
            Self::Corrupt { .. } => "RendezvousStateError",
            Self::NotNeeded { .. } => "RendezvousGracefulExitError",
            Self::AddressInUse { .. }
            | Self::NodesMissing { .. }
            | Self::NoNodeZero { .. }
            | Self::PeerFailed { .. }
            | Self::Interrupted
            | Self::Store(_) => "RendezvousError",
        }
    }

    /// The error of an operation on the c10d store at `place`: what was found, where, how long it was
    /// tried, and what to do.
    pub(crate) fn of_c10d_store(error: StoreError, place: &str) -> Self {
        let place = place.to_owned();
        match error {
            StoreError::Connect {
                peer,
                attempts,
                reason,
                elapsed,
            } => Self::Unreachable {
                what: format!("no store was found ({reason}; {attempts} attempts)"),
                place: format!("the c10d endpoint {peer}"),
                elapsed: Some(elapsed),
                remedy: "start an agent on that host, or a store with `rdzv store`, and check that \
                         --rdzv-endpoint names it and that no firewall is in between",
            },
            StoreError::NotAStore { peer, found } => Self::Unreachable {
                what: format!("something that is no store was found ({found})"),
                place: format!("the c10d endpoint {peer}"),
                elapsed: None,
                remedy: "check the address and port of --rdzv-endpoint, or choose a port that \
                         nothing else uses",
            },
            StoreError::Silent {
                peer,
                found,
                elapsed,
            } => Self::Unreachable {
                what: format!("no store answered ({found})"),
                place: format!("the c10d endpoint {peer}"),
                elapsed: Some(elapsed),
                remedy: "check the address and port of --rdzv-endpoint, and whether the host of \
                         the store is overloaded",
            },
            StoreError::ReplyTooLong {
                peer,
                operation,
                key,
                size,
                limit,
            } => Self::Unreachable {
                what: format!(
                    "the reply to {operation} key {key} is at least {size} bytes long, and at most \
                     {limit} are accepted"
                ),
                place: format!("the c10d endpoint {peer}"),
                elapsed: None,
                remedy: "check that --rdzv-endpoint names the store of this job and that nothing \
                         else writes to it",
            },
            StoreError::Disconnected {
                elapsed, source, ..
            } => Self::Unreachable {
                what: format!("the connection to the store was lost ({source})"),
                place,
                elapsed: Some(elapsed),
                remedy: "the agent that hosts it has ended, or its host is gone: see its log",
            },
            StoreError::NoAnswer {
                operation,
                key,
                elapsed,
                ..
            } => Self::Unreachable {
                what: format!("the store did not answer ({operation} key {key})"),
                place,
                elapsed: Some(elapsed),
                remedy: "check the network and the load of its host; --rdzv-conf \
                         read_timeout=SECONDS waits longer",
            },
            StoreError::Listen { address, source } => Self::Unreachable {
                what: format!("this node has to host the store, but cannot listen ({source})"),
                place: format!("{address}, for {place}"),
                elapsed: None,
                remedy: "stop what uses the port or choose another one in --rdzv-endpoint, or \
                         give --rdzv-conf is_host=0 if the store is there already",
            },
            StoreError::File {
                operation, source, ..
            } => Self::Unreachable {
                what: format!("cannot {operation} the file of the store ({source})"),
                place,
                elapsed: None,
                remedy: "check that --rdzv-endpoint names a file that this user may read and write, \
                         in a directory that is there",
            },
            StoreError::Corrupt { what, .. } => Self::Unreachable {
                what: format!("something that is no store was found ({what})"),
                place,
                elapsed: None,
                remedy: "check that --rdzv-endpoint names the store of this job",
            },
            other => Self::Store(other),
        }
    }
}
