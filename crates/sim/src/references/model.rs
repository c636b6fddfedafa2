//! Who holds what, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_rpc_proto::rref::{ForkId, Handle, Member, RRefId};

use crate::{Violation, broken};

/// How far a fork is, as its holder was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In a call that has not arrived.
    OnItsWay,
    /// The owner has not confirmed it.
    Pending,
    /// The owner knows of it.
    Confirmed,
    /// Its holder was told that it is of no use.
    Broken,
    /// It was given up, or thrown away, or given to the owner itself.
    Over,
}

/// One fork, from when it is made until the end of the run.
#[derive(Debug, Clone)]
pub struct Fork {
    /// The value.
    pub rref: RRefId,
    /// Who has the value.
    pub owner: Member,
    /// Who made it.
    pub from: Member,
    /// Who has the fork, or will.
    pub holder: Member,
    /// The fork that it was made from, unless the owner made it.
    pub parent: Option<ForkId>,
    /// How far it is.
    pub stage: Stage,
    /// Its holder has not dropped it.
    pub held: bool,
    /// It was given up by its sender, or by its creator.
    pub given_up: bool,
}

/// All that was ever made.
#[derive(Debug, Default)]
pub struct Model {
    /// Every fork.
    pub forks: BTreeMap<ForkId, Fork>,
    /// How often each owner holds a value itself.
    pub owners: BTreeMap<(Member, RRefId), usize>,
    /// Values that exist, and where; and those that were freed.
    pub made: BTreeMap<RRefId, Member>,
    /// Values that were freed.
    pub freed: BTreeSet<RRefId>,
    /// Values that were freed rightly, and of which a reference came to the owner afterwards. It
    /// cannot know, and waits for them to be made.
    pub phantoms: BTreeSet<RRefId>,
    /// Members whose process runs.
    pub alive: BTreeSet<Member>,
    /// Values that their owners have heard of.
    pub known: BTreeSet<RRefId>,
    /// Who asked others for values.
    pub creators: BTreeMap<RRefId, Member>,
    /// Values that those gave up asking for.
    pub abandoned: BTreeSet<RRefId>,
    /// Who has taken whom for lost.
    pub lost: BTreeSet<(Member, Member)>,
}

impl Model {
    /// Whether two members have lost each other, in either direction, or one is dead.
    fn parted(&self, one: Member, other: Member) -> bool {
        !self.alive.contains(&one)
            || !self.alive.contains(&other)
            || self.lost.contains(&(one, other))
            || self.lost.contains(&(other, one))
    }

    /// Whether a value will rightly never be there again, or never at all.
    fn may_never_come(&self, rref: RRefId, owner: Member) -> bool {
        let creator = self.creators.get(&rref);
        self.phantoms.contains(&rref)
            || !self.known.contains(&rref)
                && (self.abandoned.contains(&rref)
                    || creator.is_some_and(|creator| self.parted(*creator, owner)))
    }

    /// Whether a fork may rightly be without its value, although its holder has not dropped it.
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

    /// The owner frees a value.
    pub fn free(&mut self, owner: Member, rref: RRefId) -> Result<(), Violation> {
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

    /// A question is answered with a failure, or a reference is of no use.
    pub fn refused(&self, holder: Member, handle: Handle, why: &str) -> Result<(), Violation> {
        match handle {
            Handle::Owner(rref) if self.may_never_come(rref, holder) => Ok(()),
            Handle::Owner(rref) => broken(format!("INV-P3: the owner of {rref} is refused: {why}")),
            Handle::User(_, fork) if self.is_excused(fork) => Ok(()),
            Handle::User(rref, fork) => {
                broken(format!("INV-P3: fork {fork} of {rref} is refused: {why}"))
            }
        }
    }

    /// Everything that was made where somebody still lives was freed.
    pub fn all_freed(&self) -> Result<(), Violation> {
        for (rref, owner) in &self.made {
            if self.alive.contains(owner) && !self.freed.contains(rref) {
                return broken(format!("INV-P4: {rref} is never freed"));
            }
        }
        Ok(())
    }
}
