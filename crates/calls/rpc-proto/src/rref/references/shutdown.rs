//! Lost members, shutdown, and forks that are left at the end.

use std::collections::BTreeSet;
use std::time::Duration;

use super::child::Child;
use super::owner::Owned;
use super::{Phase, References};
use crate::rref::ident::{ForkId, Member, RRefId};
use crate::rref::io::{Leak, Output, ReferenceFailure, Result};
use crate::rref::message::{Batch, Control};
use crate::rref::reliable::Link;
use rdzv_core::time::Now;

/// Delay before a shutdown or quiescence asks about forks in flight.
const ASK_IN_SHUTDOWN_AFTER: Duration = Duration::from_millis(500);

impl References {
    pub(super) fn must_work(&self) -> Result {
        match self.phase {
            Phase::Ended => Err(ReferenceFailure::Stopping),
            _ => Ok(()),
        }
    }

    /// `true` if the loss of this member would change anything.
    fn matters(&self, member: Member) -> bool {
        self.links
            .get(&member)
            .is_some_and(|link| link.in_flight() > 0)
            || self.others().contains(&member)
    }

    /// Returns the members with forks from here, and owners of values used here.
    fn others(&self) -> BTreeSet<Member> {
        let holders = self.owned.values().flat_map(|owned| owned.forks.values());
        let owners = self.users.values().map(|user| &user.owner);
        let receivers = self.children.values().map(|child| &child.to);
        let all = holders.chain(owners).chain(receivers).copied();
        all.filter(|member| *member != self.me).collect()
    }

    /// Probes the [`others`](Self::others) that were silent for this long.
    ///
    /// A member with a message in flight needs no probe.
    pub(super) fn renew_leases(&mut self, now: Now, silent_for: Duration) {
        for member in self.others() {
            let link = self.links.entry(member).or_default();
            if link.in_flight() == 0 && link.silent_for(now.mono) >= silent_for {
                self.send(now, member, Control::Probe);
            }
        }
    }

    pub(super) fn unreachable(&mut self, now: Now, member: Member) {
        if member == self.me || self.lost.contains(&member) || !self.matters(member) {
            return;
        }
        let silent = |link: &Link| link.in_flight() == 0;
        if self.links.get(&member).is_none_or(silent) {
            // Without a message in flight, the member's return would not be noticed.
            self.send(now, member, Control::Probe);
        }
        if let Some(link) = self.links.get_mut(&member) {
            link.unreachable(now.mono);
        }
    }

    pub(super) fn reachable(&mut self, now: Now, member: Member) {
        if self.lost.contains(&member) {
            return self.disown(member);
        }
        let mut known = self.others();
        known.extend(self.links.keys());
        for former in known {
            if former.id == member.id && former != member {
                self.lose(now, former);
            }
        }
        if let Some(link) = self.links.get_mut(&member) {
            link.reachable(now.mono);
            self.touch(member);
        }
    }

    /// Notifies a member that it is regarded as lost.
    pub(super) fn disown(&mut self, member: Member) {
        self.outbox.push(Output::Send(Batch {
            from: self.me,
            to: member,
            first: 0,
            received: 0,
            urgent: false,
            disowned: true,
            messages: Vec::new(),
        }));
    }

    /// Removes a lost member, its forks, its values and everything in flight.
    pub(super) fn lose(&mut self, now: Now, member: Member) {
        if member == self.me || !self.lost.insert(member) {
            return;
        }
        self.links.remove(&member);
        self.touch(member);
        let mut released = 0;
        let values: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in values {
            if let Some(owned) = self.owned.get_mut(&rref) {
                let before = owned.forks.len();
                owned.forks.retain(|_, holder| *holder != member);
                released += before - owned.forks.len();
            }
            self.never(rref, member, ReferenceFailure::CreationFailed);
            self.release(rref);
        }
        let in_flight_forks = self.children.iter();
        let in_flight_forks = in_flight_forks.filter(|(_, child)| child.to == member);
        let in_flight_forks: Vec<ForkId> = in_flight_forks.map(|(fork, _)| *fork).collect();
        for fork in in_flight_forks {
            self.child_done(now, fork);
        }
        let of_its_values = self.users.iter().filter(|(_, user)| user.owner == member);
        let of_its_values: Vec<_> = of_its_values
            .map(|(fork, user)| (*fork, user.rref))
            .collect();
        for (fork, rref) in of_its_values {
            let owner = member;
            self.break_fork(now, fork, ReferenceFailure::OwnerLost { rref, owner });
        }
        self.outbox.push(Output::Lost { member, released });
    }

    pub(super) fn shut_down(&mut self, now: Now) {
        if self.phase != Phase::Working {
            return;
        }
        self.phase = Phase::Draining;
        let forks: Vec<ForkId> = self.users.keys().copied().collect();
        for fork in forks {
            if let Some(user) = self.users.get_mut(&fork) {
                user.retained = false;
            }
            self.release_fork(now, fork);
        }
        let values: Vec<RRefId> = self.owned.keys().copied().collect();
        for rref in values {
            if let Some(owned) = self.owned.get_mut(&rref) {
                owned.handles = 0;
            }
            self.release(rref);
        }
        self.expedite(now);
    }

    pub(super) fn quiesce(&mut self, now: Now) {
        if self.phase == Phase::Working {
            self.phase = Phase::Quiescing;
            self.expedite(now);
        }
    }

    /// Hastens the end of everything that is in flight.
    fn expedite(&mut self, now: Now) {
        let in_flight_forks: Vec<ForkId> = self.children.keys().copied().collect();
        for fork in in_flight_forks {
            self.ask_soon(now, fork, ASK_IN_SHUTDOWN_AFTER);
        }
        self.renew_leases(now, Duration::ZERO);
        let members: Vec<Member> = self.links.keys().copied().collect();
        for member in members {
            if let Some(link) = self.links.get_mut(&member) {
                link.expedite(now.mono);
                self.touch(member);
            }
        }
    }

    pub(super) fn check_drained(&mut self) {
        let is_drained = match self.phase {
            Phase::Draining => self.users.is_empty() && self.is_idle(),
            Phase::Quiescing => self.is_idle(),
            _ => false,
        };
        if is_drained {
            self.phase = Phase::Drained;
            self.outbox.push(Output::Drained);
        }
    }

    /// `true` if this member waits for nothing.
    ///
    /// It waits for functions that create values, for acknowledgements by reachable members, and
    /// for forks of forks that the owner does not know yet.
    fn is_idle(&self) -> bool {
        !self.children.values().any(Child::is_users)
            && !self.owned.values().any(Owned::is_running)
            && self.links.values().all(Link::is_quiet)
    }

    pub(super) fn end(&mut self) {
        self.phase = Phase::Ended;
        let mut leaks = Vec::new();
        for (rref, owned) in std::mem::take(&mut self.owned) {
            for (fork, holder) in &owned.forks {
                leaks.push(Leak {
                    rref,
                    fork: *fork,
                    holder: *holder,
                });
            }
            if owned.is_made() {
                self.outbox.push(Output::Free(rref));
            }
        }
        self.users.clear();
        self.children.clear();
        self.creations.clear();
        self.refused.clear();
        self.links.clear();
        self.timers.clear();
        self.outbox.push(Output::Ended(leaks));
    }
}
