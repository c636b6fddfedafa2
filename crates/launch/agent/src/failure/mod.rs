//! Failures of this node's workers, of other nodes and of the agent.
//!
//! At the end of a run, this module derives a verdict from them. The verdict contains the first
//! failure, its cause, and its consequences.
//!
//! ```text
//!   exits and evidence of workers ──► Failure × n ─┐
//!   error of the agent ────────────────────────────┼─► judge ──► Verdict ──► event stream
//!   failures of other nodes, lost nodes ───────────┘
//! ```
//!
//! * `lost_node` describes nodes that were lost or have left, and a lost host of the rendezvous.
//! * `judge` puts the failures of this node and of other nodes in order.
//!
//! `rdzv_agent_proto::group` finds the causes and the first failure of this node.

mod judge;
mod lost_node;

use rdzv_agent_proto::group::{
    Cause, Evidence, Exit, Failure, Finality, GroupInput, MembershipCause, WorkerExit,
    first_failure, membership,
};
use rdzv_core::rank::{GroupRank, LocalRank};
use rdzv_core::time::Wall;
use rdzv_rendezvous::RendezvousError;

use crate::outcome::Verdict;
use crate::supervisor::Supervisor;
use crate::worker::WorkerIdentity;
use crate::{AgentConfig, AgentError, Outcome, host};
use lost_node::LostNode;

/// Signal number of SIGKILL, which is the same on all architectures.
const KILL: i32 = 9;

/// Maximum size, in bytes, of a failure report to other nodes.
const MOST_ANNOUNCED: usize = 3_500;

#[derive(Debug)]
struct PeerFailure {
    failure: Failure,
    /// Time of the failure, converted to the clock of this node.
    at: Wall,
}

/// All known failures, from which the verdict is derived.
#[derive(Debug)]
pub(crate) struct FailureAnalysis {
    role: String,
    group_rank: GroupRank,
    /// Worker that could not be started.
    not_started: Option<WorkerIdentity>,
    /// Failure that another node reported when it stopped the run.
    peer_failure: Option<PeerFailure>,
    /// Node that was lost; no round has been formed since.
    lost_node: Option<LostNode>,
    /// Exits in this attempt that the agent did not cause, in order.
    exits: Vec<WorkerExit>,
    /// Workers of the attempt that hang.
    unhealthy: Vec<LocalRank>,
}

impl FailureAnalysis {
    pub(crate) fn new(config: &AgentConfig, group_rank: GroupRank) -> Self {
        Self {
            role: config.identity.role.clone(),
            group_rank,
            not_started: None,
            peer_failure: None,
            lost_node: None,
            exits: Vec::new(),
            unhealthy: Vec::new(),
        }
    }

    pub(crate) fn observe(&mut self, input: &GroupInput) {
        match input {
            GroupInput::Exited(exits) => {
                let own = exits.iter().filter(|exit| !exit.stopped_by_agent);
                self.exits.extend(own);
            }
            GroupInput::Unhealthy { workers, .. } => self.unhealthy.clone_from(workers),
            _ => {}
        }
    }

    pub(crate) fn forget(&mut self) {
        self.exits.clear();
        self.unhealthy.clear();
    }

    /// Returns the first failure of the attempt on this node.
    pub(crate) fn of_attempt(&self, now: Wall, workers: &impl Supervisor) -> Option<Failure> {
        let finality = Finality::RunEnded;
        match self.outcome(now, &self.exits, &self.unhealthy, finality, workers) {
            Outcome::Failed {
                failures,
                root_cause,
                ..
            } => failures.into_iter().nth(root_cause),
            _ => None,
        }
    }

    pub(crate) fn joined(&mut self, group_rank: GroupRank) {
        self.group_rank = group_rank;
        self.lost_node = None;
    }

    pub(crate) fn not_started(&mut self, worker: WorkerIdentity, error: &AgentError) {
        let program = matches!(
            error,
            AgentError::ProgramNotFound { .. } | AgentError::Spawn { .. }
        );
        self.not_started = program.then_some(worker);
    }

    /// Records the change of the membership in `reason`, and returns its kind.
    pub(crate) fn membership_changed(&mut self, at: Wall, reason: &str) -> MembershipCause {
        if let Some(lost) = LostNode::in_sentence(reason, at) {
            self.lost_node = Some(lost);
        }
        membership::cause(reason)
    }

    pub(crate) fn rendezvous_lost(&mut self, at: Wall, error: &RendezvousError) {
        self.lost_node
            .get_or_insert_with(|| LostNode::host(error, at));
    }

    /// Records a final failure of another node, and returns its sentence for users.
    pub(crate) fn peer_failed(&mut self, now: Wall, reason: &str) -> String {
        let (sentence, failure) = Failure::decode(reason);
        if let Some((failure, age)) = failure {
            let at = now - age;
            self.peer_failure = Some(PeerFailure { failure, at });
        }
        sentence
    }

    /// Returns the outcome of a run whose workers failed.
    ///
    /// Workers that hang count as failed, whatever their exit status. If SIGKILL does not end such
    /// a worker, it counts as killed.
    pub(crate) fn outcome(
        &self,
        now: Wall,
        exits: &[WorkerExit],
        unhealthy: &[LocalRank],
        finality: Finality,
        workers: &impl Supervisor,
    ) -> Outcome {
        let given_up = unhealthy
            .iter()
            .filter(|worker| exits.iter().all(|exit| exit.local_rank != **worker))
            .filter_map(|worker| killed(now, *worker, workers));
        let exits: Vec<WorkerExit> = exits.iter().copied().chain(given_up).collect();
        let mut failures: Vec<Failure> = exits
            .iter()
            .filter(|exit| {
                !exit.exit.is_success()
                    || unhealthy.contains(&exit.local_rank)
                    || workers.kill_cause(exit.local_rank).is_some()
            })
            .filter_map(|exit| self.failure(exit, workers))
            .collect();
        Outcome::Failed {
            root_cause: first_failure(&mut failures),
            failures,
            finality,
        }
    }

    fn failure(&self, exit: &WorkerExit, workers: &impl Supervisor) -> Option<Failure> {
        let evidence = Evidence {
            host: host::full_name(),
            group_rank: Some(self.group_rank),
            role: self.role.clone(),
            ..workers.evidence(exit.local_rank)?
        };
        let mut failure = Failure::of_worker(exit, evidence);
        // Workers that are not processes have the id 0.
        failure.evidence.pid = Some(exit.pid).filter(|pid| *pid != 0);
        if matches!(failure.cause, Cause::ExitCode { .. })
            && let Some(cause) = workers.probe(exit)
        {
            failure.cause = cause;
        }
        Some(failure)
    }

    /// Returns the text about a failure on this node, for the other nodes.
    /// It consists of a sentence and the record of the failure.
    pub(crate) fn announcement(
        &self,
        now: Wall,
        exit: &WorkerExit,
        workers: &impl Supervisor,
    ) -> String {
        let failure = self.failure(exit, workers);
        failure.map_or_else(String::new, |failure| {
            failure.encode(&workers.sentence(&failure), now, MOST_ANNOUNCED)
        })
    }

    /// Returns the same text for workers that hang and will be stopped.
    pub(crate) fn hang_announcement(
        &self,
        now: Wall,
        hanging: &[LocalRank],
        workers: &impl Supervisor,
    ) -> String {
        let text = hang_sentence(hanging, workers);
        let failure = hanging.first().and_then(|worker| {
            let exit = killed(now, *worker, workers)?;
            self.failure(&exit, workers)
        });
        match failure {
            Some(failure) => failure.encode(&text, now, MOST_ANNOUNCED),
            None => text,
        }
    }

    /// Returns the text that other nodes receive when this node ends the run.
    /// The text is `text`, or a sentence about the worker that failed first. If the first failure
    /// of the job was on this node, the record of that failure is included.
    pub(crate) fn final_announcement(
        now: Wall,
        outcome: &Outcome,
        verdict: &Verdict,
        text: Option<String>,
        workers: &impl Supervisor,
    ) -> String {
        let first = || Some(workers.sentence(root_cause(outcome)?));
        let text = text.or_else(first).unwrap_or_default();
        match verdict.first() {
            Some(failure) if verdict.here => failure.encode(&text, now, MOST_ANNOUNCED),
            _ => text,
        }
    }
}

/// Returns the exit of a worker that counts as killed.
fn killed(now: Wall, worker: LocalRank, workers: &impl Supervisor) -> Option<WorkerExit> {
    let identity = identity(worker, workers)?;
    Some(WorkerExit {
        local_rank: worker,
        pid: identity.pid,
        exit: Exit::Signal(KILL),
        at: now,
        stopped_by_agent: workers.kill_cause(worker).is_none(),
    })
}

fn identity(worker: LocalRank, workers: &impl Supervisor) -> Option<WorkerIdentity> {
    let mut workers = workers.workers().into_iter();
    workers.find(|known| known.local_rank == worker)
}

fn root_cause(outcome: &Outcome) -> Option<&Failure> {
    match outcome {
        Outcome::Failed {
            failures,
            root_cause,
            ..
        } => failures.get(*root_cause),
        _ => None,
    }
}

/// Returns a sentence that names the workers that hang.
pub(crate) fn hang_sentence(hanging: &[LocalRank], workers: &impl Supervisor) -> String {
    let sentences: Vec<String> = hanging
        .iter()
        .filter_map(|worker| identity(*worker, workers))
        .map(|worker| {
            let (rank, local_rank, pid) = (worker.rank, worker.local_rank, worker.pid);
            let why = match workers.kill_cause(local_rank) {
                Some(cause) => cause.to_string(),
                None => "makes no progress".to_owned(),
            };
            format!("worker (rank {rank}, local rank {local_rank}, pid {pid}): {why}")
        })
        .collect();
    sentences.join("; ")
}
