//! The current request of an agent, and the times of its next steps.

use std::time::Duration;

use crate::decide::{self, JoinPhase};
use crate::expected::is_listed;
use crate::{NodeDesc, RendezvousState};
use rdzv_core::time::{Mono, Now, earliest};

use super::{Copy, Participant};
use crate::participant::pace;

/// Age from which a request or a heartbeat needs a new read of the state.
pub(super) const FRESH: Duration = Duration::from_secs(1);

/// Time for which a join tries to undo its changes after its timeout.
const ROLL_BACK: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(super) struct Task {
    pub(super) request: Request,
    pub(super) since: Mono,
    pub(super) deadline: Mono,
}

#[derive(Debug, Default)]
pub(super) enum Request {
    /// No pending request.
    #[default]
    Idle,
    Join {
        /// First round that the node may join; it must leave earlier rounds.
        ///
        /// `None` before the machine has seen the state.
        first_round: Option<u64>,
        /// Nodes that had joined at the deadline.
        joined: Option<Vec<NodeDesc>>,
    },
    Leave,
    Close,
}

impl Task {
    pub(super) fn phase(&self, now: Mono) -> JoinPhase {
        match self.request {
            Request::Idle => JoinPhase::InTime,
            _ if now < self.deadline => JoinPhase::InTime,
            Request::Join { .. } if now < self.deadline + ROLL_BACK => JoinPhase::RollBack,
            _ => JoinPhase::Over,
        }
    }

    /// Returns the time at which the phase changes next.
    pub(super) fn next_phase(&self, now: Mono) -> Option<Mono> {
        let ends = match self.request {
            Request::Idle => return None,
            Request::Join { .. } => self.deadline + ROLL_BACK,
            Request::Leave | Request::Close => self.deadline,
        };
        [self.deadline, ends].into_iter().find(|at| *at > now)
    }
}

/// Times of the next steps.
impl Participant {
    /// Returns the time of the next heartbeat.
    ///
    /// It is a little early, so that a lost write does not make the heartbeat late.
    pub(super) fn next_beat(&self, state: &RendezvousState) -> Option<Mono> {
        if !is_listed(state, &self.me) {
            return None;
        }
        let early = self.settings.keep_alive_interval * 9 / 10;
        Some(self.beaten.map_or(Mono::ZERO, |last| last + early))
    }

    /// `true` if the heartbeat of this node is very late.
    ///
    /// Other nodes may soon treat this node as lost.
    pub(super) fn is_beat_late(&self, now: Mono) -> bool {
        let late = self.settings.keep_alive_interval * 2;
        self.beaten.is_some_and(|last| now.since(last) >= late)
    }

    /// Returns the end of the last call of a state.
    ///
    /// `None` if there is no last call, or if the node has not written it yet.
    pub(super) fn last_call_end(&self, state: &RendezvousState) -> Option<Mono> {
        let (deadline, end) = self.last_call?;
        let same = state.deadline == Some(deadline);
        same.then(|| end + decide::last_call_extra(state))
    }

    /// Returns the time of the next read, if one is planned.
    fn next_read(&self, copy: &Copy) -> Option<Mono> {
        let nodes = copy.state.participants.len() + copy.state.wait_list.len();
        let in_round = self.membership.is_some();
        let gap = copy.at + pace::gap(nodes, in_round);
        let changed = self.changed.then_some(gap);
        let poll = self.poll.map(|interval| {
            let few = pace::gap(nodes.max(10), true);
            copy.at + interval.min(if in_round { interval } else { few })
        });
        let lost = copy
            .oldest
            .map(|heard| (heard + self.settings.lost_after()).max(gap));
        earliest([changed, poll, lost])
    }

    /// `true` if a changed state requires no step now.
    ///
    /// The next read may become earlier. The check must be cheap, because there may be very many
    /// changes.
    pub(super) fn only_reads_sooner(&mut self, now: Now) -> bool {
        if self.pause.is_some_and(|pause| pause > now.mono) {
            return true;
        }
        let (Some(wake), Some(copy)) = (self.wake, &self.copy) else {
            return false;
        };
        let sooner = self.next_read(copy).map_or(wake, |at| at.min(wake));
        let nothing_now = sooner > now.mono;
        if nothing_now {
            self.wake = Some(sooner);
        }
        nothing_now
    }

    pub(super) fn must_read(&self, now: Now) -> bool {
        let Some(copy) = &self.copy else {
            return true;
        };
        let old = now.mono.since(copy.at) >= FRESH;
        let beat = self.next_beat(&copy.state).is_some_and(|at| at <= now.mono);
        self.outdated || (old && beat) || self.next_read(copy).is_some_and(|at| at <= now.mono)
    }

    /// Returns the time of the next step, unless an event comes first.
    pub(super) fn next_wake(&self, now: Now) -> Option<Mono> {
        let copy = self.copy.as_ref()?;
        let state = &copy.state;
        let participant = state.participants.contains_key(&self.me);
        let joining = matches!(self.task.request, Request::Join { .. });
        let phase = if state.redundancy_list.contains(&self.me) {
            None
        } else {
            self.task.next_phase(now.mono)
        };
        let bounds = self.settings.min_nodes as usize..=self.settings.max_nodes as usize;
        let is_called = !state.complete && bounds.contains(&state.participants.len());
        let last_call = self.last_call_end(state).filter(|_| is_called);
        let given_up = self.expected.next_given_up(now.mono);
        earliest([
            self.next_read(copy),
            self.next_beat(state),
            phase,
            last_call.filter(|_| joining && participant),
            given_up.filter(|_| joining && participant),
        ])
    }
}
