//! Virtual time, and its events.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::machine::Machine as _;
use rdzv_rpc_proto::rref::{
    Batch, Counters, Fetch, FetchId, ForkData, ForkId, Handle, Input, Member, RRefId, References,
};
use rdzv_rpc_proto::worker::WorkerId;

use super::model::Model;
use super::plan::{Act, End, Plan};
use crate::scheduler::{Scheduler, due, nanos};
use crate::trace::Trace;
use crate::{Result, broken};

/// Time after the end of all operations after which no reference may be left.
const DRAINED_AFTER: Duration = Duration::from_secs(200);

/// Maximum number of events for each operation; more is a busy loop.
const BUSY: u64 = 2_000;

/// Totals of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of events.
    pub events: u64,
    /// Number of operations of workers.
    pub operations: u64,
    /// Number of sent batches.
    pub batches: u64,
    /// Number of messages in the batches.
    pub messages: u64,
    /// Number of values that were created.
    pub made: u64,
    /// Number of references that arrived.
    pub adopted: u64,
    /// Number of fetches that were answered with the value.
    pub fetched: u64,
    /// Number of refused or broken references, and of failed fetches.
    pub refused: u64,
    /// Number of processes that ended.
    pub ended: u64,
    /// Number of times that a member declared another one lost.
    pub lost: u64,
    /// Number of questions whether the request for a value will still come.
    pub awaited: u64,
}

#[derive(Debug)]
pub(super) enum Event {
    Act(usize, Act),
    Operate,
    Wake(usize),
    Batch(Batch),
    /// F1: a call to create a value, from the first member to the second.
    Create(Member, Member, RRefId, ForkId),
    /// F3 to F6: a call with a reference inside.
    Pass(Member, ForkData),
    /// F8: a call for the value.
    Fetch(FetchId, Fetch),
    /// A process receives an input, if it still runs.
    Tell(Member, Input<'static>),
    /// A leaving worker has waited long enough.
    Gone(Member),
    /// All operations are done.
    Ending,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    Working,
    Leaving,
    Drained,
    Nothing,
}

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) member: Member,
    pub(super) doing: Doing,
    pub(super) machine: References,
    pub(super) handles: Vec<Handle>,
    wake: Option<u64>,
}

/// World of one seed.
#[derive(Debug)]
pub struct World {
    pub(super) plan: Plan,
    pub(super) time: Scheduler<Event>,
    pub(super) workers: Vec<Worker>,
    pub(super) model: Model,
    /// Time until which a line is cut, for each pair that was ever cut off.
    pub(super) cut: BTreeMap<(WorkerId, WorkerId), u64>,
    /// Asker and handle of each question.
    pub(super) questions: BTreeMap<FetchId, (Member, Handle)>,
    pub(super) ending: bool,
    operations_left: u64,
    pub(super) report: Report,
}

impl World {
    /// Creates a world in which nothing has happened yet.
    pub fn new(plan: Plan, seed: u64, trace: Trace) -> Self {
        if trace == Trace::All {
            println!("{plan:#?}");
        }
        let mut world = Self {
            time: Scheduler::new(seed, trace),
            workers: Vec::new(),
            model: Model::default(),
            cut: BTreeMap::new(),
            questions: BTreeMap::new(),
            ending: false,
            operations_left: plan.operations,
            report: Report::default(),
            plan,
        };
        for id in 0..world.plan.workers {
            let member = Member {
                id: WorkerId(id as u32),
                incarnation: 1,
            };
            world.model.alive.insert(member);
            world.workers.push(Worker {
                member,
                doing: Doing::Working,
                machine: References::new(member, world.plan.settings),
                handles: Vec::new(),
                wake: None,
            });
        }
        for (at, worker, act) in world.plan.acts.clone() {
            world.time.at(nanos(at), Event::Act(worker, act));
        }
        world.time.at(0, Event::Operate);
        world
    }

    /// Runs all events until nothing is left to do, and checks the result.
    pub fn run(mut self) -> Result<Report> {
        let bound = BUSY * (self.plan.operations + 100);
        let mut ends_at = u64::MAX;
        while let Some(event) = self.time.pop() {
            if self.time.now > ends_at {
                // The event at this time does not happen.
                self.time.count -= 1;
                break;
            }
            if self.time.count > bound {
                return broken("the workers do something all the time");
            }
            if matches!(event, Event::Ending) {
                ends_at = self.time.now + nanos(DRAINED_AFTER);
            }
            self.happen(event)?;
        }
        self.report.events = self.time.count;
        self.check_end()?;
        Ok(self.report)
    }

    fn check_end(&self) -> Result {
        for worker in &self.workers {
            let (member, machine) = (worker.member, &worker.machine);
            match (worker.doing, self.plan.end) {
                (Doing::Nothing, _) => continue,
                (Doing::Leaving, _) | (_, End::Shutdown | End::Rest)
                    if worker.doing != Doing::Drained =>
                {
                    return broken(format!("INV-P4: {member} does not drain: {machine:#?}"));
                }
                // References that are still held are kept.
                (_, End::Rest) => continue,
                _ => {}
            }
            if !machine.is_empty() || machine.counters() != Counters::default() {
                return broken(format!(
                    "INV-P4: something is left at {member}: {machine:#?}"
                ));
            }
        }
        match self.plan.end {
            End::Rest => Ok(()),
            End::Drop | End::Shutdown => self.model.all_freed(),
        }
    }

    fn happen(&mut self, event: Event) -> Result {
        match event {
            Event::Act(worker, act) => self.act(worker, act),
            Event::Operate => {
                if self.operations_left == 0 {
                    let last = self.plan.acts.iter().map(|(at, _, _)| nanos(*at)).max();
                    let at = last.unwrap_or(0).max(self.time.now) + 1;
                    self.time.at(at, Event::Ending);
                    return Ok(());
                }
                self.operations_left -= 1;
                self.report.operations += 1;
                let pause = self.time.random.u64(0..=2 * nanos(self.plan.pause));
                self.time.after(pause, Event::Operate);
                self.operate()
            }
            Event::Wake(worker) => {
                self.workers[worker].wake = None;
                self.tell(worker, Input::Tick)
            }
            Event::Batch(batch) => {
                let to = batch.to.id.0 as usize;
                self.tell(to, Input::Received(&batch))
            }
            Event::Create(from, to, rref, fork) => self.creation_arrives(from, to, rref, fork),
            Event::Pass(to, data) => self.reference_arrives(to, data),
            Event::Fetch(fetch, question) => self.question_arrives(fetch, question),
            Event::Tell(member, input) => self.notice(member, input),
            Event::Gone(member) => self.gone(member),
            Event::Ending => self.ends(),
        }
    }

    fn ends(&mut self) -> Result {
        self.ending = true;
        self.cut.values_mut().for_each(|end| *end = 0);
        for worker in 0..self.workers.len() {
            match (self.workers[worker].doing, self.plan.end) {
                (Doing::Working, End::Drop) => {
                    while let Some(handle) = self.workers[worker].handles.pop() {
                        self.drop_handle(worker, handle)?;
                    }
                }
                (Doing::Working, End::Shutdown) => self.shut_down(worker)?,
                (Doing::Working, End::Rest) => self.rest(worker)?,
                _ => {}
            }
        }
        if self.plan.end != End::Drop {
            self.plan.lost = 0;
        }
        Ok(())
    }

    /// Returns the worker that runs this member's process, if one does.
    pub(super) fn running(&self, member: Member) -> Option<usize> {
        let worker = member.id.0 as usize;
        let it = self.workers.get(worker)?;
        (it.member == member && it.doing != Doing::Nothing).then_some(worker)
    }

    fn notice(&mut self, member: Member, mut input: Input<'static>) -> Result {
        let Some(worker) = self.running(member) else {
            return Ok(());
        };
        match &mut input {
            // There is no connection to an ended process.
            Input::Reachable(other) if self.running(*other).is_none() => return Ok(()),
            Input::Strayed(fork) => self.give_up(*fork),
            Input::CreationFailed(fork) => self.creation_failed(*fork),
            Input::Made { rref, failed } => {
                self.report.made += 1;
                self.model.made.insert(*rref, member);
                *failed = self.time.random.u32(0..10) == 0;
            }
            _ => {}
        }
        self.tell(worker, input)
    }

    /// Passes an input to a machine, and applies its outputs.
    pub(super) fn tell(&mut self, worker: usize, input: Input<'_>) -> Result {
        if self.workers[worker].doing == Doing::Nothing {
            return Ok(());
        }
        if !matches!(input, Input::Tick) {
            self.note(worker, || format!("◄ {input:?}"));
        }
        let now = self.time.clocks(0);
        self.workers[worker].machine.handle(now, input);
        self.collect(worker)
    }

    pub(super) fn latency(&mut self) -> u64 {
        if self.time.chance(self.plan.late) {
            self.time.random.u64(0..3_000_000_000)
        } else {
            self.time.between(self.plan.latency)
        }
    }

    pub(super) fn schedule(&mut self, worker: usize) {
        let it = &mut self.workers[worker];
        let due = due(it.machine.deadline());
        self.time.wake(&mut it.wake, due, Event::Wake(worker));
    }

    pub(super) fn note(&self, worker: usize, what: impl FnOnce() -> String) {
        let member = self.workers[worker].member;
        let who = format!("{}.{}", member.id, member.incarnation);
        self.time.log(who, what);
    }
}

/// Returns two workers as an unordered pair.
pub(super) fn pair(one: WorkerId, other: WorkerId) -> (WorkerId, WorkerId) {
    (one.min(other), one.max(other))
}
