//! The next change that a group needs: its size, and which members vote.
//!
//! | candidates | voters |
//! |---|---|
//! | 1 | 1 |
//! | 2 | 1, and the other one learns, so that it can take over |
//! | 3, 4 | 3 |
//! | 5, 6 | 5, and so on, up to the most that is allowed |
//!
//! Preferred are voters of now, then learners, then stores, nodes without workers, other machines,
//! other networks, age. Newcomers learn first and vote when they have the log. A voter that is gone
//! is replaced in one step by one that has the log; where no candidate is there to replace it
//! within a second, the group shrinks.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use rdzv_core::time::Mono;

use crate::configuration::{Change, Configuration, Kind};
use crate::voter::VoterId;

/// Time for a candidate to replace a voter that is gone, before the group shrinks.
const REPLACED_WITHIN: Duration = Duration::from_secs(1);

/// A process that is a member, or could be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The member that it is, or would be.
    pub id: VoterId,
    /// Whether it is there.
    pub standing: Standing,
    /// It has nothing else to do than to keep the store.
    pub is_store: bool,
    /// Workers run beside it.
    pub has_workers: bool,
    /// Its machine; equal numbers are one machine.
    pub machine: u64,
    /// The network of its address; equal numbers are one network.
    pub network: u64,
    /// Its position in the list of the group, if there is one.
    pub position: Option<u8>,
    /// When it was first there.
    pub since: Mono,
}

/// Whether a candidate is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is connected.
    Present,
    /// It does not answer, and may yet.
    Silent,
    /// It has ended, or is counted as lost, for so long.
    Gone(Duration),
}

/// All that the decision rests on. A member that is no candidate counts as silent.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The leader, who decides.
    pub leader: VoterId,
    /// The leader is about to end.
    pub leader_ends: bool,
    /// The configuration in force.
    pub configuration: &'a Configuration,
    /// The leader among them.
    pub candidates: &'a [Candidate],
    /// The members that have the log.
    pub caught_up: &'a BTreeSet<VoterId>,
    /// The most voters; odd.
    pub most: usize,
}

/// The next step of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Nothing, for this reason.
    Nothing(&'static str),
    /// Other members.
    Change(Change),
    /// Another leader.
    HandOver(VoterId),
}

/// The number of voters that a group of so many candidates should have: odd, and at most `most`.
pub fn target(candidates: usize, most: usize) -> usize {
    let odd = |count: usize| count - usize::from(count.is_multiple_of(2) && count > 0);
    odd(candidates).min(odd(most)).max(1)
}

/// The next step.
pub fn next(view: &View<'_>) -> Next {
    let configuration = view.configuration;
    if configuration.is_joint() {
        return Next::Nothing("the last change is not over");
    }
    let group = Group::of(view);
    if view.leader_ends {
        return group.hand_over();
    }
    let wanted = group.wanted();
    if let Some(next) = group.replace(&wanted) {
        return next;
    }
    if let Some(change) = group.learn(&wanted) {
        return Next::Change(change);
    }
    Next::Nothing("the group is as it should be, or waits for a learner")
}

struct Group<'a> {
    view: &'a View<'a>,
    /// Those that count.
    live: Vec<&'a Candidate>,
}

impl<'a> Group<'a> {
    fn of(view: &'a View<'a>) -> Self {
        let counts = |candidate: &&Candidate| {
            let is_member = view.configuration.has(candidate.id);
            let ends = view.leader_ends && candidate.id == view.leader;
            !ends
                && match candidate.standing {
                    Standing::Present => true,
                    Standing::Silent => is_member,
                    Standing::Gone(_) => false,
                }
        };
        let live = view.candidates.iter().filter(counts).collect();
        Self { view, live }
    }

    fn is_voter(&self, id: VoterId) -> bool {
        self.view.configuration.voters.contains(&id)
    }

    fn is_ready(&self, candidate: &Candidate) -> bool {
        candidate.standing == Standing::Present && self.view.caught_up.contains(&candidate.id)
    }

    /// The voters that there should be, the best first.
    fn wanted(&self) -> Vec<&'a Candidate> {
        let size = target(self.live.len(), self.view.most);
        let mut wanted: Vec<&Candidate> = Vec::new();
        while wanted.len() < size
            && let Some(best) = self.best(&wanted)
        {
            wanted.push(best);
        }
        wanted
    }

    /// The best candidate beside those of `chosen`.
    fn best(&self, chosen: &[&Candidate]) -> Option<&'a Candidate> {
        let others = self.live.iter().filter(|candidate| {
            let is_new = !self.is_voter(candidate.id);
            let may = !is_new || candidate.standing == Standing::Present;
            may && chosen.iter().all(|other| other.id != candidate.id)
        });
        let best = others.min_by_key(|it| {
            (
                it.id != self.view.leader,
                !self.is_voter(it.id),
                !self.view.configuration.has(it.id),
                Reverse(it.is_store),
                it.has_workers,
                chosen.iter().any(|other| other.machine == it.machine),
                chosen.iter().any(|other| other.network == it.network),
                it.since,
                it.id,
            )
        });
        best.copied()
    }

    /// Voters that are gone, and for how long the last of them.
    fn gone(&self) -> (Vec<VoterId>, Duration) {
        let gone = self
            .view
            .candidates
            .iter()
            .filter_map(|it| match it.standing {
                Standing::Gone(time) if self.is_voter(it.id) => Some((it.id, time)),
                _ => None,
            });
        let (gone, times): (Vec<_>, Vec<_>) = gone.unzip();
        (gone, times.into_iter().min().unwrap_or_default())
    }

    /// The change of voters, if one is possible now.
    fn replace(&self, wanted: &[&Candidate]) -> Option<Next> {
        let missing: Vec<_> = wanted.iter().filter(|it| !self.is_voter(it.id)).collect();
        let ready: Vec<_> = missing.iter().filter(|it| self.is_ready(it)).collect();
        let (gone, gone_for) = self.gone();
        let mut change = Change::default();
        let all = ready.len() == missing.len();
        if !ready.is_empty() && (all || !gone.is_empty()) {
            // As many as are gone, or all at once: an even number of voters is no better than one
            // less.
            let most = if all {
                usize::MAX
            } else {
                ready.len().min(gone.len())
            };
            (ready.iter().take(most)).for_each(|it| self.promote(&mut change, it.id));
            gone.iter().take(most).for_each(|it| change.remove(*it));
        } else if missing.is_empty() && (gone.is_empty() || gone_for >= REPLACED_WITHIN) {
            gone.iter().for_each(|it| change.remove(*it));
            let live = self.live.iter().filter(|it| self.is_voter(it.id));
            let unwanted = live.filter(|it| wanted.iter().all(|other| other.id != it.id));
            unwanted.for_each(|it| change.remove(it.id));
        }
        (!change.is_empty()).then_some(Next::Change(change))
    }

    /// Adds the vote of a learner to a change.
    fn promote(&self, change: &mut Change, learner: VoterId) {
        let place = self.view.configuration.places.get(&learner);
        change.add(learner, Kind::Voter, place.copied().unwrap_or(0));
    }

    /// Another learner, or one less.
    fn learn(&self, wanted: &[&Candidate]) -> Option<Change> {
        let configuration = self.view.configuration;
        let mut change = Change::default();
        // With two candidates the second one learns.
        let spare = (self.live.len() == 2).then(|| self.best(wanted)).flatten();
        let is_learner = |id: VoterId| wanted.iter().chain(&spare).any(|it| it.id == id);
        let surplus = configuration.learners.iter().find(|id| !is_learner(**id));
        if let Some(surplus) = surplus {
            change.remove(*surplus);
            return Some(change);
        }
        let newcomer = wanted
            .iter()
            .chain(&spare)
            .find(|it| !configuration.has(it.id) && it.standing == Standing::Present)?;
        let place = configuration.free_place(newcomer.position)?;
        change.add(newcomer.id, Kind::Learner, place);
        Some(change)
    }

    fn hand_over(&self) -> Next {
        let present = |it: &&&Candidate| self.is_ready(it);
        let mut ready = self.live.iter().filter(present);
        if let Some(voter) = ready.clone().find(|it| self.is_voter(it.id)) {
            return Next::HandOver(voter.id);
        }
        let mut change = Change::default();
        if let Some(learner) = ready.find(|it| self.view.configuration.learners.contains(&it.id)) {
            self.promote(&mut change, learner.id);
            return Next::Change(change);
        }
        let Some(best) = self
            .best(&[])
            .filter(|it| !self.view.configuration.has(it.id))
        else {
            return Next::Nothing("no other candidate is there");
        };
        let Some(place) = self.view.configuration.free_place(best.position) else {
            return Next::Nothing("no place is free");
        };
        change.add(best.id, Kind::Learner, place);
        Next::Change(change)
    }
}
