//! Whether everybody is where they should be, as they have to be in the end.

use super::agent::{Agent, Doing};
use super::world::World;

impl World {
    /// Why not everybody is where they should be.
    pub(super) fn unsettled(&self) -> Option<String> {
        let working = |agent: &&Agent| matches!(agent.doing, Doing::Working(_));
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
        if rounds.len() == should && same {
            return None;
        }
        let doing: Vec<_> = self
            .agents
            .iter()
            .map(|agent| (agent.me.to_string(), agent.doing))
            .collect();
        Some(format!(
            "{should} of {wanted} should work in one round: {doing:?}"
        ))
    }
}
