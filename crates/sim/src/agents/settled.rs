//! Check that every agent is in its final state in the end: INV-R5.

use super::agent::{Agent, Doing};
use super::world::World;

impl World {
    /// Returns the reason why an agent is not in its final state.
    pub(super) fn unsettled(&self) -> Option<String> {
        let working = |agent: &&Agent| matches!(agent.doing, Doing::Working(_));
        if self.ledger.is_forgotten {
            return None;
        }
        if self.ledger.closed {
            let mut left = self
                .agents
                .iter()
                .filter(|agent| agent.doing != Doing::Nothing);
            return left
                .next()
                .map(|agent| format!("{} is {:?} after the close", agent.me, agent.doing));
        }
        let wanted = self.agents.iter().filter(|agent| agent.wanted).count();
        let settings = self.plan.settings;
        if wanted < settings.min_nodes as usize {
            let mut left = self.agents.iter().filter(working);
            return left
                .next()
                .map(|agent| format!("{} works although too few are left", agent.me));
        }
        let should = wanted.min(settings.max_nodes as usize);
        let rounds: Vec<_> = self
            .agents
            .iter()
            .filter_map(|agent| match agent.doing {
                Doing::Working(round) => Some(round),
                _ => None,
            })
            .collect();
        let same = rounds.windows(2).all(|pair| pair[0] == pair[1]);
        // No other agent takes the place of one that has left after its success.
        let has_left = |agent: &&Agent| {
            !working(agent)
                && rounds
                    .first()
                    .is_some_and(|it| agent.succeeded == Some(*it))
        };
        let left = self.agents.iter().filter(has_left).count();
        let is_done =
            left > 0 && (1..should).contains(&rounds.len()) && rounds.len() + left >= should;
        if same && is_done {
            return None;
        }
        if rounds.len() == should && same {
            return self.misplaced(rounds[0], should);
        }
        Some(format!(
            "{should} of {wanted} should work in one round, not in {rounds:?}"
        ))
    }

    /// Returns a difference between a round's members and the agents in it.
    ///
    /// This applies if the state alone decides.
    fn misplaced(&self, round: u64, size: usize) -> Option<String> {
        let state = self.state.as_ref().filter(|_| self.host.is_none())?;
        let known = state.participants.len();
        if known != size {
            return Some(format!("{size} work in round {round}, which has {known}"));
        }
        let works = |agent: &&Agent| agent.doing == Doing::Working(round);
        let mut working = self.agents.iter().filter(works);
        working
            .find(|agent| !state.participants.contains_key(&agent.me))
            .map(|agent| format!("{} is in a round without it", agent.me))
    }
}
