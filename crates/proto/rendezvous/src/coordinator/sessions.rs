//! The sessions of a run: which connection an agent has, and when it was last heard of. Volatile: all of
//! it follows from the connections that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::wire::Refusal;
use crate::{NodeDesc, Settings};
use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};

/// The time for an agent whose connection broke to come back over another one before it is lost.
pub const REATTACH_WITHIN: Duration = Duration::from_millis(250);

/// The sessions of one run.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    sessions: BTreeMap<ConnId, Session>,
    connections: BTreeMap<NodeDesc, ConnId>,
    /// When to check which session for silence.
    timers: BTreeSet<(Mono, ConnId)>,
    /// Agents whose connection broke, and until when they may come back; the same by time.
    detached: BTreeMap<NodeDesc, Mono>,
    returns: BTreeSet<(Mono, NodeDesc)>,
}

#[derive(Debug)]
struct Session {
    node: NodeDesc,
    heard: Mono,
    silence_at: Mono,
}

impl Sessions {
    /// The agent of a connection.
    pub(super) fn node(&self, connection: ConnId) -> Option<NodeDesc> {
        let session = self.sessions.get(&connection);
        session.map(|session| session.node.clone())
    }

    /// The connection of an agent.
    pub(super) fn connection(&self, node: &NodeDesc) -> Option<ConnId> {
        self.connections.get(node).copied()
    }

    /// Why an agent cannot have a session over this connection.
    pub(super) fn refusal(&self, connection: ConnId, node: &NodeDesc) -> Option<Refusal> {
        let session = self.sessions.get(&connection)?;
        (session.node != *node).then(|| {
            Refusal::Unusable(format!(
                "the connection belongs to node {}, and {node} joined over it",
                session.node
            ))
        })
    }

    /// An agent has joined over a connection, perhaps again. Returns the one that it had before.
    pub(super) fn attach(
        &mut self,
        now: Now,
        connection: ConnId,
        node: &NodeDesc,
        settings: &Settings,
    ) -> Option<ConnId> {
        let old = self.connection(node).filter(|old| *old != connection);
        if old.is_some() {
            self.detach(node);
        }
        let silence_at = now.mono + settings.lost_after();
        let session = self.sessions.entry(connection).or_insert_with(|| Session {
            node: node.clone(),
            heard: now.mono,
            silence_at,
        });
        session.heard = now.mono;
        self.timers.insert((session.silence_at, connection));
        self.connections.insert(node.clone(), connection);
        self.stop_awaiting(node);
        old
    }

    /// The connection of an agent is gone, which may come back over another one. It is not lost before `fence` has passed
    /// since it was heard of.
    pub(super) fn await_return(&mut self, now: Now, node: &NodeDesc, fence: Duration) {
        let session = self.connection(node).and_then(|it| self.sessions.get(&it));
        let heard = session.map_or(now.mono, |session| session.heard);
        self.end(node);
        self.stop_awaiting(node);
        let until = (now.mono + REATTACH_WITHIN).max(heard + fence);
        self.detached.insert(node.clone(), until);
        self.returns.insert((until, node.clone()));
    }

    fn stop_awaiting(&mut self, node: &NodeDesc) {
        if let Some(until) = self.detached.remove(node) {
            self.returns.remove(&(until, node.clone()));
        }
    }

    /// The agents that have not come back in time.
    pub(super) fn expire_detached(&mut self, now: Now) -> Vec<NodeDesc> {
        let mut late = Vec::new();
        while let Some((until, _)) = self.returns.first()
            && *until <= now.mono
            && let Some((_, node)) = self.returns.pop_first()
        {
            self.detached.remove(&node);
            late.push(node);
        }
        late
    }

    /// Ends the session of an agent, and returns its connection.
    pub(super) fn detach(&mut self, node: &NodeDesc) -> Option<ConnId> {
        self.stop_awaiting(node);
        self.end(node)
    }

    fn end(&mut self, node: &NodeDesc) -> Option<ConnId> {
        let connection = self.connections.remove(node)?;
        if let Some(session) = self.sessions.remove(&connection) {
            self.timers.remove(&(session.silence_at, connection));
        }
        Some(connection)
    }

    /// An agent has sent something.
    pub(super) fn heard(&mut self, now: Now, connection: ConnId) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.heard = now.mono;
        }
    }

    /// When the next session is to be checked.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let silence = self.timers.first().map(|(at, _)| *at);
        let detached = self.returns.first().map(|(until, _)| *until);
        [silence, detached].into_iter().flatten().min()
    }

    /// The agents that have been silent for too long, and since when. If this process has been held
    /// up (`late`), so have the heartbeats that wait to be read, and all get more time.
    pub(super) fn expire(
        &mut self,
        now: Now,
        late: bool,
        settings: &Settings,
        lost_after: Duration,
    ) -> Vec<(ConnId, NodeDesc, Mono)> {
        let mut silent = Vec::new();
        while let Some(&(at, connection)) = self.timers.first()
            && at <= now.mono
        {
            self.timers.pop_first();
            let Some(session) = self.sessions.get_mut(&connection) else {
                continue;
            };
            let until = session.heard + lost_after;
            if until > now.mono || late {
                let again = now.mono + settings.keep_alive_interval;
                session.silence_at = if until > now.mono { until } else { again };
                self.timers.insert((session.silence_at, connection));
            } else {
                silent.push((connection, session.node.clone(), session.heard));
            }
        }
        silent
    }
}
