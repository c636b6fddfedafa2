//! The machine of an agent's side of native rendezvous.

use std::time::Duration;

use super::attachment::Attachment;
use super::lease::Lease;
use super::quiet::{Quiet, Step};
use super::{FormedRound, Input, Missing, NativeFailure, Output, RoundChange};
use crate::coordinator::wire::{
    AgentRefusal, Authority, Event, EventReader, HeldRound, Join, Operation, Program, Reattach,
    Standing,
};
use crate::waiting::{Arrived, Waiting};
use crate::{FencePolicy, NodeDesc, Rule, Settings, silence};
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::rate::RateLimit;
use rdzv_core::reminder::Reminder;
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now, earliest};

/// Minimum time for which the agent tries to reconnect.
const RECONNECT: Duration = Duration::from_secs(5);

/// Time to retry a silent coordinator, as a multiple of the detection time.
///
/// The network may recover. The other nodes continue without this node during this time.
const CUT_FACTOR: u32 = 4;

/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_millis(200);

/// Maximum number of nodes that a failed join names.
const MOST_NAMED: usize = 256;

/// Rate limit for membership changes reported by one host.
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
    /// Number of `Leave`s without an answer. Events before the answer are outdated.
    leaving: u32,
    /// `true` if the next coordinator must learn that the agent leaves.
    ///
    /// No coordinator has confirmed it yet.
    owes_leave: bool,
    attachment: Attachment,
    lease: Option<Lease>,
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
    /// Reports that the next question about the lease takes along.
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
    /// No connection; the next request connects.
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
            } => {
                self.join.role = role.to_owned();
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
                // The next question about the lease takes the report along in the same packet.
                let lease = self.lease.as_ref().filter(|lease| lease.is_of_round());
                let waits = lease.is_some() && !self.coordinator.in_process && !report.has_viewer;
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
                let lease = self.lease.as_ref().and_then(Lease::deadline);
                let quiet = self.is_watching().then(|| self.quiet.deadline());
                [lease, quiet]
                    .into_iter()
                    .flatten()
                    .chain([self.heartbeat_at])
                    .min()
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
            lease: (settings.fence == FencePolicy::Auto).then(|| Lease::new(settings.node_timeout)),
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
    /// conditions. The driver closes a connection cleanly after [`Output::HangUp`], and resets it
    /// otherwise. The workers end with the process.
    pub fn from(mut self, address: Option<String>) -> Self {
        self.join.from = address;
        self
    }

    /// Declares that the coordinator is one of several voters.
    pub fn among_voters(mut self) -> Self {
        self.has_voters = true;
        self
    }

    /// Breaks one of the rules, for a simulation.
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

    /// `true` if the agent has sent `Leave`, and may still receive the answer.
    pub fn is_leaving(&self) -> bool {
        self.leaving > 0 && self.link == Link::Up || self.owes_leave
    }

    /// `true` if a restarted coordinator would wait for this agent until it leaves.
    ///
    /// An elected coordinator does not wait.
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
        self.end_lease();
        let attempt = self.join.attempt.unwrap_or(0);
        self.join.attempt = Some(attempt.saturating_add(1));
        self.say_join(now);
    }

    /// Returns the time at which a join without a connection fails.
    ///
    /// `None` if no coordinator has admitted this node: the failed attempts are then the reason.
    /// With a connection, the coordinator ends the join.
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
            self.end_lease();
            if self.link == Link::Up {
                self.leaving += 1;
                self.say(&Operation::Leave);
            } else {
                self.owes_leave = self.is_awaited();
            }
        }
    }

    /// Connects if no attempt is pending.
    ///
    /// After that, the machine sends requests that it could not send.
    fn dial(&mut self, now: Mono) {
        if self.link == Link::Down {
            self.link = Link::Dialing(Outage {
                since: now,
                why: "there was no connection".to_owned(),
                silent: false,
            });
            self.outbox.push(Output::Dial);
        }
    }

    fn receive(&mut self, now: Mono, bytes: &[u8]) {
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

    fn hang_up(&mut self, now: Mono, why: String, silent: bool) {
        let is_understood = self.is_attached() && self.join.from.is_some();
        if is_understood && self.rules.has(Rule::DetachIsSent) {
            self.say(&Operation::Detach);
        }
        self.outbox.push(Output::HangUp);
        self.disconnected(now, why, silent);
    }

    fn event(&mut self, now: Mono, event: Event) {
        // Events about other agents prove nothing, because they never answer this agent.
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
                    // No agent will send the address of the workers' store any more.
                    Phase::Formed { .. } => self.refused(AgentRefusal::Closed),
                    _ => return,
                }
                self.phase = Phase::Idle;
                self.end_lease();
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
                let lease = self.lease.as_mut();
                if let Some((round, deadline)) = lease.and_then(|lease| lease.answered(number)) {
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
                    self.refused(refusal);
                }
            }
        }
    }

    fn refused(&mut self, refusal: AgentRefusal) {
        let failure = NativeFailure::Refused(refusal);
        self.outbox.push(Output::NotJoined(failure));
    }

    /// Begins the round if the agent knows the address of the workers' store.
    ///
    /// In a round with a fence, the agent also needs a lease.
    fn begin_if_ready(&mut self, now: Mono) {
        let lease = self.lease.as_ref();
        if lease.is_some_and(|lease| lease.is_awaited(now)) {
            return;
        }
        if let Phase::Formed { joined, .. } = &self.phase
            && !joined.master_addr.is_empty()
        {
            self.outbox.push(Output::Joined(joined.clone()));
            self.phase = Phase::Member {
                joined: joined.clone(),
            };
        }
    }

    /// Starts the leases of a round of this many agents, if it has a fence.
    ///
    /// The agent then starts its workers with a lease.
    fn begin_lease(&mut self, now: Mono, round: u64, agents: u32) {
        let Some(lease) = &mut self.lease else { return };
        if lease.fenced == Some(round) {
            lease.begin(now, round, agents);
            self.renew_lease(now);
        } else {
            self.outbox.push(Output::Lease { round, ends: None });
        }
    }

    /// Handles a coordinator that turns the fence of a round on or off.
    fn fence(&mut self, now: Mono, round: u64, acts: bool) {
        let Some(lease) = &mut self.lease else { return };
        lease.fenced = acts.then_some(round);
        let (Phase::Formed { joined, .. } | Phase::Member { joined }) = &self.phase else {
            return;
        };
        if joined.round != round || acts && lease.is_of_round() {
            return;
        }
        let agents = joined.world_size;
        if !acts {
            lease.end();
            let (number, standing) = (0, Standing::Lifted);
            self.say(&Operation::Lease { number, standing });
        }
        self.begin_lease(now, round, agents);
        self.begin_if_ready(now);
    }

    fn renew_lease(&mut self, now: Mono) {
        if let Some(lease) = &mut self.lease
            && let Some((number, standing)) = lease.question(now, self.coordinator.in_process)
        {
            // The next question comes before the next heartbeat, and replaces it.
            self.heartbeat_at = self.heartbeat_at.max(lease.due.unwrap_or_default());
            self.say(&Operation::Lease { number, standing });
        }
    }

    fn end_lease(&mut self) {
        if let Some(lease) = &mut self.lease {
            lease.end();
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

    fn answer_status(&mut self) {
        self.outbox.push(Output::Status {
            closed: self.closed,
            waiting: self.waiting,
        });
    }

    fn connected(&mut self, now: Mono) {
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
        if let Some(lease) = &mut self.lease {
            lease.reconnected(now);
        }
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

    fn disconnected(&mut self, now: Mono, why: String, silent: bool) {
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
                let timeout = match outage.silent {
                    _ if let Some(timeout) = attached => timeout,
                    true => self.join.settings.lost_after() * CUT_FACTOR,
                    false => RECONNECT,
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

    fn give_up(&mut self, what: String, elapsed: Duration) {
        if self.closing.take().is_some() {
            let failure = unreachable(&what, elapsed);
            self.outbox.push(Output::NotClosed(failure));
        }
        self.end_lease();
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

    /// Returns the time at which to ask for the nodes that have joined.
    ///
    /// `None` for an agent that sends no program: the coordinator treats it like version 0.1.
    fn asks_at(&self) -> Option<Mono> {
        let asks = self.link == Link::Up
            && matches!(self.phase, Phase::Joining { .. })
            && self.join.program.is_some();
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
            let lease = self.lease.as_ref();
            match lease.and_then(|lease| lease.unanswered(now)) {
                Some(silent) => {
                    let why = format!(
                        "no answer from a majority for {:.1} s",
                        silent.as_secs_f64()
                    );
                    self.hang_up(now, why, true);
                }
                None => self.renew_lease(now),
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

    /// `true` if the agent watches for a silent coordinator.
    ///
    /// A coordinator in this process cannot be silent in this sense.
    fn is_watching(&self) -> bool {
        let takes_part = !matches!(self.phase, Phase::Idle | Phase::CutOff);
        let has_others = self.join.settings.max_nodes > 1 && !self.coordinator.in_process;
        takes_part && has_others && self.is_attached()
    }

    fn beats(&self) -> Duration {
        let settings = &self.join.settings;
        if self.is_watching() {
            silence::heartbeat(settings.node_timeout).min(settings.keep_alive_interval)
        } else {
            settings.keep_alive_interval
        }
    }

    fn tick_quiet(&mut self, now: Mono) {
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

    fn miss(&mut self, what: Option<String>, elapsed: Duration, left: Duration) {
        let lease = self.lease.as_ref();
        self.outbox.push(Output::Missing(Missing {
            what,
            elapsed,
            left,
            is_fenced: lease.is_some_and(Lease::is_of_round),
        }));
    }

    fn beat(&mut self, now: Mono) {
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

fn unreachable(what: &str, elapsed: Duration) -> NativeFailure {
    let what = what.to_owned();
    NativeFailure::Unreachable { what, elapsed }
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
