//! Frames of peers, compared with the frame that is due, and the rank at fault.

use std::net::SocketAddr;

use super::{Mesh, Running};
use crate::error::CollectiveError;
use crate::inbound::Incoming;
use crate::wire::{Cause, Frame};

impl Mesh {
    /// Hears what a peer says on the connection that was dialled to it.
    pub(super) fn read_reply(
        &mut self,
        running: &Running,
        peer: u32,
    ) -> Result<(), CollectiveError> {
        let (call, address) = (running.call, self.address(peer));
        let Some(outbound) = self.outbound.get_mut(&peer) else {
            return Ok(());
        };
        match outbound.read_reply() {
            Ok(None | Some(Frame::Accept { .. })) => Ok(()),
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
            Ok(Some(frame)) => Err(self.not_a_rank(running, peer, format!("{frame:?}"))),
            Err(bytes) => Err(self.not_a_rank(running, peer, bytes.escape_ascii().to_string())),
        }
    }

    /// Hears what a peer says beside its ring. True: nothing, so it can be waited for.
    pub(super) fn read_control(
        &mut self,
        running: &Running,
        peer: u32,
        incoming: &Incoming<'_>,
    ) -> Result<bool, CollectiveError> {
        let Some(inbound) = self.inbound.get_mut(&peer) else {
            return Ok(true);
        };
        let said = inbound.read_control();
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
                self.read_reply(running, peer)?;
                Err(self.lost(running, peer, error.to_string()))
            }
        }
    }

    /// Compares what a peer is about to send with what is expected of it.
    pub(super) fn check(
        &mut self,
        running: &Running,
        peer: u32,
        frame: Result<Frame, impl AsRef<[u8]>>,
        incoming: &Incoming<'_>,
    ) -> Result<(), CollectiveError> {
        let (ours, address) = (running.call, self.address(peer));
        if let Ok(Frame::Data { call, .. }) = frame {
            self.last_calls.insert(peer, call);
        }
        match frame {
            Ok(Frame::Data { call, payload }) if call == ours && incoming.expects(payload) => {
                Ok(())
            }
            Ok(Frame::Data { call, .. }) if call != ours => Err(CollectiveError::Mismatch {
                ours,
                theirs: Box::new(call),
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

    /// A rank that gave up waiting for this one is told, like everybody, whom this one waits for.
    pub(super) fn pass_on(
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

    /// Where a peer can be reached by everybody, for errors.
    fn address(&self, peer: u32) -> SocketAddr {
        self.endpoints[peer as usize].address
    }

    pub(super) fn timed_out(
        &self,
        running: &Running,
        peer: u32,
        state: &'static str,
    ) -> CollectiveError {
        CollectiveError::Timeout {
            call: running.call,
            peer,
            address: self.address(peer),
            state,
            elapsed: running.started.elapsed(),
        }
    }

    /// The error of an operation that another thread ended.
    pub(crate) fn interrupted(&self, running: &Running) -> CollectiveError {
        CollectiveError::Interrupted {
            call: running.call,
            rank: self.member.rank,
            elapsed: running.started.elapsed(),
        }
    }

    pub(super) fn lost(&self, running: &Running, peer: u32, reason: String) -> CollectiveError {
        CollectiveError::Lost {
            call: running.call,
            peer,
            address: self.address(peer),
            reason: reason.into(),
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
