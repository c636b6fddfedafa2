//! Forks that this member holds: requested, confirmed, dropped.

use super::References;
use crate::rref::ident::{ForkData, ForkId, Handle, Member, RRefId};
use crate::rref::io::{Adopted, Fetch, Output, ReferenceFailure, Result, UserInfo};
use crate::rref::message::Control;
use rdzv_core::time::Now;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// F1: this member has asked the owner to create the value.
    Creating,
    /// F4: this member has asked the owner to enter the fork.
    Requested { parent: Member },
    /// The owner knows the fork.
    Confirmed,
    /// The fork cannot be used any more.
    Broken(ReferenceFailure),
}

/// Fork that this member holds.
#[derive(Debug)]
pub(super) struct User {
    pub(super) rref: RRefId,
    pub(super) owner: Member,
    pub(super) state: State,
    /// `true` if the driver holds the fork.
    pub(super) retained: bool,
    /// Number of forks of this fork that the owner may not know.
    pub(super) children: usize,
    /// Member that asked for the value, if the owner may not know this yet.
    creator: Option<Member>,
}

impl User {
    /// Creates a fork that the driver holds from now on.
    fn new(rref: RRefId, owner: Member, state: State, creator: Option<Member>) -> Self {
        Self {
            rref,
            owner,
            state,
            retained: true,
            children: 0,
            creator,
        }
    }

    /// `true` if the owner's confirmation of the fork is pending.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state, State::Creating | State::Requested { .. })
    }
}

impl References {
    /// F1, F2: returns ids for a value that `owner` will create.
    ///
    /// The driver holds the fork, or the value, once. The driver sends the call, and then
    /// [`Input::Accepted`](crate::rref::Input::Accepted) or
    /// [`Input::CreationFailed`](crate::rref::Input::CreationFailed). If this member is the owner,
    /// the driver runs the function, and then sends [`Input::Made`](crate::rref::Input::Made).
    ///
    /// # Errors
    ///
    /// [`ReferenceFailure::Stopping`] after the end, [`ReferenceFailure::OwnerLost`] if that member
    /// is lost.
    pub fn create_on(&mut self, owner: Member) -> Result<(RRefId, ForkId)> {
        self.outbox.assert_drained();
        self.must_work()?;
        if owner == self.me {
            return Ok(self.create_here());
        }
        let rref = RRefId(self.id());
        if self.lost.contains(&owner) {
            return Err(ReferenceFailure::OwnerLost { rref, owner });
        }
        let fork = ForkId(self.id());
        let user = User::new(rref, owner, State::Creating, Some(self.me));
        self.users.insert(fork, user);
        self.creations.insert(rref, fork);
        Ok((rref, fork))
    }

    /// Adopts a reference that has arrived inside a call or a result.
    ///
    /// If it is a fork of a value elsewhere, the driver holds it from now on. If the value is here,
    /// the driver holds it once more.
    ///
    /// # Errors
    ///
    /// [`ReferenceFailure`] if the reference is no longer usable. Its sender is notified, unless
    /// this member already holds the fork.
    pub fn adopt(&mut self, now: Now, data: &ForkData) -> Result<Adopted> {
        self.outbox.assert_drained();
        let adopted = self.try_adopt(now, data);
        if adopted.is_err() {
            self.decline(now, data);
        }
        self.flush(now);
        adopted
    }

    fn try_adopt(&mut self, now: Now, data: &ForkData) -> Result<Adopted> {
        let ForkData {
            owner,
            rref,
            fork,
            parent,
            creator,
        } = *data;
        self.must_work()?;
        if self.refused.contains(&fork) || self.users.contains_key(&fork) {
            return Err(ReferenceFailure::GivenUp(rref));
        }
        if owner == self.me {
            return self.adopt_at_owner(now, data);
        }
        if owner.id == self.me.id || self.lost.contains(&owner) {
            return Err(ReferenceFailure::OwnerLost { rref, owner });
        }
        let confirmed = parent == owner;
        let state = if confirmed {
            State::Confirmed
        } else {
            State::Requested { parent }
        };
        let user = User::new(rref, owner, state, creator);
        self.users.insert(fork, user);
        if !confirmed {
            let request = Control::ForkRequest {
                rref,
                fork,
                creator,
            };
            self.send(now, owner, request);
        }
        Ok(Adopted::User {
            rref,
            fork,
            confirmed,
        })
    }

    fn adopt_at_owner(&mut self, now: Now, data: &ForkData) -> Result<Adopted> {
        let ForkData {
            rref, fork, parent, ..
        } = *data;
        let me = self.me;
        let owned = self.known_or_awaited(now, rref, data.creator)?;
        if parent != me {
            owned.handles += 1;
            self.send(now, parent, Control::ChildAccept(fork));
        } else if owned.forks.get(&fork) == Some(&me) {
            owned.handles += 1;
            owned.forks.remove(&fork);
            self.remove_child(fork);
        } else {
            return Err(ReferenceFailure::GivenUp(rref));
        }
        Ok(Adopted::Owner(rref))
    }

    /// Returns the request for the value of a handle, or for a call on it.
    ///
    /// # Errors
    ///
    /// [`ReferenceFailure`] if the handle is no longer usable. [`ReferenceFailure::Deleted`] names
    /// `operation`.
    pub fn question(&self, handle: Handle, operation: &'static str) -> Result<Fetch> {
        let deleted = ReferenceFailure::Deleted { handle, operation };
        if self.must_work().is_err() {
            return Err(deleted);
        }
        match handle {
            Handle::Owner(rref) if !self.owned.contains_key(&rref) => Err(deleted),
            Handle::Owner(rref) => Ok(Fetch {
                owner: self.me,
                rref,
                creator: None,
            }),
            Handle::User(_, fork) => {
                let user = self.users.get(&fork).ok_or(deleted)?;
                match &user.state {
                    State::Broken(failure) => Err(failure.clone()),
                    _ => Ok(Fetch {
                        owner: user.owner,
                        rref: user.rref,
                        creator: user.creator,
                    }),
                }
            }
        }
    }

    /// Returns the state of a fork; `None` if this member has no such fork.
    pub fn user(&self, fork: ForkId) -> Option<UserInfo> {
        self.users.get(&fork).map(|user| UserInfo {
            owner: user.owner,
            confirmed: user.state == State::Confirmed,
            broken: match &user.state {
                State::Broken(failure) => Some(failure.clone()),
                _ => None,
            },
        })
    }

    pub(super) fn dropped(&mut self, now: Now, handle: Handle) {
        match handle {
            Handle::Owner(rref) => self.owner_dropped(rref),
            Handle::User(_, fork) => {
                if let Some(user) = self.users.get_mut(&fork) {
                    user.retained = false;
                    self.release_fork(now, fork);
                }
            }
        }
    }

    /// F7: releases a fork that neither the driver nor another fork needs.
    pub(super) fn release_fork(&mut self, now: Now, fork: ForkId) {
        let Some(user) = self.users.get(&fork) else {
            return;
        };
        if user.retained {
            return;
        }
        match user.state {
            State::Confirmed if user.children == 0 => {
                let (owner, rref) = (user.owner, user.rref);
                self.users.remove(&fork);
                self.send_later(now, owner, Control::UserDelete { rref, fork });
            }
            State::Broken(_) => {
                self.users.remove(&fork);
            }
            _ => {}
        }
    }

    fn confirm(&mut self, now: Now, fork: ForkId) {
        if let Some(user) = self.users.get_mut(&fork) {
            user.creator = None;
        }
        self.settle(now, fork, State::Confirmed, Output::Confirmed(fork));
    }

    /// Marks a fork as no longer usable.
    pub(super) fn break_fork(&mut self, now: Now, fork: ForkId, failure: ReferenceFailure) {
        let state = State::Broken(failure.clone());
        self.settle(now, fork, state, Output::Broken(fork, failure));
    }

    /// Ends what waits for the confirmation of a fork.
    fn settle(&mut self, now: Now, fork: ForkId, state: State, output: Output) {
        let Some(user) = self.users.get_mut(&fork) else {
            return;
        };
        let rref = user.rref;
        match std::mem::replace(&mut user.state, state) {
            State::Creating => {
                self.creations.remove(&rref);
            }
            // The parent need not wait any longer, whatever becomes of the fork.
            State::Requested { parent } => {
                self.send_later(now, parent, Control::ChildAccept(fork));
            }
            State::Confirmed | State::Broken(_) => {}
        }
        self.outbox.push(output);
        self.release_fork(now, fork);
    }

    fn is(&self, fork: ForkId, owner: Member, state: impl Fn(&State) -> bool) -> bool {
        self.users
            .get(&fork)
            .is_some_and(|user| user.owner == owner && state(&user.state))
    }

    pub(super) fn accepted(&mut self, now: Now, fork: ForkId) {
        let creating = |user: &User| user.state == State::Creating;
        if self.users.get(&fork).is_some_and(creating) {
            self.confirm(now, fork);
        }
    }

    pub(super) fn completed(&mut self, now: Now, from: Member, fork: ForkId, failed: bool) {
        if !self.is(fork, from, |state| {
            matches!(state, State::Creating | State::Confirmed)
        }) {
            return;
        }
        self.outbox.push(Output::Completed { fork, failed });
        self.accepted(now, fork);
    }

    pub(super) fn creation_failed(&mut self, now: Now, fork: ForkId) {
        let Some(user) = self.users.get(&fork) else {
            return;
        };
        if user.state != State::Creating {
            return;
        }
        let (owner, rref) = (user.owner, user.rref);
        self.send(now, owner, Control::Abandon { rref, fork });
        self.break_fork(now, fork, ReferenceFailure::CreationFailed);
    }

    pub(super) fn creation_asked(&mut self, now: Now, from: Member, rref: RRefId) {
        if !self.creations.contains_key(&rref) {
            self.send(now, from, Control::CreationOver(rref));
        }
    }

    pub(super) fn fork_acknowledged(&mut self, now: Now, from: Member, fork: ForkId) {
        if self.is(fork, from, |state| matches!(state, State::Requested { .. })) {
            self.confirm(now, fork);
        }
    }

    pub(super) fn fork_refused(&mut self, now: Now, from: Member, fork: ForkId) {
        if self.is(fork, from, |state| matches!(state, State::Requested { .. })) {
            let rref = self.users[&fork].rref;
            self.break_fork(now, fork, ReferenceFailure::Gone(rref));
        }
    }
}
