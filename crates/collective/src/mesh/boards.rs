//! What ranks of one host share beside their connections: the board of each.

use std::io;

use super::{Mesh, Running};
use crate::error::CollectiveError;
use crate::inbound::Inbound;
use crate::outbound::Outbound;

impl Mesh {
    /// Waits until every other rank and this one have connected to one another, and know how what they
    /// send one another is carried. Only the first time takes any.
    pub(crate) fn meet_all(&mut self, running: &Running) -> Result<(), CollectiveError> {
        if self.all_met {
            return Ok(());
        }
        // First all are dialled, so that each waits for the slowest only, and not for one after the other.
        for peer in self.others() {
            self.dialled(running, peer)?.send();
        }
        for peer in self.others() {
            self.connected(running, peer)?;
            while !self.outbound[&peer].is_welcome() {
                self.hear(running, peer)?;
                let outbound = &self.outbound[&peer];
                if outbound.is_welcome() {
                    break;
                }
                if let Some(reason) = outbound.ended() {
                    let reason = reason.to_owned();
                    return Err(self.lost(running, peer, reason));
                }
                self.wait(running, peer, None, "it has not answered this rank yet")?;
            }
        }
        self.all_met = true;
        Ok(())
    }

    /// Which half of the boards, 0 or 1, is the next one's turn. All ranks take as many turns.
    pub(crate) fn turn_board(&mut self, running: &Running) -> Result<usize, CollectiveError> {
        if let Some(board) = &mut self.board {
            board.reserve().map_err(|error| CollectiveError::System {
                what: format!("{}: take memory to share", running.call),
                source: io::Error::other(error),
            })?;
        }
        self.turns = self.turns.wrapping_add(1);
        Ok(self.turns % 2)
    }

    /// Writes on the board of this rank, if there is one.
    pub(crate) fn write_board(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(board) = &mut self.board {
            board.write(offset, bytes);
        }
    }

    /// Whether a peer that was met reads the board of this rank.
    pub(crate) fn shows_board_to(&self, peer: u32) -> bool {
        self.outbound.get(&peer).is_some_and(Outbound::shows_board)
    }

    /// Whether this rank reads the board of a peer that was met.
    pub(crate) fn reads_board_of(&self, peer: u32) -> bool {
        let inbound = self.inbound.get(&peer);
        inbound.is_some_and(|inbound| inbound.board().is_some())
    }

    /// Reads from the board of a peer; nothing if this rank does not read it.
    pub(crate) fn read_board(&self, peer: u32, offset: usize, into: &mut [u8]) {
        let inbound = self.inbound.get(&peer);
        if let Some(board) = inbound.and_then(Inbound::board) {
            board.read(offset, into);
        }
    }
}
