//! Second half of a run: all faults have ended, and the group must settle.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_consensus::membership;

use super::world::World;
use crate::history::{self, Operation, counter::Counter};
use crate::{Result, Violation, broken};

/// Time within which a connected majority has a leader.
const LEADS_WITHIN: u64 = 5_000_000_000;

/// Time within which the group has its size and all members have all entries.
///
/// It covers the loss of processes, the repetition of the last snapshot, and one member after
/// another.
const SETTLES_WITHIN: u64 = 30_000_000_000;

/// Time within which a new leader follows a leader whose connections closed.
const FAILS_OVER_WITHIN: u64 = 60_000_000;

/// Latency above which votes may be split, so that the timeout decides.
///
/// The notice of the loss and a vote request may then together take longer than the difference
/// between the members' waits.
const FAR: u64 = 1_000_000;

impl World {
    /// Ends all faults, and waits.
    pub(super) fn calm_down(&mut self) -> Result {
        self.is_calm = true;
        self.cuts.clear();
        let now = self.time.now;
        let mut over = now;
        for process in &mut self.processes {
            over = over.max(process.stall_end).max(process.slow_end);
            process.dies = None;
        }
        self.release();
        for slot in 0..self.slots.len() {
            self.start(slot, None);
        }
        // Stops and slow networks end at their planned times.
        self.run_to(over, |_| false)?;
        let end = self.time.now + LEADS_WITHIN;
        let led = self.run_to(end, |world| {
            let leader = world.leader().map(|it| &world.processes[it]);
            leader.is_some_and(|leader| {
                let consensus = leader.consensus.as_ref();
                consensus.is_some_and(|it| it.term_at(it.committed()) == Some(leader.term))
            })
        })?;
        if !led {
            return broken(format!(
                "INV-Q7: no member leads 5 s after all faults: {:?}",
                self.members()
            ));
        }
        let end = self.time.now + SETTLES_WITHIN;
        // Long enough for every process to send a message.
        self.run_to(self.time.now + 1_000_000_000, |_| false)?;
        self.run_to(end, |world| world.unsettled().is_none())?;
        if let Some(what) = self.unsettled() {
            return broken(format!("INV-Q7: at the end, {what}"));
        }
        Ok(())
    }

    fn members(&self) -> Vec<String> {
        let members = self.processes.iter().filter(|it| it.runs);
        members
            .map(|it| {
                let peers = it.peers.iter();
                let peers = peers.map(|(number, peer)| (*number, peer.slot, peer.connection));
                let peers: Vec<_> = peers.collect();
                format!("{:?} at {}, connected {peers:?}", it.consensus, it.slot)
            })
            .collect()
    }

    fn unsettled(&self) -> Option<String> {
        let leader = self.leader()?;
        let leader = &self.processes[leader];
        let consensus = leader.consensus.as_ref()?;
        let configuration = consensus.configuration();
        let size = membership::target(self.running().len(), self.plan.most);
        let votes = configuration.voters.len();
        if votes != size || configuration.is_joint() {
            return Some(format!("{configuration:?} has not {size} voters"));
        }
        for member in configuration.members() {
            let other = self.member(member);
            let applied = other.and_then(|other| other.consensus.as_ref()?.applied().into());
            // Clients continue, so a few commands may be on their way.
            if applied.is_none_or(|applied| applied + 8 < consensus.applied()) {
                return Some(format!(
                    "{member} has applied {applied:?} of {}",
                    consensus.applied()
                ));
            }
        }
        None
    }

    /// Kills the leader of a group of three or more once more.
    ///
    /// The others must continue immediately. Then the clients end, and their history is checked.
    pub(super) fn last_death(&mut self) -> Result {
        let term = self.leader().map(|it| self.processes[it].term);
        if let (Some(leader), Some(term)) = (self.leader(), term)
            && self.processes[leader]
                .consensus
                .as_ref()
                .is_some_and(|it| it.configuration().voters.len() >= 3)
            && self.kill(leader, false)
        {
            let killed = self.time.now;
            let is_far = self.plan.latency.1 > FAR;
            let within = if is_far {
                LEADS_WITHIN
            } else {
                FAILS_OVER_WITHIN
            };
            let end = killed + within;
            let led = self.run_to(end, |world| {
                let leader = world.leader();
                leader.is_some_and(|it| world.processes[it].term > term)
            })?;
            if !led {
                return broken(format!(
                    "INV-Q7: no member leads {} ms after the leader's connections closed: {:?}",
                    (end - killed) / 1_000_000,
                    self.members()
                ));
            }
            self.report.fail_over = Duration::from_nanos(self.time.now - killed);
        }
        let now = self.time.now;
        self.run_to(now + 500_000_000, |_| false)?;
        self.clients_end = true;
        let idle = |world: &Self| world.clients.iter().all(|it| it.current.is_none());
        if !self.run_to(now + 20_000_000_000, idle)? && !idle(self) {
            return broken(format!(
                "INV-Q7: operations are not answered: {:?}",
                self.clients
                    .iter()
                    .map(|it| (it.sequence, it.current))
                    .collect::<Vec<_>>()
            ));
        }
        self.run_to(self.time.now + 1_000_000_000, |_| false)?;
        self.outstanding()?;
        self.linearizable()
    }

    /// Fails if a proposal of a leader is still undecided.
    fn outstanding(&self) -> Result {
        for process in &self.processes {
            let old = process
                .proposals
                .values()
                .find(|it| it.since + 1_000_000_000 < self.time.now);
            if let Some(old) = old {
                return broken(format!("INV-Q7: {} has not decided {old:?}", process.id));
            }
        }
        Ok(())
    }

    fn linearizable(&self) -> Result {
        let mut histories: BTreeMap<u64, Vec<Operation<Counter>>> = BTreeMap::new();
        for (key, operation) in self.clients.iter().flat_map(|it| &it.history) {
            histories.entry(*key).or_default().push(operation.clone());
        }
        let mut histories = histories.values();
        let checked = histories.try_for_each(|it| history::check(it));
        checked.map_err(|it| Violation(format!("INV-Q5: {}", it.0)))
    }
}
