//! What must be true of all that agents are told.

use std::collections::BTreeMap;

use rdzv_core::rank::Assignment;
use rdzv_rendezvous_proto::coordinator::wire::{Event, Refusal};
use rdzv_rendezvous_proto::native_client::Joined;
use rdzv_rendezvous_proto::{NodeDesc, Settings};

use crate::Violation;

/// Every round that somebody was told of.
#[derive(Debug)]
pub struct Ledger {
    settings: Settings,
    /// Who was told which rank, by round.
    ranks: BTreeMap<(u64, u32), NodeDesc>,
    /// How many take part, by round.
    sizes: BTreeMap<u64, u32>,
    /// Where the workers of native agents meet, by round.
    masters: BTreeMap<u64, (String, u16)>,
    /// The run is over.
    pub closed: bool,
}

impl Ledger {
    /// Nothing has happened yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            ranks: BTreeMap::new(),
            sizes: BTreeMap::new(),
            masters: BTreeMap::new(),
            closed: false,
        }
    }

    /// How many rounds somebody was told of.
    pub fn rounds(&self) -> u64 {
        self.sizes.len() as u64
    }

    /// The coordinator tells `node` something.
    pub fn announced(&mut self, node: &NodeDesc, event: &Event) -> Result<(), Violation> {
        match event {
            Event::Formed {
                round,
                rank,
                world_size,
                assignment,
            } => {
                if self.closed {
                    return broken(format!("INV-R4: {node} is let into a closed run"));
                }
                if let Some(given) = *assignment {
                    let right =
                        Assignment::from((2 * rank, 2 * world_size, 2 * rank, 2 * world_size));
                    if given != right {
                        return broken(format!("INV-N2: {node} has rank {rank} and {given:?}"));
                    }
                }
                self.formed(node, *round, *rank, *world_size, false)
            }
            Event::Closed | Event::Refused(Refusal::Closed | Refusal::NotNeeded) => {
                self.closed = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// `looked`: a torchrun agent, which was not told but has looked. If it does so late, it sees the
    /// round without those who have left it since, as in PyTorch, and that it does not hold.
    fn formed(
        &mut self,
        node: &NodeDesc,
        round: u64,
        rank: u32,
        size: u32,
        looked: bool,
    ) -> Result<(), Violation> {
        if size < self.settings.min_nodes && !looked
            || size > self.settings.max_nodes
            || rank >= size
        {
            return broken(format!(
                "INV-R3: {node} is {rank} of {size} in round {round}"
            ));
        }
        let known = *self.sizes.entry(round).or_insert(size);
        if known < size || known > size && !looked {
            return broken(format!(
                "INV-R1: round {round} has {known} nodes and {size}"
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
        let mut before = self.ranks.range((round, 0)..(round, rank));
        if before.next_back().is_some_and(|(_, other)| other >= node) {
            return broken(format!(
                "INV-R1: round {round} is not in the order of nodes"
            ));
        }
        Ok(())
    }

    /// `node` says that it has joined.
    pub fn joined(&mut self, node: &NodeDesc, joined: &Joined) -> Result<(), Violation> {
        let Joined {
            round,
            rank,
            world_size,
            master_addr,
            master_port,
            ..
        } = joined;
        let looked = master_addr.is_empty();
        self.formed(node, *round, *rank, *world_size, looked)?;
        if looked {
            return Ok(());
        }
        let place = (master_addr.clone(), *master_port);
        let known = self.masters.entry(*round).or_insert_with(|| place.clone());
        if *known != place {
            return broken(format!(
                "INV-N1: in round {round} workers meet at {known:?} and at {place:?}"
            ));
        }
        match self.ranks.get(&(*round, 0)) {
            Some(first) if first.addr != *master_addr => broken(format!(
                "INV-N1: in round {round} workers meet at {place:?}, but {first} has rank 0"
            )),
            _ => Ok(()),
        }
    }
}

fn broken(what: String) -> Result<(), Violation> {
    Err(Violation(what))
}
