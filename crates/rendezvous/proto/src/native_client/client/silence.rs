//! Heartbeats, and the silence of a coordinator.

use std::time::Duration;

use super::{Link, NativeClient, Phase};
use crate::coordinator::wire::Operation;
use crate::native_client::quiet::Step;
use crate::native_client::{Missing, Output};
use crate::silence;
use rdzv_core::time::Mono;

impl NativeClient {
    /// `true` if the agent watches for a silent coordinator.
    ///
    /// A coordinator in this process cannot be silent in this sense.
    pub(super) fn is_watching(&self) -> bool {
        let takes_part = !matches!(self.phase, Phase::Idle | Phase::CutOff);
        let has_others = self.join.settings.max_nodes > 1 && !self.coordinator.in_process;
        takes_part && has_others && self.is_attached()
    }

    pub(super) fn beats(&self) -> Duration {
        let settings = &self.join.settings;
        if self.is_watching() {
            silence::heartbeat(settings.node_timeout).min(settings.keep_alive_interval)
        } else {
            settings.keep_alive_interval
        }
    }

    pub(super) fn tick_quiet(&mut self, now: Mono) {
        while self.link == Link::Up
            && self.is_watching()
            && let Some(step) = self.quiet.next(now, self.has_voters)
        {
            match step {
                Step::Ask => self.say(&Operation::Heartbeat),
                Step::Search => self.outbox.push(Output::Search),
                Step::Tell(elapsed) => {
                    let lost_after = self.join.settings.lost_after();
                    let end = lost_after + self.attachment.timeout().unwrap_or_default();
                    self.miss(None, elapsed, end.saturating_sub(elapsed));
                }
            }
        }
    }

    pub(super) fn miss(&mut self, what: Option<String>, elapsed: Duration, left: Duration) {
        self.outbox.push(Output::Missing(Missing {
            what,
            elapsed,
            left,
            is_fenced: self.lease.is_of_round(),
        }));
    }

    pub(super) fn beat(&mut self, now: Mono) {
        if now.since(self.heartbeat_at) > self.join.settings.keep_alive_interval {
            // This process was delayed, and may not have read the coordinator's messages yet.
            self.heard = now;
        }
        let silent = now.since(self.heard);
        if silent >= self.join.settings.lost_after() {
            let why = format!("it sent nothing for {:.1} s", silent.as_secs_f64());
            return self.hang_up(now, why, true);
        }
        self.heartbeat_at = now + self.beats();
        self.say(&Operation::Heartbeat);
    }
}
