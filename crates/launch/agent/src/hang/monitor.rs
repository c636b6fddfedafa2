//! Reaction to the watches: inspection, report, and stop of workers.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rdzv_agent_proto::group::{Cause, Finality, GroupInput};
use rdzv_agent_proto::hang::line_splitter::SplitLine;
use rdzv_agent_proto::hang::progress::ProgressChange;
use rdzv_agent_proto::hang::stacks::{Comparison, WorkerStack, mismatches, outliers, suspects};
use rdzv_agent_proto::hang::straggler::StragglerChange;
use rdzv_agent_proto::hang::timers::FileTimer;
use rdzv_core::rank::LocalRank;
use rdzv_core::time::{Mono, Now};
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use super::exchange::{Comparing, Peers};
use super::inspect::{self, Inspection};
use super::pipes::Source;
use super::recorder::{Recorder, Recorders};
use super::report::resumed;
use super::stragglers::Stragglers;
use super::watches::{HangEvent, HeartbeatOf, Trouble, Watches};
use super::{HangAction, HangPlan, HangReport, WatchdogAction, WatchdogTimer};
use crate::AgentError;
use crate::clock::{Clock, or_forever};
use crate::worker::WorkerIdentity;

/// Number of consecutive equal samples that show that workers spin.
const SPIN_SAMPLES: u32 = 4;

/// Request or event of the monitor.
/// The caller handles them in the order in which the monitor returns them.
#[derive(Debug)]
pub(crate) enum HangOutput {
    /// The watchdog started or stopped, or acted on a timer of a worker.
    Watchdog(WatchdogAction, Option<WatchdogTimer>),
    Report(HangReport),
    /// Workers of a group that made no progress make progress again.
    Over,
    Straggler(StragglerChange),
    /// Record this cause for a worker that the agent is about to stop.
    Condemn(LocalRank, Cause),
    /// Send this worker the signal that it has requested.
    Signal(LocalRank, i32),
    Input(GroupInput),
}

pub(crate) struct HangMonitor {
    plan: HangPlan,
    role: String,
    local_world_size: u32,
    pub(crate) watches: Watches,
    troubles: Vec<Trouble>,
    inspection: Option<Inspection>,
    /// Flight recorders of the workers that may serve requests.
    recorders: Recorders,
    stragglers: Option<Stragglers>,
    /// Nodes of the round; `None` for a single node, or without `--hang-timeout`.
    peers: Option<Peers>,
    /// Hang of this node that the other nodes know.
    comparing: Option<Comparing>,
    /// Hang of this node whose report waits for the comparison of all nodes.
    held: Option<(Trouble, Vec<WorkerStack>)>,
    /// Number of reports of this node to the other nodes of the round.
    number: u64,
    spin: SpinCheck,
}

/// Samples of workers that may spin.
#[derive(Default)]
struct SpinCheck {
    next: Mono,
    workers: Vec<LocalRank>,
    /// Last sample, and the number of equal ones.
    last: Vec<WorkerStack>,
    equal: u32,
    /// Answer to the question if another node hangs.
    asked: Option<oneshot::Receiver<bool>>,
}

impl HangMonitor {
    /// Creates the pipes; must be called inside the runtime.
    pub(crate) fn new(plan: &HangPlan, role: &str, workers: u32) -> Result<Self, AgentError> {
        Ok(Self {
            watches: Watches::new(plan, workers)?,
            plan: plan.clone(),
            role: role.to_owned(),
            local_world_size: workers,
            troubles: Vec::new(),
            inspection: None,
            recorders: Recorders::new(),
            stragglers: plan.stragglers.map(Stragglers::new),
            peers: None,
            comparing: None,
            held: None,
            number: 0,
            spin: SpinCheck::default(),
        })
    }

    /// Adds the socket at which a worker may serve requests, and its error file.
    pub(crate) fn serves(&mut self, worker: LocalRank, socket: PathBuf, error_file: Option<&Path>) {
        let recorder = Recorder::new(socket, error_file);
        self.recorders.insert(worker, recorder);
    }

    /// Restarts the clocks of a worker that continues in its process.
    pub(crate) fn continued(&mut self, now: Mono, local_rank: LocalRank) {
        self.watches.continued(now, local_rank);
    }

    /// Receives the nodes of a round.
    pub(crate) fn joined(&mut self, peers: Peers) {
        self.troubles.clear();
        (self.inspection, self.comparing, self.held) = (None, None, None);
        (self.spin, self.number) = (SpinCheck::default(), 0);
        if let Some(stragglers) = &mut self.stragglers {
            stragglers.joined(&peers);
        }
        let is_shared = self.plan.progress.is_some() && peers.nodes > 1;
        self.peers = is_shared.then_some(peers);
        if let Some(peers) = &self.peers {
            peers.begin();
        }
    }

    /// Records the exit of a worker.
    pub(crate) fn ended(&mut self, now: Mono, local_rank: LocalRank) {
        self.watches.ended(now, local_rank);
        if let (Some(peers), true) = (&self.peers, self.watches.is_idle()) {
            // The other nodes do not wait for a node without workers. The exit of its last worker
            // is progress, because workers elsewhere may have waited for it.
            self.number += 1;
            let before = self.comparing.take();
            let limit = self.plan.progress.unwrap_or_default();
            self.comparing = Some(peers.compare_after(limit, self.number, Vec::new(), before));
        }
    }

    /// Returns the lines that workers have written until now.
    pub(crate) fn unread(&mut self) -> Vec<(Source, SplitLine)> {
        self.watches.unread()
    }

    /// Handles lines that workers wrote; returns the heartbeats among them.
    pub(crate) fn read(&mut self, now: Now, lines: &[(Source, SplitLine)]) -> Vec<HeartbeatOf> {
        self.watches.read(now, lines)
    }

    /// Returns the event about an action of the watchdog, if it is on.
    pub(crate) fn watchdog(
        &self,
        action: WatchdogAction,
        timer: Option<&FileTimer>,
    ) -> Option<HangOutput> {
        let timer = timer.map(|timer| WatchdogTimer {
            pid: timer.pid.into(),
            scope: timer.scope.clone(),
            expiration: timer.expires.unix_seconds_f64(),
            signal: timer.signal,
        });
        let is_on = self.plan.watchdog.is_some();
        is_on.then_some(HangOutput::Watchdog(action, timer))
    }

    pub(crate) fn clear(&mut self) {
        self.watches.clear();
        self.troubles.clear();
        self.inspection = None;
        (self.peers, self.comparing, self.held) = (None, None, None);
        self.spin = SpinCheck::default();
        if let Some(stragglers) = &mut self.stragglers {
            stragglers.clear();
        }
    }

    /// Waits for the next event.
    /// Unless `healthy`, deadlines do not count.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn next(&mut self, clock: Clock, healthy: bool) -> HangEvent {
        let comparing = self.comparing.as_mut();
        let compared = comparing.and_then(|comparing| comparing.answer.as_mut());
        let stragglers = self.stragglers.as_mut();
        tokio::select! {
            biased;
            event = self.watches.next(clock, healthy) => event,
            stacks = or_forever(self.inspection.as_mut()) => HangEvent::Inspected(stacks),
            found = or_forever(compared) => HangEvent::Compared(found.ok().flatten()),
            look = or_forever(stragglers.map(|it| it.next(clock, healthy))) => {
                HangEvent::Stragglers(look)
            }
        }
    }

    /// Returns the reaction to an event; `running` returns the running workers.
    pub(crate) fn handle(
        &mut self,
        now: Now,
        event: HangEvent,
        running: impl FnOnce() -> Vec<WorkerIdentity>,
        healthy: bool,
    ) -> Vec<HangOutput> {
        match event {
            // The caller has read them.
            HangEvent::Lines(_) => {}
            HangEvent::Broken(error) => {
                error!("cannot read the workers' pipes any longer: {error}");
                self.watches.close();
            }
            HangEvent::Due => return self.expire(now, running),
            HangEvent::Inspected(stacks) => {
                self.inspection = None;
                let troubles = std::mem::take(&mut self.troubles);
                if troubles.is_empty() {
                    self.sampled(now.mono, stacks);
                } else if healthy {
                    return self.inspected(troubles, stacks, &running());
                }
            }
            HangEvent::Compared(found) => {
                if let Some(comparing) = &mut self.comparing {
                    comparing.answer = None;
                }
                if let Some((trouble, stacks)) = self.held.take().filter(|_| healthy) {
                    return self.conclude(vec![trouble], stacks, &running(), found);
                }
            }
            HangEvent::Stragglers(look) => {
                let Some(stragglers) = &mut self.stragglers else {
                    return Vec::new();
                };
                let beats = &self.watches.heartbeats;
                let changes = stragglers.handle(now.mono, look, beats, &running());
                changes
                    .iter()
                    .for_each(|change| warn!("[{}] {change}", self.role));
                return changes.into_iter().map(HangOutput::Straggler).collect();
            }
        }
        Vec::new()
    }

    /// Reports hangs, or shares a hang of all workers with the other nodes first.
    fn inspected(
        &mut self,
        mut troubles: Vec<Trouble>,
        stacks: Vec<WorkerStack>,
        running: &[WorkerIdentity],
    ) -> Vec<HangOutput> {
        let is_stuck = |trouble: &Trouble| matches!(trouble, Trouble::Stuck { .. });
        let position = troubles.iter().position(is_stuck);
        if let (Some(peers), Some(position)) = (&self.peers, position) {
            self.number += 1;
            let before = self.comparing.take();
            self.comparing = Some(peers.compare(self.number, stacks.clone(), before));
            self.held = Some((troubles.remove(position), stacks.clone()));
        }
        self.conclude(troubles, stacks, running, None)
    }

    /// Samples the stacks of workers that may spin, if there are any.
    fn check_spin(&mut self, now: Mono, running: impl FnOnce() -> Vec<WorkerIdentity>) {
        let (spin, Some(progress)) = (&mut self.spin, &self.watches.progress) else {
            return;
        };
        if now < spin.next || self.inspection.is_some() || self.plan.stack_tool.is_none() {
            return;
        }
        spin.next = now + progress.interval();
        let answer = spin.asked.take().map(|mut asked| asked.try_recv());
        let others_hang = answer == Some(Ok(true));
        spin.workers = progress.may_spin(now, others_hang);
        if !spin.workers.is_empty() {
            let tool = self.plan.stack_tool.as_ref();
            self.inspection = Some(inspect::begin(running(), tool, &Recorders::new()));
        }
        if !progress.may_spin(now, true).is_empty() {
            spin.asked = self.peers.as_ref().map(Peers::any_hang);
        }
    }

    /// Compares a sample of workers that may spin with the previous one.
    fn sampled(&mut self, now: Mono, mut stacks: Vec<WorkerStack>) {
        let (spin, Some(progress)) = (&mut self.spin, &mut self.watches.progress) else {
            return;
        };
        stacks.retain(|stack| spin.workers.contains(&stack.local_rank));
        let is_same = |(one, other): (&WorkerStack, &WorkerStack)| {
            (one.local_rank, &one.frames) == (other.local_rank, &other.frames)
        };
        let is_equal =
            stacks.len() == spin.last.len() && stacks.iter().zip(&spin.last).all(is_same);
        if !stacks.iter().all(WorkerStack::in_collective) || !spin.last.is_empty() && !is_equal {
            // The workers compute. The next samples follow after the limit.
            spin.next = now + self.plan.progress.unwrap_or_default();
            (spin.equal, spin.last) = (0, Vec::new());
            return;
        }
        (spin.equal, spin.last) = (spin.equal + 1, stacks);
        if spin.equal >= SPIN_SAMPLES {
            progress.spin(&std::mem::take(&mut spin.workers));
            (spin.equal, spin.last) = (0, Vec::new());
        }
    }

    /// Handles a deadline, and starts an inspection if workers hang.
    fn expire(
        &mut self,
        now: Now,
        running: impl FnOnce() -> Vec<WorkerIdentity>,
    ) -> Vec<HangOutput> {
        let mut outputs = Vec::new();
        for (expiry, worker) in self.watches.expired(now) {
            for timer in &expiry.examined {
                outputs.extend(self.watchdog(WatchdogAction::TimerExpired, Some(timer)));
            }
            let Some(timer) = expiry.examined.into_iter().last() else {
                continue;
            };
            let (pid, scope) = (timer.pid, &timer.scope);
            match (worker, expiry.kills) {
                (_, false) => {
                    info!("timer {scope:?} of process {pid} has expired; it sends no signal");
                }
                (None, true) => warn!(
                    "timer {scope:?} of process {pid} has expired, but no running worker owns it"
                ),
                (Some(worker), true) => self.troubles.push(Trouble::Expired {
                    worker,
                    timer,
                    late: expiry.late,
                }),
            }
        }
        let missed = self.watches.missed(now.mono);
        self.troubles
            .extend(missed.into_iter().map(Trouble::Missed));
        match self.watches.progress(now.mono) {
            Some(ProgressChange::Hangs { silent }) => {
                let limit = self.plan.progress.unwrap_or_default();
                self.troubles.push(Trouble::Stuck { silent, limit });
            }
            Some(ProgressChange::Resumed { silent }) => outputs.extend(self.resumed(silent)),
            None => {}
        }
        if !self.troubles.is_empty() && self.inspection.is_none() {
            let tool = self.plan.stack_tool.as_ref();
            self.inspection = Some(inspect::begin(running(), tool, &self.recorders));
        } else {
            self.check_spin(now.mono, running);
        }
        outputs
    }

    /// Withdraws a hang that is over, and reports its end if the hang was reported.
    fn resumed(&mut self, silent: Duration) -> Option<HangOutput> {
        if let Some(comparing) = &mut self.comparing {
            comparing.withdraw();
        }
        // The report waited for a comparison, so nothing was reported.
        if self.held.take().is_some() {
            return None;
        }
        warn!("[{}] {}", self.role, resumed(silent));
        Some(HangOutput::Over)
    }

    /// Reports the findings of the inspection, and stops workers at fault.
    fn conclude(
        &self,
        troubles: Vec<Trouble>,
        stacks: Vec<WorkerStack>,
        running: &[WorkerIdentity],
        compared: Option<Comparison>,
    ) -> Vec<HangOutput> {
        let odd = outliers(&stacks);
        let alone = running
            .iter()
            .all(|worker| worker.world_size == self.local_world_size);
        let blamed = match &compared {
            Some(found) => (0..stacks.len())
                .filter(|index| found.blamed.contains(&stacks[*index].rank))
                .collect(),
            None => suspects(&stacks, odd.as_ref(), alone),
        };
        let action = self.plan.action;
        let mut found = Vec::new();
        let mut condemned: Vec<(LocalRank, Cause)> = Vec::new();
        let mut timers = Vec::new();
        let mut spared = false;
        for trouble in troubles {
            let ends = match &trouble {
                Trouble::Expired { worker, timer, .. } => {
                    timers.push((*worker, timer.clone()));
                    true
                }
                Trouble::Missed(_) => action != HangAction::Report,
                Trouble::Stuck { .. } => {
                    spared = blamed.is_empty() && action != HangAction::Report;
                    action != HangAction::Report && !spared
                }
            };
            for (local_rank, cause) in causes(trouble, &stacks, &blamed) {
                // The worker may have exited during the inspection.
                let worker = running
                    .iter()
                    .find(|worker| worker.local_rank == local_rank);
                let Some(worker) = worker else { continue };
                found.push((worker.clone(), cause.clone()));
                if ends && condemned.iter().all(|(known, _)| *known != local_rank) {
                    condemned.push((local_rank, cause));
                }
            }
        }
        if found.is_empty() {
            return Vec::new();
        }
        let (elsewhere, odd, collectives) = match compared {
            Some(found) => (found.elsewhere, found.odd, found.collectives),
            None => (Vec::new(), odd.map(|odd| odd.text), mismatches(&stacks)),
        };
        let report = HangReport {
            found,
            stacks,
            elsewhere,
            odd,
            collectives,
            spared,
            action,
        };
        if condemned.is_empty() {
            warn!("[{}] {report}", self.role);
        } else {
            error!("[{}] {report}", self.role);
        }
        let only_watchdog = condemned.len() == timers.len();
        let workers: Vec<LocalRank> = condemned.iter().map(|(worker, _)| *worker).collect();
        let condemn = |(worker, cause)| HangOutput::Condemn(worker, cause);
        let mut outputs: Vec<HangOutput> = condemned.into_iter().map(condemn).collect();
        outputs.push(HangOutput::Report(report));
        for (worker, timer) in timers {
            if workers.contains(&worker) {
                outputs.extend(self.watchdog(WatchdogAction::WorkerKilled, Some(&timer)));
                outputs.push(HangOutput::Signal(worker, timer.signal));
            }
        }
        if !workers.is_empty() {
            outputs.push(HangOutput::Input(GroupInput::Unhealthy {
                workers,
                is_final: (action == HangAction::Fail && !only_watchdog)
                    .then_some(Finality::HangAction),
            }));
        }
        outputs
    }
}

/// Returns the workers that hang, and the cause for each.
/// If no worker makes progress, these are the suspects, or all workers if there are no suspects.
fn causes(trouble: Trouble, stacks: &[WorkerStack], blamed: &[usize]) -> Vec<(LocalRank, Cause)> {
    match trouble {
        Trouble::Expired {
            worker,
            timer,
            late,
        } => vec![(
            worker,
            Cause::Watchdog {
                scope: timer.scope,
                late,
            },
        )],
        Trouble::Missed(missed) => vec![(
            missed.local_rank,
            Cause::Heartbeat {
                phase: format!("{} {}", missed.phase, missed.note)
                    .trim_end()
                    .to_owned(),
                silent: missed.silent,
                limit: missed.limit,
            },
        )],
        Trouble::Stuck { silent, limit } => stacks
            .iter()
            .enumerate()
            .filter(|(index, _)| blamed.is_empty() || blamed.contains(index))
            .map(|(_, stack)| {
                let cause = Cause::Hang {
                    silent,
                    limit,
                    location: stack.noun(),
                };
                (stack.local_rank, cause)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::hang::exchange::tests::{MemoryStore, await_that};
    use rdzv_store::Store;

    #[test]
    fn the_late_withdrawal_of_a_hang_spares_the_stacks_of_the_next_one() {
        let store = MemoryStore::default();
        let mut monitor = HangMonitor::new(&HangPlan::default(), "default", 1).unwrap();
        monitor.peers = Some(store.peers(0, 2));
        let hang = |monitor: &mut HangMonitor| {
            let (silent, limit) = (Duration::ZERO, Duration::ZERO);
            monitor.inspected(vec![Trouble::Stuck { silent, limit }], vec![], &[])
        };
        let stored = |number: &str| {
            let value = store
                .check(&["rdzv/hang/0"])
                .unwrap()
                .then(|| store.get("rdzv/hang/0"));
            value.is_some_and(|it| String::from_utf8_lossy(&it.unwrap()).contains(number))
        };
        hang(&mut monitor);
        await_that("the first stacks", || stored("\"number\":1"));
        let removal = store.removal.lock().unwrap();
        assert!(monitor.resumed(Duration::ZERO).is_none());
        hang(&mut monitor);
        // Nothing can be stored now. A wrong order gets time to show itself.
        (0..1000).for_each(|_| thread::yield_now());
        assert!(stored("\"number\":1"));
        drop(removal);
        await_that("the next stacks", || stored("\"number\":2"));
        // The removal is the only call that can still follow.
        let hanging = || store.add("rdzv/hang/hanging", 0).unwrap();
        await_that("the end of the withdrawal", || hanging() == 1);
        assert!(stored("\"number\":2"));
        monitor.clear();
        await_that("the end of the hang", || hanging() == 0);
    }
}
