//! Exchange with the agents of the other nodes, through the store of the round.
//!
//! | key | value |
//! |---|---|
//! | `rdzv/hang/N` | stacks of node N, if none of its workers makes progress; otherwise empty |
//! | `rdzv/hang/any` | exists once a node has stored stacks |
//! | `rdzv/hang/comparison` | comparison of all nodes, from node 0 |
//! | `rdzv/slow/ask/N` | request of node 0 for samples of node N |
//! | `rdzv/slow/N` | samples of node N |
//!
//! Each agent with `--hang-timeout` stores its empty key at the begin of a round. After that, the
//! exchange about hangs costs nothing until a node hangs. All calls run on separate threads.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_agent_proto::hang::stacks::{Comparison, NodeStacks, WorkerStack, compare};
use rdzv_agent_proto::hang::straggler::RankSample;
use rdzv_core::rank::GroupRank;
use rdzv_store::{Store, StoreError};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tracing::warn;

use crate::host;
use crate::round_store::RoundStore;

const ANY: &str = "rdzv/hang/any";
const COMPARISON: &str = "rdzv/hang/comparison";

/// Time limit of a call that only reads or writes.
const LIMIT: Duration = Duration::from_secs(10);

/// Time limit of one wait for a request; the agent then waits again.
const WAIT: Duration = Duration::from_secs(60);

/// Nodes of a round, and the store that their agents share.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    pub(crate) store: RoundStore,
    pub(crate) node: GroupRank,
    pub(crate) nodes: u32,
}

impl Peers {
    fn keys(&self, kind: &str) -> Vec<String> {
        (0..self.nodes).map(|node| key(kind, node)).collect()
    }

    fn own_key(&self, kind: &str) -> String {
        key(kind, self.node.0)
    }

    /// Runs calls on a thread with a separate connection.
    fn call<T: Send + 'static>(
        &self,
        calls: impl FnOnce(&Self, &dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let peers = self.clone();
        let started = thread::Builder::new()
            .name("hang exchange".to_owned())
            .spawn(move || {
                let called = peers.store.of_thread().and_then(|store| {
                    store.set_timeout(LIMIT);
                    calls(&peers, &*store)
                });
                match called {
                    Ok(answer) => drop(sender.send(answer)),
                    // This is the usual end of a round.
                    Err(error) => tracing::debug!("no exchange about hangs: {error}"),
                }
            });
        if let Err(error) = started {
            warn!("cannot exchange data about hangs with other nodes: no thread: {error}");
        }
        receiver
    }

    /// Notifies the other nodes that this node detects hangs.
    pub(super) fn begin(&self) {
        drop(self.call(|peers, store| store.set(&peers.own_key("hang"), b"")));
    }

    /// Asks if a node has stored stacks in this round.
    pub(super) fn any_hang(&self) -> oneshot::Receiver<bool> {
        self.call(|_, store| store.check(&[ANY]))
    }

    /// Stores the stacks of this node, and waits until all nodes hang.
    pub(super) fn compare(
        &self,
        number: u64,
        workers: Vec<WorkerStack>,
        interval: Duration,
    ) -> Comparing {
        let (over, is_over) = mpsc::channel();
        let (answer, receiver) = oneshot::channel();
        let own = NodeStacks {
            node: host::name_so_far(),
            number,
            workers,
        };
        let called = self.call(move |peers, store| {
            let name = peers.own_key("hang");
            store.multi_set(&[(&name, &json(&own)), (ANY, b"1")])?;
            let mut answer = Some(answer);
            while is_over.recv_timeout(interval) != Err(RecvTimeoutError::Disconnected) {
                if answer.is_none() {
                    continue;
                }
                if let Some(found) = peers.look(store, &own)? {
                    answer.take().map(|answer| answer.send(found));
                }
            }
            store.set(&name, b"")
        });
        drop(called);
        Comparing {
            answer: Some(receiver),
            _over: over,
        }
    }

    /// Returns the comparison once all nodes hang.
    /// `Some(None)` if a node does not detect hangs.
    fn look(
        &self,
        store: &dyn Store,
        own: &NodeStacks,
    ) -> Result<Option<Option<Comparison>>, StoreError> {
        let keys = self.keys("hang");
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        if !store.check(&keys)? {
            return Ok(Some(None));
        }
        if self.node != GroupRank(0) {
            if !store.check(&[COMPARISON])? {
                return Ok(None);
            }
            let found: Option<Comparison> = parse(&store.get(COMPARISON)?);
            let is_current =
                |it: &Comparison| it.numbers.get(self.node.0 as usize) == Some(&own.number);
            return Ok(found.filter(is_current).map(Some));
        }
        let values = store.multi_get(&keys)?;
        let nodes: Option<Vec<NodeStacks>> = values.iter().map(|value| parse(value)).collect();
        let Some(nodes) = nodes else {
            return Ok(None);
        };
        let found = compare(nodes);
        store.set(COMPARISON, &json(&found))?;
        Ok(Some(Some(found)))
    }

    /// Starts the exchange of samples about the speed of ranks.
    pub(super) fn link(&self, period: Duration) -> Link {
        let (sender, events) = unbounded_channel();
        let (commands, received) = mpsc::channel();
        drop(self.call(move |peers, store| {
            if peers.node == GroupRank(0) {
                peers.ask(store, period, &sender, &received)
            } else {
                peers.answer(store, &sender, &received)
            }
        }));
        Link { events, commands }
    }

    /// Requests samples of the other nodes at each command.
    fn ask(
        &self,
        store: &dyn Store,
        period: Duration,
        sender: &UnboundedSender<LinkEvent>,
        received: &mpsc::Receiver<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let (asks, keys) = (self.keys("slow/ask"), self.keys("slow"));
        while let Ok(number) = received.recv() {
            let pairs = asks.iter().skip(1).map(|key| (&**key, &*number));
            store.multi_set(&pairs.collect::<Vec<_>>())?;
            thread::sleep(period / 2);
            let mut samples = Vec::new();
            for key in &keys[1..] {
                if store.check(&[key])?
                    && let Some((of, found)) = parse::<(String, Vec<RankSample>)>(&store.get(key)?)
                    && of.as_bytes() == &*number
                {
                    samples.extend(found);
                }
            }
            if sender.send(LinkEvent::Samples(samples)).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Answers the requests of node 0.
    fn answer(
        &self,
        store: &dyn Store,
        sender: &UnboundedSender<LinkEvent>,
        received: &mpsc::Receiver<Vec<u8>>,
    ) -> Result<(), StoreError> {
        let (ask, own) = (self.own_key("slow/ask"), self.own_key("slow"));
        loop {
            match store.wait(&[&ask], Some(WAIT)) {
                Err(StoreError::WaitTimeout { .. }) if sender.is_closed() => return Ok(()),
                Err(StoreError::WaitTimeout { .. }) => continue,
                waited => waited?,
            }
            let at = Instant::now();
            let number = String::from_utf8_lossy(&store.get(&ask)?).into_owned();
            store.delete_key(&ask)?;
            if sender.send(LinkEvent::Asked { number, at }).is_err() {
                return Ok(());
            }
            let Ok(samples) = received.recv() else {
                return Ok(());
            };
            store.set(&own, &samples)?;
        }
    }
}

/// Hang of this node that the other nodes know; the drop withdraws it.
pub(super) struct Comparing {
    /// Receives the comparison once, or `None` if there will be none.
    pub(super) answer: Option<oneshot::Receiver<Option<Comparison>>>,
    _over: Sender<()>,
}

/// Exchange of samples with the other nodes.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) events: UnboundedReceiver<LinkEvent>,
    /// Numbers of requests on node 0, and samples on the other nodes.
    commands: Sender<Vec<u8>>,
}

impl Link {
    /// Requests samples of the other nodes.
    pub(super) fn ask(&self, number: u64) {
        // The thread has ended if the round is over.
        let _ = self.commands.send(number.to_string().into_bytes());
    }

    pub(super) fn answer(&self, number: &str, samples: &[RankSample]) {
        let _ = self.commands.send(json(&(number, samples)));
    }
}

#[derive(Debug)]
pub(crate) enum LinkEvent {
    /// Node 0 requests samples of this instant.
    Asked { number: String, at: Instant },
    /// Samples of the other nodes.
    Samples(Vec<RankSample>),
}

fn key(kind: &str, node: u32) -> String {
    format!("rdzv/{kind}/{node}")
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and texts are always JSON")
}

fn parse<T: DeserializeOwned>(value: &[u8]) -> Option<T> {
    serde_json::from_slice(value).ok()
}
