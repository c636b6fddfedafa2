//! Record of the rounds: checks INV-R1 to INV-R4, INV-N1 to INV-N3, S-1 to S-3.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_core::rank::Assignment;
use rdzv_rendezvous_proto::coordinator::RunNote;
use rdzv_rendezvous_proto::coordinator::wire::{AgentRefusal, Event};
use rdzv_rendezvous_proto::native_client::FormedRound;
use rdzv_rendezvous_proto::participant::Formed;
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState, Settings, ranks};

use crate::{Result, broken};

/// Record of every round that has been complete.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Minimum and maximum number of nodes of a round.
    sizes_allowed: (u32, u32),
    /// Node with each rank, by round.
    ranks: BTreeMap<(u64, u32), NodeDesc>,
    /// Last round that each native agent has joined.
    entered: BTreeMap<NodeDesc, u64>,
    /// Rounds that a coordinator has recorded.
    recorded: BTreeSet<u64>,
    /// Highest round that was checked for spares.
    checked: Option<u64>,
    /// Native agents whose join has arrived at the coordinator, by connection.
    ///
    /// The coordinator has sent them at most signs of life and the status since.
    pub(super) pending: BTreeMap<u32, NodeDesc>,
    /// Connections of agents that the coordinator knows.
    known: BTreeSet<u32>,
    /// `true` if, at some time since the last round, no agent was known.
    ///
    /// In that case, the coordinator has forgotten the ranks.
    has_lost_all: bool,
    /// Number of participants, by round.
    sizes: BTreeMap<u64, u32>,
    /// Endpoint of the workers of native agents, by round.
    masters: BTreeMap<u64, (String, u16)>,
    /// `true` if the run is over.
    pub closed: bool,
    /// Rounds that an agent knows to be over, before all had succeeded.
    pub ends_of_rounds: BTreeSet<u64>,
    /// Rounds in which an agent knows that all have succeeded.
    successes: BTreeSet<u64>,
    /// `true` if all have succeeded and the first notified agent closed the run.
    pub succeeded: bool,
    /// `true` if the record of the success is lost.
    ///
    /// The agents that were notified have left, so perhaps no process knows the success any more.
    pub is_forgotten: bool,
}

impl Ledger {
    /// Creates a ledger in which nothing has happened.
    pub fn new(settings: Settings) -> Self {
        Self {
            sizes_allowed: (settings.min_nodes, settings.max_nodes),
            ..Self::default()
        }
    }

    /// Returns the highest round number until now.
    pub(super) fn highest(&self) -> Option<u64> {
        self.sizes.last_key_value().map(|(round, _)| *round)
    }

    /// Forgets all rounds, because another run starts.
    pub(super) fn forget(&mut self) {
        self.ranks.clear();
        self.sizes.clear();
        self.masters.clear();
        self.ends_of_rounds.clear();
        self.successes.clear();
        self.recorded.clear();
        self.checked = None;
    }

    /// Returns the participants of a round, with their ranks.
    fn participants(&self, round: u64) -> impl Iterator<Item = (u32, &NodeDesc)> {
        let ranks = self.ranks.range((round, 0)..=(round, u32::MAX));
        ranks.map(|((_, rank), node)| (*rank, node))
    }

    /// Handles a join that arrives at the coordinator.
    pub(super) fn asks(&mut self, connection: u32, node: NodeDesc) {
        self.known.insert(connection);
        self.pending.insert(connection, node);
    }

    /// Handles an agent that leaves, or whose connection ends.
    pub(super) fn leaves(&mut self, connection: u32) {
        self.pending.remove(&connection);
        self.has_lost_all |= self.known.remove(&connection) && self.known.is_empty();
    }

    /// Handles a record, which contains a round before it is announced.
    pub(super) fn recorded(&mut self, note: &RunNote) {
        self.recorded.insert(note.round);
        self.has_lost_all |= note.members.is_empty();
    }

    /// Handles the death of a coordinator, whose connections end.
    ///
    /// The next coordinator knows the ranks if it has the record.
    pub(super) fn coordinator_died(&mut self, record_is_lost: bool) {
        self.pending.clear();
        self.known.clear();
        self.has_lost_all |= record_is_lost;
    }

    /// Checks the last round, unless it was checked before: S-1 to S-3.
    ///
    /// All agents must be native. If a coordinator `restarts`, agents reattach while it recovers,
    /// so only S-2 is checked.
    pub(super) fn spares(&mut self, restarts: bool) -> Result {
        let Some(round) = self.highest().filter(|round| self.checked < Some(*round)) else {
            return Ok(());
        };
        self.checked = Some(round);
        if std::mem::take(&mut self.has_lost_all) {
            return Ok(());
        }
        let Some((before, size)) = self.sizes.range(..round).next_back() else {
            return Ok(());
        };
        // A round that was recorded and not announced may have had other ranks.
        if self.recorded.range(before + 1..round).next().is_some() {
            return Ok(());
        }
        let last: BTreeMap<_, _> = self
            .participants(*before)
            // A node that has not learned its rank cannot report it to another coordinator.
            .filter(|(_, node)| !restarts || self.entered.get(*node) == Some(before))
            .map(|(rank, node)| (node, rank))
            .collect();
        if self.sizes[&round] < *size
            && !restarts
            && let Some(spare) = self.pending.values().next()
        {
            return broken(format!("S-1: round {round} is smaller, but {spare} waits"));
        }
        for (rank, node) in self.participants(round) {
            match last.get(node) {
                Some(old) if self.sizes[&round] == *size && *old != rank => {
                    return broken(format!(
                        "S-2: {node} had rank {old}, and has {rank} in round {round}"
                    ));
                }
                None if !restarts => {
                    let mut pending = self.pending.values();
                    if let Some(former) = pending.find(|it| last.contains_key(it)) {
                        return broken(format!("S-3: {node} displaces {former} in round {round}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the number of rounds that were complete.
    pub fn rounds(&self) -> u64 {
        self.sizes.len() as u64
    }

    /// Checks an event that the coordinator sends to `node`.
    pub fn announced(&mut self, node: &NodeDesc, event: &Event) -> Result {
        match event {
            Event::Formed {
                round,
                rank,
                world_size,
                assignment,
                ..
            } => {
                if self.closed && !self.is_forgotten {
                    return broken(format!("INV-R4: {node} is let into a closed run"));
                }
                if let Some(given) = *assignment {
                    let right =
                        Assignment::from((2 * rank, 2 * world_size, 2 * rank, 2 * world_size));
                    if given != right {
                        return broken(format!("INV-N2: {node} has rank {rank} and {given:?}"));
                    }
                }
                self.formed(node, *round, *rank, *world_size, false)?;
                // Only rounds with an agent of torchrun are sorted.
                match assignment {
                    Some(_) => Ok(()),
                    None => self.sorted(node, *round, *rank),
                }
            }
            Event::AllSucceeded { round } => {
                self.successes.insert(*round);
                Ok(())
            }
            Event::Membership { round, .. } => {
                if !self.successes.contains(round) {
                    self.ends_of_rounds.insert(*round);
                }
                Ok(())
            }
            Event::Closed | Event::Refused(AgentRefusal::Closed | AgentRefusal::NotNeeded) => {
                self.closed = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Checks a write that won, in a store without a coordinator.
    ///
    /// The state `new` follows the state `old`.
    pub fn wrote(&mut self, old: &RendezvousState, new: &RendezvousState) -> Result {
        let round = new.round;
        if round < old.round {
            return broken(format!("INV-R1: round {round} after {}", old.round));
        }
        if round == old.round && old.complete && !new.complete {
            return broken(format!("INV-R1: round {round} is not complete any more"));
        }
        if new.complete {
            let known = self.sizes.contains_key(&round);
            let size = new.participants.len() as u32;
            if !known && !ranks::are_assigned(&new.participants) {
                return broken(format!("INV-R1: round {round} has other ranks"));
            }
            for (node, rank) in &new.participants {
                self.formed(node, round, *rank, size, known)?;
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
                return broken("INV-R4: open again");
            }
            if let Some(node) = all(new).difference(&all(old)).next() {
                return broken(format!("INV-R4: {node} came after the end"));
            }
        }
        self.closed |= new.closed;
        Ok(())
    }

    /// Fails if all workers of two rounds run at the same time.
    ///
    /// `working` lists each working node with its round.
    pub fn running<'a>(&self, working: impl Iterator<Item = (&'a NodeDesc, u64)>) -> Result {
        let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
        for (node, round) in working {
            let mut members = self.ranks.range((round, 0)..=(round, u32::MAX));
            if members.any(|(_, member)| member == node) {
                *counts.entry(round).or_default() += 1;
            }
        }
        let is_whole = |(round, count): &(&u64, &u32)| self.sizes.get(*round) == Some(*count);
        let whole: Vec<u64> = counts
            .iter()
            .filter(is_whole)
            .map(|(round, _)| *round)
            .collect();
        match whole.len() {
            0 | 1 => Ok(()),
            _ => broken(format!(
                "INV-N3: the workers of rounds {whole:?} run together"
            )),
        }
    }

    /// Checks one rank of a round.
    ///
    /// `late`: the state may lack nodes that have left the round since.
    fn formed(&mut self, node: &NodeDesc, round: u64, rank: u32, size: u32, late: bool) -> Result {
        let (least, most) = self.sizes_allowed;
        if size < least && !late || size > most {
            return broken(format!(
                "INV-R3: {node} is {rank} of {size} in round {round}"
            ));
        }
        let known = *self.sizes.entry(round).or_insert(size);
        if known < size || known > size && !late || rank >= known {
            return broken(format!(
                "INV-R1: {node} is {rank} of {size} in round {round} of {known}"
            ));
        }
        let holder = self
            .ranks
            .entry((round, rank))
            .or_insert_with(|| node.clone());
        if holder != node {
            return broken(format!(
                "INV-R2: {holder} and {node} both have rank {rank} in round {round}"
            ));
        }
        Ok(())
    }

    fn sorted(&self, node: &NodeDesc, round: u64, rank: u32) -> Result {
        let mut before = self.ranks.range((round, 0)..(round, rank));
        if before.next_back().is_some_and(|(_, other)| other >= node) {
            return broken(format!(
                "INV-R1: round {round} is not in the order of nodes"
            ));
        }
        Ok(())
    }

    /// Checks a join that the coordinator has confirmed to `node`.
    pub fn joined(&mut self, node: &NodeDesc, joined: &FormedRound) -> Result {
        let FormedRound {
            round,
            rank,
            world_size,
            master_addr,
            master_port,
            ..
        } = joined;
        self.entered.insert(node.clone(), *round);
        self.formed(node, *round, *rank, *world_size, false)?;
        let master = (master_addr.clone(), *master_port);
        let known = self.masters.entry(*round).or_insert_with(|| master.clone());
        if *known != master {
            return broken(format!(
                "INV-N1: in round {round} workers meet at {known:?} and at {master:?}"
            ));
        }
        match self.ranks.get(&(*round, 0)) {
            Some(first) if first.addr != *master_addr => broken(format!(
                "INV-N1: in round {round} workers meet at {master:?}, but {first} has rank 0"
            )),
            _ => Ok(()),
        }
    }

    /// Checks a join that `node` has read in `state`.
    ///
    /// The state may lack nodes that have left since. `late`: a coordinator may have let too many
    /// nodes leave, as in PyTorch, so those checks do not apply.
    pub fn read(
        &mut self,
        node: &NodeDesc,
        formed: &Formed,
        state: Option<&RendezvousState>,
        late: bool,
    ) -> Result {
        let Formed {
            round,
            rank,
            participants,
        } = formed;
        if state.is_none_or(|state| state.closed) {
            return broken(format!("INV-R4: {node} joined a closed run"));
        }
        let size = participants.len() as u32;
        if !late {
            if !self.sizes.contains_key(round) || size < self.sizes_allowed.0 {
                return broken(format!(
                    "INV-R3: {node} joined round {round} of {participants:?}"
                ));
            }
            for (index, other) in (0..).zip(participants) {
                self.formed(other, *round, index, size, true)?;
                self.sorted(other, *round, index)?;
            }
        }
        self.formed(node, *round, *rank, size, true)
    }
}
