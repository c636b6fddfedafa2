//! Forks in flight: created here, and not yet known to have arrived.

use std::time::Duration;

use super::user::State;
use super::{Phase, References, Timer};
use crate::rref::ident::{ForkData, ForkId, Handle, Member, RRefId};
use crate::rref::io::{ReferenceFailure, Result};
use crate::rref::message::Control;
use rdzv_core::time::{Mono, Now};

/// Maximum time between two questions about a fork; the time doubles up to it.
///
/// If [`Settings::ask_after`](crate::rref::io::Settings::ask_after) is longer, it is the maximum.
const ASK_AT_LEAST_EVERY: Duration = Duration::from_secs(300);

/// Lower bound of the first interval between questions about a fork.
const ASK_AT_MOST_EVERY: Duration = Duration::from_millis(1);

/// Fork that this member created.
#[derive(Debug)]
pub(super) struct Child {
    rref: RRefId,
    pub(super) to: Member,
    /// Fork from which this fork was created, and which must stay alive.
    ///
    /// `None` if the value is here.
    parent: Option<ForkId>,
    ask_at: Mono,
    ask_again_after: Duration,
}

impl Child {
    /// `true` if the fork was created from another fork, which must stay alive.
    pub(super) fn is_users(&self) -> bool {
        self.parent.is_some()
    }
}

impl References {
    /// Creates a fork for the receiver of a message (F3 to F6).
    ///
    /// The caller puts the fork into that message. If the message fails, the driver reports this
    /// with [`Input::NotSent`](crate::rref::Input::NotSent) or
    /// [`Input::Strayed`](crate::rref::Input::Strayed), which ends or shortens the wait for the
    /// fork.
    ///
    /// # Errors
    ///
    /// [`ReferenceFailure`] if the reference is no longer usable, or its owner is lost.
    pub fn fork(&mut self, now: Now, handle: Handle, to: Member) -> Result<ForkData> {
        self.outbox.assert_drained();
        let deleted = || ReferenceFailure::Deleted {
            handle,
            operation: "fork",
        };
        self.must_work().map_err(|_| deleted())?;
        let fork = ForkId(self.id());
        let (owner, parent, creator) = match handle {
            Handle::Owner(rref) => {
                let owned = self.owned.get_mut(&rref).ok_or_else(deleted)?;
                // The forks of a lost member are released immediately.
                if !self.lost.contains(&to) {
                    owned.forks.insert(fork, to);
                }
                (self.me, None, None)
            }
            Handle::User(_, parent) => {
                let question = self.question(handle, "fork")?;
                (question.owner, Some(parent), question.creator)
            }
        };
        let data = ForkData {
            owner,
            rref: handle.rref(),
            fork,
            parent: self.me,
            creator,
        };
        if !self.lost.contains(&to) {
            if let Some(user) = parent.and_then(|parent| self.users.get_mut(&parent)) {
                user.children += 1;
            }
            let ask_after = self.settings.ask_after.max(ASK_AT_MOST_EVERY);
            let ask_at = now.mono + ask_after;
            self.timers.insert((ask_at, Timer::Ask(fork)));
            self.children.insert(
                fork,
                Child {
                    rref: handle.rref(),
                    to,
                    parent,
                    ask_at,
                    ask_again_after: ask_after,
                },
            );
        }
        Ok(data)
    }

    /// Removes a fork that needs no more attention, and returns it.
    pub(super) fn remove_child(&mut self, fork: ForkId) -> Option<Child> {
        let child = self.children.remove(&fork)?;
        self.timers.remove(&(child.ask_at, Timer::Ask(fork)));
        Some(child)
    }

    /// Ends the wait for a fork, so that its parent may be released.
    pub(super) fn child_done(&mut self, now: Now, fork: ForkId) {
        let Some(child) = self.remove_child(fork) else {
            return;
        };
        if let Some(parent) = child.parent {
            if let Some(user) = self.users.get_mut(&parent) {
                user.children -= 1;
            }
            self.release_fork(now, parent);
        }
    }

    /// Handles a fork that will never arrive.
    pub(super) fn child_failed(&mut self, now: Now, fork: ForkId) {
        let Some(child) = self.children.get(&fork) else {
            return;
        };
        if child.parent.is_none() {
            self.remove_fork(child.rref, fork, child.to);
        }
        self.child_done(now, fork);
    }

    fn is_child_of(&self, fork: ForkId, to: Member) -> bool {
        self.children.get(&fork).is_some_and(|child| child.to == to)
    }

    pub(super) fn child_accepted(&mut self, now: Now, from: Member, fork: ForkId) {
        if self.is_child_of(fork, from) {
            self.child_done(now, fork);
        }
    }

    /// Asks about a fork after this time, unless its receiver reports first.
    pub(super) fn ask_soon(&mut self, now: Now, fork: ForkId, after: Duration) {
        if let Some(child) = self.children.get_mut(&fork) {
            self.timers.remove(&(child.ask_at, Timer::Ask(fork)));
            child.ask_at = now.mono + after;
            self.timers.insert((child.ask_at, Timer::Ask(fork)));
        }
    }

    pub(super) fn ask(&mut self, now: Now, fork: ForkId) {
        let Some(child) = self.children.get_mut(&fork) else {
            return;
        };
        let to = child.to;
        let after = child.ask_again_after;
        child.ask_again_after = (after * 2).min(ASK_AT_LEAST_EVERY.max(self.settings.ask_after));
        self.ask_soon(now, fork, after);
        self.send_later(now, to, Control::ForkAsk(fork));
    }

    pub(super) fn fork_asked(&mut self, now: Now, from: Member, fork: ForkId) {
        let holds = |user: &super::user::User| !matches!(user.state, State::Broken(_));
        let answer = if self.users.get(&fork).is_some_and(holds) {
            Control::ForkPresent(fork)
        } else {
            self.refuse(now, fork);
            Control::ForkUnknown(fork)
        };
        self.send_later(now, from, answer);
    }

    pub(super) fn fork_present(&mut self, from: Member, fork: ForkId) {
        // A fork of a fork is in flight until the owner knows it.
        let is_owners = |child: &Child| child.to == from && child.parent.is_none();
        if self.children.get(&fork).is_some_and(is_owners) {
            self.remove_child(fork);
        }
    }

    pub(super) fn fork_unknown(&mut self, now: Now, from: Member, fork: ForkId) {
        if self.is_child_of(fork, from) {
            self.child_failed(now, fork);
        }
    }

    /// Notifies the sender of a reference that the reference is not accepted here.
    pub(super) fn decline(&mut self, now: Now, data: &ForkData) {
        if !self.users.contains_key(&data.fork) {
            self.send(now, data.parent, Control::ForkUnknown(data.fork));
        }
    }

    /// Refuses a fork if it still arrives within `refuse_for`.
    pub(super) fn refuse(&mut self, now: Now, fork: ForkId) {
        if self.phase != Phase::Ended && self.refused.insert(fork) {
            let at = now.mono + self.settings.refuse_for;
            self.timers.insert((at, Timer::Forget(fork)));
        }
    }
}
