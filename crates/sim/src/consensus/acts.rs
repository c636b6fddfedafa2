//! Faults.

use std::collections::BTreeSet;
use std::time::Duration;

use rdzv_consensus::{Configuration, Input, VoterChange, VoterId};

use super::plan::Act;
use super::process::{Packet, Process};
use super::world::{Event, World};
use crate::scheduler::nanos;
use crate::{Result, broken};

/// Time within which a leader without a majority steps down.
///
/// It covers three periods of fourteen ticks on a slow clock. The leader checks for a majority once
/// per period, and a handover starts a new period.
const STEPS_DOWN: Duration = Duration::from_millis(2380);

/// Time limit for the handover of a process that ends cleanly.
const HANDS_OVER: u64 = 3_000_000_000;

impl World {
    pub(super) fn act(&mut self, act: Act) -> Result {
        self.time.log("world", || format!("{act:?}"));
        let leader = self.leader();
        match act {
            Act::Kill(slot, after, with_machine) => {
                self.doom(self.slots[slot], after, with_machine);
            }
            Act::KillLeader(after, with_machine) => self.doom(leader, after, with_machine),
            Act::Start(slot) => self.start(slot, None),
            Act::End(slot) => return self.end(self.slots[slot]),
            Act::EndLeader => return self.end(leader),
            Act::Stall(slot, time) => {
                let end = self.time.now + nanos(time);
                if let Some(process) = self.at_slot(slot) {
                    process.stall_end = process.stall_end.max(end);
                }
            }
            Act::CutOneWay(from, to, time) => self.cut(vec![(from, to)], time),
            Act::Split(mask, time) => {
                let side = |slot: usize| mask >> slot & 1;
                self.cut_where(time, |one, two| side(one) != side(two));
            }
            Act::IsolateLeader(time) => {
                if let Some(leader) = leader {
                    let process = &self.processes[leader];
                    let (slot, term) = (process.slot, process.term);
                    self.cut_where(time, |one, two| one == slot || two == slot);
                    if time > STEPS_DOWN {
                        let event = Event::Isolated(leader, term);
                        self.time.after(nanos(time) - 1, event);
                    }
                }
            }
            Act::Chain(time) => self.cut_where(time, |one, two| one.abs_diff(two) > 1),
            Act::Hub(slot, time) => self.cut_where(time, |one, two| one != slot && two != slot),
            Act::Reset(slot) => {
                if let Some(process) = self.slots[slot] {
                    for other in self.running() {
                        self.reset(process, other, 50_000_000);
                    }
                }
            }
            Act::Slow(slot, time) => {
                let end = self.time.now + nanos(time);
                if let Some(process) = self.at_slot(slot) {
                    process.slow_end = process.slow_end.max(end);
                }
            }
            Act::RemoveLeader => {
                if let Some(leader) = leader {
                    let mut change = VoterChange::default();
                    change.remove(self.processes[leader].id);
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

    /// Checks a process that was cut off from all others.
    ///
    /// The process must no longer lead, and its term must not have grown by more than one.
    pub(super) fn isolated(&self, process: usize, term: u64) -> Result {
        let process = &self.processes[process];
        let stood_still = process.stall_end + nanos(STEPS_DOWN) >= self.time.now;
        let Some(consensus) = &process.consensus else {
            return Ok(());
        };
        if stood_still || self.is_calm {
            return Ok(());
        }
        let configuration = consensus.configuration();
        if configuration.is_majority(&BTreeSet::from([consensus.id()])) {
            return Ok(());
        }
        let role = consensus.role();
        if role.leads {
            return broken(format!(
                "INV-Q7: {} leads in term {} without a majority",
                consensus.id(),
                role.term
            ));
        }
        if role.term > term + 1 {
            return broken(format!(
                "INV-Q7: alone, {} went from term {term} to {}",
                consensus.id(),
                role.term
            ));
        }
        Ok(())
    }

    fn at_slot(&mut self, slot: usize) -> Option<&mut Process> {
        Some(&mut self.processes[self.slots[slot]?])
    }

    fn doom(&mut self, process: Option<usize>, after: u32, with_machine: bool) {
        let Some(number) = process else {
            return;
        };
        if after == 0 {
            self.kill(number, with_machine);
        } else {
            self.processes[number].dies = Some((after, with_machine));
        }
    }

    /// `true` if every configuration keeps a majority without this process.
    ///
    /// This concerns all configurations that may be in force.
    pub(super) fn may_die(&self, process: usize) -> bool {
        let others = self.processes.iter().enumerate();
        let others = others.filter(|(it, _)| *it != process);
        let alive: BTreeSet<VoterId> = others
            .filter(|(_, it)| it.consensus.is_some())
            .map(|(_, it)| it.id)
            .collect();
        let known = |it: &Process| -> Vec<Configuration> {
            let consensus = it.consensus.iter();
            consensus
                .flat_map(|it| [it.configuration().clone(), it.appended().clone()])
                .collect()
        };
        let mut known = self.processes.iter().flat_map(known);
        known.all(|it| it.voters.is_empty() || it.is_majority(&alive))
    }

    pub(super) fn kill(&mut self, number: usize, with_machine: bool) -> bool {
        if !self.processes[number].runs || !self.may_die(number) {
            return false;
        }
        let process = &mut self.processes[number];
        let (slot, id) = (process.slot, process.id);
        *process = Process {
            runs: false,
            voter_index: process.voter_index,
            ..Process::new(slot, id, process.clock, process.since)
        };
        self.time.log(id, || "is killed".into());
        self.slots[slot] = None;
        self.report.deaths += 1;
        self.connecting
            .retain(|(one, two)| *one != number && *two != number);
        self.hang_up(number, slot, with_machine);
        true
    }

    /// Ends a process cleanly: immediately, or after a handover.
    fn end(&mut self, process: Option<usize>) -> Result {
        let Some(number) = process else {
            return Ok(());
        };
        let now = self.time.now;
        let process = &mut self.processes[number];
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
