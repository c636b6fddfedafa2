//! Descriptors that a thread of a rank polls, each with its source.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::acceptor::Acceptor;
use crate::outbound::Outbound;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Source {
    Commands,
    Interrupt,
    Acceptor,
    /// The socket that was dialled to a peer.
    Outbound(u32),
    Space(u32),
    /// The socket that was accepted from a peer.
    Inbound(u32),
    Data(u32),
}

#[derive(Debug, Default)]
pub(crate) struct Polling<'a> {
    sources: Vec<Source>,
    descriptors: Vec<PollFd<'a>>,
}

impl<'a> Polling<'a> {
    pub(crate) fn add(&mut self, source: Source, descriptor: BorrowedFd<'a>, flags: PollFlags) {
        self.sources.push(source);
        let descriptor = PollFd::from_borrowed_fd(descriptor, flags);
        self.descriptors.push(descriptor);
    }

    /// Adds the listener, and the connections that have not identified themselves.
    pub(crate) fn add_acceptor(&mut self, acceptor: &'a Acceptor) {
        for descriptor in acceptor.descriptors() {
            self.add(Source::Acceptor, descriptor, PollFlags::IN);
        }
    }

    /// Adds the descriptors that the connection to a peer needs.
    pub(crate) fn add_outbound(&mut self, peer: u32, outbound: &'a Outbound) {
        if outbound.ended().is_none() {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, outbound.waits_for_socket());
            self.add(Source::Outbound(peer), outbound.socket.as_fd(), flags);
        }
        if let Some(doorbell) = outbound.doorbell() {
            self.add(Source::Space(peer), doorbell, PollFlags::IN);
        }
    }

    /// Waits for up to `limit`, and returns the ready sources.
    pub(crate) fn wait(mut self, limit: Option<Duration>) -> io::Result<Vec<Source>> {
        rdzv_event::poll(&mut self.descriptors, limit)?;
        let ready = |(source, descriptor): (Source, PollFd<'_>)| {
            (!descriptor.revents().is_empty()).then_some(source)
        };
        let polled = self.sources.into_iter().zip(self.descriptors);
        Ok(polled.filter_map(ready).collect())
    }
}
