//! The library's ticks, which are counted when something happens: a member at rest is not woken for each of them.
//!
//! The effects that a tick may have are known beforehand: a heartbeat or a look for the majority at
//! the leader, an election at the others. The deadline is the tick that does. All ticks before it
//! only count, and are counted together, at the next input.

use raft::StateRole;
use rdzv_core::time::Mono;

use super::{Consensus, ELECTION_TICKS, MAJORITY_TICKS};

impl Consensus {
    /// The number of ticks after which the library does something of its own; none if it would do nothing.
    fn ticks_left(&self) -> Option<u32> {
        let raft = &self.node.raft;
        let left = match raft.state {
            StateRole::Leader => {
                let heartbeat = raft
                    .heartbeat_timeout()
                    .saturating_sub(raft.heartbeat_elapsed());
                heartbeat.min(MAJORITY_TICKS.saturating_sub(raft.election_elapsed))
            }
            _ if !raft.promotable() => return None,
            _ => raft
                .randomized_election_timeout()
                .saturating_sub(raft.election_elapsed),
        };
        Some(u32::try_from(left).unwrap_or(u32::MAX).max(1))
    }

    /// When the next tick is that leads to something.
    pub(super) fn tick_due(&self) -> Option<Mono> {
        let left = self.ticks_left()?;
        Some(self.ticked + self.settings.tick * left)
    }

    /// Whole ticks since the last one that was counted.
    fn passed(&self) -> u32 {
        let passed = self.now.mono.since(self.ticked).as_nanos();
        let tick = self.settings.tick.as_nanos().max(1);
        u32::try_from(passed / tick).unwrap_or(u32::MAX)
    }

    /// Counts the ticks up to now, but for one that leads to something: it has to wait for [`Consensus::tick`], because the
    /// input at hand may be the word of the leader.
    pub(super) fn count_ticks(&mut self) {
        let (passed, tick) = (self.passed(), self.settings.tick);
        match self.ticks_left() {
            Some(left) if passed >= left => {
                self.library_ticks(left - 1);
                let is_late = passed > left && left > 1;
                self.ticked = match is_late && self.node.raft.state != StateRole::Leader {
                    true => self.now.mono,
                    false => self.ticked + tick * (passed - 1),
                };
            }
            _ => {
                self.library_ticks(passed.min(2 * ELECTION_TICKS as u32));
                self.ticked = self.ticked + tick * passed;
            }
        }
    }

    pub(super) fn tick(&mut self) {
        if self.election.is_due(self.now.mono) {
            self.campaign();
        }
        let passed = self.passed();
        let due = self.ticks_left().filter(|left| passed >= *left);
        let Some(left) = due else {
            return self.count_ticks();
        };
        // After a standstill time goes on as if there had been none: what came meanwhile is to be
        // read first. A leader says that it is there.
        let is_late = passed > left;
        let counted = match is_late && self.node.raft.state != StateRole::Leader {
            true => (left - 1).max(1),
            false => left,
        };
        self.ticked = match is_late {
            true => self.now.mono,
            false => self.ticked + self.settings.tick * left,
        };
        self.library_ticks(counted);
    }

    fn library_ticks(&mut self, count: u32) {
        for _ in 0..count {
            self.node.tick();
        }
        if count > 0 {
            self.send_lost_snapshots(count);
        }
    }
}
