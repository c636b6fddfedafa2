//! Events of the coordinator.

use super::{CHANGES_WITHIN, Link, MOST_CHANGES, NativeClient, Phase};
use crate::coordinator::wire::{AgentRefusal, Event};
use crate::native_client::{FormedRound, Output, RoundChange};
use crate::silence;
use crate::waiting::{Arrived, Waiting};
use rdzv_core::reminder::Reminder;
use rdzv_core::time::Mono;

impl NativeClient {
    pub(super) fn receive(&mut self, now: Mono, bytes: &[u8]) {
        self.heard = now;
        self.quiet.heard(now);
        self.reader.feed(bytes);
        while self.link == Link::Up {
            match self.reader.next_event() {
                Ok(Some(event)) => match self.fault(now, &event) {
                    None => self.event(now, event),
                    Some(fault) => return self.hang_up(now, fault, false),
                },
                Ok(None) => return,
                Err(error) => {
                    return self.hang_up(now, format!("it sent a bad event: {error}"), false);
                }
            }
        }
    }

    /// Returns the reason for which an event cannot come from a correct host.
    fn fault(&mut self, now: Mono, event: &Event) -> Option<String> {
        match event {
            Event::Membership { .. } | Event::PeerFailed { .. } => {
                self.changes.take_dropped(now);
                let within = CHANGES_WITHIN.as_secs();
                (!self.changes.admits(now))
                    .then(|| format!("it reported more than {MOST_CHANGES} changes in {within} s"))
            }
            Event::Attached(authority) => self.attachment.fault(authority),
            Event::Formed {
                rank, world_size, ..
            } if rank >= world_size => Some(format!(
                "it assigned rank {rank} in a world of size {world_size}"
            )),
            _ => None,
        }
    }

    fn event(&mut self, now: Mono, event: Event) {
        // Events about other agents prove nothing, because they need not answer this agent.
        let is_of_others = matches!(
            event,
            Event::Membership { .. } | Event::PeerFailed { .. } | Event::Reports { .. }
        );
        if !is_of_others {
            self.unproven = None;
        }
        match event {
            Event::Left => self.leaving = self.leaving.saturating_sub(1),
            Event::Alive(arrived) => self.alive(now, arrived),
            Event::Reports {
                arrived,
                watch,
                messages,
            } => {
                if arrived.is_some() {
                    self.alive(now, arrived);
                }
                let messages = split(&messages);
                self.outbox.push(Output::Reports { watch, messages });
            }
            Event::Attached(authority) => {
                self.attachment.authority = Some(authority);
                self.coordinator = authority;
                if self.is_attached() {
                    let limit = silence::unacknowledged(self.join.settings.node_timeout);
                    self.outbox.push(Output::Watch(limit));
                    self.heartbeat_at = self.heartbeat_at.min(now + self.beats());
                }
                self.say_candidate();
                self.reattached();
            }
            Event::Voters(list) => {
                self.has_voters = list.voters > 1;
                self.outbox.push(Output::Voters(list));
            }
            Event::Status { closed, waiting } => {
                (self.closed, self.waiting) = (self.closed || closed, waiting);
                if std::mem::take(&mut self.asking) {
                    self.answer_status();
                }
            }
            Event::Closed => {
                self.closed = true;
                let own = self.closing.take().is_some();
                if own {
                    self.outbox.push(Output::Closed);
                }
                match self.phase {
                    Phase::Member { .. } if own => {}
                    Phase::Member { .. } => self.outbox.push(Output::Changed(RoundChange::Closed)),
                    // No agent will send the endpoint of the workers' store any more.
                    Phase::Formed { .. } => self.refused(AgentRefusal::Closed),
                    _ => return,
                }
                self.phase = Phase::Idle;
                self.lease.end();
            }
            _ if self.leaving > 0 => {}
            Event::Recoverable { round, host } => {
                self.attachment.recoverable = Some((round, host));
            }
            Event::AllSucceeded { round } => {
                if matches!(&self.phase, Phase::Member { joined } if joined.round == round) {
                    self.outbox.push(Output::AllSucceeded(round));
                }
            }
            Event::Formed {
                round,
                rank,
                world_size,
                assignment,
                replaced,
            } => {
                if let Phase::Joining { .. } = self.phase {
                    self.waiting = 0;
                    let joined = FormedRound {
                        round,
                        rank,
                        world_size,
                        assignment,
                        replaced,
                        master_addr: String::new(),
                        master_port: 0,
                        is_recoverable: self.attachment.is_recoverable(round),
                    };
                    let held = self.attachment.held(&joined);
                    self.attachment.last = joined.is_recoverable.then_some(held);
                    self.phase = Phase::Formed { since: now, joined };
                    self.begin_lease(now, round, world_size);
                    self.wait.reminder = Reminder::default();
                    if rank == 0 {
                        self.outbox.push(Output::Lead { round });
                    }
                }
            }
            Event::Master { round, addr, port } => {
                if let Phase::Formed { joined, .. } = &mut self.phase
                    && joined.round == round
                {
                    (joined.master_addr, joined.master_port) = (addr, port);
                    self.begin_if_ready(now);
                }
            }
            Event::Undecided { address } => {
                if matches!(self.phase, Phase::Member { .. } | Phase::Formed { .. }) {
                    self.outbox.push(Output::Undecided(address));
                }
            }
            Event::Fence { round, acts } => self.fence(now, round, acts),
            Event::Backed { number } => {
                if let Some((round, deadline)) = self.lease.answered(number) {
                    let ends = Some(deadline);
                    self.outbox.push(Output::Lease { round, ends });
                    self.begin_if_ready(now);
                }
            }
            Event::Membership {
                round,
                waiting,
                reason,
            } => {
                self.waiting = waiting;
                match &self.phase {
                    // The round ended before the workers could use it: the join continues.
                    Phase::Formed { joined, .. } if joined.round == round => {
                        self.join_anew(now);
                    }
                    Phase::Member { joined } if joined.round == round => {
                        let change = RoundChange::Membership { round, reason };
                        self.outbox.push(Output::Changed(change));
                    }
                    _ => {}
                }
            }
            Event::PeerFailed { node, reason } => {
                let change = RoundChange::PeerFailed { node, reason };
                self.outbox.push(Output::Changed(change));
            }
            Event::Refused(refusal) => {
                self.closed |= matches!(refusal, AgentRefusal::Closed | AgentRefusal::NotNeeded);
                if matches!(self.phase, Phase::Joining { .. } | Phase::Formed { .. }) {
                    self.phase = Phase::Idle;
                    self.lease.end();
                    self.refused(refusal);
                }
            }
        }
    }

    /// Begins the round if the agent knows the endpoint of the workers' store.
    ///
    /// In a round with a fence, the agent also needs a lease.
    pub(super) fn begin_if_ready(&mut self, now: Mono) {
        if let Phase::Formed { joined, .. } = &self.phase
            && !joined.master_addr.is_empty()
            && !self.lease.is_awaited(now)
        {
            let joined = joined.clone();
            self.outbox.push(Output::Joined(joined.clone()));
            self.phase = Phase::Member { joined };
        }
    }

    /// Reports the nodes that have joined, if a report is due.
    ///
    /// The coordinator also reports changes without a question.
    fn alive(&mut self, now: Mono, arrived: Option<Arrived>) {
        let was_asked = std::mem::take(&mut self.wait.asked);
        if !matches!(self.phase, Phase::Joining { .. }) || !was_asked && arrived.is_none() {
            return;
        }
        if arrived.as_ref().is_some_and(|arrived| arrived.is_spare) {
            self.wait.spare_at = now;
        }
        if arrived.is_some() {
            self.wait.arrived.clone_from(&arrived);
        }
        let elapsed = now.since(self.wait.since);
        let waiting = Waiting::new(arrived, &self.join.settings, elapsed);
        let is_reminder = was_asked && !waiting.is_last_call();
        self.outbox.push(Output::Waiting {
            waiting,
            is_reminder,
        });
    }
}

/// Splits messages. Each message follows its length.
fn split(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>()
        && let Some((message, rest)) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)
    {
        messages.push(message.to_vec());
        bytes = rest;
    }
    messages
}
