//! Reaction to the watches: inspection, report, and stop of workers.

use rdzv_agent_proto::group::{Cause, GroupInput};
use rdzv_agent_proto::hang::progress::ProgressChange;
use rdzv_agent_proto::hang::stacks::{WorkerStack, outliers, suspects};
use rdzv_agent_proto::hang::timers::FileTimer;
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Now;
use tracing::{error, info, warn};

use super::inspect::{self, Inspection};
use super::report::resumed;
use super::watches::{HangEvent, Trouble, Watches};
use super::{HangAction, HangPlan, HangReport, WatchdogAction, WatchdogTimer};
use crate::AgentError;
use crate::clock::{Clock, or_forever};
use crate::worker::WorkerIdentity;

/// Request or event of the monitor; the caller handles them in this order.
#[derive(Debug)]
pub(crate) enum HangOutput {
    /// The watchdog started or stopped, or acted on a timer of a worker.
    Watchdog(WatchdogAction, Option<WatchdogTimer>),
    Report(HangReport),
    /// Workers of a group that made no progress make progress again.
    Over,
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
        })
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
    }

    /// Waits for the next event.
    /// While the agent stops the workers (not `healthy`), this only empties their pipes.
    /// Cancel-safe: the caller may drop the future.
    pub(crate) async fn next(&mut self, clock: Clock, healthy: bool) -> HangEvent {
        tokio::select! {
            biased;
            event = self.watches.next(clock, healthy) => event,
            stacks = or_forever(self.inspection.as_mut()) => HangEvent::Inspected(stacks),
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
            HangEvent::Lines(lines) => {
                for remark in self.watches.read(now, lines) {
                    warn!("{remark}");
                }
            }
            HangEvent::Broken(error) => {
                error!("cannot read the workers' pipes any longer: {error}");
                self.watches.close();
            }
            HangEvent::Due => return self.expire(now, running),
            HangEvent::Inspected(stacks) => {
                self.inspection = None;
                let troubles = std::mem::take(&mut self.troubles);
                if healthy {
                    return self.conclude(troubles, stacks, &running());
                }
            }
        }
        Vec::new()
    }

    /// Handles a deadline, and starts an inspection if workers hang.
    fn expire(
        &mut self,
        now: Now,
        running: impl FnOnce() -> Vec<WorkerIdentity>,
    ) -> Vec<HangOutput> {
        let mut outputs = Vec::new();
        // Lines that workers wrote before the deadline still count.
        for remark in self.watches.read_all(now) {
            warn!("{remark}");
        }
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
            Some(ProgressChange::Resumed { silent }) => {
                warn!("[{}] {}", self.role, resumed(silent));
                outputs.push(HangOutput::Over);
            }
            None => {}
        }
        if !self.troubles.is_empty() && self.inspection.is_none() {
            let tool = self.plan.stack_tool.as_ref();
            self.inspection = Some(inspect::begin(running(), tool));
        }
        outputs
    }

    /// Reports the findings of the inspection, and stops workers at fault.
    fn conclude(
        &self,
        troubles: Vec<Trouble>,
        stacks: Vec<WorkerStack>,
        running: &[WorkerIdentity],
    ) -> Vec<HangOutput> {
        let odd = outliers(&stacks);
        let alone = running
            .iter()
            .all(|worker| worker.world_size == self.local_world_size);
        let blamed = suspects(&stacks, odd.as_ref(), alone);
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
        let report = HangReport {
            found,
            stacks,
            odd: odd.map(|odd| odd.text),
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
                restartable: only_watchdog || action != HangAction::Fail,
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
