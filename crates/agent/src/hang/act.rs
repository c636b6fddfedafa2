//! What the agent does about workers that hang.

use rdzv_agent_proto::group::{Cause, GroupInput, GroupState};
use rdzv_agent_proto::hang::progress::ProgressChange;
use rdzv_agent_proto::hang::stacks::{WorkerStack, outliers, suspects};
use rdzv_agent_proto::hang::timers::FileTimer;
use rdzv_core::rank::LocalRank;
use tracing::{error, info, warn};

use super::inspect;
use super::report::resumed;
use super::watches::Trouble;
use super::{HangAction, HangNews, HangReport};
use crate::agent::Agent;
use crate::{AgentEvent, WatchdogAction, WatchdogTimer, WorkerIdentity, stop};

impl Agent<'_> {
    /// Whether the workers of this moment can hang: not while they are being stopped.
    pub(crate) fn judging(&self) -> bool {
        self.group.state() == GroupState::Healthy
    }

    /// Says what the watchdog did, if it is on.
    pub(crate) fn tell_of_watchdog(&mut self, action: WatchdogAction, timer: Option<&FileTimer>) {
        if self.hang.watchdog {
            let at = self.clock.now().wall;
            let timer = timer.map(|timer| WatchdogTimer {
                pid: timer.pid.into(),
                scope: timer.scope.clone(),
                expiration: timer.expires.unix_seconds_f64(),
                signal: timer.signal,
            });
            self.emit(AgentEvent::Watchdog { at, action, timer });
        }
    }

    pub(crate) fn hang_news(&mut self, news: HangNews) -> Option<GroupInput> {
        let now = self.clock.now();
        match news {
            HangNews::Said(lines) => {
                for remark in self.hang.said(now, lines) {
                    warn!("{remark}");
                }
                None
            }
            HangNews::Deaf(error) => {
                error!("what workers write about themselves cannot be read any more: {error}");
                self.hang.deafen();
                None
            }
            HangNews::Due => {
                self.look_for_trouble();
                None
            }
            HangNews::Inspected(places) => {
                self.hang.inspection = None;
                self.act(places)
            }
        }
    }

    fn look_for_trouble(&mut self) {
        let now = self.clock.now();
        // What was written before the time came still counts.
        for remark in self.hang.hear(now) {
            warn!("{remark}");
        }
        for (expiry, worker) in self.hang.expired(now) {
            for timer in &expiry.examined {
                self.tell_of_watchdog(WatchdogAction::TimerExpired, Some(timer));
            }
            let Some(timer) = expiry.examined.into_iter().last() else {
                continue;
            };
            let (pid, scope) = (timer.pid, &timer.scope);
            match (worker, expiry.kills) {
                (_, false) => {
                    info!("timer {scope:?} of process {pid} has expired, without a signal");
                }
                (None, true) => warn!(
                    "timer {scope:?} of process {pid} has expired, which is gone or not one of ours"
                ),
                (Some(worker), true) => self.hang.troubles.push(Trouble::Expired {
                    worker,
                    timer,
                    late: expiry.late,
                }),
            }
        }
        let missed = self.hang.missed(now.mono);
        let missed = missed.into_iter().map(Trouble::Missed);
        self.hang.troubles.extend(missed);
        match self.hang.look(now.mono) {
            Some(ProgressChange::Hangs { silent }) => {
                let limit = self.plan.hang.progress.unwrap_or_default();
                self.hang.troubles.push(Trouble::Stuck { silent, limit });
            }
            Some(ProgressChange::Resumed { silent }) => {
                warn!("[{}] {}", self.plan.role, resumed(silent));
                let at = now.wall;
                self.emit(AgentEvent::HangOver { at });
            }
            None => {}
        }
        if !self.hang.troubles.is_empty() && self.hang.inspection.is_none() {
            let tool = self.plan.hang.stack_tool.clone();
            self.hang.inspection = Some(inspect::begin(self.running_workers(), tool));
        }
    }

    fn running_workers(&self) -> Vec<WorkerIdentity> {
        self.workers
            .values()
            .filter(|worker| self.exits.is_running(worker.identity.local_rank))
            .map(|worker| worker.identity.clone())
            .collect()
    }

    /// Reports what was found, and ends whom it has to end.
    fn act(&mut self, places: Vec<WorkerStack>) -> Option<GroupInput> {
        let troubles = std::mem::take(&mut self.hang.troubles);
        if !self.judging() {
            return None;
        }
        let odd = outliers(&places);
        let alone = self
            .workers
            .values()
            .all(|worker| worker.identity.world_size == self.plan.local_world_size);
        let blamed = suspects(&places, odd.as_ref(), alone);
        let action = self.plan.hang.action;
        let mut found = Vec::new();
        let mut condemned: Vec<LocalRank> = Vec::new();
        let mut watchdog = Vec::new();
        let mut spared = false;
        for trouble in troubles {
            let ends = match &trouble {
                Trouble::Expired { worker, timer, .. } => {
                    watchdog.push((*worker, timer.clone()));
                    true
                }
                Trouble::Missed(_) => action != HangAction::Report,
                Trouble::Stuck { .. } => {
                    spared = blamed.is_empty() && action != HangAction::Report;
                    action != HangAction::Report && !spared
                }
            };
            for (local_rank, cause) in causes(trouble, &places, &blamed) {
                // It may have ended while it was looked at.
                let running = self.exits.is_running(local_rank);
                let Some(worker) = self.workers.get_mut(&local_rank).filter(|_| running) else {
                    continue;
                };
                found.push((worker.identity.clone(), cause.clone()));
                if ends && !condemned.contains(&local_rank) {
                    worker.condemned = Some(cause);
                    condemned.push(local_rank);
                }
            }
        }
        if found.is_empty() {
            return None;
        }
        let report = HangReport {
            found,
            places,
            odd: odd.map(|odd| odd.text),
            spared,
            action,
        };
        match condemned.is_empty() {
            true => warn!("[{}] {report}", self.plan.role),
            false => error!("[{}] {report}", self.plan.role),
        }
        let at = self.clock.now().wall;
        self.emit(AgentEvent::Hang { at, report });
        let only_watchdog = condemned.len() == watchdog.len();
        for (worker, timer) in watchdog {
            if condemned.contains(&worker) {
                let signal = timer.signal;
                self.tell_of_watchdog(WatchdogAction::WorkerKilled, Some(&timer));
                stop::signal(self, worker, signal);
            }
        }
        (!condemned.is_empty()).then_some(GroupInput::Unhealthy {
            workers: condemned,
            restartable: only_watchdog || action != HangAction::Fail,
        })
    }
}

/// Who hangs, and why: if nobody makes progress, those who are to blame, else all.
fn causes(trouble: Trouble, places: &[WorkerStack], blamed: &[usize]) -> Vec<(LocalRank, Cause)> {
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
        Trouble::Stuck { silent, limit } => places
            .iter()
            .enumerate()
            .filter(|(index, _)| blamed.is_empty() || blamed.contains(index))
            .map(|(_, place)| {
                let cause = Cause::Hang {
                    silent,
                    limit,
                    location: place.noun(),
                };
                (place.local_rank, cause)
            })
            .collect(),
    }
}
