//! Buffers that ranks of one host share, in addition to their connections.

use std::io;

use super::Mesh;
use crate::error::{CollectiveError, Result};
use crate::inbound::Inbound;
use crate::outbound::Outbound;

impl Mesh {
    /// Connects this rank with every other rank in both directions.
    ///
    /// Afterwards each pair of ranks knows whether it shares memory. Only the first call takes
    /// time.
    pub(crate) fn connect_all(&mut self) -> Result<()> {
        if self.all_connected {
            return Ok(());
        }
        // First all peers are dialled, so that this takes as long as the slowest peer, not as long
        // as all peers in sequence.
        for peer in self.member.others() {
            self.dialled(peer)?.send();
        }
        for peer in self.member.others() {
            self.connected(peer)?;
            while !self.outbound[&peer].is_accepted() {
                self.read_reply(peer)?;
                let outbound = &self.outbound[&peer];
                if outbound.is_accepted() {
                    break;
                }
                if let Some(reason) = outbound.ended() {
                    return Err(self.running().lost(self.named(peer), reason));
                }
                self.wait(peer, None, "it has not answered this rank yet")?;
            }
        }
        self.all_connected = true;
        Ok(())
    }

    /// Returns the next half of the shared buffers to use, 0 or 1.
    ///
    /// All ranks use the halves in the same order.
    pub(crate) fn next_half(&mut self) -> Result<usize> {
        let call = self.running().call;
        if let Some(buffer) = &mut self.buffer {
            buffer.reserve().map_err(|error| CollectiveError::System {
                what: format!("allocate memory to share in {call}"),
                source: io::Error::other(error),
            })?;
        }
        self.halves_used = self.halves_used.wrapping_add(1);
        Ok(self.halves_used % 2)
    }

    /// Writes to the shared buffer of this rank, if there is one.
    pub(crate) fn write_shared(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(buffer) = &mut self.buffer {
            buffer.write(offset, bytes);
        }
    }

    /// `true` if a connected peer reads the shared buffer of this rank.
    pub(crate) fn shares_buffer_with(&self, peer: u32) -> bool {
        self.outbound
            .get(&peer)
            .is_some_and(Outbound::shares_buffer)
    }

    /// `true` if this rank reads the shared buffer of a connected peer.
    pub(crate) fn reads_buffer_of(&self, peer: u32) -> bool {
        let inbound = self.inbound.get(&peer);
        inbound.is_some_and(|inbound| inbound.buffer().is_some())
    }

    /// Reads from the shared buffer of a peer.
    ///
    /// Does nothing if this rank does not read that buffer.
    pub(crate) fn read_shared(&self, peer: u32, offset: usize, into: &mut [u8]) {
        let inbound = self.inbound.get(&peer);
        if let Some(buffer) = inbound.and_then(Inbound::buffer) {
            buffer.read(offset, into);
        }
    }
}
