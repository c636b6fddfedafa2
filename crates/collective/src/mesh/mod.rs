//! The connections of one rank to its peers.
//!
//! Who needs a peer, to send to it or to receive from it, dials it. Data go out on the dialled
//! connection and come in on the accepted one. So each side sees at once when the other one ends,
//! and each can always tell the other that it has given up, whatever else is on its way.

mod boards;
mod hearing;
mod waiting;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rdzv_shm::SharedBuffer;
use rdzv_shm::spin::{LONGEST, Spin};

use crate::call::Call;
use crate::error::{Cause, CollectiveError};
use crate::inbound::{Inbound, Incoming};
use crate::outbound::Outbound;
use crate::reception::{Member, Reception};
use crate::shared;
use crate::socket::{Listener, Place};
use crate::wire::{Frame, Hello, VERSION};

/// The most bytes of one message between hosts: small enough to stay in a processor's cache between the
/// copy and the socket, long enough that system calls do not count.
const MESSAGE: usize = 256 * 1024;

/// The same if all ranks are on one host: no system call goes with a message in shared memory, and what
/// the ranks write and read stays in their nearest caches.
const NEAR_MESSAGE: usize = 64 * 1024;

/// An operation in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) call: Call,
    pub(crate) started: Instant,
    pub(crate) timeout: Duration,
}

/// All connections of one rank.
#[derive(Debug)]
pub(crate) struct Mesh {
    member: Member,
    places: Vec<Place>,
    reception: Reception,
    outbound: BTreeMap<u32, Outbound>,
    inbound: BTreeMap<u32, Inbound>,
    /// The last call that was heard of from each peer.
    heard: BTreeMap<u32, Call>,
    /// What this rank shares with those of its host; if there is none, nothing is shared.
    board: Option<SharedBuffer>,
    /// Whether [`Mesh::meet_all`] has done its work.
    all_met: bool,
    /// How many turns the halves of the boards have had.
    turns: usize,
    longest: usize,
    spin: Spin,
}

impl Mesh {
    pub(crate) fn new(member: Member, places: Vec<Place>, listener: Listener, share: bool) -> Self {
        // Who waits awake must not hold a processor that those need whom it waits for.
        let near = places.iter().filter(|place| place.near.is_some()).count();
        let processors = available_parallelism().map_or(1, usize::from);
        let awake = if near <= processors {
            LONGEST
        } else {
            Duration::ZERO
        };
        let longest = if near == places.len() {
            NEAR_MESSAGE
        } else {
            MESSAGE
        };
        let board = (share && near > 1).then(shared::board).flatten();
        Self {
            reception: Reception::new(member, listener, board.is_some()),
            board,
            all_met: false,
            turns: 0,
            longest,
            spin: Spin::new(awake),
            member,
            places,
            outbound: BTreeMap::new(),
            inbound: BTreeMap::new(),
            heard: BTreeMap::new(),
        }
    }

    pub(crate) fn member(&self) -> &Member {
        &self.member
    }

    /// The most bytes of one message. The same for all ranks: if the host of one is that of all others,
    /// so it is for each.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Sends a message to a peer, or queues what cannot be sent now.
    pub(crate) fn post(
        &mut self,
        running: &Running,
        peer: u32,
        payload: &[&[u8]],
    ) -> Result<(), CollectiveError> {
        let outbound = self.dialled(running, peer)?;
        let bytes: usize = payload.iter().map(|slice| slice.len()).sum();
        let frame = Frame::Data {
            call: running.call,
            payload: u32::try_from(bytes).expect("a message is far shorter than 4 GiB"),
        };
        outbound.post(&frame, payload);
        Ok(())
    }

    /// Receives a message from a peer; its length must be that of `payload`.
    pub(crate) fn receive(
        &mut self,
        running: &Running,
        peer: u32,
        payload: &mut [u8],
    ) -> Result<(), CollectiveError> {
        let mut incoming = Incoming::new(payload);
        let mut checked = false;
        loop {
            match self.connected(running, peer)?.read(&mut incoming) {
                Ok(true) => {
                    if !checked && let Some(frame) = incoming.frame() {
                        self.check(running, peer, frame, &incoming)?;
                        checked = true;
                    }
                    if incoming.is_complete() {
                        return Ok(());
                    }
                    continue;
                }
                Ok(false) => {
                    if self.look(Some(peer)) || !self.overhear(running, peer, &incoming)? {
                        continue;
                    }
                }
                Err(error) => {
                    // The peer says why it leaves before it leaves.
                    self.hear(running, peer)?;
                    return Err(self.lost(running, peer, error.to_string()));
                }
            }
            let state = match incoming.has_begun() {
                false => "connected; nothing of this step has come",
                true => "connected; part of its data has come",
            };
            self.wait(running, peer, Some(peer), state)?;
        }
    }

    /// Waits until a peer has connected to this rank.
    fn connected(&mut self, running: &Running, peer: u32) -> Result<&mut Inbound, CollectiveError> {
        while !self.inbound.contains_key(&peer) {
            self.greet()?;
            if self.inbound.contains_key(&peer) {
                break;
            }
            self.dialled(running, peer)?.send();
            self.hear(running, peer)?;
            if let Some(reason) = self.outbound[&peer].ended() {
                let reason = reason.to_owned();
                // What it sent before it ended may still be on its way in.
                self.greet()?;
                if self.inbound.contains_key(&peer) {
                    break;
                }
                return Err(self.lost(running, peer, reason));
            }
            let state = "it has not connected to this rank yet";
            self.wait(running, peer, Some(peer), state)?;
        }
        Ok(self.inbound.get_mut(&peer).expect("it has connected"))
    }

    /// The other ranks, from the one before this one downwards.
    pub(crate) fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let Member {
            rank, world_size, ..
        } = self.member;
        (0..rank).rev().chain((rank + 1..world_size).rev())
    }

    /// Whether all ranks are on this host.
    pub(crate) fn is_near(&self) -> bool {
        self.places.iter().all(|place| place.near.is_some())
    }

    /// Waits until no peer is behind by more than so many bytes ([`Outbound::is_behind`]).
    pub(crate) fn settle(&mut self, running: &Running, most: usize) -> Result<(), CollectiveError> {
        loop {
            let mut outbound = self.outbound.iter();
            let Some((&peer, outbound)) = outbound.find(|(_, one)| one.is_behind(most)) else {
                return Ok(());
            };
            if let Some(reason) = outbound.ended() {
                let reason = reason.to_owned();
                // The peer says why it leaves before it leaves.
                self.hear(running, peer)?;
                return Err(self.lost(running, peer, reason));
            }
            if !self.look(None) {
                self.wait(running, peer, None, "it does not take the data")?;
            }
        }
    }

    /// The last call that was heard of from a peer.
    pub(crate) fn last_heard(&self, peer: u32) -> Option<Call> {
        self.heard.get(&peer).copied()
    }

    /// Tells all peers that this rank has given up, and refuses those who come later.
    pub(crate) fn abort(&mut self, suspect: u32, cause: Cause) {
        let frame = Frame::Abort { suspect, cause };
        self.reception.close(&frame);
        // First on the connections that have room for it at any time.
        for inbound in self.inbound.values_mut() {
            inbound.say(&frame);
        }
        for outbound in self.outbound.values_mut() {
            outbound.abort(&frame);
        }
    }

    fn dialled(&mut self, running: &Running, peer: u32) -> Result<&mut Outbound, CollectiveError> {
        let entry = match self.outbound.entry(peer) {
            Entry::Occupied(entry) => return Ok(entry.into_mut()),
            Entry::Vacant(entry) => entry,
        };
        let place = &self.places[peer as usize];
        let hello = Hello {
            version: VERSION,
            from: self.member.rank,
            to: peer,
            world_size: self.member.world_size,
            group: self.member.group,
            offers_memory: false,
        };
        match Outbound::dial(place, hello, self.board.as_ref()) {
            Ok(outbound) => Ok(entry.insert(outbound)),
            Err(source) => Err(CollectiveError::System {
                what: format!(
                    "{}: make a socket for rank {peer} at {}",
                    running.call, place.address
                ),
                source,
            }),
        }
    }

    /// Takes in whoever has come.
    fn greet(&mut self) -> Result<(), CollectiveError> {
        let welcomed = self.reception.greet(&self.inbound)?;
        self.inbound.extend(welcomed);
        Ok(())
    }
}
