//! Rendezvous errors.
//!
//! An error about an invalid option has PyTorch's text, if PyTorch has one for the same situation.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use rdzv_core::quantity::count;
use rdzv_store::{StoreError, subject};
use thiserror::Error;

use crate::bind::loopback;

/// Error that a rendezvous returns.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// A URL, option or parameter is invalid; the text names it and the reason.
    #[error("{0}")]
    Argument(String),
    /// The store's address is in use, often by another agent with the same rank.
    #[error(
        "[Errno 98] Address already in use: node {rank} has to host the store at {address} \
         ({})\n\
         help: give each node a different --node-rank, or choose another --master-port or port \
         of --rdzv-endpoint",
        without_help(.source)
    )]
    AddressInUse {
        /// Address on which the store was to listen.
        address: String,
        /// Rank of this node.
        rank: u32,
        /// Error from the system.
        #[source]
        source: Box<StoreError>,
    },
    /// Some nodes did not join in time.
    #[error(
        "Timed out after {} seconds waiting for clients. {joined}/{expected} clients joined. Node 0 \
         waited at {address} for {} more\n\
         help: check that the other nodes run with the same --nnodes and --master-addr/--master-port \
         (or --rdzv-endpoint), and that they can reach this host, or wait longer with --rdzv-conf \
         timeout=SECONDS{}",
        .elapsed.as_secs(),
        .expected - .joined,
        help_for_loopback(.address)
    )]
    NodesMissing {
        /// Address on which node 0 listens.
        address: String,
        /// Number of nodes that have joined, including node 0.
        joined: i64,
        /// Number of nodes that are required.
        expected: i64,
        /// Time that node 0 waited.
        elapsed: Duration,
    },
    /// The connection to node 0 failed.
    #[error(
        "node {rank} of {nodes} cannot join node 0: {}\n\
         help: start the agent with --node-rank 0 on {host}, and give all nodes the same address and \
         port, or wait longer with \
         --rdzv-conf timeout=SECONDS{}",
        without_help(.source),
        help_for_loopback(.host)
    )]
    NoNodeZero {
        /// Rank of this node.
        rank: u32,
        /// Number of nodes.
        nodes: u32,
        /// Host on which node 0 is expected to run.
        host: String,
        /// Connection error.
        #[source]
        source: Box<StoreError>,
    },
    /// A node has closed the run.
    #[error(
        "the rendezvous of run '{run_id}' at {endpoint} is closed: the job has ended\n\
         help: to start a new job, use another --rdzv-id or a new store"
    )]
    Closed {
        /// Id of the closed run.
        run_id: String,
        /// Kind and address of the rendezvous endpoint.
        endpoint: String,
    },
    /// The run ended while this node waited as a spare. This is not a failure.
    #[error("the job of run '{run_id}' has ended without needing this node")]
    NotNeeded {
        /// Id of the run that ended.
        run_id: String,
    },
    /// The run ended without a node that its job requires.
    ///
    /// The run therefore belongs to another job with the same run id.
    #[error(
        "the job of run '{run_id}' has ended without this node, but the job of this node needs it: \
         another job has the same run id\nhelp: give each job a different --rdzv-id"
    )]
    OtherJob {
        /// Id of the run that ended.
        run_id: String,
    },
    /// Too few nodes joined before the timeout.
    #[error(
        "run '{run_id}' had {} of at least {} after {:.1} s of waiting at {endpoint} \
         (joined: {})\n\
         help: check that the other agents run with the same --rdzv-id and --rdzv-endpoint and can \
         reach it, or wait longer with --rdzv-conf join_timeout=SECONDS{}",
        .joined.len(),
        count(.min_nodes, "node"),
        .elapsed.as_secs_f64(),
        if .joined.is_empty() { "none".to_owned() } else { .joined.join(", ") },
        help_for_loopback(.endpoint)
    )]
    JoinTimeout {
        /// Id of the run that this node tried to join.
        run_id: String,
        /// Kind and address of the rendezvous endpoint.
        endpoint: String,
        /// Nodes that had joined.
        joined: Vec<String>,
        /// Minimum number of nodes in a round.
        min_nodes: u32,
        /// Time that this node waited.
        elapsed: Duration,
    },
    /// A round is complete, but rank 0 did not send the endpoint of the store.
    #[error(
        "round {round} of run '{run_id}' at {endpoint} is complete, but the agent with rank \
         0{} did not send the endpoint of the workers within {:.1} s\n\
         help: check the log of that agent, or wait longer with --rdzv-conf read_timeout=SECONDS",
        .leader.as_ref().map_or_else(String::new, |leader| format!(" ({leader})")),
        .elapsed.as_secs_f64()
    )]
    SilentLeader {
        /// Id of the run that the round belongs to.
        run_id: String,
        /// Kind and address of the rendezvous endpoint.
        endpoint: String,
        /// Number of the completed round.
        round: u64,
        /// Node with rank 0, if this node knows it.
        leader: Option<String>,
        /// Time that this node waited.
        elapsed: Duration,
    },
    /// Another node has failed permanently, and no node can replace it.
    #[error("node {node} has failed permanently: {reason}")]
    PeerFailed {
        /// Node that failed.
        node: String,
        /// Evidence of the failure.
        reason: String,
    },
    /// The caller interrupted the join. This node does not participate.
    #[error("the rendezvous was interrupted")]
    Interrupted,
    /// The rendezvous endpoint is unreachable, or speaks another protocol.
    #[error("{what} at {endpoint}{}\nhelp: {remedy}", after(.elapsed))]
    Unreachable {
        /// Description of the problem at the endpoint.
        what: String,
        /// Description of the endpoint, usually its kind and address.
        endpoint: String,
        /// Time that this node spent trying to reach the endpoint.
        elapsed: Option<Duration>,
        /// Advice for the user.
        remedy: &'static str,
    },
    /// The shared state is invalid, because another program wrote to its key.
    #[error("{what} at {endpoint}\nhelp: use another --rdzv-id, or a new store")]
    Corrupt {
        /// Description of the invalid state.
        what: String,
        /// Kind and address of the store.
        endpoint: String,
    },
    /// The rendezvous store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the text of an error without its advice.
pub(crate) fn without_help(error: &impl fmt::Display) -> String {
    let text = error.to_string();
    text.split("\nhelp: ").next().unwrap_or(&text).to_owned()
}

/// Returns a help line if `endpoint` ends with a loopback address.
fn help_for_loopback(endpoint: &str) -> &'static str {
    let address = endpoint.rsplit(' ').next().unwrap_or(endpoint);
    let host = address.parse::<SocketAddr>().map_or_else(
        |_| address.split(':').next().unwrap_or(address).to_owned(),
        |address| address.ip().to_string(),
    );
    if loopback(&host).is_some() {
        "\nhelp: a loopback address means a different machine on each node; if the nodes are on \
         several machines, pass the address of one of them"
    } else {
        ""
    }
}

fn after(elapsed: &Option<Duration>) -> String {
    elapsed.map_or_else(String::new, |elapsed| {
        format!(" after {:.1} s", elapsed.as_secs_f64())
    })
}

impl RendezvousError {
    pub(crate) fn argument(what: impl Into<String>) -> Self {
        Self::Argument(what.into())
    }

    /// Returns the name of the corresponding Python exception.
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

    /// Returns the sentence of the error, without its advice.
    pub fn sentence(&self) -> String {
        without_help(self)
    }

    /// Converts an error from the c10d store at `endpoint` into one with advice.
    pub(crate) fn of_c10d_store(error: StoreError, endpoint: &str) -> Self {
        let endpoint = endpoint.to_owned();
        match error {
            StoreError::Connect {
                peer,
                attempts,
                reason,
                elapsed,
            } => Self::Unreachable {
                what: format!("no store was found ({reason}; attempts: {attempts})"),
                endpoint: format!("the c10d endpoint {peer}"),
                elapsed: Some(elapsed),
                remedy: "start an agent on that host, or a store with `rdzv store`; check that \
                         --rdzv-endpoint names that host and that no firewall blocks the \
                         connection, or wait longer with --rdzv-conf read_timeout=SECONDS",
            },
            StoreError::NotAStore { peer, found } => Self::Unreachable {
                what: format!("no store was found ({found})"),
                endpoint: format!("the c10d endpoint {peer}"),
                elapsed: None,
                remedy: "check the address and port of --rdzv-endpoint, or choose a port that no \
                         other service uses",
            },
            StoreError::Silent {
                peer,
                found,
                elapsed,
            } => Self::Unreachable {
                what: format!("no store answered ({found})"),
                endpoint: format!("the c10d endpoint {peer}"),
                elapsed: Some(elapsed),
                remedy: "check the address and port of --rdzv-endpoint, and whether the host of \
                         the store is overloaded; --rdzv-conf read_timeout=SECONDS waits longer",
            },
            StoreError::ReplyTooLong {
                peer,
                operation,
                key,
                size,
                limit,
            } => Self::Unreachable {
                what: format!(
                    "the reply to {} needs at least {size} bytes of memory, which exceeds the \
                     limit of {limit},",
                    subject(operation, &key)
                ),
                endpoint: format!("the c10d endpoint {peer}"),
                elapsed: None,
                remedy: "check that --rdzv-endpoint names the store of this job and that nothing \
                         else writes to it",
            },
            StoreError::Disconnected {
                elapsed, source, ..
            } => Self::Unreachable {
                what: format!("the connection to the store was lost ({source})"),
                endpoint,
                elapsed: Some(elapsed),
                remedy: "check the log of the agent that hosts the store, its host and the network",
            },
            StoreError::NoAnswer {
                operation,
                key,
                elapsed,
                ..
            } => Self::Unreachable {
                what: format!("the store did not answer ({})", subject(operation, &key)),
                endpoint,
                elapsed: Some(elapsed),
                remedy: "check the network and the load of the store host, or wait longer with \
                         --rdzv-conf read_timeout=SECONDS",
            },
            StoreError::Listen { address, source } => Self::Unreachable {
                what: format!("this node has to host the store, but cannot listen ({source})"),
                endpoint: format!("{address}, for {endpoint}"),
                elapsed: None,
                remedy: "stop the process that uses the port, choose another port in \
                         --rdzv-endpoint, or pass --rdzv-conf is_host=0 if the store is already \
                         running",
            },
            StoreError::File {
                operation, source, ..
            } => Self::Unreachable {
                what: format!("cannot {operation} the store file ({source})"),
                endpoint,
                elapsed: None,
                remedy: "check that --rdzv-endpoint names a file that this user can read and \
                         write, in an existing directory",
            },
            StoreError::Corrupt { what, .. } => Self::Unreachable {
                what: format!("no store was found ({what})"),
                endpoint,
                elapsed: None,
                remedy: "check that --rdzv-endpoint names the store of this job",
            },
            other => Self::Store(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loopback_endpoint_of_several_nodes_is_named_as_the_cause() {
        for (endpoint, is_here) in [
            ("the rdzv store at 127.0.0.1:29400", true),
            ("c10d store [::1]:29400", true),
            ("localhost:29400", true),
            ("the rdzv store at 10.0.0.1:29400", false),
            ("node-a:29400", false),
            ("[fd77::1]:29400", false),
        ] {
            let errors = [
                RendezvousError::JoinTimeout {
                    run_id: "run".to_owned(),
                    endpoint: endpoint.to_owned(),
                    joined: Vec::new(),
                    min_nodes: 2,
                    elapsed: Duration::from_secs(1),
                },
                RendezvousError::NodesMissing {
                    address: endpoint.to_owned(),
                    joined: 1,
                    expected: 2,
                    elapsed: Duration::from_secs(1),
                },
            ];
            for error in errors.map(|error| error.to_string()) {
                let has = error.contains("\nhelp: a loopback address");
                assert_eq!(has, is_here, "{error}");
            }
        }
    }

    #[test]
    fn every_limit_that_ends_a_wait_names_its_setting() {
        let elapsed = Duration::from_secs(1);
        let connect = || StoreError::Connect {
            peer: "h:1".to_owned(),
            attempts: 1,
            reason: "refused".to_owned(),
            elapsed,
        };
        let silent = StoreError::Silent {
            peer: "h:1".to_owned(),
            found: "nothing".to_owned(),
            elapsed,
        };
        let of_store = |error| RendezvousError::of_c10d_store(error, "the store");
        for (error, setting) in [
            (of_store(connect()), "read_timeout"),
            (of_store(silent), "read_timeout"),
            (
                RendezvousError::SilentLeader {
                    run_id: "run".to_owned(),
                    endpoint: "h:1".to_owned(),
                    round: 0,
                    leader: Some("n".to_owned()),
                    elapsed,
                },
                "read_timeout",
            ),
            (
                RendezvousError::JoinTimeout {
                    run_id: "run".to_owned(),
                    endpoint: "h:1".to_owned(),
                    joined: Vec::new(),
                    min_nodes: 2,
                    elapsed,
                },
                "join_timeout",
            ),
            (
                RendezvousError::NodesMissing {
                    address: "h:1".to_owned(),
                    joined: 1,
                    expected: 2,
                    elapsed,
                },
                "timeout",
            ),
            (
                RendezvousError::NoNodeZero {
                    rank: 1,
                    nodes: 2,
                    host: "h".to_owned(),
                    source: Box::new(connect()),
                },
                "timeout",
            ),
        ] {
            let (text, setting) = (error.to_string(), format!("--rdzv-conf {setting}=SECONDS"));
            assert!(text.contains(&setting), "{text}");
        }
    }
}
