//! The runs: deterministic state machines.
//!
//! A run identifies agents by the names of their nodes, and has no connections.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | one run: its agents, and their requests |
//! | `round.rs` | the states of its round, and the table of transitions |
//! | `arrivals.rs` | joining and leaving |
//! | `forming.rs` | a round that forms, and its completion |
//! | `held.rs` | a complete round that holds, and its end |
//! | `silent.rs` | a round with only silent participants |
//! | `recovering.rs` | recovery of a round from its members after the death of a coordinator |
//! | `elsewhere.rs` | members of a round whose coordinator may still be running |
//! | `reattach.rs` | agents that reattach, or replace others |
//! | `leases.rs` | the fence of a round, and the leases of its participants |
//! | `record.rs` | the record that outlives the coordinator, and the numbers of rounds |
//! | `master.rs` | the endpoint of the workers' store |
//! | `torchrun.rs` | torchrun's form of the state, and writes of its agents |

mod arrivals;
mod elsewhere;
mod forming;
mod held;
mod leases;
mod master;
mod reattach;
mod record;
mod recovering;
mod round;
mod silent;
mod torchrun;

pub use self::recovering::WINDOW as RECOVERY_WINDOW;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use self::leases::AgentLease;
use self::round::{Forming, Round};
use self::torchrun::TorchrunForm;
use super::deadlines::Deadlines;
use super::note::RunNote;
use super::wire::{AgentRefusal, Event, Join, Program};
use super::{Origin, Output};
use crate::ranks::Seat;
use crate::waiting::Arrived;
use crate::{NodeDesc, Rule, Settings, silence};
use rdzv_core::machine::Outbox;
use rdzv_core::time::{Mono, Now, earliest};

/// Maximum duration of any setting.
///
/// A longer duration is a mistake, and a sum with it could overflow.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Maximum value of the setting for missed heartbeats.
const MOST_ATTEMPTS: u32 = 1_000_000;

/// Binary logarithm of the number of round numbers per coordinator.
///
/// After more rounds, two rounds could get the same number unless a record names the last one.
const ROUNDS_OF_EPOCH: u32 = 16;

/// An action of a run.
#[derive(Debug)]
pub(super) enum Effect {
    /// Send an event to an agent of the run.
    Notify(NodeDesc, Event),
    /// End the session of an agent that is no longer in the run.
    Gone(NodeDesc),
    /// Pass an output to the driver.
    Output(Output),
}

impl Effect {
    fn notify(node: &NodeDesc, event: Event) -> Self {
        Self::Notify(node.clone(), event)
    }

    fn store(key: Vec<u8>, value: Vec<u8>) -> Self {
        Self::Output(Output::Store { key, value })
    }
}

#[derive(Debug, Default)]
pub(super) struct Run {
    id: String,
    /// Time at which the coordinator started; `None` if it is not restartable.
    began: Option<Mono>,
    origin: Origin,
    /// Settings of the run, from the first native agent.
    ///
    /// If all native agents have left, the next one sets them again.
    settings: Settings,
    agents: BTreeMap<NodeDesc, Agent>,
    join_timers: Deadlines<NodeDesc>,
    /// Number of voters of the group; 0 without a group.
    voters: u32,
    nodes: Nodes,
    round: Round,
    /// The state that outlives this coordinator.
    record: RunNote,
    /// Nodes of the last round, which have priority in the next one.
    former: BTreeMap<NodeDesc, Seat>,
    /// Number of nodes of the last round; 0 if there was none.
    former_size: u32,
    torchrun: TorchrunForm,
    /// Actions that the coordinator has not executed yet.
    effects: Outbox<Effect>,
}

#[derive(Debug, Default)]
struct Nodes {
    /// Participants of the round and their ranks, which are 0 until it is complete.
    participants: BTreeMap<NodeDesc, u32>,
    /// Nodes that want to participate in the next round.
    waiting: BTreeSet<NodeDesc>,
    /// Nodes that wait because the round is full.
    surplus: BTreeSet<NodeDesc>,
}

impl Nodes {
    /// `true` if a node is in one of the lists.
    fn has(&self, node: &NodeDesc) -> bool {
        self.participants.contains_key(node)
            || self.waiting.contains(node)
            || self.surplus.contains(node)
    }
}

/// An agent that participates through the coordinator.
#[derive(Debug)]
struct Agent {
    join: Join,
    phase: Phase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The agent waits for a round.
    Joining {
        /// Time at which the join arrived or was restarted.
        since: Mono,
    },
    /// The agent is in the round that was announced to it.
    Member { lease: AgentLease },
    /// The agent is in no round, and waits for none.
    Dropped,
}

/// Returns the reason why no round can accept a join.
///
/// `None` if the join is valid.
pub(super) fn unusable(join: &Join) -> Option<String> {
    let settings = &join.settings;
    let (min_nodes, max_nodes) = (settings.min_nodes, settings.max_nodes);
    let times = [
        settings.join_timeout,
        settings.last_call_timeout,
        settings.keep_alive_interval,
        settings.node_timeout,
    ];
    if join.run.is_empty() {
        Some("the run id is empty".to_owned())
    } else if min_nodes == 0 || max_nodes < min_nodes {
        Some(format!(
            "the range of {min_nodes} to {max_nodes} nodes is invalid"
        ))
    } else if settings.keep_alive_interval.is_zero()
        || !(1..=MOST_ATTEMPTS).contains(&settings.keep_alive_max_attempt)
        || settings.node_timeout < silence::LEAST
        || times.iter().any(|time| *time > LONGEST)
    {
        Some(format!(
            "keep_alive_interval must be positive, keep_alive_max_attempt must be from 1 to \
             {MOST_ATTEMPTS}, node_timeout must be at least 0.5 s, and no time may exceed ten years"
        ))
    } else {
        None
    }
}

/// Returns the settings that all agents must share, as users write them.
///
/// The value is `None` for a setting that the agent has not sent.
fn compared(settings: &Settings) -> [(&'static str, Option<String>); 6] {
    let seconds = |time: Duration| Some(format!("{} s", time.as_secs_f64()));
    let nodes = format!("{}:{}", settings.min_nodes, settings.max_nodes);
    let attempts = settings.keep_alive_max_attempt.to_string();
    [
        ("--nnodes", Some(nodes)),
        ("last_call_timeout", seconds(settings.last_call_timeout)),
        ("keep_alive_interval", seconds(settings.keep_alive_interval)),
        ("node_timeout", seconds(settings.node_timeout)),
        ("keep_alive_max_attempt", Some(attempts)),
        ("fence", settings.fence.name().map(str::to_owned)),
    ]
}

/// Returns the refusal of a spare node at the end of a run.
///
/// The job did not need the node, unless the node has a program that no participant has run.
fn not_needed(run: &str, agent: &Agent, programs: &[Program]) -> AgentRefusal {
    let is_same = |other: &Program| {
        let own = agent.join.program.as_ref();
        own.is_none_or(|own| own.fingerprint == other.fingerprint)
    };
    match (&agent.join.program, programs.first()) {
        (Some(own), Some(other)) if !programs.iter().any(is_same) => {
            AgentRefusal::Unusable(format!(
                "run '{run}' has ended; it ran '{}' and did not need this node, which was started \
                 with '{}': give each job a different --rdzv-id",
                other.name, own.name
            ))
        }
        _ => AgentRefusal::NotNeeded,
    }
}

impl Run {
    pub(super) fn new(id: &str, began: Option<Mono>, origin: Origin, voters: u32) -> Self {
        let older_ends = began.map(|began| began + recovering::UNNOTED);
        Self {
            id: id.to_owned(),
            began,
            origin,
            voters,
            round: Round::Forming(Forming {
                older_ends,
                ..Forming::default()
            }),
            ..Self::default()
        }
    }

    /// Removes and returns the next action.
    pub(super) fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop()
    }

    fn phase(&self, node: &NodeDesc) -> Option<Phase> {
        self.agents.get(node).map(|agent| agent.phase)
    }

    /// `true` if an agent participates in the round that was announced last.
    pub(super) fn is_member(&self, node: &NodeDesc) -> bool {
        matches!(self.phase(node), Some(Phase::Member { .. }))
    }

    /// `true` if an agent waits for a round.
    fn is_joining(&self, node: &NodeDesc) -> bool {
        matches!(self.phase(node), Some(Phase::Joining { .. }))
    }

    /// `true` if an agent participates, or waits for a round.
    pub(super) fn keeps(&self, node: &NodeDesc) -> bool {
        !matches!(self.phase(node), None | Some(Phase::Dropped))
    }

    /// Registers `epoch` earlier coordinators whose rounds are unknown.
    ///
    /// If no agent in contact knows the number of the last round, the next round gets a number that
    /// no earlier coordinator has used.
    pub(super) fn had_coordinators(&mut self, epoch: u32) {
        if !self.origin.rules.has(Rule::NumbersJump) {
            return;
        }
        let least = u64::from(epoch) << ROUNDS_OF_EPOCH;
        if let Round::Forming(forming) = &mut self.round {
            if forming.last.is_none() {
                forming.number = forming.number.max(least);
            }
        } else if let Some(recovery) = self.round.recovery()
            && !recovery.is_recorded()
            && let Some(formed) = self.round.formed_mut()
        {
            formed.next = formed.next.max(least);
        }
    }

    /// `true` if a round was announced, and no recovery is in progress.
    pub(super) fn knows_a_round(&self) -> bool {
        self.round.announced().is_some() && !self.is_recovering()
    }

    /// `true` if the coordinator searches for participants of the round.
    pub(super) fn is_recovering(&self) -> bool {
        self.round.search().is_some()
    }

    /// `true` if the run waits for silent agents without a user's confirmation.
    pub(super) fn waits_for_word(&self) -> bool {
        matches!(&self.round, Round::Silent(_, search) if !search.is_confirmed)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.agents.is_empty()
    }

    /// `true` if this is the agent in the process of the coordinator.
    pub(super) fn is_in_process(&self, join: &Join) -> bool {
        self.origin.agent == Some(join.instance)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.round.is_closed()
    }

    /// `true` if all workers of this round, the last one, have succeeded.
    pub(super) fn has_succeeded(&self, round: u64) -> bool {
        self.record.succeeded && self.record.round == round
    }

    /// Returns the joined nodes, for a spare or a participant of a forming round.
    pub(super) fn arrived(&self, node: &NodeDesc) -> Option<Arrived> {
        let participants = &self.nodes.participants;
        let is_spare = self.nodes.surplus.contains(node);
        let forms = self.round.forming().is_some() && participants.contains_key(node);
        (is_spare || forms).then(|| Arrived::of(participants.keys(), is_spare))
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adopts the settings of a join if the run has no other agent.
    pub(super) fn adopt_settings(&mut self, join: &Join) {
        if self.agents.is_empty() {
            self.settings = join.settings;
        }
    }

    /// Returns the programs of these nodes; empty unless all of them have sent one.
    fn programs_of(&self, nodes: &BTreeSet<NodeDesc>) -> Vec<Program> {
        let programs = nodes
            .iter()
            .map(|node| self.agents.get(node)?.join.program.clone());
        programs.collect::<Option<_>>().unwrap_or_default()
    }

    pub(super) fn join(&mut self, now: Now, mut join: Box<Join>) {
        let node = join.node.clone();
        if self.is_repeated(&join) && self.keeps(&node) {
            return self.repeat(now, &node);
        }
        self.speaks(join.instance);
        // This node name belongs to a native agent, so no agent of torchrun can have it.
        self.torchrun.heartbeats.remove(&node);
        self.join_timers.remove(&node);
        for instance in std::mem::take(&mut join.replaces) {
            self.ended(now, instance, &node);
        }
        let phase = Phase::Joining { since: now.mono };
        self.agents
            .insert(node.clone(), Agent { join: *join, phase });
        self.set_join_timer(now, &node);
        self.arrive(now, &node);
    }

    /// Returns the reason why the run refuses an agent; `None` if it does not.
    pub(super) fn refusal(&self, join: &Join) -> Option<AgentRefusal> {
        if let Some(agent) = self.agents.get(&join.node)
            && agent.join.instance != join.instance
        {
            return Some(AgentRefusal::Unusable(format!(
                "another agent with the name {} has already joined; give each agent a different \
                 --local-addr",
                join.node
            )));
        }
        let other = self.other_program(join);
        let why = other.or_else(|| self.mismatch(join));
        why.map(AgentRefusal::Unusable)
    }

    /// Returns a refusal text if this agent's program differs from another's.
    ///
    /// `None` if the programs are equal or the user has specified a run id.
    fn other_program(&self, join: &Join) -> Option<String> {
        let theirs = join.program.as_ref().filter(|its| !its.has_run_id)?;
        let (first, ours) = self.agents.iter().find_map(|(node, agent)| {
            let program = agent.join.program.as_ref();
            let ours = program.filter(|ours| !ours.has_run_id)?;
            (ours.fingerprint != theirs.fingerprint).then_some((node, ours))
        })?;
        let another = if ours.name == theirs.name {
            "another file named "
        } else {
            ""
        };
        Some(format!(
            "node {} runs {another}'{}', but node {first}, which joined first, runs '{}', and \
             neither specifies a run id: give each job a different --rdzv-id, and all nodes of one \
             job the same",
            join.node, theirs.name, ours.name
        ))
    }

    /// Returns a refusal text for the first setting that differs.
    fn mismatch(&self, join: &Join) -> Option<String> {
        let first = self.agents.keys().find(|node| **node != join.node)?;
        let ours = compared(&self.settings).into_iter();
        let both = ours.zip(compared(&join.settings));
        let mut both = both.filter_map(|((what, ours), (_, theirs))| Some((what, ours?, theirs?)));
        let (what, ours, theirs) = both.find(|(_, ours, theirs)| ours != theirs)?;
        Some(format!(
            "node {} joined run '{}' with {what} {theirs}, but node {first} with {ours}: start all \
             agents of a run with the same settings",
            join.node, self.id
        ))
    }

    pub(super) fn leave(&mut self, now: Now, node: &NodeDesc) {
        self.leaves_round(node);
        let is_done = self.leaves_after_success(node);
        self.remove_agent(node);
        if is_done {
            return self.advance(now);
        }
        self.depart(now, node, "has left");
    }

    /// Handles a lost agent; `how` describes the evidence.
    pub(super) fn lost(&mut self, now: Now, node: &NodeDesc, how: &str) {
        self.await_again(node);
        self.falls_silent(node);
        self.remove_agent(node);
        self.depart(now, node, &format!("is lost: {how}"));
    }

    /// Handles an agent whose process and workers have certainly ended.
    pub(super) fn has_ended(&mut self, now: Now, node: &NodeDesc) {
        self.leaves_round(node);
        self.remove_agent(node);
        self.depart(now, node, "is lost: its process has exited");
    }

    fn remove_agent(&mut self, node: &NodeDesc) {
        self.join_timers.remove(node);
        if let Some(agent) = self.agents.remove(node)
            && !self.record.silent
        {
            self.record_departure(agent.join.instance);
        }
        self.effects.push(Effect::Gone(node.clone()));
    }

    /// Ends the run, and notifies each agent according to its state.
    pub(super) fn close(&mut self) {
        if self.is_closed() {
            return;
        }
        let closed = Round::Closed {
            number: self.round.number(),
            was_formed: self.round.is_formed(),
        };
        let last = std::mem::replace(&mut self.round, closed);
        let programs = last.formed().map_or(&[][..], |formed| &formed.programs[..]);
        self.torchrun.outdate();
        self.record.closed = self.origin.rules.has(Rule::EndIsRecorded);
        self.record.silent = false;
        self.note();
        for (node, agent) in &mut self.agents {
            let event = match agent.phase {
                Phase::Joining { .. } if self.nodes.surplus.contains(node) => {
                    Event::Refused(not_needed(&self.id, agent, programs))
                }
                Phase::Joining { .. } => Event::Refused(AgentRefusal::Closed),
                Phase::Member { .. } | Phase::Dropped => Event::Closed,
            };
            agent.phase = Phase::Dropped;
            self.effects.push(Effect::notify(node, event));
        }
        self.join_timers = Deadlines::default();
    }

    pub(super) fn status(&self) -> Event {
        Event::Status {
            closed: self.is_closed(),
            waiting: self.nodes.waiting.len() as u32,
        }
    }

    /// Returns the next deadline of the run.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let lost_after = self.settings.lost_after();
        let heartbeats = self.torchrun.heartbeats.values();
        let silent = heartbeats.map(|(_, seen)| *seen + lost_after).min();
        earliest([
            self.join_timers.next(),
            silent,
            self.forming_deadline(),
            self.master_deadline(),
            self.search_deadline(),
            self.answer_deadline(),
        ])
    }

    /// Handles all deadlines that have come.
    ///
    /// If this process was delayed (`late`), heartbeats may still be unread.
    pub(super) fn tick(&mut self, now: Now, late: bool) {
        while let Some((_, node)) = self.join_timers.take_due(now.mono) {
            self.expire_join(now, &node);
        }
        self.expire_torchrun(now, late);
        self.end_waits(now);
        self.master_is_late(now);
        self.end_search_if_due(now);
        self.advance(now);
        self.report(now);
    }

    /// Starts the join of an agent again.
    fn restart_join(&mut self, now: Now, node: &NodeDesc) {
        if let Some(agent) = self.agents.get_mut(node) {
            agent.phase = Phase::Joining { since: now.mono };
        }
        self.set_join_timer(now, node);
    }

    /// Starts or restarts the timeout of an agent's join.
    fn set_join_timer(&mut self, now: Now, node: &NodeDesc) {
        if let Some(agent) = self.agents.get(node) {
            let ends = now.mono + agent.join.settings.join_timeout;
            self.join_timers.set(node, ends);
        }
    }
}
