//! Model of all references, with its invariants.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_rpc_proto::rref::{ForkId, Handle, Member, RRefId};

use crate::{Result, broken};

/// Progress of a fork, as its holder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The fork is in a call that has not arrived.
    OnItsWay,
    /// The owner has not confirmed the fork.
    Pending,
    /// The owner knows the fork.
    Confirmed,
    /// The holder knows that the fork is useless.
    Broken,
    /// The fork was lost, discarded, refused, or passed to the owner itself.
    Over,
}

/// One fork, from its creation until the end of the run.
#[derive(Debug, Clone)]
pub struct Fork {
    /// Value of the fork.
    pub rref: RRefId,
    /// Member that has the value.
    pub owner: Member,
    /// Member that created the fork.
    pub from: Member,
    /// Member that has the fork, or will have it.
    pub holder: Member,
    /// Fork from which this one was created.
    ///
    /// `None` if the owner created it, or if it was created with its value.
    pub parent: Option<ForkId>,
    /// Progress of the fork.
    pub stage: Stage,
    /// `true` if the holder has not dropped the fork.
    pub held: bool,
    /// `true` if the fork's sender or creator gave it up.
    pub given_up: bool,
}

/// Everything that was ever created.
#[derive(Debug, Default)]
pub struct Model {
    /// All forks.
    pub forks: BTreeMap<ForkId, Fork>,
    /// Number of handles that each owner has to its value.
    pub owners: BTreeMap<(Member, RRefId), usize>,
    /// Values that were created, with their owners; freed values are included.
    pub made: BTreeMap<RRefId, Member>,
    /// Values that were freed.
    pub freed: BTreeSet<RRefId>,
    /// Freed values to which a reference arrived later at the owner.
    ///
    /// The owner cannot know this, and waits for the values to be created.
    pub phantoms: BTreeSet<RRefId>,
    /// Members whose process runs.
    pub alive: BTreeSet<Member>,
    /// Values that their owners know.
    pub known: BTreeSet<RRefId>,
    /// Members that requested values from others.
    pub creators: BTreeMap<RRefId, Member>,
    /// Values that their creators no longer request.
    pub abandoned: BTreeSet<RRefId>,
    /// Pairs of members: the first one has declared the second one lost.
    pub lost: BTreeSet<(Member, Member)>,
}

impl Model {
    /// `true` if one member has lost the other, or if one of them is dead.
    fn parted(&self, one: Member, other: Member) -> bool {
        !self.alive.contains(&one)
            || !self.alive.contains(&other)
            || self.lost.contains(&(one, other))
            || self.lost.contains(&(other, one))
    }

    /// `true` if a value will rightly never exist, or never again.
    fn may_never_come(&self, rref: RRefId, owner: Member) -> bool {
        let creator = self.creators.get(&rref);
        self.phantoms.contains(&rref)
            || !self.known.contains(&rref)
                && (self.abandoned.contains(&rref)
                    || creator.is_some_and(|creator| self.parted(*creator, owner)))
    }

    /// `true` if a fork that its holder keeps may rightly be without its value.
    pub fn is_excused(&self, fork: ForkId) -> bool {
        let mut next = Some(fork);
        let mut below: Option<Member> = None;
        while let Some(fork) = next {
            let Some(it) = self.forks.get(&fork) else {
                return true;
            };
            if self.may_never_come(it.rref, it.owner) {
                return true;
            }
            if it.given_up || it.stage == Stage::Broken || self.parted(it.owner, it.holder) {
                return true;
            }
            if below.is_some_and(|child| self.parted(it.holder, child)) {
                return true;
            }
            if it.stage == Stage::Confirmed {
                return false;
            }
            below = Some(it.holder);
            next = it.parent;
        }
        false
    }

    /// Records that the owner frees a value.
    pub fn free(&mut self, owner: Member, rref: RRefId) -> Result {
        if self.made.get(&rref) != Some(&owner) {
            return broken(format!(
                "INV-P3: {owner} frees {rref}, which was not made there"
            ));
        }
        if !self.freed.insert(rref) {
            return broken(format!("INV-P3: {rref} is freed twice"));
        }
        let here = self.owners.get(&(owner, rref)).copied().unwrap_or(0);
        if here > 0 {
            return broken(format!("INV-P2: {rref} is freed while its owner holds it"));
        }
        for (fork, it) in &self.forks {
            let wanted = it.held && !matches!(it.stage, Stage::Over | Stage::Broken);
            if it.rref == rref && wanted && !self.is_excused(*fork) {
                return broken(format!(
                    "INV-P2: {rref} is freed while {} has fork {fork} of it: {:?}",
                    it.holder, it.stage
                ));
            }
        }
        Ok(())
    }

    /// Checks that a failed fetch, or a useless reference, is justified.
    pub fn refused(&self, holder: Member, handle: Handle, why: &str) -> Result {
        match handle {
            Handle::Owner(rref) if self.may_never_come(rref, holder) => Ok(()),
            Handle::Owner(rref) => broken(format!("INV-P3: the owner of {rref} is refused: {why}")),
            Handle::User(_, fork) if self.is_excused(fork) => Ok(()),
            Handle::User(rref, fork) => {
                broken(format!("INV-P3: fork {fork} of {rref} is refused: {why}"))
            }
        }
    }

    /// Fails unless every value of a live owner was freed.
    pub fn all_freed(&self) -> Result {
        for (rref, owner) in &self.made {
            if self.alive.contains(owner) && !self.freed.contains(rref) {
                return broken(format!("INV-P4: {rref} is never freed"));
            }
        }
        Ok(())
    }
}
