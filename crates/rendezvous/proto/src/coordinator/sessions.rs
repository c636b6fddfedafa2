//! Sessions of a run: connections of agents, and the agents declared lost.
//!
//! An agent is declared lost if it sends nothing for too long ([`Sessions::lost_agents`]), or does
//! not reattach after its connection has broken ([`Sessions::take_gone`]).
//!
//! This data is volatile: no record contains it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::deadlines::Deadlines;
use super::end::{End, LOST_AFTER_END};
use super::wire::AgentRefusal;
use crate::{NodeDesc, Rule};
use rdzv_core::ident::ConnId;
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now, earliest};

/// Time in which an agent must reattach after its connection has broken.
///
/// Otherwise the agent is lost. The time is longer for an agent that has a lease or whose machine
/// was silent, and shorter after the proven end of its process. In other cases, the loss must be
/// known within 250 ms.
pub const REATTACH_WITHIN: Duration = Duration::from_millis(240);

#[derive(Debug, Default)]
pub(super) struct Sessions {
    rules: Rules<Rule>,
    sessions: BTreeMap<ConnId, Session>,
    connections: BTreeMap<NodeDesc, ConnId>,
    /// Next check of each session.
    ///
    /// Only the first one is exact. Later ones may be too early, because a message moves only
    /// timers that come first.
    timers: Deadlines<ConnId>,
    /// Time until which each agent with a broken connection may reattach.
    returns: Deadlines<NodeDesc>,
    /// Agents in `returns` whose processes have certainly ended.
    ended: BTreeSet<NodeDesc>,
}

/// The connection of one agent.
#[derive(Debug)]
pub(super) struct Session {
    node: NodeDesc,
    heard: Mono,
    /// Time of the last pulse, which the agent's kernel must acknowledge.
    pulsed: Mono,
    /// `true` if the agent is in this process, so no machine can be silent.
    in_process: bool,
    /// `true` if the connection will close because the machine does not answer.
    pub(super) is_silent: bool,
    pub(super) end: End,
}

/// Time limits of a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Time without a message after which the agent is lost.
    pub(super) lost_after: Duration,
    /// Extra time for agents whose heartbeats may still be unread.
    pub(super) again: Duration,
    /// Time without a message after which the agent gets a pulse; `None`: never.
    pub(super) pulse: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Due {
    /// Sessions that were silent for too long, with the time of the last message.
    pub(super) silent: Vec<(ConnId, NodeDesc, Mono)>,
    /// Sessions whose agents get a pulse now, if they are in the round.
    pub(super) quiet: Vec<(ConnId, NodeDesc)>,
}

impl Session {
    /// Returns the time of the next check: a pulse or the loss of the agent.
    fn next(&self, limits: &Limits) -> Mono {
        let silent = self.heard + limits.lost_after;
        let quiet = self.quiet(limits);
        quiet.map_or(silent, |quiet| quiet.min(silent))
    }

    /// Returns the time of the next pulse to a quiet agent; `None` without pulses.
    fn quiet(&self, limits: &Limits) -> Option<Mono> {
        let pulse = limits.pulse.filter(|_| !self.in_process)?;
        Some(self.heard.max(self.pulsed) + pulse)
    }
}

impl Sessions {
    pub(super) fn new(rules: Rules<Rule>) -> Self {
        Self {
            rules,
            ..Self::default()
        }
    }

    pub(super) fn node(&self, connection: ConnId) -> Option<NodeDesc> {
        let session = self.sessions.get(&connection);
        session.map(|session| session.node.clone())
    }

    pub(super) fn all(&self) -> Vec<ConnId> {
        self.sessions.keys().copied().collect()
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.sessions.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn connection(&self, node: &NodeDesc) -> Option<ConnId> {
        self.connections.get(node).copied()
    }

    /// Returns the reason why an agent cannot have a session over this connection.
    pub(super) fn refusal(&self, connection: ConnId, node: &NodeDesc) -> Option<AgentRefusal> {
        let session = self.sessions.get(&connection)?;
        (session.node != *node).then(|| {
            AgentRefusal::Unusable(format!(
                "the connection belongs to node {}, and {node} joined over it",
                session.node
            ))
        })
    }

    /// Begins or renews the session of an agent, and returns its old connection.
    pub(super) fn attach(
        &mut self,
        now: Now,
        connection: ConnId,
        node: &NodeDesc,
        from: Option<&str>,
        in_process: bool,
        limits: &Limits,
    ) -> Option<ConnId> {
        let old = self.connection(node).filter(|old| *old != connection);
        if old.is_some() {
            self.detach(node);
        }
        let session = self.sessions.entry(connection).or_insert_with(|| Session {
            node: node.clone(),
            heard: now.mono,
            pulsed: now.mono,
            in_process,
            is_silent: false,
            end: End::default(),
        });
        session.heard = now.mono;
        session.end = End::of(from);
        if !self.timers.has(&connection) {
            self.timers.set(&connection, session.next(limits));
        }
        self.connections.insert(node.clone(), connection);
        self.stop_awaiting(node);
        old
    }

    /// Ends the session of an agent that may reattach.
    ///
    /// The agent is lost `fence` after its last message, at the earliest. If its machine did not
    /// respond, the minimum is at least `silence`, because the kernel adds an earlier silence to
    /// this one. If its process has certainly ended, the agent is lost after [`LOST_AFTER_END`].
    pub(super) fn await_return(
        &mut self,
        now: Now,
        node: &NodeDesc,
        fence: Duration,
        silence: Duration,
    ) {
        let session = self.connection(node).and_then(|it| self.sessions.get(&it));
        let heard = session.map_or(now.mono, |session| session.heard);
        let fence = if session.is_some_and(|session| session.is_silent) {
            fence.max(silence)
        } else {
            fence
        };
        let has_ended = session.is_some_and(|session| session.end.is_of_process(self.rules));
        self.end(node);
        self.stop_awaiting(node);
        let deadline = if has_ended {
            now.mono + LOST_AFTER_END
        } else {
            (now.mono + REATTACH_WITHIN).max(heard + fence)
        };
        self.returns.set(node, deadline);
        if has_ended {
            self.ended.insert(node.clone());
        }
    }

    /// Returns the session of a connection.
    pub(super) fn session(&mut self, connection: ConnId) -> Option<&mut Session> {
        self.sessions.get_mut(&connection)
    }

    fn stop_awaiting(&mut self, node: &NodeDesc) {
        self.returns.remove(node);
        self.ended.remove(node);
    }

    /// Removes and returns an agent that has not reattached in time.
    ///
    /// The second value is `true` if its process and its workers have certainly ended.
    pub(super) fn take_gone(&mut self, now: Now) -> Option<(NodeDesc, bool)> {
        let (_, node) = self.returns.take_due(now.mono)?;
        let has_ended = self.ended.remove(&node);
        Some((node, has_ended))
    }

    /// Ends the session of an agent, and returns its connection.
    pub(super) fn detach(&mut self, node: &NodeDesc) -> Option<ConnId> {
        self.stop_awaiting(node);
        self.end(node)
    }

    fn end(&mut self, node: &NodeDesc) -> Option<ConnId> {
        let connection = self.connections.remove(node)?;
        self.sessions.remove(&connection);
        self.timers.remove(&connection);
        Some(connection)
    }

    pub(super) fn heard(&mut self, now: Now, connection: ConnId, limits: &Limits) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.heard = now.mono;
        }
        // Moves timers that would expire although their agents have sent messages since.
        while let Some(&(at, connection)) = self.timers.first()
            && let Some(session) = self.sessions.get(&connection)
            && let due = session.next(limits)
            && at < due
        {
            self.timers.set(&connection, due);
        }
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        earliest([self.timers.next(), self.returns.next()])
    }

    /// Returns the agents declared lost by silence, and those that get a pulse.
    ///
    /// If this process was delayed (`late`), heartbeats may still be unread, and silent agents get
    /// more time.
    pub(super) fn lost_agents(&mut self, now: Now, late: bool, limits: &Limits) -> Due {
        let (now, mut expired) = (now.mono, Due::default());
        while let Some((_, connection)) = self.timers.take_due(now) {
            let Some(session) = self.sessions.get_mut(&connection) else {
                continue;
            };
            let is_lost = session.heard + limits.lost_after <= now;
            if is_lost && !late {
                let silent = (connection, session.node.clone(), session.heard);
                expired.silent.push(silent);
                continue;
            }
            if !is_lost && session.quiet(limits).is_some_and(|quiet| quiet <= now) {
                session.pulsed = now;
                expired.quiet.push((connection, session.node.clone()));
            }
            let due = if is_lost {
                now + limits.again
            } else {
                session.next(limits)
            };
            self.timers.set(&connection, due);
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        lost_after: Duration::from_secs(15),
        again: Duration::from_secs(5),
        pulse: Some(Duration::from_secs(1)),
    };

    fn at(millis: u64) -> Now {
        Now::at(Mono::from_origin(Duration::from_millis(millis)))
    }

    fn attached(agents: u32) -> Sessions {
        let mut sessions = Sessions::default();
        for agent in 0..agents {
            let node = NodeDesc::new(format!("node-{agent}"), i64::from(agent));
            sessions.attach(at(0), ConnId(agent), &node, None, false, &LIMITS);
        }
        sessions
    }

    #[test]
    fn nobody_is_woken_for_agents_that_send_their_heartbeats() {
        let mut sessions = attached(3);
        for beat in 1..100 {
            for agent in 0..3 {
                let now = at(beat * 750 + u64::from(agent) * 10);
                assert!(sessions.deadline() > Some(now.mono));
                sessions.heard(now, ConnId(agent), &LIMITS);
            }
        }
    }

    #[test]
    fn an_agent_that_is_quiet_is_noticed_in_time_beside_others_that_are_not() {
        let mut sessions = attached(3);
        for agent in [0, 2] {
            sessions.heard(at(700), ConnId(agent), &LIMITS);
        }
        assert_eq!(sessions.deadline(), Some(at(1000).mono));
        let due = sessions.lost_agents(at(1000), false, &LIMITS);
        let quiet: Vec<ConnId> = due
            .quiet
            .iter()
            .map(|(connection, _)| *connection)
            .collect();
        assert_eq!((quiet, due.silent.len()), (vec![ConnId(1)], 0));
        assert_eq!(sessions.deadline(), Some(at(1700).mono));
    }

    #[test]
    fn an_agent_in_this_process_is_sent_nothing_and_missed_all_the_same() {
        let mut sessions = attached(1);
        let node = NodeDesc::new("here", 7);
        sessions.attach(at(0), ConnId(1), &node, None, true, &LIMITS);
        for second in 1..15 {
            let due = sessions.lost_agents(at(second * 1000), false, &LIMITS);
            assert_eq!((due.quiet.len(), due.silent.len()), (1, 0), "{second}");
            assert_eq!(due.quiet[0].0, ConnId(0));
        }
        let due = sessions.lost_agents(at(15_000), false, &LIMITS);
        let silent: Vec<ConnId> = due.silent.iter().map(|(it, ..)| *it).collect();
        assert_eq!(silent, [ConnId(0), ConnId(1)]);
    }
}
