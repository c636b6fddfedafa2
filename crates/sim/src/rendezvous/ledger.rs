//! What must be true after every step: INV-R1 to INV-R4.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_rendezvous_proto::participant::Formed;
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState, Settings, ranks};

use crate::Violation;

/// Every round that was complete once, and who joined it at which rank.
#[derive(Debug)]
pub struct Ledger {
    settings: Settings,
    /// Who took part when the round was completed.
    rounds: BTreeMap<u64, BTreeMap<NodeDesc, u32>>,
    /// Who was told its rank.
    joined: BTreeMap<(u64, u32), NodeDesc>,
}

impl Ledger {
    /// Nothing has happened yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            rounds: BTreeMap::new(),
            joined: BTreeMap::new(),
        }
    }

    /// How many rounds were completed.
    pub fn rounds(&self) -> u64 {
        self.rounds.len() as u64
    }

    /// A write won: `new` follows `old`.
    pub fn wrote(&mut self, old: &RendezvousState, new: &RendezvousState) -> Result<(), Violation> {
        let broken = |text: String| Err(Violation(text));
        if new.round < old.round {
            return broken(format!("INV-R1: round {} after {}", new.round, old.round));
        }
        if new.round == old.round && old.complete && !new.complete {
            return broken(format!(
                "INV-R1: round {} is not complete any more",
                new.round
            ));
        }
        if new.complete {
            if let Some(first) = self.rounds.get(&new.round) {
                for (node, rank) in &new.participants {
                    if first.get(node) != Some(rank) {
                        return broken(format!(
                            "INV-R1: round {}: {node} has rank {rank}, at first {:?}",
                            new.round,
                            first.get(node)
                        ));
                    }
                }
            } else {
                let count = new.participants.len();
                let (min, max) = (self.settings.min_nodes, self.settings.max_nodes);
                if count < min as usize || count > max as usize {
                    return broken(format!(
                        "INV-R3: round {} has {count} nodes, not {min} to {max}",
                        new.round
                    ));
                }
                if !ranks::are_assigned(&new.participants) {
                    return broken(format!("INV-R1: round {} has other ranks", new.round));
                }
                self.rounds.insert(new.round, new.participants.clone());
            }
        }
        if old.closed {
            let all = |state: &RendezvousState| -> BTreeSet<NodeDesc> {
                let mut nodes: BTreeSet<_> = state.participants.keys().cloned().collect();
                nodes.extend(state.wait_list.iter().cloned());
                nodes.extend(state.redundancy_list.iter().cloned());
                nodes
            };
            if !new.closed {
                return broken("INV-R4: open again".into());
            }
            if let Some(node) = all(new).difference(&all(old)).next() {
                return broken(format!("INV-R4: {node} came after the end"));
            }
        }
        Ok(())
    }

    /// `node` was told its place; `seen` is the state that it knew.
    pub fn joined(
        &mut self,
        node: &NodeDesc,
        formed: &Formed,
        seen: Option<&RendezvousState>,
    ) -> Result<(), Violation> {
        let Formed {
            round,
            rank,
            participants,
        } = formed;
        if seen.is_none_or(|state| state.closed) {
            return Err(Violation(format!("INV-R4: {node} joined a closed run")));
        }
        let holder = self
            .joined
            .entry((*round, *rank))
            .or_insert_with(|| node.clone());
        if holder != node {
            return Err(Violation(format!(
                "INV-R2: {holder} and {node} both have rank {rank} in round {round}"
            )));
        }
        let (min, max) = (self.settings.min_nodes, self.settings.max_nodes);
        let count = participants.len();
        if count < min as usize || count > max as usize {
            return Err(Violation(format!(
                "INV-R3: {node} joined round {round} with {count} nodes, not {min} to {max}"
            )));
        }
        let Some(first) = self.rounds.get(round) else {
            return Err(Violation(format!(
                "INV-R1: {node} joined round {round}, which was never complete"
            )));
        };
        let right = (0..)
            .zip(participants)
            .all(|(place, other)| first.get(other) == Some(&place));
        if !right || participants.get(*rank as usize) != Some(node) {
            return Err(Violation(format!(
                "INV-R1: {node} joined round {round} as {rank} of {participants:?}, which was {first:?}"
            )));
        }
        Ok(())
    }
}
