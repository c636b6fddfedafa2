//! Operations of workers, and the calls that carry references.

use rdzv_rpc_proto::rref::{
    Adopted, Fetch, FetchId, ForkData, ForkId, Handle, Input, Member, RRefId, ReferenceFailure,
};

use super::model::{Fork, Stage};
use super::world::{Doing, Event, World};
use crate::{Result, broken};

/// Number of handles above which the next operation of a worker drops one.
const HANDLES: usize = 24;

/// Returns the input that reports a value; the world draws whether it failed.
fn made(rref: RRefId) -> Input<'static> {
    let failed = false;
    Input::Made { rref, failed }
}

impl World {
    /// Runs one operation of a random worker.
    pub(super) fn operate(&mut self) -> Result {
        let working = |worker: &usize| self.workers[*worker].doing == Doing::Working;
        let able: Vec<usize> = (0..self.workers.len()).filter(working).collect();
        if able.is_empty() {
            return Ok(());
        }
        let worker = able[self.time.random.usize(0..able.len())];
        let handles = self.workers[worker].handles.len();
        if handles == 0 {
            return if self.time.random.bool() {
                self.create(worker)
            } else {
                self.create_on(worker)
            };
        }
        let index = self.time.random.usize(0..handles);
        let handle = self.workers[worker].handles[index];
        match self.time.random.u32(0..100) {
            _ if handles > HANDLES => {
                self.workers[worker].handles.swap_remove(index);
                self.drop_handle(worker, handle)
            }
            0..10 => self.create(worker),
            10..30 => self.create_on(worker),
            30..60 => self.pass_on(worker, handle),
            60..80 => {
                self.workers[worker].handles.swap_remove(index);
                self.drop_handle(worker, handle)
            }
            _ => self.fetch(worker, handle),
        }
    }

    fn anybody(&mut self) -> Member {
        let worker = self.time.random.usize(0..self.workers.len());
        self.workers[worker].member
    }

    fn create(&mut self, worker: usize) -> Result {
        let me = self.workers[worker].member;
        let Ok(rref) = self.workers[worker].machine.create() else {
            return broken(format!("{me} works, but may not create"));
        };
        self.note(worker, || format!("creates {rref}"));
        self.report.made += 1;
        self.model.made.insert(rref, me);
        self.model.known.insert(rref);
        self.holds(worker, Handle::Owner(rref));
        self.collect(worker)
    }

    fn holds(&mut self, worker: usize, handle: Handle) {
        let me = self.workers[worker].member;
        if let Handle::Owner(rref) = handle {
            *self.model.owners.entry((me, rref)).or_default() += 1;
        }
        self.workers[worker].handles.push(handle);
    }

    fn create_on(&mut self, worker: usize) -> Result {
        let me = self.workers[worker].member;
        let to = self.anybody();
        let (rref, fork) = match self.workers[worker].machine.create_on(to) {
            Ok(ids) => ids,
            Err(_) if self.model.lost.contains(&(me, to)) => return Ok(()),
            Err(failure) => return broken(format!("{me} may not create: {failure}")),
        };
        self.note(worker, || {
            format!("creates {rref} on {to} with fork {fork}")
        });
        let takes = self.time.random.u64(0..1_000_000_000);
        if to == me {
            self.model.known.insert(rref);
            self.holds(worker, Handle::Owner(rref));
            self.time.after(takes, Event::Tell(me, made(rref)));
            return self.collect(worker);
        }
        self.model.creators.insert(rref, me);
        let it = Fork {
            rref,
            owner: to,
            from: me,
            holder: me,
            parent: None,
            stage: Stage::Pending,
            held: true,
            given_up: false,
        };
        self.model.forks.insert(fork, it);
        self.holds(worker, Handle::User(rref, fork));
        let (arrives, answered) = (self.time.now + self.latency(), self.time.now + takes);
        let lost = self.time.chance(self.plan.bad_calls) || self.is_cut(me, to);
        if !lost {
            self.time.at(arrives, Event::Create(me, to, rref, fork));
        }
        if lost || self.time.chance(self.plan.bad_calls) {
            // The call is lost, or the caller stops waiting before its answer.
            self.time
                .at(answered, Event::Tell(me, Input::CreationFailed(fork)));
        }
        self.collect(worker)
    }

    pub(super) fn creation_failed(&mut self, fork: ForkId) {
        if let Some(it) = self.model.forks.get_mut(&fork)
            && it.stage == Stage::Pending
        {
            it.given_up = true;
            self.model.abandoned.insert(it.rref);
        }
    }

    /// Records that the sender abandons a fork on its way.
    pub(super) fn give_up(&mut self, fork: ForkId) {
        if let Some(it) = self.model.forks.get_mut(&fork)
            && it.stage == Stage::OnItsWay
        {
            it.given_up = true;
        }
    }

    fn pass_on(&mut self, worker: usize, handle: Handle) -> Result {
        let me = self.workers[worker].member;
        let to = self.anybody();
        let now = self.time.clocks(0);
        let data = match self.workers[worker].machine.fork(now, handle, to) {
            Ok(data) => data,
            Err(failure) => return self.model.refused(me, handle, &failure.to_string()),
        };
        self.note(worker, || format!("passes {handle} on to {to}: {data:?}"));
        let parent = match handle {
            Handle::Owner(_) => None,
            Handle::User(_, parent) => Some(parent),
        };
        let it = Fork {
            rref: data.rref,
            owner: data.owner,
            from: me,
            holder: to,
            parent,
            stage: Stage::OnItsWay,
            held: true,
            given_up: false,
        };
        self.model.forks.insert(data.fork, it);
        let lost = self.time.chance(self.plan.bad_calls) || self.is_cut(me, to);
        if lost {
            self.over(data.fork);
            if self.time.random.u32(0..4) == 0 {
                return self.tell(worker, Input::NotSent(data.fork));
            }
        } else {
            let at = self.time.now + self.latency();
            self.time.at(at, Event::Pass(to, data));
        }
        if lost && self.time.random.bool() || self.time.chance(self.plan.bad_calls) {
            let late = self.time.random.u64(0..2_000_000_000);
            self.time
                .after(late, Event::Tell(me, Input::Strayed(data.fork)));
        }
        self.collect(worker)
    }

    fn over(&mut self, fork: ForkId) {
        if let Some(it) = self.model.forks.get_mut(&fork) {
            it.stage = Stage::Over;
        }
    }

    pub(super) fn drop_handle(&mut self, worker: usize, handle: Handle) -> Result {
        let me = self.workers[worker].member;
        match handle {
            Handle::Owner(rref) => {
                let held = self.model.owners.entry((me, rref)).or_default();
                *held = held.saturating_sub(1);
            }
            Handle::User(_, fork) => {
                if let Some(it) = self.model.forks.get_mut(&fork) {
                    it.held = false;
                }
            }
        }
        self.tell(worker, Input::Dropped(handle))
    }

    fn fetch(&mut self, worker: usize, handle: Handle) -> Result {
        let me = self.workers[worker].member;
        let question = match self.workers[worker].machine.question(handle, "to_here()") {
            Ok(question) => question,
            Err(failure) => return self.model.refused(me, handle, &failure.to_string()),
        };
        let fetch = FetchId(self.time.count);
        let (to, rref) = (question.owner, question.rref);
        self.note(worker, || format!("asks {to} for {rref}: {fetch:?}"));
        if to != me && (self.time.chance(self.plan.bad_calls) || self.is_cut(me, to)) {
            return Ok(());
        }
        self.questions.insert(fetch, (me, handle));
        let arrives = self.time.now + self.latency();
        self.time.at(arrives, Event::Fetch(fetch, question));
        // The asker finally stops waiting: its agent cancels, or the connection breaks.
        let patience = self.time.random.u64(3_000_000_000..10_000_000_000);
        let cancelled = Input::FetchCancelled(rref, fetch);
        self.time.after(patience, Event::Tell(to, cancelled));
        Ok(())
    }

    pub(super) fn question_arrives(&mut self, fetch: FetchId, question: Fetch) -> Result {
        // The process that now has the owner's id receives the question.
        let worker = question.owner.id.0 as usize;
        if self.workers[worker].doing == Doing::Nothing {
            self.questions.remove(&fetch);
            return Ok(());
        }
        self.tell(worker, Input::Fetch(fetch, question))
    }

    pub(super) fn creation_arrives(
        &mut self,
        from: Member,
        to: Member,
        rref: RRefId,
        fork: ForkId,
    ) -> Result {
        let answer_at = self.time.now + self.latency();
        let failed = Event::Tell(from, Input::CreationFailed(fork));
        let Some(worker) = self.running(to) else {
            self.time.at(answer_at, failed);
            return Ok(());
        };
        let machine = &mut self.workers[worker].machine;
        let arrived = machine.creation_arrived(from, rref, fork);
        self.note(worker, || format!("is to make {rref}: {arrived:?}"));
        match arrived {
            Ok(()) => {
                self.model.known.insert(rref);
                let takes = self.time.random.u64(0..1_000_000_000);
                self.time.after(takes, Event::Tell(to, made(rref)));
                if self.time.chance(self.plan.bad_calls) {
                    // The answer is lost.
                    self.time.at(answer_at, failed);
                } else {
                    self.time
                        .at(answer_at, Event::Tell(from, Input::Accepted(fork)));
                }
            }
            Err(failure) => {
                self.report.refused += 1;
                if failure != ReferenceFailure::Stopping {
                    self.model
                        .refused(from, Handle::User(rref, fork), &failure.to_string())?;
                }
                self.time.at(answer_at, failed);
            }
        }
        self.collect(worker)
    }

    pub(super) fn reference_arrives(&mut self, to: Member, data: ForkData) -> Result {
        let Some(worker) = self.running(to) else {
            self.over(data.fork);
            if self.time.random.bool() {
                let strayed = Input::Strayed(data.fork);
                self.time
                    .after(1_000_000, Event::Tell(data.parent, strayed));
            }
            return Ok(());
        };
        if self.time.chance(self.plan.bad_calls / 2) {
            // The worker discards the call unread, with or without a notice.
            self.over(data.fork);
            return if self.time.random.bool() {
                self.tell(worker, Input::Declined(data))
            } else {
                Ok(())
            };
        }
        let now = self.time.clocks(0);
        let adopted = self.workers[worker].machine.adopt(now, &data);
        self.note(worker, || format!("gets {data:?}: {adopted:?}"));
        let fork = Handle::User(data.rref, data.fork);
        let handle = match adopted {
            Ok(Adopted::Owner(rref)) => {
                if self.model.freed.contains(&rref) {
                    self.model
                        .refused(to, fork, "it was freed before it came back")?;
                    self.model.phantoms.insert(rref);
                }
                self.over(data.fork);
                Handle::Owner(rref)
            }
            Ok(Adopted::User { confirmed, .. }) => {
                if let Some(it) = self.model.forks.get_mut(&data.fork) {
                    // The fork counts from now on, even if its sender had given it up before.
                    it.given_up = false;
                    it.stage = if confirmed {
                        Stage::Confirmed
                    } else {
                        Stage::Pending
                    };
                }
                if confirmed && self.model.freed.contains(&data.rref) {
                    self.model
                        .refused(to, fork, "it was freed before it arrived")?;
                }
                fork
            }
            Err(failure) => {
                self.report.refused += 1;
                if failure != ReferenceFailure::Stopping {
                    self.model.refused(to, fork, &failure.to_string())?;
                }
                self.over(data.fork);
                return self.collect(worker);
            }
        };
        self.report.adopted += 1;
        self.holds(worker, handle);
        self.collect(worker)?;
        if self.ending || self.workers[worker].doing != Doing::Working {
            self.workers[worker].handles.retain(|it| *it != handle);
            return self.drop_handle(worker, handle);
        }
        Ok(())
    }
}
