//! State machine of the references of one agent: state, timers, dispatch.

mod child;
mod owner;
mod shutdown;
mod user;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::ident::{ForkId, GlobalId, Member, RRefId};
use super::io::{Counters, Input, Output, Settings};
use super::message::{Batch, Control};
use super::reliable::Link;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now};

use child::Child;
use owner::Owned;
use user::User;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Working,
    /// All handles are released; waits for the forks and for what is in flight.
    Draining,
    /// Everything is kept for other members; waits until nothing is in flight.
    Quiescing,
    /// Draining or quiescing has ended.
    /// Other members may use the remaining values.
    Drained,
    /// Ended: every further input is ignored.
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Link(Member),
    Ask(ForkId),
    Forget(ForkId),
    /// Probe members that have been silent for long.
    Leases,
}

/// References of one agent. See the [module](super).
#[derive(Debug, Default)]
pub struct References {
    me: Member,
    settings: Settings,
    next_id: GlobalId,
    phase: Phase,
    owned: BTreeMap<RRefId, Owned>,
    users: BTreeMap<ForkId, User>,
    /// Forks that this member created and that may be in flight.
    children: BTreeMap<ForkId, Child>,
    /// Values that this member has requested, and whose owners have not answered.
    creations: BTreeMap<RRefId, ForkId>,
    refused: BTreeSet<ForkId>,
    lost: BTreeSet<Member>,
    links: BTreeMap<Member, Link>,
    link_timers: BTreeMap<Member, Mono>,
    timers: BTreeSet<(Mono, Timer)>,
    touched: BTreeSet<Member>,
    /// `true` if `timers` contains [`Timer::Leases`].
    leases_watched: bool,
    /// Messages of this member to itself.
    to_self: VecDeque<Control>,
    outbox: Outbox<Output>,
}

impl References {
    /// Creates the state of a member that has no references yet.
    pub fn new(me: Member, settings: Settings) -> Self {
        Self {
            me,
            settings,
            next_id: GlobalId::first(me),
            ..Self::default()
        }
    }

    /// Returns this member.
    pub fn me(&self) -> Member {
        self.me
    }

    /// Returns PyTorch's debug counters.
    pub fn counters(&self) -> Counters {
        Counters {
            num_owner_rrefs: self
                .owned
                .values()
                .filter(|owned| owned.is_shared())
                .count(),
            num_forks: self.owned.values().map(|owned| owned.forks.len()).sum(),
            num_pending_users: self.users.values().filter(|user| user.is_pending()).count(),
            num_pending_futures: self.links.values().map(Link::in_flight).sum(),
        }
    }

    /// `true` if nothing is left: no value, no fork, nothing in flight.
    pub fn is_empty(&self) -> bool {
        self.owned.is_empty()
            && self.users.is_empty()
            && self.children.is_empty()
            && self.links.values().all(|link| link.in_flight() == 0)
    }

    fn id(&mut self) -> GlobalId {
        let id = self.next_id;
        self.next_id.local_id = self.next_id.local_id.wrapping_add(1);
        id
    }

    /// Sends a message without holding it back.
    fn send(&mut self, now: Now, member: Member, message: Control) {
        self.send_by(now.mono, member, message);
    }

    /// Sends a message that can wait for others, to share a batch with them.
    fn send_later(&mut self, now: Now, member: Member, message: Control) {
        let linger = match self.phase {
            Phase::Working => self.settings.linger,
            _ => Duration::ZERO,
        };
        self.send_by(now.mono + linger, member, message);
    }

    fn send_by(&mut self, at: Mono, member: Member, message: Control) {
        if member == self.me {
            self.to_self.push_back(message);
        } else if !self.lost.contains(&member) {
            self.links.entry(member).or_default().queue(message, at);
            self.touched.insert(member);
        }
    }

    fn touch(&mut self, member: Member) {
        self.touched.insert(member);
    }

    /// Sends due messages and updates the timers, at the end of each input.
    fn flush(&mut self, now: Now) {
        while let Some(message) = self.to_self.pop_front() {
            self.apply(now, self.me, message);
        }
        let urgent = self.phase != Phase::Working;
        while let Some(member) = self.touched.pop_first() {
            if let Some(before) = self.link_timers.remove(&member) {
                self.timers.remove(&(before, Timer::Link(member)));
            }
            let Some(link) = self.links.get_mut(&member) else {
                continue;
            };
            for batch in link.due(now.mono, (self.me, member), urgent) {
                self.outbox.push(Output::Send(batch));
            }
            if let Some(at) = link.deadline(&self.settings) {
                self.link_timers.insert(member, at);
                self.timers.insert((at, Timer::Link(member)));
            }
        }
        let is_bare = self.owned.is_empty() && self.users.is_empty();
        if !self.leases_watched && !is_bare {
            self.leases_watched = true;
            let at = now.mono + self.settings.renew_after;
            self.timers.insert((at, Timer::Leases));
        }
        self.check_drained();
    }

    fn due(&mut self, now: Now) {
        while let Some(&(at, timer)) = self.timers.first()
            && at <= now.mono
        {
            self.timers.remove(&(at, timer));
            match timer {
                Timer::Forget(fork) => {
                    self.refused.remove(&fork);
                }
                Timer::Ask(fork) => self.ask(now, fork),
                Timer::Leases => {
                    self.leases_watched = false;
                    self.renew_leases(now, self.settings.renew_after / 2);
                }
                Timer::Link(member) => {
                    self.link_timers.remove(&member);
                    let lost_at = self
                        .links
                        .get(&member)
                        .and_then(|link| link.lost_at(&self.settings));
                    match lost_at {
                        Some(at) if at <= now.mono => self.lose(now, member),
                        _ => self.touch(member),
                    }
                }
            }
        }
    }

    fn received(&mut self, now: Now, batch: &Batch) {
        if batch.to != self.me || batch.from == self.me {
            return;
        }
        if self.lost.contains(&batch.from) {
            if !batch.disowned {
                self.disown(batch.from);
            }
            return;
        }
        if batch.disowned {
            return self.lose(now, batch.from);
        }
        let link = self.links.entry(batch.from).or_default();
        let messages = link.receive(now.mono, batch, &self.settings);
        self.touch(batch.from);
        for message in messages {
            self.apply(now, batch.from, message);
        }
    }

    fn apply(&mut self, now: Now, from: Member, message: Control) {
        match message {
            Control::ForkRequest {
                rref,
                fork,
                creator,
            } => self.fork_requested(now, from, rref, fork, creator),
            Control::ForkAck(fork) => self.fork_acknowledged(now, from, fork),
            Control::ForkRefused(fork) => self.fork_refused(now, from, fork),
            Control::ChildAccept(fork) => self.child_accepted(now, from, fork),
            Control::UserDelete { rref, fork } => self.user_deleted(from, rref, fork),
            Control::Abandon { rref, fork } => self.abandoned(now, from, rref, fork),
            Control::Completed { fork, failed } => self.completed(now, from, fork, failed),
            Control::CreationAsk(rref) => self.creation_asked(now, from, rref),
            Control::CreationOver(rref) => self.creation_over(from, rref),
            Control::ForkAsk(fork) => self.fork_asked(now, from, fork),
            Control::ForkPresent(fork) => self.fork_present(from, fork),
            Control::ForkUnknown(fork) => self.fork_unknown(now, from, fork),
            Control::Probe => {}
        }
    }
}

impl Machine for References {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input<'_>) {
        self.outbox.assert_drained();
        if self.phase == Phase::Ended {
            return;
        }
        match input {
            Input::Accepted(fork) => self.accepted(now, fork),
            Input::CreationFailed(fork) => self.creation_failed(now, fork),
            Input::Made { rref, failed } => self.made(now, rref, failed),
            Input::Dropped(handle) => self.dropped(now, handle),
            Input::Fetch(fetch, question) => self.fetch(now, fetch, question),
            Input::FetchCancelled(rref, fetch) => self.fetch_cancelled(rref, fetch),
            Input::Received(batch) => self.received(now, batch),
            Input::NotSent(fork) => self.child_failed(now, fork),
            Input::Strayed(fork) => self.ask_soon(now, fork, Duration::ZERO),
            Input::Declined(data) => self.decline(now, &data),
            Input::Reachable(member) => self.reachable(now, member),
            Input::Unreachable(member) => self.unreachable(now, member),
            Input::Left(member) => self.lose(now, member),
            Input::Shutdown => self.shut_down(now),
            Input::Quiesce => self.quiesce(now),
            Input::End => return self.end(),
            Input::Tick => {}
        }
        self.due(now);
        self.flush(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        self.timers.first().map(|(at, _)| *at)
    }
}
