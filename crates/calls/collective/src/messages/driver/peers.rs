//! Connections of the driver: dialling, sending and receiving.

use super::Driver;
use crate::call::Call;
use crate::error::Result;
use crate::matching::{Arrived, EAGER, Input};
use crate::mesh::{LOCAL_MESSAGE, MESSAGE};
use crate::messages::arriving::{Arriving, Body, Reading};
use crate::messages::leaving::Leaving;
use crate::outbound::Outbound;
use crate::running::{Named, shown};
use crate::wire::{Envelope, Frame, Sent};

/// Number of read bytes after which the next connection has its turn.
const TURN: usize = 1024 * 1024;

/// Maximum number of reads of a connection before the turn of the next one.
const READS: usize = 256;

impl Driver {
    /// Connects to a peer, to send messages or to detect its end.
    pub(super) fn dial(&mut self, rank: u32, call: &Call) -> Result<()> {
        let peer = self.peers.entry(rank).or_default();
        if peer.leaving.is_some() || peer.takes_nothing.is_some() {
            return Ok(());
        }
        let (endpoint, buffer) = (&self.endpoints[rank as usize], self.buffer.as_ref());
        let outbound = Outbound::dial(&self.member, rank, endpoint, buffer, call)?;
        peer.leaving = Some(Leaving::new(outbound));
        // The hello of a socket is only queued.
        self.send_to(rank);
        Ok(())
    }

    /// Returns a peer in the form that errors use.
    pub(super) fn named(&self, rank: u32) -> Named {
        (rank, self.endpoints[rank as usize].address)
    }

    pub(super) fn accept_peers(&mut self) {
        let peers = &self.peers;
        let has_come = |rank| peers.get(&rank).is_some_and(|peer| peer.arriving.is_some());
        match self.acceptor.accept_peers(has_come) {
            Ok(accepted) => {
                for (rank, inbound) in accepted {
                    self.peer(rank).arriving = Some(Arriving::new(inbound));
                }
            }
            Err(error) => self.fail(Vec::new(), Some(error)),
        }
    }

    /// Sends what a peer can take in one turn, and ends the completed sends.
    pub(super) fn send_to(&mut self, rank: u32) {
        let longest = match &self.endpoints[rank as usize].local {
            Some(_) => LOCAL_MESSAGE,
            None => MESSAGE,
        };
        let transfers = &self.transfers;
        let peer = self.peers.entry(rank).or_default();
        if let Some(leaving) = &mut peer.leaving {
            leaving.send(longest, |operation| {
                transfers.get(&operation).map(|one| one.values.bytes())
            });
        }
        self.end_sent(rank);
        let leaving = self.peer(rank).leaving.as_ref();
        if leaving.is_some_and(|leaving| leaving.outbound.ended().is_some()) {
            self.read_answers(rank);
        }
    }

    fn end_sent(&mut self, rank: u32) {
        let leaving = self.peer(rank).leaving.as_mut();
        for operation in leaving.map(Leaving::take_sent).unwrap_or_default() {
            self.end(operation, rank);
        }
    }

    /// Reads replies of a peer on the connection that was dialled to it.
    pub(super) fn read_answers(&mut self, rank: u32) {
        while !self.has_ended
            && let Some(leaving) = &mut self.peer(rank).leaving
        {
            match leaving.outbound.read_reply() {
                None => break,
                Some(Ok(Frame::Matched { number })) => {
                    // The peer already has the values of an eager message that it has matched.
                    self.end_sent(rank);
                    self.handle(Input::Matched { by: rank, number });
                    self.send_to(rank);
                }
                Some(Ok(Frame::Leave)) => leaving.left = true,
                Some(Ok(Frame::Abort { suspect, cause })) => {
                    return self.end_aborted(rank, suspect, cause);
                }
                Some(Ok(Frame::Refuse(refusal))) => return self.end_refused(rank, refusal),
                Some(sent) => return self.end_not_a_rank(rank, &shown(sent)),
            }
        }
        // One of the replies may have been an accept frame.
        self.end_sent(rank);
        if self.has_ended {
            return;
        }
        let Some(leaving) = &self.peer(rank).leaving else {
            return;
        };
        let was_there = leaving.outbound.is_accepted();
        let (left, ended) = (leaving.left, leaving.outbound.ended());
        let reason = match ended {
            _ if left => LEFT_IN_ORDER.to_owned(),
            Some(reason) => reason.to_owned(),
            None => return,
        };
        let peer = self.peer(rank);
        peer.leaving = None;
        peer.takes_nothing = Some(reason.clone());
        if peer.arriving.is_none() {
            // The peer's hello may still be in flight, although the peer has ended.
            self.accept_peers();
        }
        let peer = self.peer(rank);
        if peer.arriving.is_none() && peer.sends_nothing.is_none() {
            peer.sends_nothing = Some(reason.clone());
        }
        self.lose(rank, &reason, was_there && !left);
    }

    /// Reads available frames and values of a peer.
    pub(super) fn read_from(&mut self, rank: u32) {
        let mut bytes = 0;
        for _ in 0..READS {
            if self.has_ended || bytes >= TURN {
                return;
            }
            let transfers = &mut self.transfers;
            let peer = self.peers.get_mut(&rank);
            let arriving = peer.and_then(|peer| peer.arriving.as_mut());
            let Some(arriving) = arriving.filter(|one| one.is_read()) else {
                return;
            };
            let buffer = match arriving.body {
                Body::Piece { operation, .. } => transfers.get_mut(&operation),
                _ => None,
            };
            match arriving.read(buffer.map(|one| one.values.bytes_mut())) {
                Ok(Reading::Nothing) => return,
                Ok(Reading::Values(read)) => {
                    bytes += read;
                    self.take_values(rank);
                }
                Ok(Reading::Frame(sent)) => self.take_frame(rank, sent),
                Err(error) => return self.end_arriving(rank, &error.to_string(), true),
            }
        }
    }

    /// Records that nothing more arrives from a peer.
    fn end_arriving(&mut self, rank: u32, reason: &str, died: bool) {
        // A peer that breaks the group sends its reason before it leaves.
        self.read_answers(rank);
        let peer = self.peer(rank);
        peer.arriving = None;
        peer.sends_nothing = Some(reason.to_owned());
        if !self.has_ended {
            self.lose(rank, reason, died);
        }
    }

    fn take_frame(&mut self, rank: u32, sent: Sent) {
        match sent {
            Ok(Frame::Message {
                envelope,
                eager: false,
            }) => self.arrive(rank, envelope, None),
            Ok(Frame::Message { envelope, .. }) => match envelope.bytes() {
                Some(bytes) if bytes <= EAGER => {
                    let body = Body::Eager {
                        envelope,
                        values: vec![0; bytes],
                        read: 0,
                    };
                    self.expect(rank, body);
                }
                Some(bytes) => {
                    let found =
                        format!("it sent an eager message of {bytes} bytes; the limit is {EAGER}");
                    self.end_not_a_rank(rank, &found);
                }
                None => self.end_not_a_rank(rank, &format!("{envelope:?}")),
            },
            Ok(Frame::Piece { number, payload }) => {
                let payload = payload as usize;
                match self.matching.room(rank, number, payload) {
                    Ok((operation, offset)) => {
                        let body = Body::Piece {
                            operation,
                            number,
                            offset,
                            end: offset + payload,
                            payload,
                        };
                        self.expect(rank, body);
                    }
                    Err(found) => self.end_not_a_rank(rank, &found),
                }
            }
            Ok(Frame::Abort { suspect, cause }) => self.end_aborted(rank, suspect, cause),
            Ok(Frame::Leave) => self.end_arriving(rank, LEFT_IN_ORDER, false),
            sent => self.end_not_a_rank(rank, &shown(sent)),
        }
    }

    /// Sets the next part of the stream, which may be empty.
    fn expect(&mut self, rank: u32, body: Body) {
        if let Some(arriving) = &mut self.peer(rank).arriving {
            arriving.body = body;
        }
        self.take_values(rank);
    }

    /// Passes the values to `matching` once all values of a frame have arrived.
    fn take_values(&mut self, rank: u32) {
        let Some(arriving) = &mut self.peer(rank).arriving else {
            return;
        };
        match std::mem::replace(&mut arriving.body, Body::Frame) {
            Body::Eager {
                envelope,
                values,
                read,
            } if read == values.len() => self.arrive(rank, envelope, Some(values)),
            Body::Piece {
                number,
                offset,
                end,
                payload,
                ..
            } if offset == end => self.handle(Input::Received {
                from: rank,
                number,
                bytes: payload,
            }),
            unfinished => arriving.body = unfinished,
        }
    }

    fn arrive(&mut self, from: u32, envelope: Envelope, values: Option<Vec<u8>>) {
        self.handle(Input::Arrived(Arrived {
            from,
            envelope,
            values,
        }));
    }
}

/// Reason for an end of data from a rank that has sent a leave frame.
pub(super) const LEFT_IN_ORDER: &str = "it has left the group";
