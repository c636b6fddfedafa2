//! Tests of calls that are cancelled around the time when their parts are read.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use tokio::sync::oneshot;

use super::*;
use crate::tensor::DataType;
use crate::{
    Arena, CallContext, Method, PeerTraffic, RpcError, RpcErrorKind, RpcFuture, Tensor, Timeout,
};

/// Checks the tensor, waits until the call is cancelled, and checks it again.
const HOLD: Method<(u8, Tensor), ()> = Method::new("hold");
/// Same as `HOLD`, but its first step takes until the gate is opened.
const SLOW: Method<(u8, Tensor), ()> = Method::new("slow");
/// Checks the tensor, then waits until the gate is opened, even if cancelled.
const STAY: Method<(u8, Tensor), ()> = Method::new("stay");
/// Blocks the thread that reads the connection until the gate is opened.
const BLOCK: Method<(), ()> = Method::new("block");
const NOTHING: Method<(), ()> = Method::new("nothing");

/// Size in bytes of a tensor that is lent, and that the driver does not read.
const LARGE: usize = 1 << 20;

/// Number of tensors that fit into the arena.
const ROOM: u8 = 4;

/// Observations of the callee's functions.
#[derive(Default)]
struct Seen {
    /// First bytes of the tensors whose functions have begun.
    begun: BTreeSet<u8>,
    /// Number of functions that have begun and not ended.
    here: usize,
    /// Descriptions of tensors with unexpected content.
    wrong: Vec<String>,
    is_blocked: bool,
    is_open: bool,
    /// Functions that wait for the gate without a thread.
    waiting: Vec<oneshot::Sender<()>>,
}

impl Seen {
    fn begins(&mut self, byte: u8) {
        self.begun.insert(byte);
        self.here += 1;
    }
}

#[derive(Clone, Default)]
struct Watch(Arc<(Mutex<Seen>, Condvar)>);

impl Watch {
    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn deadline(&self, what: &str, so: impl Fn(&Seen) -> bool) {
        let seen = self.0.0.lock().unwrap();
        let waiting = self.0.1.wait_timeout_while(seen, LONGEST, |seen| !so(seen));
        let (_seen, ended) = waiting.unwrap();
        assert!(!ended.timed_out(), "not within {LONGEST:?}: {what}");
    }

    /// Checks that a tensor holds nothing but this byte.
    fn look(&self, when: &str, byte: u8, tensor: &Tensor) {
        let bytes = tensor.as_slice::<u8>().unwrap();
        // Each byte must equal the previous one. This is faster than a check of every byte.
        if bytes[0] == byte && bytes[1..] == bytes[..bytes.len() - 1] {
            return;
        }
        if let Some(at) = bytes.iter().position(|other| *other != byte) {
            let text = format!("{when}: {} instead of {byte} at {at}", bytes[at]);
            self.note(|seen| seen.wrong.push(text));
        }
    }

    fn open(&self) {
        self.note(|seen| {
            seen.is_open = true;
            seen.waiting.clear();
        });
    }

    fn has(&self, what: impl Fn(&Seen) -> bool) -> bool {
        what(&self.0.0.lock().unwrap())
    }

    fn methods(&self) -> Methods {
        let hold = |watch: Watch, is_slow: bool| {
            move |context: CallContext, (byte, tensor): (u8, Tensor)| {
                let watch = watch.clone();
                async move {
                    watch.look("at first", byte, &tensor);
                    watch.note(|seen| seen.begins(byte));
                    if is_slow {
                        watch.deadline("the gate is opened", |seen| seen.is_open);
                    }
                    context.cancellation().cancelled().await;
                    watch.look("at last", byte, &tensor);
                    watch.note(|seen| seen.here -= 1);
                    Ok::<_, RpcError>(())
                }
            }
        };
        let (watch, staying) = (self.clone(), self.clone());
        Methods::new()
            .with(HOLD, hold(self.clone(), false))
            .with(SLOW, hold(self.clone(), true))
            .with(STAY, move |(byte, tensor): (u8, Tensor)| {
                let (opens, opened) = oneshot::channel();
                staying.look("at first", byte, &tensor);
                staying.note(|seen| {
                    seen.begins(byte);
                    if !seen.is_open {
                        seen.waiting.push(opens);
                    }
                });
                let watch = staying.clone();
                async move {
                    // The sender is dropped when the gate is opened.
                    let _ = opened.await;
                    watch.note(|seen| seen.here -= 1);
                    Ok::<_, RpcError>(())
                }
            })
            .with(BLOCK, move |()| {
                let watch = watch.clone();
                async move {
                    watch.note(|seen| seen.is_blocked = true);
                    watch.deadline("the gate is opened", |seen| seen.is_open);
                    Ok::<_, RpcError>(())
                }
            })
            .with(NOTHING, async |()| Ok::<_, RpcError>(()))
    }
}

/// Two workers; the first one lends tensors in its arena to the second one.
struct World {
    agents: Vec<RpcAgent>,
    arena: Arena,
    watch: Watch,
    last: u8,
}

impl World {
    fn new(transports: TransportOptions) -> Self {
        let watch = Watch::default();
        let made = Made::over(transports);
        let agents = super::made(2, &made, || watch.methods());
        for agent in &agents {
            // No call may end because of its timeout.
            agent.set_timeout(Timeout::Never).unwrap();
        }
        let begun = Instant::now();
        let reads_memory = || agents[0].traffic().peers.iter().all(|to| to.reads_memory);
        agents[0].call(1, NOTHING, &()).wait().unwrap();
        while !reads_memory() {
            assert!(begun.elapsed() < LONGEST, "{:?}", agents[0].traffic());
            agents[0].call(1, NOTHING, &()).wait().unwrap();
        }
        Self {
            agents,
            arena: Arena::new(usize::from(ROOM) * LARGE).unwrap(),
            watch,
            last: 0,
        }
    }

    /// Creates a tensor with a byte not used recently.
    /// Earlier tensors may have used its memory.
    fn tensor(&mut self) -> (u8, Tensor) {
        let begun = Instant::now();
        let mut block = loop {
            if let Some(block) = self.arena.allocate(LARGE) {
                break block;
            }
            assert!(begun.elapsed() < LONGEST, "nothing was given back");
            std::thread::yield_now();
        };
        self.last = self.last % 250 + 1;
        block.as_mut().fill(self.last);
        let tensor = Tensor::from_bytes(DataType::U8, [LARGE], block).unwrap();
        (self.last, tensor)
    }

    /// Calls a function with a tensor that only the call holds.
    fn call(&mut self, method: Method<(u8, Tensor), ()>) -> (u8, RpcFuture<()>) {
        let argument = self.tensor();
        let byte = argument.0;
        self.watch.note(|seen| {
            seen.begun.remove(&byte);
        });
        (byte, self.agents[0].call(1, method, &argument))
    }

    /// Checks that both workers are idle and serve calls as before.
    /// Nothing is lent, in flight or running any more, and no tensor had unexpected content.
    fn is_as_before(&self) {
        let begun = Instant::now();
        let is_quiet = |agent: &RpcAgent| {
            let traffic = agent.traffic();
            let of_peers = |peer: &PeerTraffic| peer.in_flight + peer.bytes_in_flight;
            let in_flight = traffic.peers.iter().map(of_peers).sum::<u64>();
            traffic.in_flight + traffic.running + in_flight == 0
        };
        while self.arena.free() < self.arena.capacity()
            || self.watch.has(|seen| seen.here > 0)
            || !self.agents.iter().all(is_quiet)
        {
            let used = self.arena.capacity() - self.arena.free();
            let traffic = self.agents.iter().map(RpcAgent::traffic);
            assert!(
                begun.elapsed() < LONGEST,
                "{used} bytes were not given back, or calls are not over: {:?}",
                traffic.collect::<Vec<_>>()
            );
            std::thread::yield_now();
        }
        assert_eq!(self.watch.0.0.lock().unwrap().wrong, [""; 0]);
        assert_eq!(self.agents[0].call(1, NOTHING, &()).wait(), Ok(()));
        assert_eq!(self.agents[1].call(0, NOTHING, &()).wait(), Ok(()));
    }
}

fn cancel(call: RpcFuture<()>) {
    call.cancel();
    let error = call.wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Cancelled, "{error}");
}

/// Returns transports for parts in an arena and for reads of caller memory.
fn both_ways() -> impl Iterator<Item = TransportOptions> {
    let [shared, unix, _] = transports();
    [shared.0, unix.0].into_iter()
}

#[test]
fn what_is_shared_comes_back_whenever_its_call_is_cancelled() {
    for transports in both_ways() {
        let mut world = World::new(transports);
        for round in 0..400_u32 {
            let (byte, call) = world.call(HOLD);
            match round % 4 {
                // Cancelled immediately, usually before a thread has begun to read.
                0 => {}
                // Cancelled while the tensor is being read; the exact time does not matter.
                1 | 2 => (0..round * 50).for_each(|_| std::hint::spin_loop()),
                // Cancelled while the function runs.
                _ => world
                    .watch
                    .deadline("it begins", |seen| seen.begun.contains(&byte)),
            }
            cancel(call);
        }
        world.is_as_before();
    }
}

#[test]
fn what_is_shared_and_not_read_yet_is_kept_although_its_call_is_cancelled() {
    for transports in both_ways() {
        let mut world = World::new(transports);
        let blocking = world.agents[0].call(1, BLOCK, &());
        world
            .watch
            .deadline("it is blocked", |seen| seen.is_blocked);
        let calls: Vec<_> = (0..ROOM).map(|_| world.call(HOLD).1).collect();
        calls.into_iter().for_each(cancel);
        assert_eq!(
            world.agents[0].traffic().in_flight,
            1,
            "the one that blocks"
        );
        assert_eq!(world.arena.free(), 0, "the callee has read nothing");
        world.watch.open();
        // Free memory is reused immediately.
        let others: Vec<_> = (0..ROOM).map(|_| world.tensor()).collect();
        drop(others);
        assert_eq!(blocking.wait(), Ok(()));
        world.is_as_before();
    }
}

#[test]
fn what_is_being_read_is_kept_although_its_call_is_cancelled() {
    // With shared memory the tensor would be used in place and not read.
    let [_, (unix, _), _] = transports();
    let mut world = World::new(unix);
    for _ in 0..10 {
        world.watch.note(|seen| seen.is_open = false);
        let calls: Vec<_> = (0..ROOM).map(|_| world.call(HOLD)).collect();
        // The tensors are being read when this call begins. The callee learns of the cancellations
        // only after it is over, so all functions begin with the content that was read.
        let blocking = world.agents[0].call(1, BLOCK, &());
        let (bytes, calls): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        calls.into_iter().for_each(cancel);
        // Free memory is reused immediately.
        let mut others = Vec::new();
        let begun = Instant::now();
        let all = |seen: &Seen| bytes.iter().all(|byte| seen.begun.contains(byte));
        while !world.watch.has(all) {
            assert!(begun.elapsed() < LONGEST, "they do not begin");
            match world.arena.allocate(LARGE) {
                Some(mut block) => {
                    block.as_mut().fill(0);
                    others.push(block);
                }
                None => std::thread::yield_now(),
            }
        }
        world.watch.open();
        assert_eq!(blocking.wait(), Ok(()));
    }
    world.is_as_before();
}

#[test]
fn what_was_read_comes_back_although_the_function_of_its_cancelled_call_goes_on() {
    let [_, (unix, _), _] = transports();
    let mut world = World::new(unix);
    for round in 0..2000_u64 {
        let (byte, call) = world.call(STAY);
        // The memory is returned just before the function begins, which is about the time of the
        // cancellation. The exact time does not matter.
        let deadline = Instant::now() + Duration::from_micros(2 * (round % 200));
        while !world.watch.has(|seen| seen.begun.contains(&byte)) && Instant::now() < deadline {
            std::hint::spin_loop();
        }
        cancel(call);
        if round % 200 == 199 {
            // The callee accepts new calls while cancelled functions continue, unless there are
            // very many of them.
            world.watch.open();
            world.agents[0].call(1, NOTHING, &()).wait().unwrap();
            wait_for("no function runs", || {
                world.agents[1].traffic().running == 0
            });
            world.watch.note(|seen| seen.is_open = false);
        }
    }
    let (byte, call) = world.call(STAY);
    world
        .watch
        .deadline("it begins", |seen| seen.begun.contains(&byte));
    cancel(call);
    wait_for("all bytes come back", || {
        world.arena.free() == world.arena.capacity()
    });
    // A function counts as running after its first step.
    wait_for("a function runs", || world.agents[1].traffic().running > 0);
    world.watch.open();
    world.is_as_before();
}

#[test]
fn a_function_is_notified_that_it_is_cancelled_also_while_it_takes_its_first_step() {
    // The function runs on the thread that has read the tensor, so the driver is not blocked.
    let [_, (unix, _), _] = transports();
    let mut world = World::new(unix);
    let (byte, call) = world.call(SLOW);
    let watch = world.watch.clone();
    watch.deadline("it begins", |seen| seen.begun.contains(&byte));
    cancel(call);
    // The callee answers a later call, so it has received the cancellation.
    world.agents[0].call(1, NOTHING, &()).wait().unwrap();
    watch.open();
    world.is_as_before();
}
