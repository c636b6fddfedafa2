//! Numbered messages to and from one member.
//!
//! Each message arrives once and in order, or the member is lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::ident::Member;
use super::io::Settings;
use super::message::{Batch, Control};
use rdzv_core::time::Mono;

/// Maximum number of messages in one batch.
const BATCH: usize = 1024;

/// Number of messages, from the next expected one on, that may arrive early.
const WINDOW: u64 = 65_536;

/// Number of repeated sends after which the member counts as unreachable.
const MAX_RETRIES: u32 = 5;

/// Returns the time to wait after send number `sends` (PyTorch's retries).
fn gap(sends: u32) -> Duration {
    let growth = i32::try_from(sends.clamp(2, MAX_RETRIES) - 2).unwrap_or(0);
    Duration::from_secs_f64(1.5_f64.powi(growth))
}

/// Both directions between this member and another.
#[derive(Debug, Default)]
pub struct Link {
    /// Number of the next message to this member.
    next: u64,
    /// Messages with lower numbers were sent at least once.
    sent: u64,
    /// Unacknowledged messages; the last of them has number `next - 1`.
    unacknowledged: VecDeque<Control>,
    /// All messages with lower numbers have arrived.
    received: u64,
    /// Messages that have arrived too early.
    early: BTreeMap<u64, Control>,
    send_at: Option<Mono>,
    acknowledge_at: Option<Mono>,
    retry_at: Option<Mono>,
    sends: u32,
    /// Time of the last batch from the member.
    received_at: Mono,
    unreachable_since: Option<Mono>,
}

impl Link {
    /// Queues a message to be sent by the time `at`.
    pub(super) fn queue(&mut self, message: Control, at: Mono) {
        self.unacknowledged.push_back(message);
        self.next += 1;
        self.send_at = Some(self.send_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Returns the number of messages that the member has not acknowledged.
    pub(super) fn in_flight(&self) -> usize {
        self.unacknowledged.len()
    }

    /// `true` if no acknowledgement is awaited, or the member is unreachable.
    pub(super) fn is_quiet(&self) -> bool {
        self.unacknowledged.is_empty() || self.unreachable_since.is_some()
    }

    /// Returns the time since the last batch from the member.
    pub(super) fn silent_for(&self, now: Mono) -> Duration {
        now - self.received_at
    }

    /// Accepts a batch, and returns the messages that are next in order.
    pub(super) fn receive(
        &mut self,
        now: Mono,
        batch: &Batch,
        settings: &Settings,
    ) -> Vec<Control> {
        self.unreachable_since = None;
        self.received_at = now;
        self.acknowledged(now, batch.received);
        let mut ready = Vec::new();
        if batch
            .first
            .checked_add(batch.messages.len() as u64)
            .is_none()
        {
            return ready;
        }
        for (number, message) in (batch.first..).zip(&batch.messages) {
            if number >= self.received && number - self.received < WINDOW {
                self.early.insert(number, *message);
            }
            while let Some(message) = self.early.remove(&self.received) {
                self.received += 1;
                ready.push(message);
            }
        }
        if !batch.messages.is_empty() {
            let delay = if batch.urgent {
                Duration::ZERO
            } else {
                settings.acknowledge_within
            };
            let at = now + delay;
            self.acknowledge_at = Some(self.acknowledge_at.map_or(at, |earlier| earlier.min(at)));
        }
        ready
    }

    fn acknowledged(&mut self, now: Mono, received: u64) {
        let oldest = self.next - self.unacknowledged.len() as u64;
        if received <= oldest || received > self.sent {
            return;
        }
        for _ in oldest..received {
            self.unacknowledged.pop_front();
        }
        self.sends = 1;
        self.retry_at = (self.sent > received).then(|| now + gap(1));
    }

    pub(super) fn unreachable(&mut self, now: Mono) {
        self.unreachable_since.get_or_insert(now);
    }

    /// Records that the member is reachable.
    ///
    /// Unacknowledged messages are sent again.
    pub(super) fn reachable(&mut self, now: Mono) {
        self.unreachable_since = None;
        if self.retry_at.is_some() {
            self.retry_at = Some(now);
        }
    }

    /// Makes all messages and acknowledgements due now.
    pub(super) fn expedite(&mut self, now: Mono) {
        if !self.unacknowledged.is_empty() {
            self.retry_at = Some(now);
        }
        if self.acknowledge_at.is_some() {
            self.acknowledge_at = Some(now);
        }
    }

    /// Returns the time at which the member is lost if it stays unreachable.
    pub(super) fn lost_at(&self, settings: &Settings) -> Option<Mono> {
        Some(self.unreachable_since? + settings.lost_after)
    }

    /// Returns the time of the next action.
    pub(super) fn deadline(&self, settings: &Settings) -> Option<Mono> {
        let times = [self.send_at, self.acknowledge_at, self.retry_at];
        let lost = self.lost_at(settings);
        times.into_iter().chain([lost]).flatten().min()
    }

    /// Returns the batches to send now.
    ///
    /// `urgent` asks for immediate acknowledgements.
    pub(super) fn due(&mut self, now: Mono, ends: (Member, Member), urgent: bool) -> Vec<Batch> {
        let is_due = |at: Option<Mono>| at.is_some_and(|at| at <= now);
        let oldest = self.next - self.unacknowledged.len() as u64;
        let from = if is_due(self.retry_at) {
            self.sends += 1;
            if self.sends > MAX_RETRIES + 1 {
                self.unreachable(now);
            }
            self.retry_at = Some(now + gap(self.sends));
            oldest
        } else if is_due(self.send_at) || is_due(self.acknowledge_at) {
            self.sent
        } else {
            return Vec::new();
        };
        self.send_at = None;
        self.acknowledge_at = None;
        self.sent = self.next;
        if from < self.next && self.retry_at.is_none() {
            self.sends = 1;
            self.retry_at = Some(now + gap(1));
        }
        let skip = usize::try_from(from - oldest).unwrap_or(usize::MAX);
        let messages: Vec<_> = self.unacknowledged.iter().skip(skip).copied().collect();
        let batch = |first: u64, messages: &[Control]| Batch {
            from: ends.0,
            to: ends.1,
            first,
            received: self.received,
            urgent,
            disowned: false,
            messages: messages.to_vec(),
        };
        if messages.is_empty() {
            return vec![batch(from, &[])];
        }
        let firsts = (from..).step_by(BATCH);
        firsts
            .zip(messages.chunks(BATCH))
            .map(|(first, messages)| batch(first, messages))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gaps_between_sends_are_the_references() {
        let gaps: Vec<_> = (1..8).map(|sends| gap(sends).as_millis()).collect();
        assert_eq!(gaps, [1000, 1000, 1500, 2250, 3375, 3375, 3375]);
    }
}
