//! The agents that are attached to the coordinator of an open group, and which of them are asked to be voters.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::time::Mono;

/// The time in which an agent says whether it looks for the coordinator at other voters. One that does not is of before.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The time in which an agent that was asked to be a voter introduces itself; then another one is asked.
const INVITED_FOR: Duration = Duration::from_secs(2);

/// The number of times that an agent is asked. One that has not come by then cannot be reached, perhaps.
const MOST_INVITATIONS: u32 = 3;

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Agents(BTreeMap<ConnId, Agent>);

#[derive(Debug, Clone, Copy)]
struct Agent {
    since: Mono,
    /// Whether it can be a voter, once it has said so.
    willing: Option<bool>,
    /// When it was asked to be one, and how often.
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
    /// The coordinator has an agent.
    pub(super) fn attached(&mut self, now: Mono, agent: ConnId) {
        self.0.entry(agent).or_insert(Agent {
            since: now,
            willing: None,
            invited: None,
            asked: 0,
        });
    }

    /// An agent says whether it can be a voter.
    pub(super) fn candidate(&mut self, now: Mono, agent: ConnId, willing: bool) {
        self.attached(now, agent);
        if let Some(agent) = self.0.get_mut(&agent) {
            agent.willing = Some(willing);
        }
    }

    pub(super) fn left(&mut self, agent: ConnId) {
        self.0.remove(&agent);
    }

    /// Whether one of them does not look for the coordinator elsewhere.
    pub(super) fn has_of_before(&self, now: Mono) -> bool {
        let is_of_before =
            |agent: &Agent| agent.willing.is_none() && now.since(agent.since) >= ANSWERS_WITHIN;
        self.0.values().any(is_of_before)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = ConnId> {
        self.0.keys().copied()
    }

    /// Whether an agent has said that it looks for the coordinator at the voters.
    pub(super) fn listens(&self, agent: ConnId) -> bool {
        let agent = self.0.get(&agent);
        agent.is_some_and(|agent| agent.willing.is_some())
    }

    /// Whether one of them can still be asked.
    pub(super) fn can_be_asked(&self) -> bool {
        self.0.values().any(Agent::can_be_asked)
    }

    /// Those that are asked now, where so many processes are there, of at most so many.
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
        // One that was asked in vain comes last.
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
