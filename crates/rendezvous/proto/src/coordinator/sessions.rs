//! The sessions of a run: which connection an agent has, and when it was last heard of. Volatile: all of
//! it follows from the connections that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::deadlines::Deadlines;
use super::end::{End, LOST_AFTER_END};
use super::wire::Refusal;
use crate::{NodeDesc, Rule};
use rdzv_core::ident::ConnId;
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now};

/// The time for an agent whose connection broke to come back over another one before it is lost. The loss is to be known within
/// 250 ms.
pub const REATTACH_WITHIN: Duration = Duration::from_millis(240);

/// The sessions of one run.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    rules: Rules<Rule>,
    sessions: BTreeMap<ConnId, Session>,
    connections: BTreeMap<NodeDesc, ConnId>,
    /// When to look at which session. The first of them is as late as it can be; the others may be from before the last word
    /// of their agents.
    timers: Deadlines<ConnId>,
    /// Time until which agents may come back whose connection broke.
    returns: Deadlines<NodeDesc>,
    /// Those of them whose process has certainly ended.
    ended: BTreeSet<NodeDesc>,
}

#[derive(Debug)]
struct Session {
    node: NodeDesc,
    heard: Mono,
    /// When it was last sent something only for its kernel to acknowledge.
    pulsed: Mono,
    /// The agent is in this process, so neither machine can be silent for the other.
    in_process: bool,
    /// Its connection is about to break because its machine does not answer.
    is_silent: bool,
    end: End,
}

/// When a session is looked at, and for what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Without a word for so long, the agent is lost.
    pub(super) lost_after: Duration,
    /// More time for agents whose heartbeats may wait to be read.
    pub(super) again: Duration,
    /// Without a word for so long, the agent is sent something; `None`: never.
    pub(super) pulse: Option<Duration>,
}

/// The sessions that are due.
#[derive(Debug, Default)]
pub(super) struct Due {
    /// Those that have been silent for too long, and since when.
    pub(super) silent: Vec<(ConnId, NodeDesc, Mono)>,
    /// Those that are to be sent something.
    pub(super) quiet: Vec<(ConnId, NodeDesc)>,
}

impl Session {
    /// When it is silent for too long, or quiet for so long that it is sent something.
    fn next(&self, limits: &Limits) -> Mono {
        let silent = self.heard + limits.lost_after;
        let quiet = self.quiet(limits);
        quiet.map_or(silent, |quiet| quiet.min(silent))
    }

    /// When it is sent something if it says nothing, if it is.
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

    /// The agent of a connection.
    pub(super) fn node(&self, connection: ConnId) -> Option<NodeDesc> {
        let session = self.sessions.get(&connection);
        session.map(|session| session.node.clone())
    }

    /// The number of sessions.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.sessions.len()).unwrap_or(u32::MAX)
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

    /// The connection of an agent is gone, which may come back over another one. It is not lost before `fence` has passed
    /// since it was heard of; and not before `silence` has, if its machine did not answer: the kernel counts the silence of a moment
    /// before as well. One whose process has certainly ended only leaves time for its workers to end.
    pub(super) fn await_return(
        &mut self,
        now: Now,
        node: &NodeDesc,
        fence: Duration,
        silence: Duration,
    ) {
        let session = self.connection(node).and_then(|it| self.sessions.get(&it));
        let heard = session.map_or(now.mono, |session| session.heard);
        let fence = match session.is_some_and(|session| session.is_silent) {
            true => fence.max(silence),
            false => fence,
        };
        let has_ended = session.is_some_and(|session| session.end.is_of_process(self.rules));
        self.end(node);
        self.stop_awaiting(node);
        let until = match has_ended {
            true => now.mono + LOST_AFTER_END,
            false => (now.mono + REATTACH_WITHIN).max(heard + fence),
        };
        self.returns.set(node, until);
        if has_ended {
            self.ended.insert(node.clone());
        }
    }

    /// The agent of a connection says that it hangs up.
    pub(super) fn says_end(&mut self, connection: ConnId) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.end.is_said = true;
        }
    }

    /// The stream of a connection has ended in order, which comes from `peer`.
    pub(super) fn stream_ends(&mut self, connection: ConnId, peer: Option<&str>) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.end.of_stream(peer, self.rules);
        }
    }

    fn stop_awaiting(&mut self, node: &NodeDesc) {
        self.returns.remove(node);
        self.ended.remove(node);
    }

    /// Takes an agent that has not come back in time.
    ///
    /// `true` if its process has certainly ended, and its workers with it.
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

    /// The machine of an agent does not answer.
    pub(super) fn is_silent(&mut self, connection: ConnId) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.is_silent = true;
        }
    }

    /// An agent has sent something.
    pub(super) fn heard(&mut self, now: Now, connection: ConnId, limits: &Limits) {
        if let Some(session) = self.sessions.get_mut(&connection) {
            session.heard = now.mono;
        }
        // Nobody is woken to find that an agent was heard of meanwhile.
        while let Some(&(at, connection)) = self.timers.first()
            && let Some(session) = self.sessions.get(&connection)
            && let due = session.next(limits)
            && at < due
        {
            self.timers.set(&connection, due);
        }
    }

    /// When the next session is to be checked.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let deadlines = [self.timers.next(), self.returns.next()];
        deadlines.into_iter().flatten().min()
    }

    /// The sessions that are due. If this process has been held up (`late`), so have the heartbeats that wait to be
    /// read, and all get more time.
    pub(super) fn expire(&mut self, now: Now, late: bool, limits: &Limits) -> Due {
        let (now, mut expired) = (now.mono, Due::default());
        while let Some((_, connection)) = self.timers.take_due(now) {
            let Some(session) = self.sessions.get_mut(&connection) else {
                continue;
            };
            let until = session.heard + limits.lost_after;
            let due = match until > now {
                false if late => now + limits.again,
                false => {
                    let silent = (connection, session.node.clone(), session.heard);
                    expired.silent.push(silent);
                    continue;
                }
                true => {
                    if session.quiet(limits).is_some_and(|quiet| quiet <= now) {
                        session.pulsed = now;
                        expired.quiet.push((connection, session.node.clone()));
                    }
                    session.next(limits)
                }
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
        Now {
            mono: Mono::from_origin(Duration::from_millis(millis)),
            ..Now::default()
        }
    }

    fn attached(agents: u32) -> Sessions {
        let mut sessions = Sessions::default();
        for agent in 0..agents {
            let node = NodeDesc {
                addr: format!("node-{agent}"),
                pid: i64::from(agent),
                local_id: 0,
            };
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
        let due = sessions.expire(at(1000), false, &LIMITS);
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
        let node = NodeDesc {
            addr: "here".to_owned(),
            pid: 7,
            local_id: 0,
        };
        sessions.attach(at(0), ConnId(1), &node, None, true, &LIMITS);
        for second in 1..15 {
            let due = sessions.expire(at(second * 1000), false, &LIMITS);
            assert_eq!((due.quiet.len(), due.silent.len()), (1, 0), "{second}");
            assert_eq!(due.quiet[0].0, ConnId(0));
        }
        let due = sessions.expire(at(15_000), false, &LIMITS);
        let silent: Vec<ConnId> = due.silent.iter().map(|(it, ..)| *it).collect();
        assert_eq!(silent, [ConnId(0), ConnId(1)]);
    }
}
