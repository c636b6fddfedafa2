//! What this node knows of its own failures, and what it says of them to others and hears of theirs.

use std::path::Path;

use rdzv_agent_proto::group::diagnosis::is_loss_of_a_peer;
use rdzv_agent_proto::group::{Cause, Evidence, Exit, Failure, WorkerExit, first_failure};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Wall;

use super::judge::{Known, judge};
use super::{Verdict, circumstances};
use crate::agent::Agent;
use crate::logs::Target;
use crate::{AgentError, Outcome, error_file, host};

/// SIGKILL's number, the same on all architectures.
const KILL: i32 = 9;

/// How many lines of a failed worker's stderr are looked at.
const MOST_LINES: usize = 200;

/// The most that other nodes are told of a failure, in bytes.
pub(crate) const MOST_TOLD: usize = 3_500;

/// A failure on another node.
#[derive(Debug)]
pub(crate) struct Heard {
    failure: Failure,
    /// When it happened, by the clock of this node.
    at: Wall,
}

impl Heard {
    /// Whether it came before the first failure of this node: by time, unless only one of the two
    /// is the loss of a peer.
    fn came_before(&self, own: &Failure) -> bool {
        if matches!(own.cause, Cause::StoppedByAgent { .. }) {
            return true;
        }
        let losses = [&self.failure.cause, &own.cause].map(is_loss_of_a_peer);
        match losses {
            [false, true] => true,
            [true, false] => false,
            _ => own.evidence.seen.is_some_and(|seen| self.at < seen),
        }
    }
}

impl Agent<'_> {
    /// Workers that were found to hang have failed, however they ended then. One that the kernel
    /// does not end is taken for what it was sent.
    pub(crate) fn failed(&self, exits: &[WorkerExit], unhealthy: &[LocalRank]) -> Outcome {
        let given_up = unhealthy
            .iter()
            .filter(|worker| exits.iter().all(|exit| exit.local_rank != **worker))
            .filter_map(|worker| self.workers.get(worker))
            .map(|worker| WorkerExit {
                local_rank: worker.identity.local_rank,
                pid: worker.identity.pid,
                exit: Exit::Signal(KILL),
                at: self.clock.now().wall,
                stopped_by_agent: worker.condemned.is_none(),
            });
        let exits: Vec<WorkerExit> = exits.iter().copied().chain(given_up).collect();
        let mut failures: Vec<Failure> = exits
            .iter()
            .filter(|exit| {
                !exit.exit.is_success()
                    || unhealthy.contains(&exit.local_rank)
                    || self.is_condemned(exit.local_rank)
            })
            .filter_map(|exit| self.failure(exit))
            .collect();
        Outcome::Failed {
            root_cause: first_failure(&mut failures),
            failures,
        }
    }

    /// Whether a worker was killed for a fault of its own. Its end is a failure, however it ended.
    fn is_condemned(&self, local_rank: LocalRank) -> bool {
        let worker = self.workers.get(&local_rank);
        worker.is_some_and(|worker| worker.condemned.is_some())
    }

    fn failure(&self, exit: &WorkerExit) -> Option<Failure> {
        let worker = self.workers.get(&exit.local_rank)?;
        let error_path = worker.error_file.as_deref();
        let evidence = Evidence {
            host: host::full_name(),
            group_rank: Some(self.meeting.group_rank()),
            role: self.plan.role.clone(),
            rank: Some(worker.identity.rank),
            started: Some(worker.started),
            kill_cause: worker.condemned.clone(),
            out_of_memory: worker.out_of_memory.clone(),
            error_file: error_path.and_then(error_file::read),
            stderr_tail: match self.logs.file(exit.local_rank, Target::Stderr) {
                Some(_) => self.logs.tail(exit.local_rank, Target::Stderr, MOST_LINES),
                None => self.listener.tail(exit.local_rank, MOST_LINES),
            },
            ..Evidence::default()
        };
        let mut failure = Failure::of_worker(exit, evidence);
        if matches!(failure.cause, Cause::ExitCode { .. }) {
            let logs = error_path.and_then(Path::parent);
            let program = Path::new(&self.plan.entrypoint.program);
            if let Some(cause) = circumstances::explain(exit.exit, program, logs) {
                failure.cause = cause;
            }
        }
        Some(failure)
    }

    /// What other nodes are told of a failure here: a sentence, and the record.
    pub(crate) fn told(&self, exit: &WorkerExit) -> String {
        let failure = self.failure(exit);
        failure.map_or_else(String::new, |failure| {
            failure.encode(&failure.sentence(), self.clock.now().wall, MOST_TOLD)
        })
    }

    /// The same of workers that hang and are about to be stopped.
    pub(crate) fn told_of_hang(&self, workers: &[LocalRank], text: &str) -> String {
        let first = workers.first().and_then(|worker| self.workers.get(worker));
        let at = self.clock.now().wall;
        let failure = first.and_then(|worker| {
            self.failure(&WorkerExit {
                local_rank: worker.identity.local_rank,
                pid: worker.identity.pid,
                exit: Exit::Signal(KILL),
                at,
                stopped_by_agent: worker.condemned.is_none(),
            })
        });
        failure.map_or_else(
            || text.to_owned(),
            |failure| failure.encode(text, at, MOST_TOLD),
        )
    }

    /// What other nodes are told when the run ends here: `text`, or what is to be said of the worker
    /// that failed first, and the record.
    pub(crate) fn told_at_the_end(
        &self,
        outcome: &Outcome,
        verdict: &Verdict,
        text: Option<String>,
    ) -> String {
        let first = match outcome {
            Outcome::Failed {
                failures,
                root_cause,
            } => failures.get(*root_cause),
            _ => None,
        };
        let text = text.or_else(|| first.map(Failure::sentence));
        let text = text.unwrap_or_default();
        match verdict.first() {
            Some(failure) if verdict.here => {
                failure.encode(&text, self.clock.now().wall, MOST_TOLD)
            }
            _ => text,
        }
    }

    /// Keeps what another node has said of its failure; returns the sentence for people.
    pub(crate) fn heard(&mut self, reason: &str) -> String {
        let (sentence, failure) = Failure::decode(reason);
        if let Some((failure, age)) = failure {
            let at = self.clock.now().wall - age;
            self.heard = Some(Heard { failure, at });
        }
        sentence.to_owned()
    }

    /// The verdict on the run.
    pub(crate) fn verdict(&mut self, outcome: &Outcome) -> Verdict {
        let now = self.clock.now().wall;
        let heard = self.heard.take().filter(|heard| match outcome {
            Outcome::Failed {
                failures,
                root_cause,
            } => failures
                .get(*root_cause)
                .is_none_or(|first| heard.came_before(first)),
            _ => true,
        });
        // What ended the run is that the nodes could not meet (again): because of that node.
        let without_others = matches!(
            outcome,
            Outcome::Error(
                AgentError::Rendezvous(_) | AgentError::Store(_) | AgentError::RunClosed { .. }
            )
        );
        let lost = || {
            let lost = self.lost.as_ref().filter(|_| without_others)?;
            Some(lost.failure())
        };
        judge(
            outcome,
            Known {
                host: &host::full_name(),
                group_rank: self.meeting.group_rank(),
                role: &self.plan.role,
                not_started: self.not_started.as_ref(),
                elsewhere: heard.map(|heard| heard.failure).or_else(lost),
                restart_count: self.group.restart_count(),
                at: now,
            },
        )
    }
}
