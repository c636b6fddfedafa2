//! The nodes of a check at one store: each tells its facts, tries to reach every other, and hears what was found.

use std::collections::BTreeMap;
use std::net::{TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant, SystemTime};

use rdzv_core::endpoint::Endpoint;
use rdzv_core::reminder;
use rdzv_store::{Store as _, StoreError, TcpStore, TcpStoreOptions, wait_reminding};
use tracing::warn;

use super::compare::Seen;
use super::facts::Facts;

/// The time in which a node has to answer another.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// The time from the facts of all nodes to the last answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// The time in which the others read the last key.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// This node among the others.
pub(super) struct Exchange {
    store: TcpStore,
    until: Instant,
    rank: usize,
    nodes: usize,
    /// One of them says what is awaited.
    is_host: bool,
    /// Keeps the port that others try.
    _listener: Option<TcpListener>,
}

/// The place where the nodes meet, and this node among them.
pub(super) struct Place {
    pub(super) endpoint: Endpoint,
    pub(super) is_host: bool,
    pub(super) rank: usize,
    pub(super) nodes: usize,
}

impl Exchange {
    /// Meets the others and tells them the facts.
    pub(super) fn begin(
        place: &Place,
        facts: &mut Facts,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
        let listener = listener.ok();
        facts.port = listener
            .as_ref()
            .and_then(|listener| listener.local_addr().ok())
            .map_or(0, |address| address.port());
        let store = TcpStore::connect(TcpStoreOptions {
            is_master: place.is_host,
            timeout,
            ..TcpStoreOptions::new(place.endpoint.host.clone(), place.endpoint.port)
        })?;
        let exchange = Self {
            store,
            until: Instant::now() + timeout,
            rank: place.rank,
            nodes: place.nodes,
            is_host: place.is_host,
            _listener: listener,
        };
        exchange.publish("facts", facts)?;
        Ok(exchange)
    }

    fn publish(&self, what: &str, value: &impl serde::Serialize) -> Result<(), StoreError> {
        let text = serde_json::to_vec(value).unwrap_or_default();
        self.store.set(&format!("{what}/{}", self.rank), &text)
    }

    /// The values that nodes tell under this word in the time that is left; only those that are expected to.
    fn read_all<T: serde::de::DeserializeOwned>(
        &self,
        what: &str,
        is_expected: impl Fn(usize) -> bool,
    ) -> Vec<Option<T>> {
        let one = |rank: usize| {
            let left = self.until.saturating_duration_since(Instant::now());
            let text = self.store.get_within(&format!("{what}/{rank}"), Some(left));
            serde_json::from_slice(&text.ok()?).ok()
        };
        let ranks = 0..self.nodes;
        ranks
            .map(|rank| if is_expected(rank) { one(rank) } else { None })
            .collect()
    }

    /// The facts of all nodes, whose names these are; none of one that did not come.
    pub(super) fn facts(&mut self, names: &[String]) -> Vec<Option<Facts>> {
        self.await_all(names);
        let all = self.read_all("facts", |_| true);
        // One that did not come has used up the time of the others.
        self.until = Instant::now() + ANSWERED_WITHIN;
        all
    }

    /// Waits until all nodes have told their facts, or the time is over. Says now and then which have not.
    fn await_all(&self, names: &[String]) {
        let keys: Vec<String> = (0..self.nodes)
            .map(|rank| format!("facts/{rank}"))
            .collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let left = self.until.saturating_duration_since(Instant::now());
        // The findings name the nodes that did not come.
        let _ = wait_reminding(&self.store, &keys, Some(left), &mut |_, left| {
            if !self.is_host {
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
                "waiting for nodes: {} of {} have come, {first} has not; {} s left",
                self.nodes - absent.len(),
                self.nodes,
                left.as_secs()
            );
        });
    }

    /// Tries to reach the others, and takes the time when all have done so.
    pub(super) fn look(&self, all: &[Option<Facts>]) -> Result<(), StoreError> {
        let others = all.iter().flatten().enumerate();
        let others = others.filter(|(_, facts)| facts.port != 0);
        let mut unreachable = BTreeMap::new();
        for (_, facts) in others {
            if let Err(reason) = reach(&facts.node, facts.port) {
                unreachable.insert(facts.node.clone(), reason);
            }
        }
        let present = all.iter().flatten().count();
        let ready = self.store.add("ready", 1)?;
        if usize::try_from(ready).is_ok_and(|ready| ready >= present) {
            self.store.set("go", b"1")?;
        }
        let left = self.until.saturating_duration_since(Instant::now());
        // The last one to be ready may be one that has fallen silent.
        let _ = self.store.wait(&["go"], Some(left));
        let clock = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        self.publish(
            "seen",
            &Seen {
                unreachable,
                clock: clock.as_secs_f64(),
            },
        )
    }

    /// The others, as each node has seen them.
    pub(super) fn seen(&self, all: &[Option<Facts>]) -> Vec<Option<Seen>> {
        self.read_all("seen", |rank| all[rank].is_some())
    }

    /// Tells all nodes how many findings each has, and waits until those that came have read it.
    pub(super) fn conclude(
        &self,
        findings: &BTreeMap<String, usize>,
        all: &[Option<Facts>],
    ) -> Result<(), StoreError> {
        let text = serde_json::to_vec(findings).unwrap_or_default();
        self.store.set("findings", &text)?;
        let keys: Vec<String> = (0..self.nodes)
            .filter(|rank| *rank != self.rank && all[*rank].is_some())
            .map(|rank| format!("read/{rank}"))
            .collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        if !keys.is_empty() {
            let _ = self.store.wait(&keys, Some(READ_WITHIN));
        }
        Ok(())
    }

    /// The number of findings of each node, from the one that compares.
    pub(super) fn findings(&self) -> Result<BTreeMap<String, usize>, StoreError> {
        let left = self.until.saturating_duration_since(Instant::now()) + READ_WITHIN;
        let text = self.store.get_within("findings", Some(left))?;
        self.store.set(&format!("read/{}", self.rank), b"1")?;
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
