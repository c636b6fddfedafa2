//! The runs: deterministic state, and what follows from what happens to it. Agents are known by the
//! names of their nodes; nothing here knows of connections.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | one run: its agents, and their requests |
//! | `arrivals.rs` | joining and leaving, and who is notified |
//! | `round.rs` | when a round is complete, and what follows |
//! | `master.rs` | the address of the workers' store |
//! | `noted.rs` | what its note says, and the numbers of its rounds |
//! | `recovery.rs` | what is learned from members after the death of a coordinator |
//! | `reattach.rs` | agents that come back, or were started in place of others |
//! | `elsewhere.rs` | members of a round whose coordinator may live |
//! | `silent.rs` | rounds of which all participants are silent |
//! | `torchrun.rs` | torchrun's form of the state, and writes of its agents |

mod arrivals;
mod elsewhere;
mod master;
mod noted;
mod reattach;
mod recovery;
mod round;
mod silent;
mod torchrun;

pub use self::recovery::WINDOW as RECOVERY_WINDOW;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::master::Masters;
use self::recovery::Recovery;
use self::silent::Silent;
use super::note::RunNote;
use super::wire::{Event, Join, Program, Refusal};
use crate::fence;
use crate::last_call::LastCall;
use crate::mutant::{Mutant, is_broken};
use crate::recovering::Recovering;
use crate::waiting::Arrived;
use crate::{NodeDesc, RendezvousState, Settings, silence};
use rdzv_core::machine::Outbox;
use rdzv_core::reminder;
use rdzv_core::time::{Mono, Now, Wall};

/// Longest time of any setting; more is a mistake, and would not fit where times are added up.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Agents that have waited for less are not told who has come: most rounds are complete before.
const TELL_AFTER: Duration = reminder::FIRST;

/// Changes of who has come within this time are told as one, so that many arrivals cost little.
const TELL_WITHIN: Duration = Duration::from_millis(250);

/// Most missed heartbeats that may be allowed.
const MOST_ATTEMPTS: u32 = 1_000_000;

/// The logarithm of the rounds that one coordinator may announce before numbers could be used twice, where nobody
/// remembers the last one.
const ROUNDS_OF_EPOCH: u32 = 16;

/// What a run wants done.
#[derive(Debug)]
pub(super) enum Effect {
    /// Send an event to an agent of the run.
    Notify(NodeDesc, Event),
    /// The agent is not in the run any more: its session ends.
    Gone(NodeDesc),
    /// Read a key at once, before anything else.
    Read(Vec<u8>),
    /// Store a value.
    Store { key: Vec<u8>, value: Vec<u8> },
    /// Remove a key.
    Remove(Vec<u8>),
    /// Log that a round which has enough nodes waits for more.
    LastCall(LastCall),
    /// Log how far a state recovery has come.
    Recovering(Recovering),
    /// Leave this to the next coordinator, before anything that follows.
    Note(RunNote),
}

/// One run.
#[derive(Debug, Default)]
pub(super) struct Run {
    id: String,
    /// The state as all agents see it, but for the heartbeats of native agents.
    state: RendezvousState,
    /// The settings of the run, and the agent they are from: the first native one, and again the
    /// first after there has been none in between.
    settings: Settings,
    settings_of: Option<NodeDesc>,
    agents: BTreeMap<NodeDesc, Agent>,
    /// When the join of which agent is over.
    join_timers: BTreeSet<(Mono, NodeDesc)>,
    /// When torchrun's agents were last heard of: the time they wrote, and ours when it was seen.
    torchrun: BTreeMap<NodeDesc, (Wall, Mono)>,
    /// The complete round that was announced to its participants.
    announced: Option<u64>,
    /// The program of its participants, if all of them have said so.
    round_runs: Vec<Program>,
    /// It was also announced that the round does not hold any more.
    change_announced: bool,
    /// The participants of that round.
    former: BTreeSet<NodeDesc>,
    /// Those of them that may come back.
    awaited: BTreeSet<NodeDesc>,
    /// Until when torchrun's agents among them are waited for.
    awaited_until: Option<Mono>,
    /// Enough of them for a round are there, so that it need not wait for others.
    enough: bool,
    /// Number of nodes that those who wait for a round were told of last, and when they are told again.
    reported: usize,
    tell_at: Option<Mono>,
    /// The end of the last call.
    last_call: Option<Mono>,
    /// Whether it was logged, which happens once per round, however many nodes come and go.
    last_call_announced: bool,
    masters: Masters,
    /// The round whose ranks stand in the store, and of how many nodes.
    recorded: Option<(u64, u32)>,
    /// What is stored under torchrun's key; the state has changed since if it is dirty.
    form: Option<Vec<u8>>,
    /// When the heartbeats of native agents in it are from.
    refreshed_at: Mono,
    dirty: bool,
    /// The form is ours, and was not there before.
    written: bool,
    /// Whether another coordinator follows if this one dies. If not, nothing of what follows is used.
    restartable: bool,
    /// The note for it.
    note: RunNote,
    /// The recovery under way.
    recovery: Option<Recovery>,
    /// The ranks of the participants that it waits for, and their instances as far as they are known (else 0).
    missing: BTreeMap<u32, u64>,
    /// The participants of the announced round that were lost because nothing was heard of them.
    silent: BTreeMap<u32, Silent>,
    /// The instance of the agent in whose process the coordinator is.
    host: Option<u64>,
    /// There was another coordinator before, which has left no note.
    had_coordinator: bool,
    /// Until when members of an older round may be heard of, where nothing is known of one.
    not_before: Option<Mono>,
    /// People have said that those who are missing have ended.
    recovers: bool,
    /// If agents have leases: when one of the voters that elected this coordinator had last heard from an earlier one.
    electors_heard: Option<Mono>,
    /// The time for which a machine may be silent, if it was said.
    node_timeout: Option<Duration>,
    /// The distance to the number of the next round; 1 if it is 0.
    step: u64,
    /// A number that no other coordinator has drawn.
    draw: u64,
    /// Coordinators before this one have given out lower numbers of rounds, as far as it knows how many there were.
    least_number: u64,
    /// Participants of the announced round whose workers have succeeded.
    succeeded: BTreeSet<NodeDesc>,
}

/// An agent that takes part through the coordinator.
#[derive(Debug)]
struct Agent {
    instance: u64,
    role: String,
    local_world_size: u32,
    program: Option<Program>,
    /// The number of its last join, if it can reattach.
    attempt: Option<u32>,
    /// It has said that it failed for good.
    has_failed: bool,
    phase: Phase,
    /// When its join came, how long it waits, and when that is over.
    joined_at: Mono,
    join_timeout: Duration,
    join_at: Option<Mono>,
    /// The time after which it stops its workers, if it has a fence.
    fence: Option<Duration>,
    /// It says where it is from.
    says_from: bool,
}

impl Agent {
    fn new(now: Now, join: Join, phase: Phase) -> Self {
        Self {
            instance: join.instance,
            role: join.role,
            local_world_size: join.local_world_size,
            attempt: join.attempt.filter(|_| join.program.is_some()),
            program: join.program,
            has_failed: false,
            phase,
            joined_at: now.mono,
            join_timeout: join.settings.join_timeout,
            join_at: None,
            fence: join.settings.fence,
            says_from: join.from.is_some(),
        }
    }
}

/// What an agent waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A round.
    Joining,
    /// The end of the round that was announced to it.
    Member,
    /// Nothing: the round went on without it.
    Dropped,
}

/// Why a join cannot be accepted whoever else takes part.
pub(super) fn unusable(join: &Join) -> Option<String> {
    let Settings {
        min_nodes,
        max_nodes,
        join_timeout,
        last_call_timeout,
        keep_alive_interval,
        keep_alive_max_attempt,
        node_timeout,
        ..
    } = join.settings;
    let sensible = |time: Duration| time <= LONGEST;
    if join.run.is_empty() {
        Some("the run id is empty".to_owned())
    } else if min_nodes == 0 || max_nodes < min_nodes {
        Some(format!("{min_nodes} to {max_nodes} nodes cannot be"))
    } else if keep_alive_interval.is_zero()
        || keep_alive_max_attempt == 0
        || keep_alive_max_attempt > MOST_ATTEMPTS
        || node_timeout < silence::LEAST
        || ![
            join_timeout,
            last_call_timeout,
            keep_alive_interval,
            node_timeout,
        ]
        .into_iter()
        .all(sensible)
    {
        Some("the timeouts must be more than nothing and less than ten years".to_owned())
    } else {
        None
    }
}

/// The message to a surplus node when the run ends: that it was not needed, unless it runs something
/// that no participant has run.
fn not_needed(run: &str, agent: &Agent, round_runs: &[Program]) -> Refusal {
    let is_same = |other: &Program| {
        let own = agent.program.as_ref();
        own.is_none_or(|own| own.fingerprint == other.fingerprint)
    };
    match (&agent.program, round_runs.first()) {
        (Some(own), Some(other)) if !round_runs.iter().any(is_same) => Refusal::Unusable(format!(
            "run '{run}' has ended; it ran '{}' and had no place for this node, whose '{}' never \
             ran: give each job its own --rdzv-id",
            other.name, own.name
        )),
        _ => Refusal::NotNeeded,
    }
}

impl Run {
    pub(super) fn new(id: &str, restartable: bool) -> Self {
        Self {
            id: id.to_owned(),
            restartable,
            ..Self::default()
        }
    }

    /// Says in which agent's process the coordinator is; when it began, if it knows nothing of rounds before; whether
    /// people have said that those who are missing have ended; and what it has drawn.
    pub(super) fn hosted(
        mut self,
        host: Option<u64>,
        unnoted_since: Option<Mono>,
        recovers: bool,
        draw: u64,
    ) -> Self {
        (self.host, self.recovers, self.draw) = (host, recovers, draw);
        self.not_before = unnoted_since.map(|began| began + recovery::UNNOTED);
        self
    }

    /// Says that voters are behind the coordinator, when those that elected it had last heard from an earlier one, and for how
    /// long a machine may be silent.
    pub(super) fn fencing(
        mut self,
        electors_heard: Option<Mono>,
        node_timeout: Option<Duration>,
    ) -> Self {
        self.node_timeout = node_timeout;
        self.electors_heard =
            electors_heard.map(|heard| match is_broken(Mutant::ForgetsElectors) {
                false => heard,
                true => Mono::ZERO,
            });
        self
    }

    /// The time that has to pass before a participant of the last round that is silent can be taken for lost: until then,
    /// its workers may run.
    pub(super) fn fence(&self) -> Duration {
        match self.electors_heard {
            Some(_) if !self.note.lease.is_zero() => fence::lost_after(self.note.lease),
            _ => Duration::ZERO,
        }
    }

    /// The same for one agent, whose workers run only if it takes part in the round.
    pub(super) fn fence_of(&self, node: &NodeDesc) -> Duration {
        match self.is_member(node) {
            true => self.fence(),
            false => Duration::ZERO,
        }
    }

    /// Whether an agent takes part in the round that was announced last.
    pub(super) fn is_member(&self, node: &NodeDesc) -> bool {
        let agent = self.agents.get(node);
        agent.is_some_and(|agent| agent.phase == Phase::Member)
    }

    /// Whether an agent takes part, or waits to.
    pub(super) fn keeps(&self, node: &NodeDesc) -> bool {
        let agent = self.agents.get(node);
        agent.is_some_and(|agent| agent.phase != Phase::Dropped)
    }

    /// There were so many coordinators before, of which nothing more is known. If nobody is left who knows the number
    /// of the last round, the next one has a number that none of them has given out.
    pub(super) fn had_coordinators(&mut self, epoch: u32) {
        self.had_coordinator = true;
        self.least_number = self.least_number.max(u64::from(epoch) << ROUNDS_OF_EPOCH);
        if self.announced.is_none() {
            self.state.round = self.state.round.max(self.least_number);
        }
    }

    /// Whether a round was announced, and is not being recovered.
    pub(super) fn knows_a_round(&self) -> bool {
        self.announced.is_some() && self.recovery.is_none()
    }

    /// Whether state is being recovered.
    pub(super) fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// Whether it waits for one of its own agents, about which people have said nothing yet.
    pub(super) fn waits_for_word(&self) -> bool {
        let recovery = self.recovery.as_ref();
        recovery.is_some_and(|recovery| recovery.is_silent) && !self.recovers
    }

    /// Whether no native agent is left, so that the coordinator has nobody to notify.
    pub(super) fn is_idle(&self) -> bool {
        self.agents.is_empty()
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Whether the run is over.
    pub(super) fn is_closed(&self) -> bool {
        self.state.closed
    }

    /// Whether the workers of all participants of a round, the last one, have succeeded.
    pub(super) fn has_succeeded(&self, round: u64) -> bool {
        self.note.succeeded && self.note.round == round
    }

    /// The nodes that an agent sees that waits for a round. Agents of version 0.1, which do not say their
    /// program, would not understand the answer.
    pub(super) fn arrived(&self, node: &NodeDesc) -> Option<Arrived> {
        let agent = self.agents.get(node)?;
        agent.program.as_ref()?;
        Arrived::seen_by(node, &self.state)
    }

    /// The settings of the run.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes over the settings of a join if it is the first.
    pub(super) fn adopt_settings(&mut self, join: &Join) {
        if self.agents.is_empty() {
            (self.settings, self.settings_of) = (join.settings, Some(join.node.clone()));
        }
    }

    /// Takes an agent in that was not refused.
    pub(super) fn join(&mut self, now: Now, mut join: Box<Join>, out: &mut Outbox<Effect>) {
        let node = join.node.clone();
        let phase = self.agents.get(&node).map(|agent| agent.phase);
        if self.is_repeated(&join) && phase != Some(Phase::Dropped) {
            return self.repeat(now, &node, out);
        }
        self.speaks(join.instance);
        // An agent of torchrun with that name cannot be; what it left behind is ours.
        self.torchrun.remove(&node);
        self.state.last_heartbeats.remove(&node);
        self.stop_join_timer(&node);
        for instance in std::mem::take(&mut join.replaces) {
            self.ended(now, instance, &node, out);
        }
        let agent = Agent::new(now, *join, Phase::Joining);
        self.agents.insert(node.clone(), agent);
        self.restart_join_timer(now, &node);
        self.arrive(now, &node, out);
    }

    /// The nodes of the round that forms are others than those that agents were told of.
    fn tell_soon(&mut self, now: Now) {
        match self.state.complete {
            true => (self.reported, self.tell_at) = (0, None),
            false if self.reported == self.state.participants.len() => {}
            false => {
                self.tell_at.get_or_insert(now.mono + TELL_WITHIN);
            }
        }
    }

    /// Tells the agents that have waited for long who has come, if it is time to.
    fn tell_if_due(&mut self, now: Now, out: &mut Outbox<Effect>) {
        if self.tell_at.is_none_or(|at| at > now.mono) {
            return;
        }
        (self.reported, self.tell_at) = (self.state.participants.len(), None);
        for (node, agent) in &self.agents {
            let waits = agent.phase == Phase::Joining && agent.program.is_some();
            if waits && now.mono.since(agent.joined_at) >= TELL_AFTER {
                let arrived = self.arrived(node);
                out.push(Effect::Notify(node.clone(), Event::Alive(arrived)));
            }
        }
    }

    /// Why an agent is not taken in.
    pub(super) fn refusal(&self, join: &Join) -> Option<Refusal> {
        if let Some(agent) = self.agents.get(&join.node)
            && agent.instance != join.instance
        {
            return Some(Refusal::Unusable(format!(
                "another agent calls itself {} and takes part already; give each agent its own \
                 --local-addr",
                join.node
            )));
        }
        let other = self.other_program(join);
        other.or_else(|| self.mismatch(join)).map(Refusal::Unusable)
    }

    /// The difference between the program of a join and that of the others, if no id tells the runs apart.
    fn other_program(&self, join: &Join) -> Option<String> {
        let theirs = join.program.as_ref().filter(|its| !its.has_run_id)?;
        let (first, ours) = self.agents.iter().find_map(|(node, agent)| {
            let ours = agent.program.as_ref().filter(|ours| !ours.has_run_id)?;
            (ours.fingerprint != theirs.fingerprint).then_some((node, ours))
        })?;
        let another = match ours.name == theirs.name {
            true => "another file named ",
            false => "",
        };
        Some(format!(
            "node {} runs {another}'{}', but node {first}, which came first, runs '{}', and neither \
             was given a run id: give each job its own --rdzv-id, or all nodes of one job the same",
            join.node, theirs.name, ours.name
        ))
    }

    /// How the settings of a join differ from those of the others.
    fn mismatch(&self, join: &Join) -> Option<String> {
        let first = self.settings_of.as_ref()?;
        if self.agents.keys().all(|node| *node == join.node) {
            return None;
        }
        let (ours, theirs) = (&self.settings, &join.settings);
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
        let compared = [
            (
                "--nnodes",
                format!("{}:{}", ours.min_nodes, ours.max_nodes),
                format!("{}:{}", theirs.min_nodes, theirs.max_nodes),
            ),
            (
                "last_call_timeout",
                seconds(ours.last_call_timeout),
                seconds(theirs.last_call_timeout),
            ),
            (
                "keep_alive_interval",
                seconds(ours.keep_alive_interval),
                seconds(theirs.keep_alive_interval),
            ),
            (
                "node_timeout",
                seconds(ours.node_timeout),
                seconds(theirs.node_timeout),
            ),
            (
                "keep_alive_max_attempt",
                ours.keep_alive_max_attempt.to_string(),
                theirs.keep_alive_max_attempt.to_string(),
            ),
        ];
        let (what, ours, theirs) = compared.into_iter().find(|(_, a, b)| a != b)?;
        Some(format!(
            "node {} joined run '{}' with {what} {theirs}, but node {first} with {ours}: start all \
             agents of a run with the same settings",
            join.node, self.id
        ))
    }

    /// An agent does not take part any more, by its own word.
    pub(super) fn leave(&mut self, now: Now, node: &NodeDesc, out: &mut Outbox<Effect>) {
        self.leaves_round(node);
        self.remove_agent(node, out);
        self.depart(now, node, "has left", out);
    }

    /// The life of an agent has ended; `how` that was noticed.
    pub(super) fn lost(&mut self, now: Now, node: &NodeDesc, how: &str, out: &mut Outbox<Effect>) {
        self.await_again(node);
        self.falls_silent(node, out);
        self.remove_agent(node, out);
        self.depart(now, node, &format!("is lost: {how}"), out);
    }

    /// The process of an agent has certainly ended, and its workers with it: nobody need be sure of more to go on without it.
    pub(super) fn has_ended(&mut self, now: Now, node: &NodeDesc, out: &mut Outbox<Effect>) {
        self.leaves_round(node);
        self.remove_agent(node, out);
        self.depart(now, node, "is lost: its process has ended", out);
    }

    pub(super) fn remove_agent(&mut self, node: &NodeDesc, out: &mut Outbox<Effect>) {
        self.stop_join_timer(node);
        if let Some(agent) = self.agents.remove(node)
            && !self.note.silent
        {
            self.note_departure(agent.instance, out);
        }
        out.push(Effect::Gone(node.clone()));
    }

    /// An agent has failed for good, which is announced to all others.
    pub(super) fn failed(&mut self, failed: &NodeDesc, reason: &str, out: &mut Outbox<Effect>) {
        // An agent that reattaches says it again.
        if let Some(agent) = self.agents.get_mut(failed)
            && std::mem::replace(&mut agent.has_failed, true)
            && self.restartable
        {
            return;
        }
        let event = Event::PeerFailed {
            node: failed.to_string(),
            reason: reason.to_owned(),
        };
        for node in self.agents.keys().filter(|node| *node != failed) {
            out.push(Effect::Notify(node.clone(), event.clone()));
        }
    }

    /// The run is over.
    pub(super) fn close(&mut self, out: &mut Outbox<Effect>) {
        if !self.state.closed {
            self.state.closed = true;
            self.dirty = true;
            self.announce_closed(out);
        }
    }

    /// Announces to every agent that the run is over, as suits what it waits for.
    fn announce_closed(&mut self, out: &mut Outbox<Effect>) {
        self.note.closed = !is_broken(Mutant::EndIsNotNoted);
        self.note.silent = false;
        out.push(Effect::Note(self.note.clone()));
        self.recovery = None;
        for (node, agent) in &mut self.agents {
            let event = match agent.phase {
                Phase::Joining if self.state.redundancy_list.contains(node) => {
                    Event::Refused(not_needed(&self.id, agent, &self.round_runs))
                }
                Phase::Joining => Event::Refused(Refusal::Closed),
                Phase::Member | Phase::Dropped => Event::Closed,
            };
            agent.phase = Phase::Dropped;
            agent.join_at = None;
            out.push(Effect::Notify(node.clone(), event));
        }
        self.join_timers.clear();
    }

    pub(super) fn status(&self) -> Event {
        Event::Status {
            closed: self.state.closed,
            waiting: self.state.wait_list.len() as u32,
        }
    }

    /// The join of an agent begins, or begins again.
    fn restart_join_timer(&mut self, now: Now, node: &NodeDesc) {
        self.stop_join_timer(node);
        if let Some(agent) = self.agents.get_mut(node) {
            let at = now.mono + agent.join_timeout;
            (agent.joined_at, agent.join_at) = (now.mono, Some(at));
            self.join_timers.insert((at, node.clone()));
        }
    }

    /// An agent does not wait for a round any more.
    fn stop_join_timer(&mut self, node: &NodeDesc) {
        if let Some(agent) = self.agents.get_mut(node)
            && let Some(at) = agent.join_at.take()
        {
            self.join_timers.remove(&(at, node.clone()));
        }
    }
}
