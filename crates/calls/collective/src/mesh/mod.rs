//! Connections of one rank to its peers.
//!
//! A rank dials each peer that it sends to or receives from. Data is sent on the dialled connection
//! and received on the accepted one. Each side therefore detects the end of the other immediately,
//! and can always send an abort, whatever data is in flight.

mod receive;
mod shared_buffers;
mod wait;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use rdzv_shm::SharedBuffer;
use rdzv_shm::spin::{SpinBudget, SpinWait};

use crate::acceptor::{Acceptor, Member};
use crate::call::Call;
use crate::error::Result;
use crate::inbound::{Inbound, Incoming};
use crate::interrupt::{Interrupt, Watch};
use crate::outbound::Outbound;
use crate::running::Running;
use crate::shared;
use crate::socket::{Endpoint, Setup};
use crate::wire::{AbortCause, Frame};

/// Maximum number of bytes of one message, unless [`LOCAL_MESSAGE`] applies.
///
/// It is small enough to stay in a processor's cache between the copy and the socket. It is long
/// enough that system calls do not matter.
pub(crate) const MESSAGE: usize = 256 * 1024;

/// Maximum number of bytes of one message within a host.
///
/// Collective operations use this limit only if all ranks are on one host.
///
/// A message in shared memory needs no system call, and the data stays in the nearest caches.
pub(crate) const LOCAL_MESSAGE: usize = 64 * 1024;

/// Maximum time that a rank spins before it sleeps.
///
/// This is about the time until a peer in the same call gets to run on the processor of this rank.
const AWAKE: Duration = Duration::from_micros(200);

#[derive(Debug)]
pub(crate) struct Mesh {
    pub(crate) member: Member,
    endpoints: Vec<Endpoint>,
    acceptor: Acceptor,
    outbound: BTreeMap<u32, Outbound>,
    inbound: BTreeMap<u32, Inbound>,
    /// Last call that was received from each peer.
    last_calls: BTreeMap<u32, Call>,
    /// Shared buffer of this rank; `None` if no memory is shared.
    buffer: Option<SharedBuffer>,
    all_connected: bool,
    /// Number of times that a half of the shared buffers was used.
    halves_used: usize,
    /// Maximum number of bytes of one message.
    ///
    /// All ranks have the same maximum: if one host has all ranks, each rank knows this.
    pub(crate) longest: usize,
    /// Spin budgets for operations on the caller's thread, and for those beside it.
    spin: [SpinBudget; 2],
    /// `true` if the operation runs beside the caller's thread, which computes.
    pub(crate) beside: bool,
    /// Operation in progress, or the last one; `None` before the first one.
    pub(crate) running: Option<Running>,
    /// Ends the operation in progress and all later operations, from any thread.
    pub(crate) interrupt: Arc<Interrupt>,
    pub(crate) watch: Option<Watch>,
}

pub(crate) fn local_ranks(endpoints: &[Endpoint]) -> usize {
    let local = endpoints.iter().filter(|endpoint| endpoint.local.is_some());
    local.count()
}

/// Returns the spin budget of a thread of a rank.
///
/// A thread that spins must not occupy a processor that its peers need.
pub(crate) fn spin_budget(endpoints: &[Endpoint]) -> SpinBudget {
    let processors = available_parallelism().map_or(1, usize::from);
    if local_ranks(endpoints) <= processors {
        SpinBudget::new(AWAKE)
    } else {
        SpinBudget::crowded(AWAKE)
    }
}

impl Mesh {
    pub(crate) fn new(member: Member, setup: Setup, interrupt: Arc<Interrupt>) -> Self {
        let endpoints = setup.endpoints;
        let local = local_ranks(&endpoints);
        let spin = spin_budget(&endpoints);
        let longest = if local == endpoints.len() {
            LOCAL_MESSAGE
        } else {
            MESSAGE
        };
        let buffer = (setup.share && local > 1)
            .then(shared::own_buffer)
            .flatten();
        Self {
            acceptor: Acceptor::new(member, setup.listener, buffer.is_some()),
            buffer,
            all_connected: false,
            halves_used: 0,
            longest,
            spin: [spin, SpinBudget::holding(AWAKE)],
            beside: false,
            running: None,
            interrupt,
            watch: None,
            member,
            endpoints,
            outbound: BTreeMap::new(),
            inbound: BTreeMap::new(),
            last_calls: BTreeMap::new(),
        }
    }

    /// Returns the spin budget for the current operation.
    ///
    /// A rank that spins beside a computing thread keeps its processor, so it has a separate
    /// budget.
    fn spin(&self) -> &SpinBudget {
        &self.spin[usize::from(self.beside)]
    }

    /// Returns the operation in progress. All functions that wait or send need one.
    pub(crate) fn running(&self) -> Running {
        self.running.expect("an operation is in progress")
    }

    /// Sends a message to a peer, or queues the bytes that cannot be sent now.
    pub(crate) fn post(&mut self, peer: u32, payload: &[&[u8]]) -> Result<()> {
        let bytes: usize = payload.iter().map(|slice| slice.len()).sum();
        let frame = Frame::Data {
            call: self.running().call,
            payload: u32::try_from(bytes).expect("a message is far shorter than 4 GiB"),
        };
        self.dialled(peer)?.post(&frame, payload);
        Ok(())
    }

    /// Receives a message from a peer; its length must be that of `payload`.
    pub(crate) fn receive(&mut self, peer: u32, payload: &mut [u8]) -> Result<()> {
        let mut incoming = Incoming::new(payload);
        let mut checked = false;
        let mut waiting: Option<SpinWait> = None;
        loop {
            match self.connected(peer)?.read(&mut incoming) {
                Ok(true) => {
                    if let Some(wait) = waiting.take() {
                        self.spin().learn(wait.elapsed());
                    }
                    if !checked && let Some(frame) = incoming.frame() {
                        self.check(peer, frame, &incoming)?;
                        checked = true;
                    }
                    if incoming.is_complete() {
                        return Ok(());
                    }
                    continue;
                }
                Ok(false) => {
                    let wait = *waiting.get_or_insert_with(|| self.spin().begin());
                    if self.spin_for(wait, Some(peer)) || !self.read_control(peer, &incoming)? {
                        continue;
                    }
                }
                Err(error) => {
                    // A peer sends its reason before it leaves.
                    self.read_reply(peer)?;
                    return Err(self.running().lost(self.named(peer), &error.to_string()));
                }
            }
            let state = if incoming.has_begun() {
                "connected; part of its data has arrived"
            } else {
                "connected; no data of this step has arrived"
            };
            self.wait(peer, Some(peer), state)?;
        }
    }

    /// Waits until a peer has connected to this rank.
    fn connected(&mut self, peer: u32) -> Result<&mut Inbound> {
        while !self.inbound.contains_key(&peer) {
            self.accept_peers()?;
            if self.inbound.contains_key(&peer) {
                break;
            }
            self.dialled(peer)?.send();
            self.read_reply(peer)?;
            if let Some(reason) = self.outbound[&peer].ended() {
                let reason = reason.to_owned();
                // The peer's hello may still be in flight, although the peer has ended.
                self.accept_peers()?;
                if self.inbound.contains_key(&peer) {
                    break;
                }
                return Err(self.running().lost(self.named(peer), &reason));
            }
            let state = "it has not connected to this rank yet";
            self.wait(peer, Some(peer), state)?;
        }
        Ok(self.inbound.get_mut(&peer).expect("it has connected"))
    }

    pub(crate) fn is_local(&self) -> bool {
        self.endpoints
            .iter()
            .all(|endpoint| endpoint.local.is_some())
    }

    /// Waits until no peer [is behind](Outbound::is_behind) by over `most` bytes.
    pub(crate) fn flush(&mut self, most: usize) -> Result<()> {
        let mut waiting: Option<SpinWait> = None;
        loop {
            let mut outbound = self.outbound.iter();
            let Some((&peer, outbound)) = outbound.find(|(_, one)| one.is_behind(most)) else {
                if let Some(wait) = waiting {
                    self.spin().learn(wait.elapsed());
                }
                return Ok(());
            };
            if let Some(reason) = outbound.ended() {
                let reason = reason.to_owned();
                // A peer sends its reason before it leaves.
                self.read_reply(peer)?;
                return Err(self.running().lost(self.named(peer), &reason));
            }
            let wait = *waiting.get_or_insert_with(|| self.spin().begin());
            if !self.spin_for(wait, None) {
                self.wait(peer, None, "it does not accept the data")?;
            }
        }
    }

    pub(crate) fn last_call(&self, peer: u32) -> Option<Call> {
        self.last_calls.get(&peer).copied()
    }

    /// Notifies all peers that this rank has failed, and refuses later peers.
    pub(crate) fn abort(&mut self, suspect: u32, cause: AbortCause) {
        let frame = Frame::Abort { suspect, cause };
        self.acceptor.close(&frame);
        // The accepted connections come first, because they always have room for the frame.
        for inbound in self.inbound.values() {
            inbound.socket.send_control(&frame);
        }
        for outbound in self.outbound.values_mut() {
            outbound.abort(&frame);
        }
    }

    fn dialled(&mut self, peer: u32) -> Result<&mut Outbound> {
        let call = self.running().call;
        let entry = match self.outbound.entry(peer) {
            Entry::Occupied(entry) => return Ok(entry.into_mut()),
            Entry::Vacant(entry) => entry,
        };
        let (endpoint, buffer) = (&self.endpoints[peer as usize], self.buffer.as_ref());
        let outbound = Outbound::dial(&self.member, peer, endpoint, buffer, &call)?;
        Ok(entry.insert(outbound))
    }

    fn accept_peers(&mut self) -> Result<()> {
        let accepted = self
            .acceptor
            .accept_peers(|peer| self.inbound.contains_key(&peer))?;
        self.inbound.extend(accepted);
        Ok(())
    }
}
