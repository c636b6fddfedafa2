//! From joining until all workers of an attempt run.

use std::collections::VecDeque;

use super::machine::WorkerGroup;
use super::phase::{Phase, Prepared};
use super::{Ending, GroupOutput, Round, plan};
use rdzv_core::rank::{Assignment, LocalRank};
use rdzv_core::time::Now;

impl WorkerGroup {
    pub(super) fn join(&mut self) {
        self.round = None;
        self.alive.clear();
        self.started.clear();
        self.exits.clear();
        self.unhealthy.clear();
        self.phase = Phase::Joining;
        self.outbox.push(GroupOutput::Join {
            restart_count: self.budget.used(),
        });
    }

    pub(super) fn joined(&mut self, round: Round) {
        if self.budget.used() > 0 && self.spec.purge_store {
            self.outbox.push(GroupOutput::PurgeStore);
        }
        self.round = Some(round.clone());
        self.phase = Phase::Assigning;
        match self.others.superseded(round.number) {
            Some(reason) => self.regroup(reason),
            None => self.outbox.push(GroupOutput::Assign(round)),
        }
    }

    pub(super) fn assigned(&mut self, assignment: Assignment) {
        let round = self
            .round
            .clone()
            .expect("the assigning phase begins with a round");
        let restart_count = self.budget.used();
        let workers = plan::places(assignment, self.spec.local_world_size);
        let mut waiting = VecDeque::new();
        for place in &workers {
            match plan::environment(&self.spec, &round, place, restart_count) {
                Ok(environment) => waiting.push_back(Prepared {
                    worker: *place,
                    environment,
                }),
                Err(text) => return self.finish(Ending::Devices(text)),
            }
        }
        self.outbox.push(GroupOutput::Assigned {
            workers,
            round,
            restart_count,
        });
        self.phase = Phase::Starting { waiting };
        self.start_next();
    }

    pub(super) fn start_next(&mut self) {
        let Phase::Starting { waiting } = &mut self.phase else {
            return;
        };
        match waiting.pop_front() {
            Some(next) => self.outbox.push(GroupOutput::Start {
                worker: next.worker,
                environment: next.environment,
                restart_count: self.budget.used(),
            }),
            None => self.phase = Phase::Healthy,
        }
    }

    pub(super) fn started(&mut self, now: Now, local_rank: LocalRank) {
        self.ever_started = true;
        self.started.insert(local_rank);
        self.alive.insert(local_rank);
        match self.phase {
            Phase::Starting { .. } => {
                self.start_next();
                self.look_at_exits(now);
            }
            // It was being started when the group was told to stop.
            Phase::Stopping { signal, killed, .. } => {
                let workers = vec![local_rank];
                self.outbox.push(if killed {
                    GroupOutput::Kill { workers }
                } else {
                    GroupOutput::Signal { workers, signal }
                });
            }
            _ => {}
        }
    }
}
