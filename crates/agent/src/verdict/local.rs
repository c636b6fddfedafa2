//! What this node knows of its own failures, and what it says of them to others and hears of theirs.

use std::path::Path;
use std::time::Duration;

use rdzv_agent_proto::group::diagnosis::{self, Evidence, diagnose};
use rdzv_agent_proto::group::exit::{FailureTrace, root_cause};
use rdzv_agent_proto::group::record::FailureRecord;
use rdzv_agent_proto::group::{Cause, Exit, WorkerExit};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Wall;

use super::judge::{Known, judge};
use super::{Verdict, circumstances, of_worker};
use crate::agent::Agent;
use crate::logs::Target;
use crate::{AgentError, Outcome, WorkerFailure, error_file, host};

/// SIGKILL's number, the same on all architectures.
const KILL: i32 = 9;

/// How many lines of a failed worker's stderr are looked at.
const MOST_LINES: usize = 200;

/// The most that other nodes are told of a failure, in bytes.
pub(crate) const MOST_TOLD: usize = 3_500;

/// A failure on another node.
#[derive(Debug)]
pub(crate) struct Heard {
    record: FailureRecord,
    /// When it happened, by the clock of this node.
    at: Wall,
}

impl Heard {
    /// Whether it came before the first failure of this node: by time, unless one of the two only
    /// tells of the loss of a peer.
    fn came_before(&self, own: &WorkerFailure) -> bool {
        let cause = &self.record.cause;
        let heard_of_a_peer = cause.kind == "exception" && diagnosis::tells_of_a_peer(&cause.text);
        if matches!(own.cause, Cause::StoppedByAgent { .. }) {
            return true;
        }
        match (heard_of_a_peer, diagnosis::is_about_a_peer(&own.cause)) {
            (false, true) => true,
            (true, false) => false,
            _ => self.at < own.exited,
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
        let (mut failures, traces): (Vec<WorkerFailure>, Vec<_>) = exits
            .iter()
            .filter(|exit| {
                !exit.exit.is_success()
                    || unhealthy.contains(&exit.local_rank)
                    || self.is_condemned(exit.local_rank)
            })
            .filter_map(|exit| self.failure(exit))
            .unzip();
        let first_exit = root_cause(&traces);
        let first = failures.get(first_exit);
        if first.is_some_and(|first| diagnosis::is_about_a_peer(&first.cause)) {
            for stopped in failures
                .iter_mut()
                .filter(|failure| matches!(failure.cause, Cause::StoppedByAgent { .. }))
            {
                if let Some(cause) = diagnosis::own_words(&stopped.stderr_tail) {
                    stopped.cause = cause;
                }
            }
        }
        let said: Vec<(bool, &Cause)> = failures
            .iter()
            .map(|failure| (failure.stopped_by_agent, &failure.cause))
            .collect();
        Outcome::Failed {
            root_cause: diagnosis::first_with_a_cause_of_its_own(&said, first_exit),
            failures,
        }
    }

    /// Whether a worker was killed for a fault of its own. Its end is a failure, however it ended.
    fn is_condemned(&self, local_rank: LocalRank) -> bool {
        let worker = self.workers.get(&local_rank);
        worker.is_some_and(|worker| worker.condemned.is_some())
    }

    fn failure(&self, exit: &WorkerExit) -> Option<(WorkerFailure, FailureTrace)> {
        let worker = self.workers.get(&exit.local_rank)?;
        let file = worker.error_file.as_deref().and_then(error_file::read);
        let recorded_seconds = file
            .as_ref()
            .and_then(|file| file.content.as_ref().ok())
            .and_then(error_file::recorded_seconds);
        let trace = FailureTrace {
            started: worker.started,
            exited: exit.at,
            stopped_by_agent: exit.stopped_by_agent,
            recorded_seconds,
        };
        let recorded = file
            .as_ref()
            .and_then(|file| file.content.as_ref().ok())
            .and_then(error_file::message);
        let stderr_tail = match self.logs.file(exit.local_rank, Target::Stderr) {
            Some(_) => self.logs.tail(exit.local_rank, Target::Stderr, MOST_LINES),
            None => self.listener.tail(exit.local_rank, MOST_LINES),
        };
        let cause = diagnose(&Evidence {
            exit: exit.exit,
            stopped_by_agent: exit.stopped_by_agent,
            condemned: worker.condemned.as_ref(),
            recorded,
            stderr_tail: &stderr_tail,
            out_of_memory: worker.out_of_memory.as_deref(),
        });
        let cause = match cause {
            Cause::ExitCode { .. } => {
                let logs = worker.error_file.as_deref().and_then(Path::parent);
                let program = Path::new(&self.plan.entrypoint.program);
                circumstances::explain(exit.exit, program, logs).unwrap_or(cause)
            }
            cause => cause,
        };
        let failure = WorkerFailure {
            local_rank: exit.local_rank,
            rank: worker.identity.rank,
            pid: exit.pid,
            exit: exit.exit,
            time: recorded_seconds.map_or(exit.at, |seconds| {
                Wall::from_unix_micros(seconds.saturating_mul(1_000_000))
            }),
            exited: exit.at,
            stopped_by_agent: exit.stopped_by_agent,
            error_file: file,
            cause,
            stderr_tail,
            role: self.plan.role.clone(),
            host: host::full_name(),
            group_rank: self.meeting.group_rank(),
        };
        Some((failure, trace))
    }

    /// What other nodes are told of a failure here: a sentence, and the record.
    pub(crate) fn told(&self, exit: &WorkerExit) -> String {
        let Some((failure, _)) = self.failure(exit) else {
            return String::new();
        };
        let age = self.clock.now().wall.since(exit.at);
        of_worker(&failure).told(&sentence(&failure), age, MOST_TOLD)
    }

    /// The same of workers that hang and are about to be stopped.
    pub(crate) fn told_of_hang(&self, workers: &[LocalRank], text: &str) -> String {
        let first = workers.first().and_then(|worker| self.workers.get(worker));
        let failure = first.and_then(|worker| {
            self.failure(&WorkerExit {
                local_rank: worker.identity.local_rank,
                pid: worker.identity.pid,
                exit: Exit::Signal(KILL),
                at: self.clock.now().wall,
                stopped_by_agent: worker.condemned.is_none(),
            })
        });
        match failure {
            Some((failure, _)) => of_worker(&failure).told(text, Duration::ZERO, MOST_TOLD),
            None => text.to_owned(),
        }
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
        let text = text.or_else(|| first.map(sentence)).unwrap_or_default();
        let at = first.map_or(self.clock.now().wall, |first| first.exited);
        let age = self.clock.now().wall.since(at);
        match &verdict.first {
            Some(record) if verdict.here => record.told(&text, age, MOST_TOLD),
            _ => text,
        }
    }

    /// Keeps what another node has said of its failure; returns the sentence for people.
    pub(crate) fn heard(&mut self, reason: &str) -> String {
        let (sentence, record) = FailureRecord::heard(reason);
        if let Some((record, age)) = record {
            let at = self.clock.now().wall - age;
            self.heard = Some(Heard { record, at });
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
            Some(lost.record())
        };
        judge(
            outcome,
            Known {
                host: &host::full_name(),
                group_rank: self.meeting.group_rank().0,
                role: &self.plan.role,
                not_started: self.not_started.as_ref(),
                elsewhere: heard.map(|heard| heard.record).or_else(lost),
                restart_count: self.group.restart_count(),
                at: now,
            },
        )
    }
}

/// What is to be said of a failed worker to the people at other nodes.
fn sentence(failure: &WorkerFailure) -> String {
    let how = match failure.exit {
        Exit::Code(code) => format!("exited with code {code}"),
        Exit::Signal(signal) => format!("was ended by signal {signal}"),
    };
    let why = match &failure.cause {
        Cause::ExitCode { .. } | Cause::Signal { .. } => String::new(),
        cause => format!(": {cause}"),
    };
    let (rank, local_rank, pid) = (failure.rank, failure.local_rank, failure.pid);
    format!("worker (rank {rank}, local rank {local_rank}, pid {pid}) {how}{why}")
}
