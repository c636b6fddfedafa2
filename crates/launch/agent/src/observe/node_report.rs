//! Report of a node, computed from its events.
//!
//! `/status`, the metrics and the failure report read it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rdzv_agent_proto::group::GroupState;
use rdzv_rendezvous::GroupEvent;
use serde::Serialize;

use rdzv_agent_proto::group::rfc3339;

use super::sink::{EventSink, RunFacts};
use crate::AgentEvent;
use crate::host::HostName;
use crate::outcome::Verdict;
use crate::worker::WorkerIdentity;

/// Worker group of this node, and the verdict once the run has ended.
#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    /// Name of the job.
    pub run_id: String,
    /// Name of this host.
    pub node: HostName,
    /// Role of the workers.
    pub role: String,
    /// State of the group, as torchelastic names it.
    pub state: &'static str,
    /// Number of the round, once there is one.
    pub round: Option<u64>,
    /// Rank of this agent.
    pub group_rank: Option<u32>,
    /// Number of agents in the round.
    pub group_world_size: Option<u32>,
    /// Address of the workers' store, as host and port.
    pub master: Option<(String, u16)>,
    /// Number of restarts that have been used.
    pub restart_count: u32,
    /// Number of restarts that the group may use.
    pub max_restarts: u32,
    /// Number of agents of this node that were killed and restarted.
    pub agent_restarts: u32,
    /// Time, in seconds, for which a fence suspended workers of this node.
    pub suspended_seconds: f64,
    /// Workers of the current attempt, by local rank.
    pub workers: Vec<WorkerStatus>,
    /// First failure of the job and failures of this node; empty during the run.
    /// Not part of `/status`.
    #[serde(skip)]
    pub verdict: Verdict,
}

/// Report that several threads share.
#[derive(Debug, Clone)]
pub struct SharedReport(pub Arc<Mutex<NodeReport>>);

impl EventSink for SharedReport {
    fn record(&mut self, event: &AgentEvent) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .apply(event);
    }
}

/// One worker of the current attempt.
#[derive(Debug, Clone, Serialize)]
pub struct WorkerStatus {
    /// Ranks and process id.
    #[serde(flatten)]
    pub identity: WorkerIdentity,
    /// `true` while the worker runs.
    pub running: bool,
    /// Exit code, or the negative number of the signal that killed the worker.
    pub exit_code: Option<i32>,
    /// Time of the start (RFC 3339).
    pub started: String,
    /// Time at which the agent noticed the exit (RFC 3339).
    pub ended: Option<String>,
    /// File of the standard output, if there is one.
    pub stdout: Option<PathBuf>,
    /// File of the standard error, if there is one.
    pub stderr: Option<PathBuf>,
}

impl NodeReport {
    /// Creates the report of a run without any events.
    pub fn new(facts: &RunFacts) -> Self {
        Self {
            run_id: facts.run_id.clone(),
            node: facts.host.clone(),
            role: facts.role.clone(),
            state: GroupState::Init.name(),
            round: None,
            group_rank: None,
            group_world_size: None,
            master: None,
            restart_count: 0,
            max_restarts: facts.max_restarts,
            agent_restarts: 0,
            suspended_seconds: 0.0,
            workers: Vec::new(),
            verdict: Verdict::default(),
        }
    }

    /// Updates the report with one more event.
    pub fn apply(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::RendezvousBegan { restart_count, .. } => {
                self.restart_count = *restart_count;
                self.workers.clear();
            }
            AgentEvent::AgentRestarted { restarts, .. } => self.agent_restarts = *restarts,
            AgentEvent::RanksAssigned {
                round,
                group_rank,
                group_world_size,
                master_addr,
                master_port,
                ..
            } => {
                self.round = Some(*round);
                self.group_rank = Some(group_rank.0);
                self.group_world_size = Some(*group_world_size);
                self.master = Some((master_addr.clone(), *master_port));
            }
            AgentEvent::WorkerStarted {
                at, worker, files, ..
            } => {
                self.workers.push(WorkerStatus {
                    identity: worker.clone(),
                    running: true,
                    exit_code: None,
                    started: rfc3339(*at),
                    ended: None,
                    stdout: files.stdout.clone(),
                    stderr: files.stderr.clone(),
                });
                self.workers
                    .sort_by_key(|status| status.identity.local_rank);
            }
            AgentEvent::WorkerExited {
                at, worker, exit, ..
            } => {
                let ended = self
                    .workers
                    .iter_mut()
                    .find(|known| known.identity.pid == worker.pid);
                if let Some(ended) = ended {
                    ended.running = false;
                    ended.exit_code = Some(exit.as_number());
                    ended.ended = Some(rfc3339(*at));
                }
            }
            AgentEvent::StateChanged {
                state,
                restart_count,
                ..
            } => {
                self.state = state.name();
                self.restart_count = *restart_count;
            }
            AgentEvent::Group {
                event: GroupEvent::Unfenced { stood, .. },
                ..
            } => self.suspended_seconds += stood.as_secs_f64(),
            AgentEvent::Verdict { verdict, .. } => self.verdict.clone_from(verdict),
            _ => {}
        }
    }
}
