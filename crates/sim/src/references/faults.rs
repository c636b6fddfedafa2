//! Faults: deaths, returns, and cut lines.

use std::time::Duration;

use rdzv_rpc_proto::rref::{Input, Member, References};

use super::model::Stage;
use super::plan::Act;
use super::world::{Doing, Event, World, pair};
use crate::Result;
use crate::scheduler::nanos;

impl World {
    pub(super) fn act(&mut self, worker: usize, act: Act) -> Result {
        self.note(worker, || format!("{act:?}"));
        let doing = self.workers[worker].doing;
        match act {
            Act::Kill if doing != Doing::Nothing => {
                self.stop(worker);
                self.tell_others(worker, 80, Input::Unreachable);
            }
            Act::Leave if doing == Doing::Working => {
                let member = self.workers[worker].member;
                let patience = self.time.random.u64(0..5_000_000_000);
                self.time.after(patience, Event::Gone(member));
                self.shut_down(worker)?;
            }
            Act::Restart if doing == Doing::Nothing => {
                self.start(worker);
                self.tell_others(worker, 70, Input::Reachable);
            }
            Act::Cut(other, time) if other != worker => {
                let ids = pair(
                    self.workers[worker].member.id,
                    self.workers[other].member.id,
                );
                self.cut.insert(ids, self.time.now + nanos(time));
                for (one, another) in [(worker, other), (other, worker)] {
                    self.notice_cut(one, another, time);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Lets one end notice a cut and its repair, each with a chance of one half.
    fn notice_cut(&mut self, one: usize, another: usize, time: Duration) {
        let (me, other) = (self.workers[one].member, self.workers[another].member);
        if self.time.random.bool() {
            let late = self.time.random.u64(0..=nanos(time));
            self.time
                .after(late, Event::Tell(me, Input::Unreachable(other)));
        }
        if self.time.random.bool() {
            let late = nanos(time) + 1;
            self.time
                .after(late, Event::Tell(me, Input::Reachable(other)));
        }
    }

    pub(super) fn is_cut(&self, one: Member, other: Member) -> bool {
        let end = self.cut.get(&pair(one.id, other.id));
        end.is_some_and(|end| *end > self.time.now)
    }

    fn stop(&mut self, worker: usize) {
        self.report.ended += 1;
        let it = &mut self.workers[worker];
        it.doing = Doing::Nothing;
        it.handles.clear();
        self.model.alive.remove(&it.member);
    }

    fn start(&mut self, worker: usize) {
        let it = &mut self.workers[worker];
        it.member.incarnation += 1;
        it.machine = References::new(it.member, self.plan.settings);
        it.doing = Doing::Working;
        self.model.alive.insert(it.member);
    }

    /// Notifies each other worker of this one, with a chance of `percent`.
    fn tell_others(&mut self, worker: usize, percent: u32, notice: fn(Member) -> Input<'static>) {
        let member = self.workers[worker].member;
        for other in 0..self.workers.len() {
            if other != worker && self.time.chance(percent) {
                let at = self.time.now + self.time.random.u64(0..2_000_000_000);
                let to = self.workers[other].member;
                self.time.at(at, Event::Tell(to, notice(member)));
            }
        }
    }

    /// Makes a worker wait, with everything that it holds.
    pub(super) fn rest(&mut self, worker: usize) -> Result {
        self.wait_for_the_end(worker);
        self.tell(worker, Input::Quiesce)
    }

    fn wait_for_the_end(&mut self, worker: usize) {
        let me = self.workers[worker].member;
        self.workers[worker].doing = Doing::Leaving;
        for fork in self.model.forks.values_mut() {
            // A stopping worker does not wait long for references on their way.
            fork.given_up |= fork.from == me && fork.stage == Stage::OnItsWay;
        }
    }

    /// Makes a worker release everything and wait.
    pub(super) fn shut_down(&mut self, worker: usize) -> Result {
        let me = self.workers[worker].member;
        self.wait_for_the_end(worker);
        self.workers[worker].handles.clear();
        for fork in self.model.forks.values_mut() {
            if fork.holder == me {
                fork.held = false;
            }
        }
        for ((owner, _), held) in &mut self.model.owners {
            if *owner == me {
                *held = 0;
            }
        }
        self.tell(worker, Input::Shutdown)
    }

    /// Ends a leaving worker, drained or not.
    pub(super) fn gone(&mut self, member: Member) -> Result {
        if let Some(worker) = self.running(member) {
            self.stop(worker);
            self.tell_others(worker, 90, Input::Left);
        }
        Ok(())
    }
}
