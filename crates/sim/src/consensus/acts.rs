//! Faults.

use std::collections::BTreeSet;
use std::time::Duration;

use rdzv_consensus::{Change, Configuration, Input, VoterId};

use super::plan::Act;
use super::process::Packet;
use super::world::{Event, World};
use crate::Violation;
use crate::scheduler::nanos;

/// A leader without a majority steps down within so long: fourteen ticks on a slow clock, checked once per period, and a
/// hand-over begins the period anew.
const STEPS_DOWN: Duration = Duration::from_millis(2380);

/// A process that ends in order has so long to hand over.
const HANDS_OVER: u64 = 3_000_000_000;

impl World {
    pub(super) fn act(&mut self, act: Act) -> Result<(), Violation> {
        self.time.log("world", || format!("{act:?}"));
        let leader = self.leader();
        match act {
            Act::Kill(slot, after, with_machine) => {
                if let Some(process) = self.slots[slot] {
                    self.doom(process, after, with_machine);
                }
            }
            Act::KillLeader(after, with_machine) => {
                if let Some(process) = leader {
                    self.doom(process, after, with_machine);
                }
            }
            Act::Start(slot) => self.start(slot, None),
            Act::End(slot) => {
                if let Some(process) = self.slots[slot] {
                    return self.end(process);
                }
            }
            Act::EndLeader => {
                if let Some(process) = leader {
                    return self.end(process);
                }
            }
            Act::Stall(slot, time) => {
                let until = self.time.now + nanos(time);
                if let Some(process) = self.slots[slot]
                    && let Some(process) = self.processes.get_mut(&process)
                {
                    process.stalled_until = process.stalled_until.max(until);
                }
            }
            Act::CutOneWay(from, to, time) => self.cut(vec![(from, to)], time),
            Act::Split(mask, time) => {
                let side = |slot: usize| mask >> slot & 1;
                self.cut_where(time, |one, two| side(one) != side(two));
            }
            Act::IsolateLeader(time) => {
                if let Some(slot) = leader.map(|it| self.processes[&it].slot) {
                    self.cut_where(time, |one, two| one == slot || two == slot);
                    if let Some(leader) = leader {
                        let term = self.processes[&leader].term;
                        let at = self.time.now + nanos(time) - 1;
                        if time > STEPS_DOWN {
                            self.time.at(at, Event::Isolated(leader, term));
                        }
                    }
                }
            }
            Act::Chain(time) => self.cut_where(time, |one, two| one.abs_diff(two) > 1),
            Act::Hub(slot, time) => self.cut_where(time, |one, two| one != slot && two != slot),
            Act::Reset(slot) => {
                if let Some(process) = self.slots[slot] {
                    let others: Vec<usize> = self.processes.keys().copied().collect();
                    for other in others {
                        self.reset(process, other, 50_000_000);
                    }
                }
            }
            Act::Slow(slot, time) => {
                let until = self.time.now + nanos(time);
                if let Some(process) = self.slots[slot]
                    && let Some(process) = self.processes.get_mut(&process)
                {
                    process.slow_until = process.slow_until.max(until);
                }
            }
            Act::RemoveLeader => {
                if let Some(leader) = leader {
                    let mut change = Change::default();
                    change.remove(self.processes[&leader].id);
                    return self.handle(leader, Input::Change(&change));
                }
            }
            Act::HandOver => {
                if let Some(leader) = leader {
                    return self.handle(leader, Input::Transfer(None));
                }
            }
        }
        Ok(())
    }

    fn cut_where(&mut self, time: Duration, is: impl Fn(usize, usize) -> bool) {
        let slots = self.slots.len();
        let all = (0..slots).flat_map(|one| (0..slots).map(move |two| (one, two)));
        let cut = all.filter(|(one, two)| one != two && is(*one, *two));
        self.cut(cut.collect(), time);
    }

    /// A process that was cut off from all others: it does not lead any more, and its term has not grown.
    pub(super) fn isolated(&self, process: usize, term: u64) -> Result<(), Violation> {
        let Some(consensus) = self
            .processes
            .get(&process)
            .filter(|it| it.stalled_until + nanos(STEPS_DOWN) < self.time.now && !self.is_calm)
            .and_then(|it| it.consensus.as_ref())
        else {
            return Ok(());
        };
        let configuration = consensus.configuration();
        if configuration.is_majority(&BTreeSet::from([consensus.id()])) {
            return Ok(());
        }
        let role = consensus.role();
        if role.leads {
            return Err(Violation(format!(
                "INV-Q7: {} leads in term {} without a majority",
                consensus.id(),
                role.term
            )));
        }
        if role.term > term + 1 {
            return Err(Violation(format!(
                "INV-Q7: alone, {} went from term {term} to {}",
                consensus.id(),
                role.term
            )));
        }
        Ok(())
    }

    fn doom(&mut self, process: usize, after: u32, with_machine: bool) {
        if after == 0 {
            self.kill(process, with_machine);
        } else if let Some(process) = self.processes.get_mut(&process) {
            process.dies = Some((after, with_machine));
        }
    }

    /// Whether a majority of every configuration that may be in force is there without this process.
    pub(super) fn may_die(&self, process: usize) -> bool {
        let others = self.processes.iter().filter(|(it, _)| **it != process);
        let alive: BTreeSet<VoterId> = others
            .filter(|(_, it)| it.consensus.is_some())
            .map(|(_, it)| it.id)
            .collect();
        let known = |it: &super::process::Process| -> Vec<Configuration> {
            let consensus = it.consensus.iter();
            consensus
                .flat_map(|it| [it.configuration().clone(), it.appended().clone()])
                .collect()
        };
        let mut known = self.processes.values().flat_map(known);
        known.all(|it| it.voters.is_empty() || it.is_majority(&alive))
    }

    pub(super) fn kill(&mut self, number: usize, with_machine: bool) -> bool {
        if !self.may_die(number) {
            return false;
        }
        let Some(process) = self.processes.remove(&number) else {
            return false;
        };
        self.time.log(process.id, || "is killed".into());
        self.slots[process.slot] = None;
        self.report.deaths += 1;
        self.last_id[process.slot] = Some((process.id, process.place));
        self.connecting
            .retain(|(one, two)| *one != number && *two != number);
        self.hang_up(number, process.slot, with_machine);
        true
    }

    /// A process ends in order: at once, or when it has handed over.
    fn end(&mut self, number: usize) -> Result<(), Violation> {
        let now = self.time.now;
        let Some(process) = self.processes.get_mut(&number) else {
            return Ok(());
        };
        if process.ends.is_some() {
            return Ok(());
        }
        process.ends = Some(now + HANDS_OVER);
        let peers: Vec<usize> = process.peers.keys().copied().collect();
        for peer in peers {
            self.send(number, peer, Packet::Ping(true));
        }
        self.review(number)
    }
}
