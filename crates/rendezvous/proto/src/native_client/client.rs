//! The machine of an agent's side of native rendezvous.

use std::time::Duration;

use super::attachment::Attachment;
use super::lease::Lease;
use super::quiet::Quiet;
use super::{FormedRound, Input, NativeFailure, Output};
use crate::coordinator::wire::{AgentRefusal, Authority, EventReader, Join, Operation, Program};
use crate::waiting::Arrived;
use crate::{NodeDesc, Rule, Settings};
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::rate::RateLimit;
use rdzv_core::reminder::Reminder;
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now, earliest};

mod connection;
mod events;
mod fence;
mod silence;

/// Maximum number of nodes that a failed join names.
const MOST_NAMED: usize = 256;

/// Rate limit for changes and failures reported by one host.
///
/// Each change stays in memory until the agent has processed it.
const MOST_CHANGES: u32 = 4096;
const CHANGES_WITHIN: Duration = Duration::from_secs(60);

/// The machine of one agent's side.
#[derive(Debug, Default)]
pub struct NativeClient {
    rules: Rules<Rule>,
    join: Join,
    phase: Phase,
    link: Link,
    reader: EventReader,
    /// Number of `Leave`s without an answer.
    ///
    /// Events about rounds that arrive before the answer are outdated.
    leaving: u32,
    /// `true` if the next coordinator must learn that the agent leaves.
    ///
    /// No coordinator has confirmed it yet.
    owes_leave: bool,
    attachment: Attachment,
    lease: Lease,
    /// Deadline of a pending close.
    closing: Option<Mono>,
    asking: bool,
    closed: bool,
    waiting: u32,
    heartbeat_at: Mono,
    heard: Mono,
    /// Silence of a coordinator that has a successor if it dies.
    quiet: Quiet,
    has_voters: bool,
    /// `true` if the agent can be a voter, and is none.
    is_willing: bool,
    /// Authority that the coordinator has sent over this connection.
    coordinator: Authority,
    /// The wait for a round, since the request to join.
    wait: Wait,
    /// The outage before this connection, until the host answers this agent.
    ///
    /// Without an answer, the outage continues.
    unproven: Option<Outage>,
    changes: RateLimit,
    /// Reports to send with the next question about the lease.
    reports: Vec<u8>,
    outbox: Outbox<Output>,
}

/// Start of a join, and its reminders.
#[derive(Debug, Default)]
struct Wait {
    since: Mono,
    reminder: Reminder,
    /// The nodes that had joined at the last report of the coordinator.
    arrived: Option<Arrived>,
    /// Time of the last report that this node is a spare.
    spare_at: Mono,
    /// `true` if the agent has asked for the nodes that have joined.
    asked: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    Joining {
        since: Mono,
    },
    Formed {
        since: Mono,
        joined: FormedRound,
    },
    Member {
        joined: FormedRound,
    },
    /// The round is over for the agent, because it has no connection.
    CutOff,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Up,
    /// No connection; the next request to join or to close connects.
    Down,
    Dialing(Outage),
    /// Between two attempts to connect.
    Pausing {
        outage: Outage,
        deadline: Mono,
    },
}

/// A time without a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Outage {
    since: Mono,
    /// Reason for which the connection broke.
    why: String,
    /// `true` if the host was silent and did not close the connection.
    ///
    /// The network may be cut, and may work again later.
    silent: bool,
}

impl Machine for NativeClient {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input<'_>) {
        self.outbox.assert_drained();
        let now = now.mono;
        match input {
            Input::Join {
                role,
                local_world_size,
                lost,
            } => {
                self.join.role = role.to_owned();
                lost.clone_into(&mut self.join.lost);
                self.join.local_world_size = local_world_size;
                self.wait = Wait {
                    since: now,
                    ..Wait::default()
                };
                self.join_anew(now);
            }
            Input::Interrupt => {
                if matches!(self.phase, Phase::Joining { .. } | Phase::Formed { .. }) {
                    self.leave();
                    self.outbox
                        .push(Output::NotJoined(NativeFailure::Interrupted));
                }
            }
            Input::Leave => self.leave(),
            Input::Close => {
                if self.closed {
                    return self.outbox.push(Output::Closed);
                }
                self.closing = Some(now + self.join.settings.close_timeout);
                self.say_close(now);
            }
            Input::Failed(reason) => {
                let reason = reason.to_owned();
                if self.is_attached() {
                    self.attachment.failed = Some(reason.clone());
                }
                self.say(&Operation::Failed { reason });
            }
            Input::Publish { round, addr, port } => {
                let addr = addr.to_owned();
                self.attachment.published = Some((round, addr.clone(), port));
                self.say(&Operation::Master { round, addr, port });
            }
            Input::Succeeded(round) => {
                self.attachment.succeeded = Some(round);
                self.say(&Operation::Succeeded { round });
            }
            Input::Willing(is_willing) => {
                self.is_willing = is_willing;
                self.say_candidate();
            }
            Input::Report(report) => {
                // The next question about the lease carries the report in the same packet.
                let is_leased = self.lease.is_of_round() && !self.coordinator.in_process;
                let waits = is_leased && !report.has_viewer;
                if self.link == Link::Up {
                    Operation::Report(report).write(&mut self.reports);
                }
                if !waits && !self.reports.is_empty() {
                    let reports = std::mem::take(&mut self.reports);
                    self.outbox.push(Output::Send(reports));
                }
            }
            Input::Ask => {
                if self.link == Link::Up && !self.closed {
                    self.asking = true;
                    let run = self.join.run.clone();
                    self.say(&Operation::Status { run });
                } else {
                    self.answer_status();
                }
            }
            Input::Bytes(bytes) => self.receive(now, bytes),
            Input::Connected(from) => {
                self.join.from = from.map(str::to_owned);
                self.connected(now);
            }
            Input::Disconnected(why) => self.disconnected(now, why, false),
            Input::Tick => self.tick(now),
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        let link = match &self.link {
            Link::Up => {
                let quiet = self.is_watching().then(|| self.quiet.deadline());
                earliest([self.lease.deadline(), quiet, Some(self.heartbeat_at)])
            }
            Link::Pausing { deadline, .. } => Some(*deadline),
            Link::Down | Link::Dialing(_) => None,
        };
        let phase = match &self.phase {
            Phase::Formed { since, .. } => {
                let reminder = *since + self.wait.reminder.next();
                Some(reminder.min(*since + self.join.settings.master_timeout))
            }
            Phase::Joining { .. } if self.link != Link::Up => self.join_ends(),
            Phase::Joining { .. } => self.asks_at(),
            _ => None,
        };
        earliest([link, phase, self.closing])
    }
}

impl NativeClient {
    /// Creates the machine for an open connection.
    ///
    /// `instance` is a number that no other agent has.
    pub fn new(now: Now, instance: u64, run: &str, node: NodeDesc, settings: Settings) -> Self {
        Self {
            heartbeat_at: now.mono + settings.keep_alive_interval,
            join: Join::new(instance, run, node, settings),
            lease: Lease::new(settings.node_timeout),
            heard: now.mono,
            quiet: Quiet::new(now.mono, settings.node_timeout),
            changes: RateLimit::new(MOST_CHANGES, CHANGES_WITHIN),
            ..Self::default()
        }
    }

    /// Sets the program of the workers.
    pub fn running(mut self, program: Option<Program>) -> Self {
        self.join.program = program;
        self
    }

    /// Sets the instances of ended agents that this agent replaces.
    pub fn replacing(mut self, instances: Vec<u64>) -> Self {
        self.join.replaces = instances;
        self
    }

    /// Sets the numeric address of the coordinator.
    ///
    /// A later coordinator at the same address then knows that this one has ended.
    pub fn at(mut self, address: String) -> Self {
        self.attachment.address = address;
        self
    }

    /// Sets the numeric address and port of the local end of the first connection.
    ///
    /// The driver may provide the address, here and in [`Input::Connected`], only under two
    /// conditions. The driver closes a connection cleanly only after [`Operation::Detach`], and
    /// resets it otherwise. The workers end with the process.
    pub fn from(mut self, address: Option<String>) -> Self {
        self.join.from = address;
        self
    }

    /// Declares that the coordinator is one of several voters.
    pub fn among_voters(mut self) -> Self {
        self.has_voters = true;
        self
    }

    /// Sets the rules; a simulation breaks one of them.
    pub fn with_rules(mut self, rules: Rules<Rule>) -> Self {
        self.rules = rules;
        self
    }

    /// Declares that the agent can be a voter if the coordinator invites it.
    pub fn willing(mut self) -> Self {
        self.is_willing = true;
        self
    }

    /// Returns the id of the agent's run.
    pub fn run(&self) -> &str {
        &self.join.run
    }

    /// Returns the agent's node descriptor.
    pub fn node(&self) -> &NodeDesc {
        &self.join.node
    }

    /// Returns the coordinator that the agent obeys.
    ///
    /// `None` if the coordinator has not sent `Attached`.
    pub fn authority(&self) -> Option<Authority> {
        self.attachment.authority
    }

    /// `true` if the agent is not lost when its connection breaks.
    ///
    /// Only coordinators with a successor understand [`Operation::Detach`].
    pub fn is_attached(&self) -> bool {
        self.attachment.timeout().is_some()
    }

    /// `true` if the agent waits for the answer to `Leave`, or must still send it.
    pub fn is_leaving(&self) -> bool {
        self.leaving > 0 && self.link == Link::Up || self.owes_leave
    }

    /// `true` if a restarted coordinator would wait for this agent until it leaves.
    ///
    /// An elected coordinator usually does not wait.
    fn is_awaited(&self) -> bool {
        self.is_attached() && !self.has_voters && !self.closed
    }

    fn say(&mut self, operation: &Operation) {
        if self.link == Link::Up {
            let mut bytes = Vec::new();
            operation.write(&mut bytes);
            if matches!(operation, Operation::Lease { .. }) {
                bytes.append(&mut self.reports);
            }
            self.outbox.push(Output::Send(bytes));
        }
    }

    fn say_candidate(&mut self) {
        if self.coordinator.takes_voters {
            let willing = self.is_willing;
            self.say(&Operation::Candidate { willing });
        }
    }

    /// Begins a join with a new number.
    fn join_anew(&mut self, now: Mono) {
        self.phase = Phase::Joining { since: now };
        self.owes_leave = false;
        self.lease.end();
        self.join.attempt = self.join.attempt.saturating_add(1);
        self.say_join(now);
    }

    /// Returns the time at which a join without a connection fails.
    ///
    /// `None` if no coordinator has reported the joined nodes yet: the join then fails when the
    /// attempts to connect end. With a connection, the coordinator ends the join.
    fn join_ends(&self) -> Option<Mono> {
        let since = self.wait.since.max(self.wait.spare_at);
        let admitted = self.wait.arrived.as_ref();
        admitted.map(|_| since + self.join.settings.join_timeout)
    }

    /// Ends a join whose time is over while the coordinator cannot be reached.
    fn end_late_join(&mut self, now: Mono) {
        if matches!(self.phase, Phase::Joining { .. })
            && self.link != Link::Up
            && self.join_ends().is_some_and(|end| end <= now)
            && let Some(arrived) = self.wait.arrived.take()
        {
            let mut joined = arrived.named;
            let nodes = (arrived.nodes as usize).min(MOST_NAMED);
            joined.resize(nodes.max(joined.len()), "another".to_owned());
            let elapsed = now.since(self.wait.since);
            self.leave();
            self.refused(AgentRefusal::JoinTimeout { elapsed, joined });
        }
    }

    fn say_join(&mut self, now: Mono) {
        self.say(&Operation::Join(Box::new(self.join.clone())));
        self.dial(now);
    }

    fn say_close(&mut self, now: Mono) {
        let run = self.join.run.clone();
        self.say(&Operation::Close { run });
        self.dial(now);
    }

    fn leave(&mut self) {
        if self.phase != Phase::Idle {
            self.phase = Phase::Idle;
            self.lease.end();
            if self.link == Link::Up {
                self.leaving += 1;
                self.say(&Operation::Leave);
            } else {
                self.owes_leave = self.is_awaited();
            }
        }
    }

    fn refused(&mut self, refusal: AgentRefusal) {
        let failure = NativeFailure::Refused(refusal);
        self.outbox.push(Output::NotJoined(failure));
    }

    fn answer_status(&mut self) {
        self.outbox.push(Output::Status {
            closed: self.closed,
            waiting: self.waiting,
        });
    }

    /// Returns the time at which to ask for the nodes that have joined.
    ///
    /// `None` if the agent has no pending join over an open connection.
    fn asks_at(&self) -> Option<Mono> {
        let asks = self.link == Link::Up && matches!(self.phase, Phase::Joining { .. });
        asks.then(|| self.wait.since + self.wait.reminder.next())
    }

    fn tick(&mut self, now: Mono) {
        self.end_late_join(now);
        if let Link::Pausing { outage, deadline } = &self.link
            && *deadline <= now
        {
            self.link = Link::Dialing(outage.clone());
            self.outbox.push(Output::Dial);
        }
        // The lease comes first, because its question replaces a heartbeat.
        if self.link == Link::Up {
            if let Some(silent) = self.lease.unanswered(now) {
                let silent = silent.as_secs_f64();
                let why = format!("no answer from a majority for {silent:.1} s");
                self.hang_up(now, why, true);
            } else {
                self.renew_lease(now);
            }
        }
        if self.link == Link::Up && self.heartbeat_at <= now {
            self.beat(now);
        }
        self.tick_quiet(now);
        if self.asks_at().is_some() && self.wait.reminder.is_due(now.since(self.wait.since)) {
            self.wait.asked = true;
            self.say(&Operation::Heartbeat);
        }
        if let Phase::Formed { since, ref joined } = self.phase {
            let (round, elapsed) = (joined.round, now.since(since));
            let limit = self.join.settings.master_timeout;
            if self.wait.reminder.is_due(elapsed) {
                let left = limit.saturating_sub(elapsed);
                self.outbox.push(Output::AwaitingMaster { round, left });
            }
            if elapsed >= limit {
                let failure = NativeFailure::SilentLeader { round, elapsed };
                self.leave();
                self.outbox.push(Output::NotJoined(failure));
            }
        }
        if self.closing.is_some_and(|end| end <= now) {
            self.closing = None;
            let elapsed = self.join.settings.close_timeout;
            let failure = unreachable("the host did not answer", elapsed);
            self.outbox.push(Output::NotClosed(failure));
        }
    }
}

fn unreachable(what: &str, elapsed: Duration) -> NativeFailure {
    let what = what.to_owned();
    NativeFailure::Unreachable { what, elapsed }
}
