//! Values that this member owns: their users, and when they may be freed.

use std::collections::BTreeMap;

use super::References;
use crate::rref::ident::{FetchId, ForkId, Member, RRefId};
use crate::rref::io::{Fetch, Output, ReferenceFailure, Result};
use crate::rref::message::Control;
use rdzv_core::time::Now;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    /// A reference or a request has arrived before the creating call.
    Awaited {
        creator: Member,
    },
    Running,
    /// The value exists, or the error of its function does.
    Made,
    Never(ReferenceFailure),
}

#[derive(Debug)]
pub(super) struct Owned {
    value: Value,
    /// Forks of other members, and those of this member itself in F2 and F6.
    pub(super) forks: BTreeMap<ForkId, Member>,
    /// Number of times that the driver holds the value.
    pub(super) handles: usize,
    waiting: Vec<FetchId>,
    /// Member to notify when the value exists, and its fork.
    creator: Option<(Member, ForkId)>,
}

impl Owned {
    fn new(value: Value) -> Self {
        Self {
            value,
            forks: BTreeMap::new(),
            handles: 0,
            waiting: Vec::new(),
            creator: None,
        }
    }

    /// `true` if PyTorch would count the value in `num_owner_rrefs`.
    pub(super) fn is_shared(&self) -> bool {
        !self.forks.is_empty() || self.is_running()
    }

    /// `true` if the driver has something to free.
    pub(super) fn is_made(&self) -> bool {
        self.value == Value::Made
    }

    pub(super) fn is_running(&self) -> bool {
        self.value == Value::Running
    }

    fn is_used(&self) -> bool {
        self.is_running() || self.handles > 0 || !self.forks.is_empty() || !self.waiting.is_empty()
    }
}

impl References {
    /// Enters a value that already exists. The driver holds it once.
    ///
    /// # Errors
    ///
    /// [`ReferenceFailure::Stopping`] after the end.
    pub fn create(&mut self) -> Result<RRefId> {
        self.outbox.assert_drained();
        self.must_work()?;
        let rref = RRefId(self.id());
        let mut owned = Owned::new(Value::Made);
        owned.handles = 1;
        self.owned.insert(rref, owned);
        Ok(rref)
    }

    /// F2: enters a value that a function will create here.
    ///
    /// The driver holds the value once, and sends [`Input::Made`](crate::rref::Input::Made) later.
    pub(super) fn create_here(&mut self) -> (RRefId, ForkId) {
        let rref = RRefId(self.id());
        let fork = ForkId(rref.0);
        let mut owned = Owned::new(Value::Running);
        owned.handles = 1;
        owned.forks.insert(fork, self.me);
        self.owned.insert(rref, owned);
        (rref, fork)
    }

    /// F1, on the owner: handles another member's call that creates a value.
    ///
    /// If this is `Ok`, the function may run and the fork is entered. The driver answers the call
    /// immediately, without waiting for the function.
    ///
    /// # Errors
    ///
    /// [`ReferenceFailure`] if the creator has abandoned the request or is lost, if the request is
    /// impossible, or after the end.
    pub fn creation_arrived(&mut self, from: Member, rref: RRefId, fork: ForkId) -> Result {
        self.outbox.assert_drained();
        self.must_work()?;
        if rref.0.created_on != from.id || from.id == self.me.id {
            return Err(ReferenceFailure::Refused(
                rref,
                "its id is from another worker",
            ));
        }
        if self.lost.contains(&from) || self.refused.contains(&fork) {
            return Err(ReferenceFailure::GivenUp(rref));
        }
        let awaited = Value::Awaited { creator: from };
        let owned = self
            .owned
            .entry(rref)
            .or_insert_with(|| Owned::new(awaited.clone()));
        if owned.value != awaited {
            return Err(ReferenceFailure::Refused(rref, "it already exists"));
        }
        owned.value = Value::Running;
        owned.forks.insert(fork, from);
        owned.creator = Some((from, fork));
        Ok(())
    }

    pub(super) fn made(&mut self, now: Now, rref: RRefId, failed: bool) {
        let Some(owned) = self.owned.get_mut(&rref) else {
            return;
        };
        if owned.value != Value::Running {
            return;
        }
        owned.value = Value::Made;
        owned.forks.remove(&ForkId(rref.0));
        for fetch in owned.waiting.drain(..) {
            self.outbox.push(Output::Fetched(fetch, Ok(())));
        }
        if let Some((creator, fork)) = owned.creator.take()
            && owned.forks.contains_key(&fork)
        {
            self.send_later(now, creator, Control::Completed { fork, failed });
        }
        self.release(rref);
    }

    /// Frees a value if no member uses it.
    pub(super) fn release(&mut self, rref: RRefId) {
        if self.owned.get(&rref).is_some_and(|owned| !owned.is_used())
            && let Some(owned) = self.owned.remove(&rref)
            && owned.value == Value::Made
        {
            self.outbox.push(Output::Free(rref));
        }
    }

    /// Handles the drop of a handle of the driver.
    pub(super) fn owner_dropped(&mut self, rref: RRefId) {
        if let Some(owned) = self.owned.get_mut(&rref) {
            owned.handles = owned.handles.saturating_sub(1);
            self.release(rref);
        }
    }

    /// Removes the entry of a fork if `holder` holds it; `true` if it did.
    pub(super) fn remove_fork(&mut self, rref: RRefId, fork: ForkId, holder: Member) -> bool {
        let Some(owned) = self.owned.get_mut(&rref) else {
            return false;
        };
        if owned.forks.get(&fork) != Some(&holder) {
            return false;
        }
        owned.forks.remove(&fork);
        self.release(rref);
        true
    }

    /// Returns the entry of a value; creates one if the value may still arrive.
    pub(super) fn known_or_awaited(
        &mut self,
        now: Now,
        rref: RRefId,
        creator: Option<Member>,
    ) -> Result<&mut Owned> {
        if !self.owned.contains_key(&rref) {
            let may_come = |creator: &Member| {
                *creator != self.me
                    && creator.id == rref.0.created_on
                    && !self.lost.contains(creator)
            };
            let creator = creator
                .filter(may_come)
                .ok_or(ReferenceFailure::Gone(rref))?;
            self.must_work()?;
            self.owned
                .insert(rref, Owned::new(Value::Awaited { creator }));
            self.send(now, creator, Control::CreationAsk(rref));
        }
        self.owned
            .get_mut(&rref)
            .ok_or(ReferenceFailure::Gone(rref))
    }

    pub(super) fn fork_requested(
        &mut self,
        now: Now,
        from: Member,
        rref: RRefId,
        fork: ForkId,
        creator: Option<Member>,
    ) {
        let entered = self
            .known_or_awaited(now, rref, creator)
            .is_ok_and(|owned| *owned.forks.entry(fork).or_insert(from) == from);
        let answer = if entered {
            Control::ForkAck(fork)
        } else {
            Control::ForkRefused(fork)
        };
        self.send(now, from, answer);
    }

    pub(super) fn user_deleted(&mut self, from: Member, rref: RRefId, fork: ForkId) {
        if self.remove_fork(rref, fork, from) {
            self.remove_child(fork);
        }
    }

    pub(super) fn abandoned(&mut self, now: Now, from: Member, rref: RRefId, fork: ForkId) {
        if !self.remove_fork(rref, fork, from) {
            self.refuse(now, fork);
            self.never(rref, from, ReferenceFailure::CreationFailed);
        }
    }

    pub(super) fn creation_over(&mut self, from: Member, rref: RRefId) {
        self.never(rref, from, ReferenceFailure::Gone(rref));
    }

    /// Records that a value that was awaited from this creator will never exist.
    pub(super) fn never(&mut self, rref: RRefId, creator: Member, failure: ReferenceFailure) {
        let Some(owned) = self.owned.get_mut(&rref) else {
            return;
        };
        if owned.value != (Value::Awaited { creator }) {
            return;
        }
        for fetch in owned.waiting.drain(..) {
            self.outbox
                .push(Output::Fetched(fetch, Err(failure.clone())));
        }
        owned.value = Value::Never(failure);
        self.release(rref);
    }

    pub(super) fn fetch(&mut self, now: Now, fetch: FetchId, question: Fetch) {
        let Fetch {
            owner,
            rref,
            creator,
        } = question;
        let answer = if owner != self.me {
            Some(Err(ReferenceFailure::OwnerLost { rref, owner }))
        } else {
            match self.known_or_awaited(now, rref, creator) {
                Err(failure) => Some(Err(failure)),
                Ok(owned) => match &owned.value {
                    Value::Made => Some(Ok(())),
                    Value::Never(failure) => Some(Err(failure.clone())),
                    Value::Awaited { .. } | Value::Running => {
                        owned.waiting.push(fetch);
                        None
                    }
                },
            }
        };
        if let Some(answer) = answer {
            self.outbox.push(Output::Fetched(fetch, answer));
        }
    }

    pub(super) fn fetch_cancelled(&mut self, rref: RRefId, fetch: FetchId) {
        if let Some(owned) = self.owned.get_mut(&rref) {
            owned.waiting.retain(|waiting| *waiting != fetch);
            self.release(rref);
        }
    }
}
