//! Library ticks, counted at inputs so that an idle member need not wake up.
//!
//! The possible effects of a tick are known in advance: a heartbeat or a majority check at the
//! leader, an election at the other members. The deadline is the first tick with an effect. All
//! ticks before it only count, and the next input counts them together.

use raft::StateRole;
use rdzv_core::time::Mono;

use super::{Consensus, ELECTION_TICKS, MAJORITY_TICKS};

impl Consensus {
    /// Returns the number of ticks until the library acts; `None` if it would not.
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

    /// Time of the next tick that has an effect.
    pub(super) fn tick_due(&self) -> Option<Mono> {
        let left = self.ticks_left()?;
        Some(self.ticked + self.settings.tick * left)
    }

    /// Returns the number of whole ticks since the last counted one.
    fn passed(&self) -> u32 {
        let passed = self.now.mono.since(self.ticked).as_nanos();
        let tick = self.settings.tick.as_nanos().max(1);
        u32::try_from(passed / tick).unwrap_or(u32::MAX)
    }

    /// Advances the clock up to, but not including, a tick that would act.
    ///
    /// Such a tick must wait for [`Consensus::tick`], because the current input may be a message
    /// from the leader.
    pub(super) fn count_ticks(&mut self) {
        let (passed, tick) = (self.passed(), self.settings.tick);
        match self.ticks_left() {
            Some(left) if passed >= left => {
                self.library_ticks(left - 1);
                let is_late = passed > left && left > 1;
                self.ticked = if is_late && self.node.raft.state != StateRole::Leader {
                    self.now.mono
                } else {
                    self.ticked + tick * (passed - 1)
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
        // After a pause of the process, time continues as if there had been no pause: inputs that
        // arrived during the pause are handled first. A leader sends its heartbeat.
        let is_late = passed > left;
        let counted = if is_late && self.node.raft.state != StateRole::Leader {
            (left - 1).max(1)
        } else {
            left
        };
        self.ticked = if is_late {
            self.now.mono
        } else {
            self.ticked + self.settings.tick * left
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
