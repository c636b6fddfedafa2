//! Random histories of transfers, with full pools, late streams and deaths.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_lock::Mutex;
use rdzv_rpc::WorkerId;
use rdzv_rpc::device::{Device, DeviceBackend, DeviceLender, DeviceMemory, Loan};
use rdzv_rpc::tensor::Storage;
use rdzv_rpc_proto::rref::Member;
use rdzv_shm::{Leases, Location};

use super::fake::{DEVICES, Fake, Process, World, fault};
use crate::backend::Cuda;
use crate::driver::{CudaStream, Pointer};
use crate::lending::CudaLimits;
use crate::memory::CudaMemory;
use crate::state::{Rule, Shared};

/// Number of processes.
const PROCESSES: usize = 3;

const LIMITS: CudaLimits = CudaLimits {
    pool: 256 << 10,
    segment: 128 << 10,
    piece: 48,
};

/// Environment variable with the number of histories.
const ROUNDS: &str = "RDZV_CUDA_HISTORIES";

/// Content of a message.
enum Content {
    Described(Location),
    Copied(Bytes),
    Card(Location, Bytes),
    Answer(Bytes, Result<(), String>),
}

struct Message {
    content: Content,
    device: u32,
    bytes: Vec<u8>,
}

/// One side of a connection.
struct Side {
    process: usize,
    leases: Arc<Leases>,
    inbox: VecDeque<Message>,
    /// Locations that the process has dropped and not yet returned.
    dropped: Arc<Mutex<Vec<Location>>>,
}

/// Connection between two processes, or of a process to itself.
type Link = [Side; 2];

struct Peer {
    cuda: Cuda<Fake>,
    /// Streams of the application.
    streams: [u64; 2],
    /// Tensors that arrived, with their content.
    tensors: Vec<(Arc<CudaMemory<Fake>>, Vec<u8>)>,
    /// Tensors of the application, with their content and device.
    sources: Vec<(Storage, Vec<u8>, u32)>,
}

struct History {
    random: fastrand::Rng,
    world: Arc<Mutex<World>>,
    peers: Vec<Option<Peer>>,
    states: Vec<Arc<Shared<Fake>>>,
    links: Vec<Link>,
}

/// Tensor of the application, whose memory is freed after the last drop.
struct Source(Arc<Mutex<World>>, u64);

impl Drop for Source {
    fn drop(&mut self) {
        self.0.lock().drop_tensor(self.1);
    }
}

fn member(process: usize) -> Member {
    Member::new(WorkerId(process as u32), 7)
}

fn link(one: usize, other: usize) -> Link {
    let (left, right) = UnixStream::pair().unwrap();
    [(one, left), (other, right)].map(|(process, stream)| {
        stream.set_nonblocking(true).unwrap();
        Side {
            process,
            leases: Leases::new(stream.into()),
            inbox: VecDeque::new(),
            dropped: Arc::default(),
        }
    })
}

impl Side {
    fn open(&self, location: Location) -> Bytes {
        let dropped = Arc::clone(&self.dropped);
        let release = move || dropped.lock().push(location);
        self.leases.open(location, release).unwrap()
    }
}

impl History {
    fn new(seed: u64, broken: Option<Rule>) -> Self {
        let world = World::new(seed);
        let states: Vec<_> = (0..PROCESSES as Process)
            .map(|process| {
                let world = Arc::clone(&world);
                let fake = Fake { world, process };
                Arc::new_cyclic(|own| {
                    let mut shared = Shared::own(own, fake, DEVICES, LIMITS);
                    shared.has_threads = false;
                    shared.broken = broken;
                    shared
                })
            })
            .collect();
        let peer = |(process, shared): (usize, &Arc<Shared<Fake>>)| {
            let stream = || world.lock().new_stream(process as Process);
            Some(Peer {
                cuda: Cuda::of(Arc::clone(shared)),
                streams: [stream(), stream()],
                tensors: Vec::new(),
                sources: Vec::new(),
            })
        };
        let peers = states.iter().enumerate().map(peer).collect();
        let pairs = (0..PROCESSES).flat_map(|one| (one..PROCESSES).map(move |other| (one, other)));
        Self {
            random: fastrand::Rng::with_seed(seed ^ 0x5EED),
            links: pairs.map(|(one, other)| link(one, other)).collect(),
            world,
            peers,
            states,
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        self.random.usize(..count)
    }

    /// Picks a device, more often the first one, whose blocks are then reused.
    fn device(&mut self) -> u32 {
        self.random.u32(..5) / 4
    }

    /// Creates a tensor whose kernel has not run yet.
    fn produce(&mut self, process: usize) {
        let len = match self.pick(4) {
            0 => 1 + self.pick(70_000),
            _ => 1 + self.pick(200),
        };
        let bytes: Vec<u8> = (0..len).map(|_| self.random.u8(..)).collect();
        let (device, stream) = (self.device(), self.pick(2));
        let Some(peer) = &mut self.peers[process] else {
            return;
        };
        let stream = peer.streams[stream];
        let mut world = self.world.lock();
        let address = world.tensor(process as Process, len);
        world.kernel(stream, address, &bytes);
        drop(world);
        let owner = Box::new(Source(Arc::clone(&self.world), address));
        let memory = (Pointer(address), len);
        let on = Device::accelerator(device);
        let stream = Some(CudaStream(stream));
        let source = peer.cuda.import(on, memory, stream, owner).unwrap();
        peer.sources.push((source, bytes, device));
    }

    /// Sends a tensor over one side of a connection, and sometimes drops it.
    fn send(&mut self, number: usize, side: usize) {
        let device = self.device();
        let drops = self.random.bool();
        let to = member(self.links[number][1 - side].process);
        let process = self.links[number][side].process;
        let received = self.random.bool();
        let index = self.random.usize(..1000);
        let Some(peer) = &mut self.peers[process] else {
            return;
        };
        // A received tensor can be sent on.
        let chosen = if received && !peer.tensors.is_empty() {
            let (memory, bytes) = &peer.tensors[index % peer.tensors.len()];
            let memory: Arc<dyn DeviceMemory> = Arc::clone(memory) as _;
            Some((memory, bytes.clone()))
        } else if peer.sources.is_empty() {
            None
        } else {
            let index = index % peer.sources.len();
            let (storage, bytes, _) = &peer.sources[index];
            let chosen = (Arc::clone(storage.memory().unwrap()), bytes.clone());
            if drops {
                peer.sources.swap_remove(index);
            }
            Some(chosen)
        };
        let Some((memory, bytes)) = chosen else {
            return;
        };
        let range = 0..bytes.len();
        let target = Device::accelerator(device);
        let loan = peer.cuda.lend(&memory, range.clone(), to, target).unwrap();
        let (here, there) = match side {
            0 => self.links[number].split_at_mut(1),
            _ => {
                let (there, here) = self.links[number].split_at_mut(1);
                (here, there)
            }
        };
        let (here, there) = (&mut here[0], &mut there[0]);
        let mut push = |content, bytes| {
            there.inbox.push_back(Message {
                content,
                device,
                bytes,
            });
        };
        if let Loan::Unmet(card) = &loan {
            let location = here.leases.grant(card).unwrap();
            push(Content::Card(location, card.clone()), Vec::new());
        }
        match loan {
            // Some messages are never sent.
            _ if self.random.u8(..) < 60 => {}
            Loan::Described(described) => {
                let location = here.leases.grant(&described).unwrap();
                push(Content::Described(location), bytes);
            }
            Loan::Copied | Loan::Unmet(_) => {
                let copied = peer.cuda.copy_out(&memory, range).unwrap();
                push(Content::Copied(copied), bytes);
            }
        }
    }

    /// Handles the next message of one side of a connection.
    fn receive(&mut self, number: usize, side: usize) {
        let (process, from) = (
            self.links[number][side].process,
            self.links[number][1 - side].process,
        );
        let here = &mut self.links[number][side];
        let Some(message) = here.inbox.pop_front() else {
            return;
        };
        let Some(peer) = &mut self.peers[process] else {
            return;
        };
        let device = Device::accelerator(message.device);
        let memory = match message.content {
            Content::Card(location, card) => {
                let leased = here.open(location);
                let answer = peer.cuda.meet(&leased, member(from));
                let answer = Message {
                    content: Content::Answer(card, answer),
                    device: 0,
                    bytes: Vec::new(),
                };
                self.links[number][1 - side].inbox.push_back(answer);
                return;
            }
            Content::Answer(card, answer) => {
                peer.cuda.met(&card, member(from), answer);
                return;
            }
            Content::Described(location) => {
                let leased = here.open(location);
                // Some calls have expired when they arrive.
                if self.random.u8(..) < 20 {
                    return;
                }
                let fails = self.random.u8(..) < 10;
                if fails {
                    let name = "CUDA_ERROR_OUT_OF_MEMORY";
                    let function = "cuMemAllocFromPoolAsync";
                    let mut world = self.world.lock();
                    world.failing.insert(function, fault(function, 2, name));
                }
                let len = message.bytes.len();
                let borrowed = peer.cuda.borrow(&leased, len, device, member(from));
                self.world.lock().failing.clear();
                match borrowed {
                    Ok((memory, _)) => memory,
                    Err(error) => {
                        let text = error.to_string();
                        let known = ["out of", "OUT_OF_MEMORY", "IPC", "INVALID_VALUE"];
                        assert!(known.iter().any(|one| text.contains(one)), "{text}");
                        return;
                    }
                }
            }
            Content::Copied(bytes) => {
                let memory = peer.cuda.alloc(device, bytes.len()).unwrap();
                peer.cuda.copy_in(bytes, &memory).unwrap();
                memory
            }
        };
        let memory: Arc<dyn std::any::Any + Send + Sync> = memory as _;
        let memory: Arc<CudaMemory<Fake>> = memory.downcast().unwrap();
        if self.peers[from].is_none() {
            // What a dead process has not written has no defined content.
            return;
        }
        let peer = self.peers[process].as_mut().unwrap();
        let stream = peer.streams[self.random.usize(..2)];
        memory.hand_to(CudaStream(stream)).unwrap();
        let mut world = self.world.lock();
        world.check(stream, memory.pointer().0, &message.bytes);
        drop(world);
        if self.random.bool() {
            peer.tensors.push((memory, message.bytes));
        }
    }

    /// Reports the parts that one side has dropped to the other one.
    fn give_back(&mut self, number: usize, side: usize) {
        let [one, other] = &self.links[number];
        let (here, there) = if side == 0 {
            (one, other)
        } else {
            (other, one)
        };
        if self.peers[here.process].is_none() || self.peers[there.process].is_none() {
            return;
        }
        for location in std::mem::take(&mut *here.dropped.lock()) {
            let _ = there.leases.released(location.arena, location.generation);
        }
    }

    /// Cuts a connection, and opens another one.
    fn cut(&mut self, number: usize) {
        let [one, other] = &self.links[number];
        let pair = (one.process, other.process);
        if pair.0 == pair.1 {
            return;
        }
        let fresh = link(pair.0, pair.1);
        let old = std::mem::replace(&mut self.links[number], fresh);
        for side in &old {
            side.leases.end();
        }
        drop(old);
        for (here, there) in [pair, (pair.1, pair.0)] {
            if let Some(peer) = &self.peers[here] {
                peer.cuda.lost(member(there));
            }
        }
    }

    fn kill(&mut self, process: usize) {
        if self.peers[process].is_none() {
            return;
        }
        self.world.lock().kill(process as Process);
        // The process does nothing more; its driver reports that.
        drop(self.peers[process].take());
        let state = &self.states[process];
        state.poll();
        state.state.lock().borrowed.end(&state.driver);
        for number in 0..self.links.len() {
            let [one, other] = &self.links[number];
            if one.process == process || other.process == process {
                let pair = (one.process, other.process);
                self.links[number] = link(pair.0, pair.1);
            }
        }
        for peer in self.peers.iter().flatten() {
            peer.cuda.lost(member(process));
        }
    }

    fn act(&mut self) {
        let (number, side, process) = (
            self.pick(self.links.len()),
            self.pick(2),
            self.pick(PROCESSES),
        );
        match self.random.u8(..100) {
            0..15 => self.produce(process),
            15..35 => self.send(number, side),
            35..60 => self.receive(number, side),
            60..70 => self.give_back(number, side),
            70..80 => {
                if let Some(peer) = &mut self.peers[process]
                    && !peer.tensors.is_empty()
                {
                    let index = self.random.usize(..peer.tensors.len());
                    peer.tensors.swap_remove(index);
                }
            }
            80..88 => drop(self.peers[process].is_some() && self.states[process].poll()),
            88..98 => {
                for _ in 0..self.pick(6) {
                    self.world.lock().step();
                }
            }
            98 => self.cut(number),
            _ if self.random.u8(..) < 40 => self.kill(process),
            _ => {}
        }
    }

    /// Ends all processes in order; returns what was wrong.
    fn end(mut self) -> Vec<String> {
        for number in 0..self.links.len() {
            for side in [0, 1] {
                while !self.links[number][side].inbox.is_empty() {
                    self.receive(number, side);
                    if self.peers[self.links[number][side].process].is_none() {
                        self.links[number][side].inbox.clear();
                    }
                }
            }
        }
        for peer in self.peers.iter_mut().flatten() {
            peer.tensors.clear();
            peer.sources.clear();
        }
        for round in 0.. {
            while self.world.lock().step() {}
            for number in 0..self.links.len() {
                self.give_back(number, 0);
                self.give_back(number, 1);
            }
            if round == 3 {
                // Each process shuts down, and its peers lose it.
                self.links.clear();
                for process in 0..PROCESSES {
                    for peer in self.peers.iter().flatten() {
                        peer.cuda.lost(member(process));
                    }
                }
                for peer in &mut self.peers {
                    drop(peer.take().map(|peer| peer.cuda));
                }
            }
            let left = self.states.iter().filter(|one| one.poll()).count();
            if round > 3 && left == 0 {
                break;
            }
            if round > 20 {
                for state in &self.states {
                    let state = state.state.lock();
                    eprintln!("{} awaited, {:?}", state.awaited.len(), state.lending);
                }
                self.world
                    .lock()
                    .wrong
                    .push("blocks are never returned".to_owned());
                break;
            }
        }
        for state in self.states.drain(..) {
            state.signal.let_go();
        }
        while self.world.lock().step() {}
        let mut world = self.world.lock();
        let leaks = world.leaks();
        let mut wrong = std::mem::take(&mut world.wrong);
        wrong.extend(leaks.into_iter().map(|leak| format!("leak: {leak}")));
        wrong
    }
}

/// Runs a history; returns what was wrong.
fn run(seed: u64, broken: Option<Rule>) -> Vec<String> {
    let mut history = History::new(seed, broken);
    for _ in 0..240 {
        history.act();
    }
    history.end()
}

#[test]
fn no_history_reads_early_reuses_a_block_or_leaks() {
    let rounds = std::env::var(ROUNDS).ok();
    let rounds = rounds.map_or(500, |rounds| rounds.parse().unwrap());
    for seed in 0..rounds {
        let wrong = run(seed, None);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    }
}

#[test]
fn each_broken_rule_is_found() {
    for (rule, sign) in [
        (Rule::AfterProducer, "other bytes"),
        (Rule::KeepSource, "freed memory"),
        (Rule::AfterSender, "other bytes"),
        (Rule::ReturnWhenRead, ""),
        (Rule::AfterEarlier, "other bytes"),
        (Rule::FreeAfterConsumer, "freed memory"),
        (Rule::BeforeConsumer, "other bytes"),
        (Rule::AfterPiece, "other bytes"),
    ] {
        let found = (0..500).find_map(|seed| {
            let wrong = run(seed, Some(rule));
            wrong.into_iter().find(|one| one.contains(sign))
        });
        assert!(found.is_some(), "{rule:?} was not found");
    }
}
