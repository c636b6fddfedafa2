//! Listening sockets and records that outlive the agent that created them.
//!
//! ```text
//!   guard ── descriptors, inherited by number ──► agent ── killed ──► the next agent
//!            the two ends of a socket pair, which hold listening sockets
//!            two slots: record of the coordinator
//!            two slots: record of the agent
//! ```
//!
//! A descriptor inside a socket pair stays open, so the kernel keeps queueing connections while no
//! agent runs. A process that reads the pair with `MSG_PEEK` gets a duplicate of the descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rdzv_lock::Mutex;
use rdzv_rendezvous_proto::AgentNote;
use rustix::cmsg_space;
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::slots::Slots;

/// Maximum number of listening sockets of a store: one per IP version.
const MOST_LISTENERS: usize = 2;

/// Sockets and records that a parent process keeps for the next agent.
///
/// The next agent uses them if this agent is killed. Clones share one state.
#[derive(Debug, Clone)]
pub struct Kept(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Both ends of the socket pair: the first for writing, the second for reading.
    deposit: [OwnedFd; 2],
    of_coordinator: Slots,
    of_agent: Mutex<(Slots, AgentNote)>,
    /// Random identifier of this agent.
    instance: u64,
    predecessors: Vec<u64>,
}

/// Two values are equal if they are clones of one another.
impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Kept {}

impl Kept {
    /// Number of descriptors that one value holds.
    pub const DESCRIPTORS: usize = 6;

    /// Creates a value without sockets and records.
    ///
    /// Every program that this process starts inherits its descriptors.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no memory or no descriptors left.
    pub fn new() -> io::Result<Self> {
        let (kind, flags) = (SocketType::DGRAM, SocketFlags::NONBLOCK);
        let (put, take) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let slots = || Slots::new(MemfdFlags::empty());
        Self::over([put, take], slots()?, slots()?)
    }

    /// Opens the sockets and records of another process by its descriptors.
    ///
    /// The calling process is the next agent.
    ///
    /// # Errors
    ///
    /// Returns an error if the agent's record cannot be read.
    pub fn inherited(descriptors: [OwnedFd; Self::DESCRIPTORS]) -> io::Result<Self> {
        let [put, take, first, second, third, fourth] = descriptors;
        let of_agent = Slots::of([third, fourth]);
        Self::over([put, take], Slots::of([first, second]), of_agent)
    }

    fn over(deposit: [OwnedFd; 2], of_coordinator: Slots, mut of_agent: Slots) -> io::Result<Self> {
        let note = of_agent.read(AgentNote::newest)?.unwrap_or_default();
        Ok(Self(Arc::new(Inner {
            deposit,
            of_coordinator,
            instance: fastrand::u64(1..),
            predecessors: note.instances.clone(),
            of_agent: Mutex::new((of_agent, note)),
        })))
    }

    /// Returns the descriptor numbers for [`Kept::inherited`] in a child program.
    pub fn numbers(&self) -> [RawFd; Self::DESCRIPTORS] {
        let [put, take] = self.0.deposit.each_ref().map(AsRawFd::as_raw_fd);
        let [first, second] = self.0.of_coordinator.descriptors();
        let agent = self.0.of_agent.lock();
        let [third, fourth] = agent.0.descriptors();
        let [first, second, third, fourth] =
            [first, second, third, fourth].map(|descriptor| descriptor.as_raw_fd());
        [put, take, first, second, third, fourth]
    }

    /// Returns the number that identifies this agent to the other nodes.
    pub fn instance(&self) -> u64 {
        self.0.instance
    }

    /// Returns the numbers of the previous agents that this agent replaces.
    pub fn predecessors(&self) -> &[u64] {
        &self.0.predecessors
    }

    /// Returns the agent's record, as this process knows it.
    pub fn note(&self) -> AgentNote {
        self.0.of_agent.lock().1.clone()
    }

    /// Reads the agent's record that another process has written.
    ///
    /// # Errors
    ///
    /// Returns an error if the memory cannot be read.
    pub fn read_note(&self) -> io::Result<AgentNote> {
        let mut agent = self.0.of_agent.lock();
        if let Some(note) = agent.0.read(AgentNote::newest)? {
            agent.1 = note;
        }
        Ok(agent.1.clone())
    }

    /// Changes the agent's record. If the write fails, the next agent knows less.
    pub fn update_note(&self, change: impl FnOnce(&mut AgentNote)) {
        let (slots, note) = &mut *self.0.of_agent.lock();
        change(note);
        if let Err(error) = slots.write(|sequence| note.encode(sequence)) {
            tracing::error!("cannot write the record for the next agent: {error}");
        }
    }

    /// Adds this agent to its record, before it joins the rendezvous.
    pub(crate) fn take_part(&self) {
        let instance = self.0.instance;
        self.update_note(|note| {
            if !note.instances.contains(&instance) {
                note.add_instance(instance);
            }
        });
    }

    /// Returns the memory for the coordinator's record.
    ///
    /// Only this agent writes it from now on.
    pub(crate) fn coordinator_slots(&self) -> io::Result<Slots> {
        let [first, second] = self.0.of_coordinator.descriptors();
        let slots = [first.try_clone_to_owned()?, second.try_clone_to_owned()?];
        Ok(Slots::of(slots))
    }

    /// Returns duplicates of the listening sockets in the socket pair.
    pub(crate) fn listeners(&self) -> io::Result<Vec<TcpListener>> {
        self.receive(RecvFlags::PEEK)
    }

    /// Replaces the kept sockets by duplicates of `listeners`.
    pub(crate) fn keep_listeners(&self, listeners: &[TcpListener]) -> io::Result<()> {
        self.release_listeners();
        let descriptors: Vec<BorrowedFd<'_>> = listeners.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_LISTENERS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("too many sockets to retain"));
        }
        let byte = [IoSlice::new(&[0])];
        sendmsg(&self.0.deposit[0], &byte, &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Drops all kept sockets.
    ///
    /// Once this process has closed its sockets too, the kernel refuses new connections.
    pub(crate) fn release_listeners(&self) {
        while self
            .receive(RecvFlags::empty())
            .is_ok_and(|listeners| !listeners.is_empty())
        {}
    }

    fn receive(&self, flags: RecvFlags) -> io::Result<Vec<TcpListener>> {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_LISTENERS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let mut bytes = [IoSliceMut::new(&mut byte)];
        match recvmsg(&self.0.deposit[1], &mut bytes, &mut control, flags) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let mut listeners = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                listeners.extend(descriptors.map(TcpListener::from));
            }
        }
        Ok(listeners)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_socket_that_is_kept_listens_while_it_is_not_released() {
        let kept = Kept::new().unwrap();
        assert!(kept.listeners().unwrap().is_empty());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        kept.keep_listeners(&[listener]).unwrap();
        for _ in 0..3 {
            let client = TcpStream::connect(address).unwrap();
            let [listener] = &kept.listeners().unwrap()[..] else {
                panic!("one socket is kept");
            };
            let (_, from) = listener.accept().unwrap();
            assert_eq!(from, client.local_addr().unwrap());
        }
        kept.release_listeners();
        assert!(kept.listeners().unwrap().is_empty());
        TcpStream::connect(address).unwrap_err();
    }

    #[test]
    fn the_next_agent_knows_those_before_it() {
        let kept = Kept::new().unwrap();
        kept.take_part();
        kept.take_part();
        kept.update_note(|note| note.restarts_used = 2);
        let agent = kept.0.of_agent.lock();
        let next = agent.0.descriptors();
        let next = next.map(|slot| slot.try_clone_to_owned().unwrap());
        drop(agent);
        let deposit = kept.0.deposit.each_ref();
        let deposit = deposit.map(|end| end.try_clone().unwrap());
        let coordinator = Slots::new(MemfdFlags::CLOEXEC).unwrap();
        let next = Kept::over(deposit, coordinator, Slots::of(next)).unwrap();
        assert_eq!(next.predecessors(), [kept.instance()]);
        assert_eq!(next.note().restarts_used, 2);
        assert_ne!(next.instance(), kept.instance());
    }
}
