//! The connections of one rank to its peers, and the one place that waits.
//!
//! Who needs a peer, to send to it or to receive from it, dials it. Data go out on the dialled
//! connection and come in on the accepted one. So each side sees at once when the other one ends,
//! and each can always tell the other that it has given up, whatever else is on its way.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rdzv_shm::spin::{LONGEST, Spin};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::call::Call;
use crate::error::{Cause, CollectiveError};
use crate::inbound::{Inbound, Incoming};
use crate::outbound::Outbound;
use crate::reception::{Member, Reception};
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
    /// Whether ranks of this host are offered rings.
    shared: bool,
    longest: usize,
    spin: Spin,
}

/// What is watched in a poll.
#[derive(Debug, Clone, Copy)]
enum Source {
    Reception,
    Outbound(u32),
    /// The ring to a peer has space.
    Space(u32),
    Inbound,
    /// The ring of a peer has data.
    Data(u32),
}

impl Mesh {
    pub(crate) fn new(
        member: Member,
        places: Vec<Place>,
        listener: Listener,
        shared: bool,
    ) -> Self {
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
        Self {
            shared,
            longest,
            spin: Spin::new(awake),
            member,
            places,
            reception: Reception::new(member, listener, shared),
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
            payload: u32::try_from(bytes).expect("a message is at most `longest` long"),
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
            if !self.inbound.contains_key(&peer) {
                self.greet()?;
            }
            if let Some(inbound) = self.inbound.get_mut(&peer) {
                match inbound.read(&mut incoming) {
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
            } else {
                self.dialled(running, peer)?.send();
                self.hear(running, peer)?;
                if let Some(reason) = self.outbound[&peer].ended() {
                    let reason = reason.to_owned();
                    // What it sent before it ended may still be on its way in.
                    if self.greet()? && self.inbound.contains_key(&peer) {
                        continue;
                    }
                    return Err(self.lost(running, peer, reason));
                }
            }
            let state = match (self.inbound.contains_key(&peer), incoming.has_begun()) {
                (false, _) => "it has not connected to this rank yet",
                (true, false) => "connected; nothing of this step has come",
                (true, true) => "connected; part of its data has come",
            };
            self.wait(running, peer, Some(peer), state)?;
        }
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

    /// Waits awake for a moment for data of a peer, or for space for what is to be sent, where rings
    /// carry them. True: something has happened.
    fn look(&mut self, from: Option<u32>) -> bool {
        let outbound = self.outbound.values_mut();
        let mut behind: Vec<_> = outbound.filter(|one| one.bell().is_some()).collect();
        let mut from = from.and_then(|peer| self.inbound.get_mut(&peer));
        if behind.is_empty() && from.as_ref().is_none_or(|from| from.bell().is_none()) {
            return false;
        }
        let happened = self.spin.wait(|| {
            let data = from.as_mut().is_some_and(|from| from.has_more());
            data || behind.iter_mut().any(|one| one.can_go_on())
        });
        if happened {
            for one in behind {
                one.send();
            }
        }
        happened
    }

    /// Hears what a peer says beside its ring. True: nothing, so it can be waited for.
    fn overhear(
        &mut self,
        running: &Running,
        peer: u32,
        incoming: &Incoming<'_>,
    ) -> Result<bool, CollectiveError> {
        let Some(inbound) = self.inbound.get_mut(&peer) else {
            return Ok(true);
        };
        let said = inbound.overhear();
        if matches!(said, Ok(None)) {
            return Ok(true);
        }
        if inbound.has_more() {
            // What it wrote before that comes first.
            return Ok(false);
        }
        match said {
            Ok(None) => Ok(true),
            Ok(Some(bytes)) => {
                let frame = Frame::decode(&bytes).ok_or(bytes);
                self.check(running, peer, frame, incoming)?;
                let found = "data beside the ring that it offered".to_owned();
                Err(self.not_a_rank(running, peer, found))
            }
            Err(error) => {
                // The peer says why it leaves before it leaves.
                self.hear(running, peer)?;
                Err(self.lost(running, peer, error.to_string()))
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
            offers_ring: false,
        };
        match Outbound::dial(place, hello, self.shared) {
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

    /// Waits until something happens, and deals with everything but the data of `from`.
    fn wait(
        &mut self,
        running: &Running,
        awaited: u32,
        from: Option<u32>,
        state: &'static str,
    ) -> Result<(), CollectiveError> {
        let left = running.timeout.saturating_sub(running.started.elapsed());
        if left.is_zero() {
            return Err(self.timed_out(running, awaited, state));
        }
        let mut arrivals = false;
        for source in self.poll(from, left)? {
            match source {
                Source::Reception => arrivals = true,
                Source::Inbound => {}
                Source::Data(peer) => {
                    if let Some(inbound) = self.inbound.get_mut(&peer) {
                        inbound.awake();
                    }
                }
                Source::Space(peer) => {
                    if let Some(outbound) = self.outbound.get_mut(&peer) {
                        outbound.awake();
                        outbound.send();
                    }
                }
                Source::Outbound(peer) => {
                    self.hear(running, peer)
                        .map_err(|error| self.pass_on(error, running, awaited, state))?;
                    if let Some(outbound) = self.outbound.get_mut(&peer) {
                        outbound.send();
                    }
                }
            }
        }
        if arrivals {
            self.greet()?;
        }
        Ok(())
    }

    /// A rank that gave up waiting for this one is told, like everybody, whom this one waits for.
    fn pass_on(
        &self,
        error: CollectiveError,
        running: &Running,
        awaited: u32,
        state: &'static str,
    ) -> CollectiveError {
        match error {
            CollectiveError::Aborted {
                peer,
                suspect,
                cause: Cause::TimedOut,
                ..
            } if suspect == self.member.rank && peer != awaited => {
                self.timed_out(running, awaited, state)
            }
            other => other,
        }
    }

    fn poll(&mut self, from: Option<u32>, left: Duration) -> Result<Vec<Source>, CollectiveError> {
        let mut left = left;
        for (&peer, outbound) in &mut self.outbound {
            if !outbound.prepare_to_sleep() {
                return Ok(vec![Source::Space(peer)]);
            }
        }
        if let Some(peer) = from
            && let Some(inbound) = self.inbound.get_mut(&peer)
            && !inbound.prepare_to_sleep()
        {
            // There are data already. Others have their turn all the same.
            left = Duration::ZERO;
        }
        let mut sources = Vec::new();
        let mut descriptors = Vec::new();
        let mut watch = |source, descriptor, flags| {
            sources.push(source);
            descriptors.push(PollFd::from_borrowed_fd(descriptor, flags));
        };
        for descriptor in self.reception.descriptors() {
            watch(Source::Reception, descriptor, PollFlags::IN);
        }
        for (&peer, outbound) in &self.outbound {
            if outbound.ended().is_none()
                && let Some(socket) = outbound.socket()
            {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, outbound.waits_for_socket());
                watch(Source::Outbound(peer), socket.as_fd(), flags);
            }
            if let Some(bell) = outbound.bell() {
                watch(Source::Space(peer), bell, PollFlags::IN);
            }
        }
        if let Some(peer) = from
            && let Some(inbound) = self.inbound.get(&peer)
        {
            watch(Source::Inbound, inbound.socket().as_fd(), PollFlags::IN);
            if let Some(bell) = inbound.bell() {
                watch(Source::Data(peer), bell, PollFlags::IN);
            }
        }
        let timeout = Timespec::try_from(left).ok();
        match rustix::event::poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(CollectiveError::System {
                    what: "wait for the other ranks".to_owned(),
                    source: error.into(),
                });
            }
        }
        let ready = |(source, descriptor): (Source, PollFd<'_>)| {
            (!descriptor.revents().is_empty()).then_some(source)
        };
        Ok(sources
            .into_iter()
            .zip(descriptors)
            .filter_map(ready)
            .collect())
    }

    /// Hears what a peer says on the connection that was dialled to it.
    fn hear(&mut self, running: &Running, peer: u32) -> Result<(), CollectiveError> {
        let (call, address) = (running.call, self.address(peer));
        let Some(outbound) = self.outbound.get_mut(&peer) else {
            return Ok(());
        };
        match outbound.hear() {
            Ok(None | Some(Frame::Welcome { .. })) => Ok(()),
            Ok(Some(Frame::Abort { suspect, cause })) => Err(CollectiveError::Aborted {
                call,
                peer,
                address,
                suspect,
                cause,
            }),
            Ok(Some(Frame::Refuse(refusal))) => Err(CollectiveError::Refused {
                call,
                peer,
                address,
                refusal,
            }),
            Ok(Some(frame @ Frame::Data { .. })) => {
                Err(self.not_a_rank(running, peer, format!("{frame:?}")))
            }
            Err(bytes) => Err(self.not_a_rank(running, peer, bytes.escape_ascii().to_string())),
        }
    }

    /// Compares what a peer is about to send with what is expected of it.
    fn check(
        &mut self,
        running: &Running,
        peer: u32,
        frame: Result<Frame, impl AsRef<[u8]>>,
        incoming: &Incoming<'_>,
    ) -> Result<(), CollectiveError> {
        let (ours, address) = (running.call, self.address(peer));
        if let Ok(Frame::Data { call, .. }) = frame {
            self.heard.insert(peer, call);
        }
        match frame {
            Ok(Frame::Data { call, payload }) if call == ours && incoming.expects(payload) => {
                Ok(())
            }
            Ok(Frame::Data { call, .. }) if call != ours => Err(CollectiveError::Mismatch {
                ours,
                theirs: call,
                peer,
                address,
            }),
            Ok(Frame::Abort { suspect, cause }) => Err(CollectiveError::Aborted {
                call: ours,
                peer,
                address,
                suspect,
                cause,
            }),
            Ok(frame) => Err(self.not_a_rank(running, peer, format!("{frame:?}"))),
            Err(bytes) => {
                let found = bytes.as_ref().escape_ascii().to_string();
                Err(self.not_a_rank(running, peer, found))
            }
        }
    }

    /// Takes in whoever has come. True if anybody was welcomed.
    fn greet(&mut self) -> Result<bool, CollectiveError> {
        let welcomed = self.reception.greet(&self.inbound)?;
        let anybody = !welcomed.is_empty();
        self.inbound.extend(welcomed);
        Ok(anybody)
    }

    /// Where a peer can be reached by everybody, for errors.
    fn address(&self, peer: u32) -> SocketAddr {
        self.places[peer as usize].address
    }

    fn timed_out(&self, running: &Running, peer: u32, state: &'static str) -> CollectiveError {
        CollectiveError::Timeout {
            call: running.call,
            peer,
            address: self.address(peer),
            state,
            elapsed: running.started.elapsed(),
        }
    }

    fn lost(&self, running: &Running, peer: u32, reason: String) -> CollectiveError {
        CollectiveError::Lost {
            call: running.call,
            peer,
            address: self.address(peer),
            reason,
            elapsed: running.started.elapsed(),
        }
    }

    fn not_a_rank(&self, running: &Running, peer: u32, found: String) -> CollectiveError {
        CollectiveError::NotARank {
            call: running.call,
            peer,
            address: self.address(peer),
            found,
        }
    }
}
