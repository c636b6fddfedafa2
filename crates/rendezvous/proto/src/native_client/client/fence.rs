//! The fence of a round, and the lease of this agent's workers.

use super::{NativeClient, Phase};
use crate::FencePolicy;
use crate::coordinator::wire::{Operation, Standing};
use crate::native_client::Output;
use rdzv_core::time::Mono;

impl NativeClient {
    fn accepts_fence(&self) -> bool {
        self.join.settings.fence == FencePolicy::Auto
    }

    /// Starts the leases of a round of this many agents, if it has a fence.
    ///
    /// The agent then starts its workers with a lease.
    pub(super) fn begin_lease(&mut self, now: Mono, round: u64, agents: u32) {
        if self.lease.fenced == Some(round) {
            self.lease.begin(now, round, agents);
            self.renew_lease(now);
        } else if self.accepts_fence() {
            self.outbox.push(Output::Lease { round, ends: None });
        }
    }

    /// Handles a coordinator that turns the fence of a round on or off.
    pub(super) fn fence(&mut self, now: Mono, round: u64, acts: bool) {
        if self.accepts_fence() {
            self.lease.fenced = acts.then_some(round);
        }
        let (Phase::Formed { joined, .. } | Phase::Member { joined }) = &self.phase else {
            return;
        };
        let is_known = acts && self.lease.is_of_round();
        if joined.round != round || is_known || !self.accepts_fence() {
            return;
        }
        let agents = joined.world_size;
        if !acts {
            self.lease.end();
            let (number, standing) = (0, Standing::Lifted);
            self.say(&Operation::Lease { number, standing });
        }
        self.begin_lease(now, round, agents);
        self.begin_if_ready(now);
    }

    pub(super) fn renew_lease(&mut self, now: Mono) {
        let question = self.lease.question(now, self.coordinator.in_process);
        if let Some((number, standing)) = question {
            // The next question comes before the next heartbeat, and replaces it.
            self.heartbeat_at = self.heartbeat_at.max(self.lease.due.unwrap_or_default());
            self.say(&Operation::Lease { number, standing });
        }
    }
}
