//! Exchange with the agents of the other nodes, through the store of the round.
//!
//! | key | value |
//! |---|---|
//! | `rdzv/hang/watching` | number of nodes that detect hangs |
//! | `rdzv/hang/N` | stacks of node N; exists while none of its workers makes progress or is left |
//! | `rdzv/hang/hanging` | number of nodes whose stacks are stored now |
//! | `rdzv/hang/comparison/K` | comparison of all nodes in hang K of node 0; empty after that hang |
//! | `rdzv/slow/ask/N` | request of node 0 for samples of node N |
//! | `rdzv/slow/N` | samples of node N |
//!
//! In a round of several nodes, each agent with `--hang-timeout` increases one number at the start.
//! After that, until a node hangs or has no worker left, the exchange about hangs only reads a
//! number while workers may spin. When it hangs, node 0 waits for the stacks of all nodes, and each
//! other node waits for the comparison. A node that hangs again during a hang of node 0 compares
//! the stacks itself. All calls run on separate threads.

use std::sync::atomic::{AtomicBool, Ordering};
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
use crate::round_store::{RoundStore, break_off};

const WATCHING: &str = "rdzv/hang/watching";
const HANGING: &str = "rdzv/hang/hanging";

/// Time limit of a call that only reads or writes.
const LIMIT: Duration = Duration::from_secs(10);

/// Time limit of one wait for keys; the agent then waits again.
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
        drop(self.call(|_, store| store.add(WATCHING, 1)));
    }

    /// Asks if the workers of any node make no progress now.
    pub(super) fn any_hang(&self) -> oneshot::Receiver<bool> {
        self.call(|_, store| Ok(store.add(HANGING, 0)? > 0))
    }

    /// Stores the stacks of this node, and waits on a thread until all nodes hang.
    ///
    /// `number` counts the reports of this node in the round, from 1. `before` is a hang of this
    /// node that this one replaces.
    pub(super) fn compare(
        &self,
        number: u64,
        workers: Vec<WorkerStack>,
        before: Option<Comparing>,
    ) -> Comparing {
        self.compare_after(Duration::ZERO, number, workers, before)
    }

    /// Does the same after a wait, unless the hang is withdrawn in the meantime.
    pub(super) fn compare_after(
        &self,
        wait: Duration,
        number: u64,
        workers: Vec<WorkerStack>,
        before: Option<Comparing>,
    ) -> Comparing {
        let (over, is_over) = mpsc::channel::<()>();
        let (withdrawing, withdrawn) = mpsc::channel::<()>();
        let (answer, receiver) = oneshot::channel();
        let own = NodeStacks {
            node: host::name_so_far(),
            number,
            workers,
        };
        let called = self.call(move |peers, store| {
            if let Some(Comparing {
                over, withdrawn, ..
            }) = before
            {
                drop(over);
                let _ = withdrawn.recv();
            }
            if is_over.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                return Ok(());
            }
            // This connection opens first, because a failure after the stacks are stored would
            // leave them in the store.
            let waiting = peers.store.of_thread()?;
            waiting.set_timeout(LIMIT);
            let name = peers.own_key("hang");
            store.set(&name, &json(&own))?;
            store.add(HANGING, 1)?;
            let ended = AtomicBool::new(false);
            thread::scope(|scope| {
                let look = || match peers.look(&*waiting, number, &ended) {
                    Ok(found) => drop(answer.send(found)),
                    Err(error) => tracing::debug!("no comparison of hangs: {error}"),
                };
                let started = thread::Builder::new()
                    .name("hang comparison".to_owned())
                    .spawn_scoped(scope, look);
                if let Err(error) = started {
                    warn!("cannot compare hangs with other nodes: no thread: {error}");
                }
                // The drop of the sender ends this.
                let _ = is_over.recv();
                ended.store(true, Ordering::Relaxed);
                break_off(&*waiting);
                store.delete_key(&name)?;
                store.add(HANGING, -1)?;
                if peers.node == GroupRank(0) {
                    store.set(&comparison_key(number), b"")?;
                }
                drop(withdrawing);
                Ok(())
            })
        });
        drop(called);
        Comparing {
            answer: Some(receiver),
            over: Some(over),
            withdrawn,
        }
    }

    /// Waits until all nodes hang, and returns the comparison.
    /// `None` if a node does not detect hangs.
    fn look(
        &self,
        store: &dyn Store,
        number: u64,
        ended: &AtomicBool,
    ) -> Result<Option<Comparison>, StoreError> {
        if store.add(WATCHING, 0)? < self.nodes.into() {
            return Ok(None);
        }
        // Each hang of node 0 ends with an empty value, and may have a comparison before.
        let mut hang = 1;
        while self.node != GroupRank(0) {
            let key = comparison_key(hang);
            await_keys(store, &[&key], ended)?;
            match parse::<Comparison>(&store.get(&key)?) {
                None => hang += 1,
                Some(found) if found.numbers.get(self.node.0 as usize) == Some(&number) => {
                    return Ok(Some(found));
                }
                // Node 0 still hangs, and does not compare again. This node compares.
                Some(_) => break,
            }
        }
        let keys = self.keys("hang");
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let values = loop {
            await_keys(store, &keys, ended)?;
            // A node may have withdrawn its stacks during the wait, or may do so now.
            match store.check(&keys)?.then(|| store.multi_get(&keys)) {
                None | Some(Err(StoreError::WaitTimeout { .. })) => {}
                Some(values) => break values?,
            }
        };
        let nodes: Option<Vec<NodeStacks>> = values.iter().map(|value| parse(value)).collect();
        let mut found = nodes.map(compare);
        if let Some(found) = &mut found {
            if self.node == GroupRank(0) {
                store.set(&comparison_key(number), &json(found))?;
            } else {
                found.elsewhere.clear();
            }
        }
        Ok(found)
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
    over: Option<Sender<()>>,
    /// Reaches its end once the stacks are withdrawn.
    withdrawn: mpsc::Receiver<()>,
}

impl Comparing {
    /// Begins to withdraw the hang, because the workers make progress.
    pub(super) fn withdraw(&mut self) {
        (self.answer, self.over) = (None, None);
    }
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

/// Waits until all keys exist.
/// `ended` ends the wait in a store whose calls cannot be aborted.
fn await_keys(store: &dyn Store, keys: &[&str], ended: &AtomicBool) -> Result<(), StoreError> {
    loop {
        match store.wait(keys, Some(WAIT)) {
            Err(StoreError::WaitTimeout { .. }) if !ended.load(Ordering::Relaxed) => {}
            waited => return waited,
        }
    }
}

fn comparison_key(hang: u64) -> String {
    format!("rdzv/hang/comparison/{hang}")
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

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use rdzv_store::{HashStore, TcpStore, TcpStoreOptions};

    use super::*;

    /// Store in memory, whose calls cannot be aborted.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct MemoryStore {
        inner: HashStore,
        /// Number of the call that opens no handle, from 1; 0 for none.
        refused: Arc<AtomicUsize>,
        /// Lock that each removal of a key needs.
        pub(crate) removal: Arc<Mutex<()>>,
    }

    impl MemoryStore {
        pub(crate) fn peers(&self, node: u32, nodes: u32) -> Peers {
            let (store, node) = (RoundStore::new(Arc::new(self.clone())), GroupRank(node));
            Peers { store, node, nodes }
        }
    }

    impl Store for MemoryStore {
        fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
            self.inner.set(key, value)
        }
        fn get(&self, key: &str) -> Result<Bytes, StoreError> {
            self.inner.get(key)
        }
        fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
            self.inner.add(key, delta)
        }
        fn compare_set(&self, key: &str, old: &[u8], new: &[u8]) -> Result<Bytes, StoreError> {
            self.inner.compare_set(key, old, new)
        }
        fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
            self.inner.check(keys)
        }
        /// Waits for 10 ms instead of the time limit.
        fn wait(&self, keys: &[&str], _: Option<Duration>) -> Result<(), StoreError> {
            self.inner.wait(keys, Some(Duration::from_millis(10)))
        }
        fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
            let _removal = self.removal.lock().unwrap();
            self.inner.delete_key(key)
        }
        fn num_keys(&self) -> Result<u64, StoreError> {
            self.inner.num_keys()
        }
        fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
            self.inner.append(key, value)
        }
        fn timeout(&self) -> Duration {
            self.inner.timeout()
        }
        fn set_timeout(&self, timeout: Duration) {
            self.inner.set_timeout(timeout);
        }
        fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
            match self.refused.fetch_sub(1, Ordering::Relaxed) {
                1 => Err(StoreError::Argument("no more handles".to_owned())),
                _ => Ok(Box::new(self.clone())),
            }
        }
    }

    fn await_answer(comparing: &mut Comparing) -> Option<Comparison> {
        let answer = comparing.answer.take().unwrap();
        answer.blocking_recv().unwrap()
    }

    pub(crate) fn await_that(what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            thread::yield_now();
        }
    }

    fn await_number(store: &dyn Store, key: &str, expected: i64) {
        await_that(key, || store.add(key, 0).unwrap() == expected);
    }

    fn three_nodes() -> (TcpStore, Vec<Peers>) {
        let store = TcpStore::connect(TcpStoreOptions {
            is_master: true,
            ..TcpStoreOptions::new("127.0.0.1", 0)
        });
        let store = store.unwrap();
        let round = RoundStore::new(Arc::from(store.try_clone().unwrap()));
        let nodes = (0..3).map(|node| Peers {
            store: round.clone(),
            node: GroupRank(node),
            nodes: 3,
        });
        (store, nodes.collect())
    }

    #[test]
    fn all_nodes_get_the_comparison_of_hangs_that_none_has_withdrawn() {
        let (store, nodes) = three_nodes();
        nodes.iter().for_each(Peers::begin);
        await_number(&store, WATCHING, 3);
        // Nodes 0 and 1 hang, and make progress again, before node 2 hangs.
        let early: Vec<_> = nodes[..2]
            .iter()
            .map(|node| node.compare(1, vec![], None))
            .collect();
        await_number(&store, HANGING, 2);
        assert!(nodes[2].any_hang().blocking_recv().unwrap());
        drop(early);
        store.wait(&[&comparison_key(1)], None).unwrap();
        await_number(&store, HANGING, 0);
        assert!(!nodes[2].any_hang().blocking_recv().unwrap());
        assert!(!store.check(&["rdzv/hang/0"]).unwrap());
        assert!(!store.check(&["rdzv/hang/1"]).unwrap());
        let numbers = [2, 2, 1];
        let mut late: Vec<_> = (nodes.iter().zip(numbers))
            .map(|(node, number)| node.compare(number, vec![], None))
            .collect();
        for comparing in &mut late {
            assert_eq!(await_answer(comparing).unwrap().numbers, numbers);
        }
        // The workers of node 2 exit: the withdrawal of its hang spares the new stacks.
        let exited = nodes[2].compare(2, vec![], late.pop());
        drop(late);
        await_that("new stacks of node 2", || {
            let stacks: NodeStacks = parse(&store.get("rdzv/hang/2").unwrap()).unwrap();
            stacks.number == 2
        });
        await_number(&store, HANGING, 1);
        drop(exited);
        await_number(&store, HANGING, 0);
        nodes[0].store.end();
    }

    #[test]
    fn a_node_reports_alone_if_another_node_does_not_detect_hangs() {
        let (store, nodes) = three_nodes();
        nodes[1..].iter().for_each(Peers::begin);
        await_number(&store, WATCHING, 2);
        assert_eq!(await_answer(&mut nodes[1].compare(1, vec![], None)), None);
        nodes[0].store.end();
    }
    #[test]
    fn a_node_that_hangs_again_while_node_0_still_hangs_gets_a_comparison() {
        let (store, nodes) = three_nodes();
        nodes.iter().for_each(Peers::begin);
        await_number(&store, WATCHING, 3);
        let first = nodes.iter().map(|node| node.compare(1, vec![], None));
        let mut first: Vec<_> = first.collect();
        for comparing in &mut first {
            assert_eq!(await_answer(comparing).unwrap().numbers, [1, 1, 1]);
        }
        let before = Some(first.remove(1));
        let mut again = nodes[1].compare(2, vec![], before);
        assert_eq!(await_answer(&mut again).unwrap().numbers, [1, 2, 1]);
        // The comparison of node 0 remains.
        let of_node_0: Comparison = parse(&store.get(&comparison_key(1)).unwrap()).unwrap();
        assert_eq!(of_node_0.numbers, [1, 1, 1]);
        assert!(!store.check(&[&comparison_key(2)]).unwrap());
        nodes[0].store.end();
    }

    #[test]
    fn no_stacks_remain_if_a_node_cannot_wait_for_the_comparison() {
        let store = MemoryStore::default();
        let node = store.peers(0, 2);
        store.refused.store(2, Ordering::Relaxed);
        let comparing = node.compare(1, vec![], None);
        comparing.answer.unwrap().blocking_recv().unwrap_err();
        comparing.withdrawn.recv().unwrap_err();
        assert_eq!(store.num_keys().unwrap(), 0);
    }

    #[test]
    fn a_withdrawn_hang_leaves_no_thread_if_calls_of_the_store_cannot_be_aborted() {
        let store = MemoryStore::default();
        let node = store.peers(0, 2);
        let handles = || Arc::strong_count(&store.refused);
        let before = handles();
        // Both nodes detect hangs, but only one hangs.
        store.add(WATCHING, 2).unwrap();
        let comparing = node.compare(1, vec![], None);
        await_number(&store, HANGING, 1);
        assert!(handles() > before);
        drop(comparing);
        await_that("the end of the threads", || handles() == before);
    }
}
