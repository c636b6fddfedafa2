//! Failed operations, the end of the group, and leaving the group.

use std::time::{Duration, Instant};

use super::{Driver, LEFT, matching};
use crate::broken::Break;
use crate::call::GroupOperation;
use crate::error::CollectiveError;
use crate::messages::transfer::Transfer;
use crate::polling::Polling;
use crate::running::Running;
use crate::wire::{AbortCause, Frame, GroupRefusal};

/// Maximum time that a leaving rank waits for peers to take what it has sent.
const LINGER: Duration = Duration::from_secs(2);

type Failed = Vec<(matching::Operation, CollectiveError)>;

impl Driver {
    /// Ends the group here and at the peers.
    ///
    /// The failed operations get their errors, and all other operations get the reason. The reason
    /// is the error that has already broken the group. If there is none, the reason is the first of
    /// these errors, or `reason`.
    pub(super) fn fail(&mut self, failed: Failed, reason: Option<CollectiveError>) {
        let first = failed.first().map(|(_, error)| error).or(reason.as_ref());
        let own = self.member.rank;
        let broken = match first {
            Some(error) => self.broken.get_or_init(|| Break::new(error, own)),
            None => match self.broken.get() {
                Some(broken) => broken,
                None => return,
            },
        };
        let (frame, because) = (broken.frame(), broken.first.clone());
        self.tell_peers(&frame);
        let mut failed: std::collections::BTreeMap<_, _> = failed.into_iter().collect();
        self.deadlines.clear();
        for (operation, transfer) in std::mem::take(&mut self.transfers) {
            let error = failed.remove(&operation);
            let error = error.unwrap_or_else(|| CollectiveError::broken(&because));
            transfer.values.end(Err(error));
        }
    }

    fn tell_peers(&mut self, frame: &Frame) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        self.acceptor.close(frame);
        for peer in self.peers.values_mut() {
            if let Some(arriving) = &mut peer.arriving {
                arriving.answer(frame);
                arriving.send_answers();
            }
            if let Some(leaving) = &mut peer.leaving {
                leaving.outbound.abort(frame);
            }
        }
    }

    /// Returns the operations that `applies` accepts, each with its own error.
    fn failing(
        &self,
        applies: impl Fn(&Transfer) -> bool,
        error: impl Fn(&Running) -> CollectiveError,
    ) -> Failed {
        let failing = self.transfers.iter().filter(|(_, one)| applies(one));
        failing
            .map(|(&number, one)| (number, error(&one.running)))
            .collect()
    }

    /// Fails the operations that wait for a lost rank, which breaks the group.
    ///
    /// If the rank `died` or all other ranks have left, this includes receives from any rank.
    pub(super) fn lose(&mut self, rank: u32, reason: &str, died: bool) {
        let all_gone = self.gone().len() + 1 == self.endpoints.len();
        self.peer(rank).has_died |= died;
        let peer = self.peer(rank);
        let (takes, sends) = (peer.takes_nothing.is_none(), peer.sends_nothing.is_none());
        let waits = |one: &Transfer| match (one.running.call.operation, one.peer) {
            (GroupOperation::Send { .. }, Some(to)) => to == rank && !takes,
            (_, Some(from)) => from == rank && !sends,
            (_, None) => died || all_gone,
        };
        let named = self.named(rank);
        let failed = self.failing(waits, |one| one.lost(named, reason));
        if !failed.is_empty() {
            self.fail(failed, None);
        }
    }

    /// Ends the group because a peer has failed.
    pub(super) fn end_aborted(&mut self, rank: u32, suspect: u32, cause: AbortCause) {
        let named @ (_, address) = self.named(rank);
        let error = |one: &Running| one.aborted(named, suspect, cause);
        self.end_all(error, || Break {
            first: format!("rank {rank} at {address} stopped, because rank {suspect} {cause}"),
            suspect,
            cause,
        });
    }

    pub(super) fn end_refused(&mut self, rank: u32, refusal: GroupRefusal) {
        let named @ (_, address) = self.named(rank);
        let error = |one: &Running| one.refused(named, refusal);
        self.end_all(error, || Break {
            first: format!("rank {rank} at {address} refused this rank: {refusal}"),
            suspect: rank,
            cause: AbortCause::Refused,
        });
    }

    /// Ends the group because a peer breaks the rules.
    pub(super) fn end_not_a_rank(&mut self, rank: u32, found: &str) {
        let named @ (_, address) = self.named(rank);
        tracing::warn!(rank, %address, found, "a connection does not speak the protocol of a rank");
        let error = |one: &Running| one.not_a_rank(named, found.to_owned());
        self.end_all(error, || Break {
            first: format!(
                "the process at {address} does not speak the protocol of rank {rank} ({found})"
            ),
            suspect: rank,
            cause: AbortCause::Other,
        });
    }

    /// Ends all operations with errors of one kind.
    ///
    /// If no operations are pending, later operations get the reason.
    fn end_all(
        &mut self,
        error: impl Fn(&Running) -> CollectiveError,
        idle: impl FnOnce() -> Break,
    ) {
        let failed = self.failing(|_| true, error);
        if failed.is_empty() {
            self.broken.get_or_init(idle);
        }
        self.fail(failed, None);
    }

    /// Ends all operations at the request of another thread.
    ///
    /// If no operations are pending, the next operation reports the interruption.
    pub(super) fn end_interrupted(&mut self) {
        let rank = self.member.rank;
        let failed = self.failing(|_| true, |one| one.interrupted(rank));
        if failed.is_empty() {
            let cause = AbortCause::Interrupted;
            self.tell_peers(&Frame::Abort {
                suspect: rank,
                cause,
            });
        }
        self.fail(failed, None);
    }

    /// Ends the group if the time limit of an operation has passed.
    pub(super) fn end_late_transfers(&mut self) {
        let now = Instant::now();
        if self.deadlines.first().is_none_or(|(first, _)| *first > now) {
            return;
        }
        let is_late = |one: &Transfer| one.deadline().is_some_and(|deadline| deadline <= now);
        let late = self.transfers.iter().filter(|(_, one)| is_late(one));
        let failed = late.map(|(&number, one)| (number, self.timed_out(one)));
        let failed = failed.collect();
        self.fail(failed, None);
    }

    fn timed_out(&self, transfer: &Transfer) -> CollectiveError {
        let running = &transfer.running;
        let Some(rank) = transfer.peer else {
            return CollectiveError::NoSender {
                call: running.call,
                gone: self.gone(),
                elapsed: running.started.elapsed(),
            };
        };
        let leaving = self.peers.get(&rank).and_then(|peer| peer.leaving.as_ref());
        let is_there = leaving.is_some_and(|leaving| leaving.outbound.is_accepted());
        let state = match (running.call.operation, transfer.is_matched) {
            (_, false) if !is_there => "it has not answered yet and has sent and received nothing",
            (GroupOperation::Send { .. }, false) => {
                "connected; it has posted no receive for the message"
            }
            (GroupOperation::Send { .. }, true) => "it does not accept the values",
            (_, false) => "connected; it has sent no message with this tag",
            (_, true) => "connected; part of the values has arrived",
        };
        running.timed_out(self.named(rank), state)
    }

    /// Leaves the group.
    ///
    /// Sent messages still arrive if the peers take them within [`LINGER`]. The peers are notified
    /// that this rank left cleanly.
    pub(super) fn leave(mut self) {
        for (_, transfer) in std::mem::take(&mut self.transfers) {
            transfer.values.end(Err(CollectiveError::broken(LEFT)));
        }
        if self.has_ended {
            return;
        }
        self.acceptor.close(&Frame::Leave);
        for peer in self.peers.values_mut() {
            if let Some(mut arriving) = peer.arriving.take() {
                arriving.answer(&Frame::Leave);
                arriving.send_answers();
            }
            // A peer that has not accepted the connection has not received any completed send.
            match &mut peer.leaving {
                Some(leaving) if leaving.outbound.is_accepted() => {
                    leaving.outbound.post(&Frame::Leave, &[]);
                }
                _ => peer.leaving = None,
            }
        }
        let deadline = Instant::now() + LINGER;
        while self.linger(deadline) {}
    }

    /// Sends the rest to the peers, and waits for their pending answers.
    ///
    /// Closing a connection with an unread answer would discard the sent data. Returns `false` if
    /// nothing is left to do, or the deadline has passed.
    fn linger(&mut self, deadline: Instant) -> bool {
        // One entry per awaited peer: `true` if this rank may sleep.
        let mut waiting = Vec::new();
        for (&rank, peer) in &mut self.peers {
            let Some(leaving) = &mut peer.leaving else {
                continue;
            };
            let outbound = &mut leaving.outbound;
            outbound.send();
            let mut has_ended = false;
            while !has_ended && let Some(Ok(frame)) = outbound.read_reply() {
                match frame {
                    Frame::Matched { number } => {
                        self.matching
                            .handle(matching::Input::Matched { by: rank, number });
                        // It is too late to send what the match makes room for.
                        while self.matching.poll_output().is_some() {}
                    }
                    _ => has_ended = true,
                }
            }
            let is_sent = !outbound.is_behind(0);
            if has_ended
                || outbound.ended().is_some()
                || (is_sent && !self.matching.awaits_answer(rank))
            {
                peer.leaving = None;
                continue;
            }
            if is_sent {
                outbound.socket.finish();
            }
            waiting.push(outbound.prepare_to_sleep());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if waiting.is_empty() || left.is_zero() {
            return false;
        }
        let sleeps = waiting.into_iter().all(|sleeps| sleeps);
        let mut polling = Polling::default();
        for (&rank, peer) in &self.peers {
            if let Some(leaving) = &peer.leaving {
                polling.add_outbound(rank, &leaving.outbound);
            }
        }
        let left = if sleeps { left } else { Duration::ZERO };
        let polled = polling.wait(Some(left));
        for peer in self.peers.values_mut() {
            if let Some(leaving) = &mut peer.leaving {
                leaving.outbound.awake();
            }
        }
        polled.is_ok()
    }
}
