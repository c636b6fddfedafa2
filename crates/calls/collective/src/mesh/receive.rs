//! Checks of received frames against the expected frame, and the rank at fault.

use super::Mesh;
use crate::error::{CollectiveError, Result};
use crate::inbound::Incoming;
use crate::running::Named;
use crate::wire::{AbortCause, Frame, Sent};

impl Mesh {
    /// Reads replies of a peer on the connection that was dialled to it.
    pub(super) fn read_reply(&mut self, peer: u32) -> Result<()> {
        let (running, named) = (self.running(), self.named(peer));
        let Some(outbound) = self.outbound.get_mut(&peer) else {
            return Ok(());
        };
        match outbound.read_reply() {
            None => Ok(()),
            Some(Ok(Frame::Refuse(refusal))) => Err(running.refused(named, refusal)),
            Some(sent) => Err(running.unexpected(named, sent)),
        }
    }

    /// Reads a control frame of a peer beside its ring.
    ///
    /// `true` if there is none, so the caller can wait for the peer.
    pub(super) fn read_control(&mut self, peer: u32, incoming: &Incoming<'_>) -> Result<bool> {
        let Some(inbound) = self.inbound.get_mut(&peer) else {
            return Ok(true);
        };
        let said = inbound.read_control();
        if matches!(said, Ok(None)) {
            return Ok(true);
        }
        if inbound.has_more() {
            // The data in the ring comes first, because the peer wrote it before.
            return Ok(false);
        }
        match said {
            Ok(None) => Ok(true),
            Ok(Some(sent)) => {
                self.check(peer, sent, incoming)?;
                let found = "it sent data outside the ring that it offered".to_owned();
                Err(self.running().not_a_rank(self.named(peer), found))
            }
            Err(error) => {
                // A peer sends its reason before it leaves.
                self.read_reply(peer)?;
                Err(self.running().lost(self.named(peer), &error.to_string()))
            }
        }
    }

    /// Compares the frame that a peer sends with the expected frame.
    pub(super) fn check(&mut self, peer: u32, sent: Sent, incoming: &Incoming<'_>) -> Result<()> {
        let (running, named) = (self.running(), self.named(peer));
        if let Ok(Frame::Data { call, .. }) = sent {
            self.last_calls.insert(peer, call);
        }
        match sent {
            Ok(Frame::Data { call, payload })
                if call == running.call && incoming.expects(payload) =>
            {
                Ok(())
            }
            Ok(Frame::Data { call, .. }) if call != running.call => {
                let (peer, address) = named;
                Err(CollectiveError::Mismatch {
                    ours: running.call,
                    theirs: Box::new(call),
                    peer,
                    address,
                })
            }
            sent => Err(running.unexpected(named, sent)),
        }
    }

    /// Replaces an error that blames this rank: the awaited rank timed out.
    ///
    /// A peer that timed out because of this rank blames this rank. The rank at fault is the one
    /// that this rank waits for.
    pub(super) fn pass_on(
        &self,
        error: CollectiveError,
        awaited: u32,
        state: &'static str,
    ) -> CollectiveError {
        match error {
            CollectiveError::Aborted {
                peer,
                suspect,
                cause: AbortCause::TimedOut,
                ..
            } if suspect == self.member.rank && peer != awaited => {
                self.running().timed_out(self.named(awaited), state)
            }
            other => other,
        }
    }

    /// Returns a peer in the form that errors use.
    pub(super) fn named(&self, peer: u32) -> Named {
        (peer, self.endpoints[peer as usize].address)
    }
}
