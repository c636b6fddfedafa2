//! Next step of the leader towards the right voters, in number and choice.
//!
//! | candidates | voters |
//! |---|---|
//! | 1 | 1 |
//! | 2 | 1, and the other one learns, so that it can take over |
//! | 3, 4 | 3 |
//! | 5, 6 | 5, and so on, up to the allowed maximum |
//!
//! The order of preference is: the leader, current voters, learners, stores, nodes without workers,
//! other machines, other networks, age. New members learn first, and vote when they have the log. A
//! lost voter is replaced in one step by a member that has the log. If there is no candidate to
//! replace it, the group shrinks after one second.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use rdzv_core::time::Mono;

use crate::configuration::{Configuration, Kind, VoterChange};
use crate::voter::VoterId;

/// Time in which a candidate can appear before the group shrinks.
const REPLACED_WITHIN: Duration = Duration::from_secs(1);

/// A process that is a member, or could be one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Id of the member that it is, or would be.
    pub id: VoterId,
    /// Availability of the process.
    pub standing: MemberStanding,
    /// `true` if the process runs only a store.
    pub is_store: bool,
    /// `true` if workers run beside the process.
    pub has_workers: bool,
    /// Machine of the process; equal numbers are one machine.
    pub machine: u64,
    /// Network of its address; equal numbers are one network.
    pub network: u64,
    /// Position in the list of the group, if there is a list.
    pub position: Option<u8>,
    /// Time at which the process was first connected.
    pub since: Mono,
}

/// Availability of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberStanding {
    /// Connected.
    Present,
    /// Without an answer at present; the process may return.
    Silent,
    /// Ended or counted as lost, for this duration.
    Gone(Duration),
}

/// Input of the decision.
///
/// A voter that is not a candidate is neither counted nor removed.
#[derive(Debug, Clone, Copy)]
pub struct MembershipView<'a> {
    /// Leader, which decides.
    pub leader: VoterId,
    /// `true` if the leader is ending.
    pub leader_ends: bool,
    /// Configuration in force.
    pub configuration: &'a Configuration,
    /// Candidates, including the leader.
    pub candidates: &'a [Candidate],
    /// Members that have the log.
    pub caught_up: &'a BTreeSet<VoterId>,
    /// Maximum number of voters; odd.
    pub most: usize,
}

/// Next step of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembershipStep {
    /// No change, for this reason.
    Nothing(&'static str),
    /// Change of the members.
    Change(VoterChange),
    /// Handover to another leader.
    HandOver(VoterId),
}

/// Returns the number of voters for a number of candidates.
///
/// The result is odd, and at most `most`.
pub fn target(candidates: usize, most: usize) -> usize {
    let odd = |count: usize| count - usize::from(count.is_multiple_of(2) && count > 0);
    odd(candidates).min(odd(most)).max(1)
}

/// Decides the next step.
pub fn next(view: &MembershipView<'_>) -> MembershipStep {
    let configuration = view.configuration;
    if configuration.is_joint() {
        return MembershipStep::Nothing("the last change is not over");
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
        return MembershipStep::Change(change);
    }
    MembershipStep::Nothing("the group is complete, or waits for a learner")
}

struct Group<'a> {
    view: &'a MembershipView<'a>,
    /// Candidates that count as available.
    live: Vec<&'a Candidate>,
}

impl<'a> Group<'a> {
    fn of(view: &'a MembershipView<'a>) -> Self {
        let counts = |candidate: &&Candidate| {
            let is_member = view.configuration.has(candidate.id);
            let ends = view.leader_ends && candidate.id == view.leader;
            !ends
                && match candidate.standing {
                    MemberStanding::Present => true,
                    MemberStanding::Silent => is_member,
                    MemberStanding::Gone(_) => false,
                }
        };
        let live = view.candidates.iter().filter(counts).collect();
        Self { view, live }
    }

    fn is_voter(&self, id: VoterId) -> bool {
        self.view.configuration.voters.contains(&id)
    }

    fn is_ready(&self, candidate: &Candidate) -> bool {
        candidate.standing == MemberStanding::Present && self.view.caught_up.contains(&candidate.id)
    }

    /// Returns the best set of voters, the best candidate first.
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

    /// Returns the best candidate that is not in `chosen`.
    fn best(&self, chosen: &[&Candidate]) -> Option<&'a Candidate> {
        let others = self.live.iter().filter(|candidate| {
            let is_new = !self.is_voter(candidate.id);
            let may = !is_new || candidate.standing == MemberStanding::Present;
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

    /// Returns the lost voters, and the shortest time since their loss.
    fn gone(&self) -> (Vec<VoterId>, Duration) {
        let gone = self
            .view
            .candidates
            .iter()
            .filter_map(|it| match it.standing {
                MemberStanding::Gone(time) if self.is_voter(it.id) => Some((it.id, time)),
                _ => None,
            });
        let (gone, times): (Vec<_>, Vec<_>) = gone.unzip();
        (gone, times.into_iter().min().unwrap_or_default())
    }

    /// Returns the change of voters, if one is possible now.
    fn replace(&self, wanted: &[&Candidate]) -> Option<MembershipStep> {
        let missing: Vec<_> = wanted.iter().filter(|it| !self.is_voter(it.id)).collect();
        let ready: Vec<_> = missing.iter().filter(|it| self.is_ready(it)).collect();
        let (gone, gone_for) = self.gone();
        let mut change = VoterChange::default();
        let all = ready.len() == missing.len();
        if !ready.is_empty() && (all || !gone.is_empty()) {
            // Promote as many as are lost, or all together: an even number of voters is no better
            // than one voter less.
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
        (!change.is_empty()).then_some(MembershipStep::Change(change))
    }

    /// Adds the promotion of a learner to a change.
    fn promote(&self, change: &mut VoterChange, learner: VoterId) {
        let voter_index = self.view.configuration.voter_indices.get(&learner);
        change.add(learner, Kind::Voter, voter_index.copied().unwrap_or(0));
    }

    /// Returns a change that adds or removes one learner, if one is needed.
    fn learn(&self, wanted: &[&Candidate]) -> Option<VoterChange> {
        let configuration = self.view.configuration;
        let mut change = VoterChange::default();
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
            .find(|it| !configuration.has(it.id) && it.standing == MemberStanding::Present)?;
        let voter_index = configuration.free_voter_index(newcomer.position)?;
        change.add(newcomer.id, Kind::Learner, voter_index);
        Some(change)
    }

    fn hand_over(&self) -> MembershipStep {
        let present = |it: &&&Candidate| self.is_ready(it);
        let mut ready = self.live.iter().filter(present);
        if let Some(voter) = ready.clone().find(|it| self.is_voter(it.id)) {
            return MembershipStep::HandOver(voter.id);
        }
        let mut change = VoterChange::default();
        if let Some(learner) = ready.find(|it| self.view.configuration.learners.contains(&it.id)) {
            self.promote(&mut change, learner.id);
            return MembershipStep::Change(change);
        }
        let Some(best) = self
            .best(&[])
            .filter(|it| !self.view.configuration.has(it.id))
        else {
            return MembershipStep::Nothing("no other candidate is there");
        };
        let Some(voter_index) = self.view.configuration.free_voter_index(best.position) else {
            return MembershipStep::Nothing("no voter index is free");
        };
        change.add(best.id, Kind::Learner, voter_index);
        MembershipStep::Change(change)
    }
}
