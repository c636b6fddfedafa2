//! The numbered messages to and from one member: each arrives once and in order, or the member is
//! lost.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::ident::Member;
use super::io::Settings;
use super::message::{Batch, Control};
use rdzv_core::time::Mono;

/// The most messages in one batch.
const BATCH: usize = 1024;

/// How far ahead of the next message others are kept, if they overtake it.
const WINDOW: u64 = 65_536;

/// How often a message is sent again before the member counts as unreachable.
const MAX_RETRIES: u32 = 5;

/// The time between a send and the next one, after so many sends (PyTorch's retries).
fn gap(sends: u32) -> Duration {
    let growth = i32::try_from(sends.clamp(2, MAX_RETRIES) - 2).unwrap_or(0);
    Duration::from_secs_f64(1.5_f64.powi(growth))
}

/// The two directions between this member and another.
#[derive(Debug, Default)]
pub struct Link {
    /// The number of the next message to this member.
    next: u64,
    /// Messages with lower numbers were sent at least once.
    sent: u64,
    /// What it has not acknowledged, the last of them `next - 1`.
    unacknowledged: VecDeque<Control>,
    /// All with lower numbers have come from it.
    received: u64,
    /// What has come too early.
    early: BTreeMap<u64, Control>,
    send_at: Option<Mono>,
    acknowledge_at: Option<Mono>,
    retry_at: Option<Mono>,
    sends: u32,
    /// When something came from it last.
    received_at: Mono,
    /// Since when it is not to be reached.
    unreachable_since: Option<Mono>,
}

impl Link {
    /// Takes a message to be sent at `at`, at the latest.
    pub(super) fn queue(&mut self, message: Control, at: Mono) {
        self.unacknowledged.push_back(message);
        self.next += 1;
        self.send_at = Some(self.send_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// How many messages it has not acknowledged.
    pub(super) fn in_flight(&self) -> usize {
        self.unacknowledged.len()
    }

    /// `true` if nothing is waited for, or nobody is there to wait for.
    pub(super) fn is_quiet(&self) -> bool {
        self.unacknowledged.is_empty() || self.unreachable_since.is_some()
    }

    /// How long nothing has come from it.
    pub(super) fn silent_for(&self, now: Mono) -> Duration {
        now - self.received_at
    }

    /// Takes what has come; returns the messages whose turn it is.
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
            let delay = match batch.urgent {
                true => Duration::ZERO,
                false => settings.acknowledge_within,
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

    /// It cannot be reached since now.
    pub(super) fn unreachable(&mut self, now: Mono) {
        self.unreachable_since.get_or_insert(now);
    }

    /// It can be reached: what it has not acknowledged is sent again.
    pub(super) fn reachable(&mut self, now: Mono) {
        self.unreachable_since = None;
        if self.retry_at.is_some() {
            self.retry_at = Some(now);
        }
    }

    /// Nothing is to wait for others to go with, and what was sent is to be acknowledged soon.
    pub(super) fn expedite(&mut self, now: Mono) {
        if !self.unacknowledged.is_empty() {
            self.retry_at = Some(now);
        }
        if self.acknowledge_at.is_some() {
            self.acknowledge_at = Some(now);
        }
    }

    /// When it is lost, unless something is heard from it.
    pub(super) fn lost_at(&self, settings: &Settings) -> Option<Mono> {
        Some(self.unreachable_since? + settings.grace)
    }

    /// When something is to be done.
    pub(super) fn deadline(&self, settings: &Settings) -> Option<Mono> {
        let times = [self.send_at, self.acknowledge_at, self.retry_at];
        let lost = self.lost_at(settings);
        times.into_iter().chain([lost]).flatten().min()
    }

    /// What is to be sent now. `urgent` asks for acknowledgements at once.
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
