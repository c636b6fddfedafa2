//! Exchange between the nodes of a check, through one store.
//!
//! Each node publishes its facts and tries to reach all nodes that have joined. The host compares,
//! and publishes the number of findings, which the other nodes read.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant, SystemTime};

use rdzv_core::endpoint::Endpoint;
use rdzv_core::reminder;
use rdzv_store::{Store as _, StoreError, TcpStore, TcpStoreOptions, wait_reminding};
use tracing::warn;

use super::compare::Seen;
use super::facts::Facts;

/// Timeout of a connection from one node to another.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// Time for the nodes' observations once this node has read the facts.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// Time that the other nodes have to read the last key.
const READ_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Exchange<'a> {
    store: TcpStore,
    deadline: Instant,
    node: &'a ExchangeNode,
    /// Keeps the port open to which the other nodes connect.
    _listener: Option<TcpListener>,
}

/// Endpoint of the store, and the rank of this node.
pub(super) struct ExchangeNode {
    pub(super) endpoint: Endpoint,
    /// `true` on the node that hosts the store, compares the facts and reports.
    pub(super) is_host: bool,
    pub(super) rank: usize,
    pub(super) nodes: usize,
}

impl<'a> Exchange<'a> {
    /// Connects to the store, and publishes the facts of this node.
    pub(super) fn begin(
        node: &'a ExchangeNode,
        facts: &mut Facts,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
        let listener = listener.ok();
        let address = listener.as_ref().and_then(|it| it.local_addr().ok());
        facts.port = address.map_or(0, |address| address.port());
        let store = TcpStore::connect(TcpStoreOptions {
            is_master: node.is_host,
            timeout,
            ..TcpStoreOptions::new(node.endpoint.host.clone(), node.endpoint.port)
        })?;
        let exchange = Self {
            store,
            deadline: Instant::now() + timeout,
            node,
            _listener: listener,
        };
        exchange.publish("facts", facts)?;
        Ok(exchange)
    }

    fn publish(&self, what: &str, value: &impl serde::Serialize) -> Result<(), StoreError> {
        let text = serde_json::to_vec(value).unwrap_or_default();
        self.store.set(&self.own_key(what), &text)
    }

    fn own_key(&self, what: &str) -> String {
        format!("{what}/{}", self.node.rank)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Reads the values that the expected nodes publish in the remaining time.
    ///
    /// `what` is the first part of the key. The value is `None` for every node without a value.
    fn read_all<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        is_expected: impl Fn(usize) -> bool,
    ) -> Vec<Option<T>> {
        let one = |rank: usize| {
            let key = format!("{what}/{rank}");
            let text = self.store.get_within(&key, Some(self.left()));
            serde_json::from_slice(&text.ok()?).ok()
        };
        let ranks = 0..self.node.nodes;
        ranks
            .map(|rank| if is_expected(rank) { one(rank) } else { None })
            .collect()
    }

    /// Returns the facts of all nodes; `None` for a node that did not join.
    pub(super) fn facts(&mut self, names: &[String]) -> Vec<Option<Facts>> {
        self.await_all(names);
        let all = self.read_all("facts", |_| true);
        // A node that did not join has used up the time, so the other nodes get more.
        self.deadline = Instant::now() + ANSWERED_WITHIN;
        all
    }

    /// Waits until all nodes have published their facts, or the time is over.
    ///
    /// The host reports regularly which node is missing.
    fn await_all(&self, names: &[String]) {
        let nodes = self.node.nodes;
        let keys: Vec<String> = (0..nodes).map(|rank| format!("facts/{rank}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        // The report names the nodes that did not join, so the error is not needed.
        let _ = wait_reminding(&self.store, &keys, Some(self.left()), &mut |_, left| {
            if !self.node.is_host {
                return;
            }
            let has_come = |key: &str| self.store.check(&[key]).unwrap_or(false);
            let absent = names.iter().zip(&keys).filter(|(_, key)| !has_come(key));
            let absent: Vec<&str> = absent.map(|(name, _)| name.as_str()).collect();
            let Some(first) = absent.first() else {
                return;
            };
            warn!(
                target: reminder::TARGET,
                left = left.as_secs(),
                "waiting for nodes: {} of {nodes} have joined, {first} has not; {} s left",
                nodes - absent.len(),
                left.as_secs()
            );
        });
    }

    /// Tries to reach the nodes that have joined, and reads the clock.
    ///
    /// Reads the clock once all these nodes are ready, or the time is over.
    pub(super) fn look(&self, all: &[Option<Facts>]) -> Result<(), StoreError> {
        let mut unreachable = BTreeMap::new();
        for facts in all.iter().flatten().filter(|facts| facts.port != 0) {
            if let Err(reason) = reach(&facts.node, facts.port) {
                unreachable.insert(facts.node.clone(), reason);
            }
        }
        let present = all.iter().flatten().count();
        let ready = self.store.add("ready", 1)?;
        if usize::try_from(ready).is_ok_and(|ready| ready >= present) {
            self.store.set("go", b"1")?;
        }
        // A node that has become silent may never be ready.
        let _ = self.store.wait(&["go"], Some(self.left()));
        let clock = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let clock = clock.as_secs_f64();
        self.publish("seen", &Seen { unreachable, clock })
    }

    /// Returns the observations of each node about the others.
    pub(super) fn seen(&self, all: &[Option<Facts>]) -> Vec<Option<Seen>> {
        self.read_all("seen", |rank| all[rank].is_some())
    }

    /// Publishes the number of findings of each node.
    ///
    /// Waits for up to 5 s until the nodes that joined have read it.
    pub(super) fn conclude(
        &self,
        findings: &BTreeMap<String, usize>,
        all: &[Option<Facts>],
    ) -> Result<(), StoreError> {
        let text = serde_json::to_vec(findings).unwrap_or_default();
        self.store.set("findings", &text)?;
        let others = (0..self.node.nodes).filter(|rank| *rank != self.node.rank);
        let others = others.filter(|rank| all[*rank].is_some());
        let keys: Vec<String> = others.map(|rank| format!("read/{rank}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        if !keys.is_empty() {
            let _ = self.store.wait(&keys, Some(READ_WITHIN));
        }
        Ok(())
    }

    /// Reads the number of findings of each node, which the host publishes.
    pub(super) fn findings(&self) -> Result<BTreeMap<String, usize>, StoreError> {
        let left = self.left() + READ_WITHIN;
        let text = self.store.get_within("findings", Some(left))?;
        self.store.set(&self.own_key("read"), b"1")?;
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }
}

fn reach(node: &str, port: u16) -> Result<(), String> {
    let addresses = (node, port)
        .to_socket_addrs()
        .map_err(|error| error.to_string())?;
    let mut last = "its name has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, REACHED_WITHIN) {
            Ok(_) => return Ok(()),
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(last)
}
