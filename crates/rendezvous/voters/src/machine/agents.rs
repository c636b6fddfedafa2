//! Agents attached to the coordinator of an open group.
//!
//! Some of them are invited to become voters.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::time::Mono;

/// Time within which an agent reports that it searches for the coordinator.
///
/// After this time without a report, the agent counts as one that asks only at the endpoint.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Time within which an invited agent introduces itself as a voter.
///
/// After that, the leader invites another agent, or the same one again.
const INVITED_FOR: Duration = Duration::from_secs(2);

/// Maximum number of invitations to one agent.
///
/// An agent that ignores them all may be unreachable.
const MOST_INVITATIONS: u32 = 3;

#[derive(Debug, Default)]
pub(super) struct Agents(BTreeMap<ConnId, Agent>);

#[derive(Debug, Clone, Copy)]
struct Agent {
    since: Mono,
    /// `true` if the agent can be a voter; `None` until it has reported.
    willing: Option<bool>,
    /// Time of the last invitation, and the number of invitations.
    invited: Option<Mono>,
    asked: u32,
}

impl Agent {
    fn can_be_asked(&self) -> bool {
        self.willing == Some(true) && self.asked < MOST_INVITATIONS
    }

    fn is_asked(&self, now: Mono) -> bool {
        let asked = self.invited;
        asked.is_some_and(|asked| now.since(asked) < INVITED_FOR)
    }
}

impl Agents {
    /// Adds an agent that has attached to the coordinator.
    pub(super) fn attached(&mut self, now: Mono, agent: ConnId) {
        self.0.entry(agent).or_insert(Agent {
            since: now,
            willing: None,
            invited: None,
            asked: 0,
        });
    }

    /// Records the agent's report on whether it can be a voter.
    pub(super) fn candidate(&mut self, now: Mono, agent: ConnId, willing: bool) {
        self.attached(now, agent);
        if let Some(agent) = self.0.get_mut(&agent) {
            agent.willing = Some(willing);
        }
    }

    pub(super) fn left(&mut self, agent: ConnId) {
        self.0.remove(&agent);
    }

    /// `true` if an agent can find the coordinator only at the endpoint.
    pub(super) fn has_of_before(&self, now: Mono) -> bool {
        let is_of_before =
            |agent: &Agent| agent.willing.is_none() && now.since(agent.since) >= ANSWERS_WITHIN;
        self.0.values().any(is_of_before)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = ConnId> {
        self.0.keys().copied()
    }

    /// `true` if the agent reported that it searches for the coordinator at voters.
    pub(super) fn listens(&self, agent: ConnId) -> bool {
        let agent = self.0.get(&agent);
        agent.is_some_and(|agent| agent.willing.is_some())
    }

    /// `true` if at least one agent can still be invited.
    pub(super) fn can_be_asked(&self) -> bool {
        self.0.values().any(Agent::can_be_asked)
    }

    /// Chooses agents to invite, for a group of at most `most` voters.
    ///
    /// `present` is the number of connected processes, including this one.
    pub(super) fn ask(
        &mut self,
        now: Mono,
        (present, most): (usize, usize),
        has_joined: impl Fn(ConnId) -> bool,
    ) -> Vec<ConnId> {
        let asked = self.0.values().filter(|agent| agent.is_asked(now)).count();
        let wanted = most.saturating_sub(present.max(1 + asked));
        let mut chosen: Vec<(Mono, ConnId)> = self
            .0
            .iter()
            .filter(|(id, agent)| agent.can_be_asked() && !agent.is_asked(now) && has_joined(**id))
            .map(|(id, agent)| (agent.invited.unwrap_or(Mono::ZERO), *id))
            .collect();
        // Agents that were never invited, or were invited earliest, come first.
        chosen.sort_unstable();
        chosen.truncate(wanted);
        for (_, id) in &chosen {
            if let Some(agent) = self.0.get_mut(id) {
                (agent.invited, agent.asked) = (Some(now), agent.asked + 1);
            }
        }
        chosen.into_iter().map(|(_, id)| id).collect()
    }
}
