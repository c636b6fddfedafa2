//! One run: who is in it, and what its agents ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Output;
use super::master::Masters;
use super::record::Record;
use super::wire::{Event, Join, Refusal};
use crate::{NodeDesc, RendezvousState, Settings};
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Outbox;
use rdzv_core::time::{Mono, Now, Wall};

/// Longest time of any setting; more is a mistake, and would not fit where times are added up.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Most missed heartbeats that may be allowed.
const MOST_ATTEMPTS: u32 = 1_000_000;

/// One run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) id: String,
    /// The state as all agents see it, but for the heartbeats of native agents.
    pub(super) state: RendezvousState,
    /// What the agents were told about the run, and by which of them it is known. Taken from the
    /// first native agent, and again if there has been none in between.
    pub(super) settings: Settings,
    pub(super) settings_of: Option<NodeDesc>,
    pub(super) natives: BTreeMap<NodeDesc, Native>,
    pub(super) connections: BTreeMap<ConnId, Seat>,
    /// When to look after which agent.
    pub(super) timers: BTreeSet<(Mono, ConnId, Timer)>,
    /// When stock agents were last heard of: the time they wrote, and ours when it was seen.
    pub(super) stock: BTreeMap<NodeDesc, (Wall, Mono)>,
    /// The complete round that its participants were told of.
    pub(super) announced: Option<u64>,
    /// They were also told that it does not hold any more.
    pub(super) told: bool,
    /// The participants of that round.
    pub(super) former: BTreeSet<NodeDesc>,
    /// Those of them that may come back.
    pub(super) awaited: BTreeSet<NodeDesc>,
    /// Until when stock agents among them are waited for.
    pub(super) awaited_until: Option<Mono>,
    /// Enough of them for a round are there, so that it need not wait for others.
    pub(super) enough: bool,
    /// The end of the last call.
    pub(super) last_call: Option<Mono>,
    /// Whether people know of it. They are told once per round, however many nodes come and go.
    pub(super) last_call_told: bool,
    pub(super) masters: Masters,
    pub(super) recorded: Option<Record>,
    /// What is stored under the stock key; the state has changed since if it is dirty.
    pub(super) form: Option<Vec<u8>>,
    /// When the heartbeats of native agents in it are from.
    pub(super) refreshed_at: Mono,
    pub(super) dirty: bool,
    /// Connections that do not belong to the run any more.
    pub(super) unseated: Vec<ConnId>,
    /// When the host will call, as it has registered.
    pub(super) alarm: Option<Mono>,
}

/// An agent with a connection of its own.
#[derive(Debug)]
pub(super) struct Native {
    pub(super) connection: ConnId,
    pub(super) instance: u64,
    pub(super) role: String,
    pub(super) local_world_size: u32,
    pub(super) phase: Phase,
    /// When its join came, and how long it wants to wait.
    pub(super) joined_at: Mono,
    pub(super) join_timeout: Duration,
    pub(super) heard: Mono,
}

/// A connection and its timers, as they stand in the run's set.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) node: NodeDesc,
    pub(super) silence_at: Mono,
    pub(super) join_at: Option<Mono>,
}

/// What an agent waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// A round.
    Joining,
    /// What becomes of the round that it was told of.
    Member,
    /// Nothing: the round went on without it.
    Dropped,
}

/// What a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Silence,
    Join,
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
        || ![join_timeout, last_call_timeout, keep_alive_interval]
            .into_iter()
            .all(sensible)
    {
        Some("the timeouts must be more than nothing and less than ten years".to_owned())
    } else {
        None
    }
}

impl Run {
    pub(super) fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            state: RendezvousState::default(),
            settings: Settings::new(1, 1),
            settings_of: None,
            natives: BTreeMap::new(),
            connections: BTreeMap::new(),
            timers: BTreeSet::new(),
            stock: BTreeMap::new(),
            announced: None,
            told: false,
            former: BTreeSet::new(),
            awaited: BTreeSet::new(),
            awaited_until: None,
            enough: false,
            last_call: None,
            last_call_told: false,
            masters: Masters::default(),
            recorded: None,
            form: None,
            refreshed_at: Mono::ZERO,
            dirty: false,
            unseated: Vec::new(),
            alarm: None,
        }
    }

    /// Whether no native agent is left, so that stock agents need nobody to tell them anything.
    pub(super) fn is_idle(&self) -> bool {
        self.natives.is_empty()
    }

    /// Takes an agent in; false if it was refused.
    pub(super) fn join(
        &mut self,
        now: Now,
        from: ConnId,
        join: Box<Join>,
        out: &mut Outbox<Output>,
    ) -> bool {
        if let Some(refusal) = self.refusal(from, &join) {
            out.push(Output::Send(from, Event::Refused(refusal)));
            return false;
        }
        let Join {
            instance,
            node,
            settings,
            role,
            local_world_size,
            ..
        } = *join;
        if let Some(old) = self.natives.get(&node).map(|native| native.connection)
            && old != from
        {
            self.unseat(old);
            let why = "its agent came back over another connection";
            out.push(Output::Close(old, why.to_owned()));
        }
        if self.natives.is_empty() {
            (self.settings, self.settings_of) = (settings, Some(node.clone()));
        }
        // A stock agent of that name cannot be; what it left behind is ours.
        self.stock.remove(&node);
        self.state.last_heartbeats.remove(&node);
        self.seat(now, from, &node, settings.join_timeout);
        let native = Native {
            connection: from,
            instance,
            role,
            local_world_size,
            phase: Phase::Joining,
            joined_at: now.mono,
            join_timeout: settings.join_timeout,
            heard: now.mono,
        };
        self.natives.insert(node.clone(), native);
        self.arrive(now, &node, out);
        true
    }

    fn refusal(&self, from: ConnId, join: &Join) -> Option<Refusal> {
        if self.state.closed {
            return Some(Refusal::Closed);
        }
        let seat = self.connections.get(&from);
        if let Some(seat) = seat.filter(|seat| seat.node != join.node) {
            return Some(Refusal::Unusable(format!(
                "the connection belongs to node {}, and {} joined over it",
                seat.node, join.node
            )));
        }
        if let Some(native) = self.natives.get(&join.node)
            && native.instance != join.instance
        {
            return Some(Refusal::Unusable(format!(
                "another agent calls itself {} and takes part already; give each agent its own \
                 --local-addr",
                join.node
            )));
        }
        self.mismatch(join).map(Refusal::Unusable)
    }

    /// How the settings of a join differ from those of the others.
    fn mismatch(&self, join: &Join) -> Option<String> {
        let first = self.settings_of.as_ref()?;
        if self.natives.keys().all(|node| *node == join.node) {
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

    pub(super) fn node(&self, connection: ConnId) -> Option<NodeDesc> {
        self.connections
            .get(&connection)
            .map(|seat| seat.node.clone())
    }

    /// An agent does not want to take part any more.
    pub(super) fn leave(&mut self, now: Now, from: ConnId, out: &mut Outbox<Output>) {
        if let Some(node) = self.node(from) {
            self.unseat(from);
            self.natives.remove(&node);
            self.depart(now, &node, "has left", out);
        }
    }

    /// The life of an agent has ended; `how` that was noticed.
    pub(super) fn lost(&mut self, now: Now, from: ConnId, how: &str, out: &mut Outbox<Output>) {
        if let Some(node) = self.node(from) {
            self.unseat(from);
            self.natives.remove(&node);
            self.depart(now, &node, &format!("is lost: {how}"), out);
        }
    }

    pub(super) fn heartbeat(&mut self, now: Now, from: ConnId) {
        if let Some(seat) = self.connections.get(&from)
            && let Some(native) = self.natives.get_mut(&seat.node)
        {
            native.heard = now.mono;
        }
    }

    /// An agent has failed for good; everybody else is told.
    pub(super) fn failed(&mut self, from: ConnId, reason: &str, out: &mut Outbox<Output>) {
        let Some(failed) = self.node(from) else {
            return;
        };
        let event = Event::PeerFailed {
            node: failed.to_string(),
            reason: reason.to_owned(),
        };
        for (node, native) in &self.natives {
            if *node != failed {
                out.push(Output::Send(native.connection, event.clone()));
            }
        }
    }

    /// The run is over.
    pub(super) fn close(&mut self, out: &mut Outbox<Output>) {
        if !self.state.closed {
            self.state.closed = true;
            self.dirty = true;
            self.tell_closed(out);
        }
    }

    /// Tells every agent that the run is over, as suits what it waits for.
    pub(super) fn tell_closed(&mut self, out: &mut Outbox<Output>) {
        for (node, native) in &mut self.natives {
            let event = match native.phase {
                Phase::Joining if self.state.redundancy_list.contains(node) => {
                    Event::Refused(Refusal::NotNeeded)
                }
                Phase::Joining => Event::Refused(Refusal::Closed),
                Phase::Member | Phase::Dropped => Event::Closed,
            };
            native.phase = Phase::Dropped;
            out.push(Output::Send(native.connection, event));
        }
        // Only silence is of interest now.
        for (connection, seat) in &mut self.connections {
            if let Some(at) = seat.join_at.take() {
                self.timers.remove(&(at, *connection, Timer::Join));
            }
        }
    }

    pub(super) fn status(&self) -> Event {
        Event::Status {
            closed: self.state.closed,
            waiting: self.state.wait_list.len() as u32,
        }
    }

    /// Takes a connection out, with its timers.
    fn unseat(&mut self, connection: ConnId) {
        if let Some(seat) = self.connections.remove(&connection) {
            self.timers
                .remove(&(seat.silence_at, connection, Timer::Silence));
            if let Some(at) = seat.join_at {
                self.timers.remove(&(at, connection, Timer::Join));
            }
            self.unseated.push(connection);
        }
    }

    /// Gives a connection its timers, or new ones.
    pub(super) fn seat(
        &mut self,
        now: Now,
        connection: ConnId,
        node: &NodeDesc,
        join_timeout: Duration,
    ) {
        let silence_at = now.mono + self.settings.lost_after();
        let seat = self.connections.entry(connection).or_insert_with(|| Seat {
            node: node.clone(),
            silence_at,
            join_at: None,
        });
        self.timers
            .insert((seat.silence_at, connection, Timer::Silence));
        let join_at = now.mono + join_timeout;
        if let Some(at) = seat.join_at.replace(join_at) {
            self.timers.remove(&(at, connection, Timer::Join));
        }
        self.timers.insert((join_at, connection, Timer::Join));
    }

    /// An agent does not wait for a round any more.
    pub(super) fn stop_join_timer(&mut self, connection: ConnId) {
        if let Some(seat) = self.connections.get_mut(&connection)
            && let Some(at) = seat.join_at.take()
        {
            self.timers.remove(&(at, connection, Timer::Join));
        }
    }
}
