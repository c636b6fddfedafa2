//! The connection to the coordinator, and outages.

use std::time::Duration;

use super::{CHANGES_WITHIN, Link, MOST_CHANGES, NativeClient, Outage, Phase, unreachable};
use crate::coordinator::RECOVERY_WINDOW;
use crate::coordinator::wire::{Authority, EventReader, HeldRound, Operation, Reattach};
use crate::native_client::{NativeFailure, Output, RoundChange};
use crate::{Rule, fence};
use rdzv_core::rate::RateLimit;
use rdzv_core::time::Mono;

/// Minimum time for which the agent tries to reconnect.
const RECONNECT: Duration = Duration::from_secs(5);

/// Time to retry a silent coordinator, as a multiple of the detection time.
///
/// The network may recover. The other nodes continue without this node during this time.
const CUT_FACTOR: u32 = 4;

/// Time for a notice of lost nodes at the end of a recovery.
const NOTICE_TAKES: Duration = Duration::from_secs(1);

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);

impl NativeClient {
    /// Connects if there is no connection and no pending attempt.
    ///
    /// After that, the machine sends requests that it could not send.
    pub(super) fn dial(&mut self, now: Mono) {
        if self.link == Link::Down {
            self.link = Link::Dialing(Outage {
                since: now,
                why: "there was no connection".to_owned(),
                silent: false,
            });
            self.outbox.push(Output::Dial);
        }
    }

    pub(super) fn hang_up(&mut self, now: Mono, why: String, silent: bool) {
        let is_understood = self.is_attached() && self.join.from.is_some();
        if is_understood && self.rules.has(Rule::DetachIsSent) {
            self.say(&Operation::Detach);
        }
        self.outbox.push(Output::HangUp);
        self.disconnected(now, why, silent);
    }

    pub(super) fn connected(&mut self, now: Mono) {
        let outage = match std::mem::replace(&mut self.link, Link::Up) {
            Link::Dialing(outage) => outage,
            _ => Outage {
                since: now,
                ..Outage::default()
            },
        };
        self.reader = EventReader::default();
        self.coordinator = Authority::default();
        self.reports.clear();
        self.changes = RateLimit::new(MOST_CHANGES, CHANGES_WITHIN);
        self.leaving = 0;
        self.heard = now;
        self.quiet.heard(now);
        self.heartbeat_at = now + self.join.settings.keep_alive_interval;
        self.attachment.reminded_after = None;
        self.lease.reconnected(now);
        match &self.phase {
            Phase::Idle if std::mem::take(&mut self.owes_leave) => {
                self.leaving = 1;
                self.reattach(None);
            }
            Phase::Idle | Phase::CutOff => {}
            Phase::Joining { .. } if self.is_attached() => self.reattach(None),
            Phase::Joining { .. } => self.say_join(now),
            Phase::Formed { joined, .. } | Phase::Member { joined } if joined.is_recoverable => {
                let held = self.attachment.held(joined);
                self.reattach(Some(held));
            }
            Phase::Formed { .. } => self.join_anew(now),
            Phase::Member { joined } => {
                let round = joined.round;
                self.outbox.push(connection_broke(round, &outage.why));
            }
        }
        if let Some(reason) = self.attachment.failed.clone() {
            self.say(&Operation::Failed { reason });
        }
        self.unproven = Some(outage);
        if self.closing.is_some() {
            self.say_close(now);
        }
    }

    /// Resumes over a new connection, with a round, a pending join, or the leave.
    fn reattach(&mut self, holds: Option<HeldRound>) {
        let reattach = Reattach {
            leaves: self.phase == Phase::Idle,
            last: self.attachment.last_coordinator(),
            join: self.join.clone(),
            left: self.attachment.last.clone().filter(|_| holds.is_none()),
            holds,
        };
        self.say(&Operation::Reattach(Box::new(reattach)));
    }

    pub(super) fn disconnected(&mut self, now: Mono, why: String, silent: bool) {
        let outage = match std::mem::replace(&mut self.link, Link::Down) {
            Link::Up => {
                if std::mem::take(&mut self.asking) {
                    self.answer_status();
                }
                // A coordinator that closes the connection is reachable: its silence is over.
                let unproven = self.unproven.take();
                unproven.filter(|outage| silent || !outage.silent)
            }
            Link::Dialing(outage) | Link::Pausing { outage, .. } => Some(outage),
            Link::Down => return,
        };
        let outage = match outage {
            Some(outage) => {
                let elapsed = now.since(outage.since);
                let attached = self.attachment.timeout();
                let timeout = if let Some(timeout) = attached {
                    timeout
                } else if outage.silent {
                    self.join.settings.lost_after() * CUT_FACTOR
                } else {
                    RECONNECT
                };
                let timeout = timeout.max(RECONNECT);
                if elapsed >= timeout {
                    let what = format!("the connection was lost ({}); then {why}", outage.why);
                    return self.give_up(what, elapsed);
                }
                if elapsed >= RECONNECT
                    && let Phase::Member { joined } = &self.phase
                    && !joined.is_recoverable
                {
                    // The other nodes have continued without this node.
                    let round = joined.round;
                    self.phase = Phase::CutOff;
                    self.outbox.push(connection_broke(round, &outage.why));
                }
                if attached.is_some() && self.attachment.is_to_tell(elapsed) {
                    self.miss(Some(why), elapsed, timeout.saturating_sub(elapsed));
                }
                outage
            }
            None => {
                // The next attempt may take long if the coordinator's machine is silent.
                let elapsed = now.since(self.heard);
                let attached = self.attachment.timeout().filter(|_| !self.has_voters);
                if let Some(timeout) = attached
                    && self.phase != Phase::Idle
                    && self.attachment.is_to_tell(elapsed)
                {
                    self.miss(Some(why.clone()), elapsed, timeout.max(RECONNECT));
                }
                let limit = self.attachment.timeout().unwrap_or_default();
                self.say_losses_known(limit.max(RECONNECT));
                Outage {
                    since: now,
                    why,
                    silent,
                }
            }
        };
        self.owes_leave |= self.phase == Phase::Idle && self.leaving > 0 && self.is_awaited();
        if self.phase == Phase::Idle && self.closing.is_none() && !self.owes_leave {
            return;
        }
        let at_once = outage.since == now;
        let deadline = if at_once { now } else { now + RETRY };
        self.link = Link::Pausing { outage, deadline };
    }

    /// Handles the answer of a coordinator to an agent that has reattached.
    ///
    /// The coordinator may have just replaced another one, and wait for the missing participants.
    pub(super) fn reattached(&mut self) {
        if let Phase::Member { joined } = &self.phase {
            let lease = fence::lease(self.join.settings.node_timeout, joined.world_size);
            let lost_after = fence::lost_after(lease, self.rules);
            self.say_losses_known(lost_after.max(RECOVERY_WINDOW) + NOTICE_TAKES);
        }
    }

    fn say_losses_known(&mut self, within: Duration) {
        if let Phase::Member { joined } = &self.phase
            && joined.is_recoverable
        {
            self.outbox.push(Output::LossesKnownWithin(within));
        }
    }

    fn give_up(&mut self, what: String, elapsed: Duration) {
        if self.closing.take().is_some() {
            let failure = unreachable(&what, elapsed);
            self.outbox.push(Output::NotClosed(failure));
        }
        self.lease.end();
        self.owes_leave = false;
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Idle => {}
            Phase::Joining { .. } | Phase::Formed { .. } => {
                let failure = NativeFailure::Unreachable { what, elapsed };
                self.outbox.push(Output::NotJoined(failure));
            }
            Phase::Member { .. } | Phase::CutOff => {
                let change = RoundChange::Lost { what, elapsed };
                self.outbox.push(Output::Changed(change));
            }
        }
    }
}

/// Returns the change for a round that is over because the connection broke.
fn connection_broke(round: u64, why: &str) -> Output {
    Output::Changed(RoundChange::Membership {
        round,
        reason: format!(
            "the connection to the rendezvous host was lost ({why}), so the other nodes treat this \
             node as lost"
        ),
    })
}
