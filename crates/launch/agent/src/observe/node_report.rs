//! Report of a node, computed from its events.
//!
//! `/status`, the metrics, the failure report, the views of a job and `rdzv timeline` read it.
//!
//! [`NodeReport::replay`] takes events in their form for programs, so a report can also be computed
//! from a file of events. Such a report lacks some details of failures.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rdzv_agent_proto::goodput::Goodput;
use rdzv_agent_proto::group::{GroupState, rfc3339};
use rdzv_core::quantity::count;
use rdzv_core::time::Wall;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json_events::{event_name, fields};
use super::sink::{EventSink, RunFacts};
use crate::AgentEvent;
use crate::clock::wall;
use crate::host::HostName;
use crate::keeper::kept;
use crate::outcome::Verdict;
use crate::worker::WorkerIdentity;

/// Maximum number of spans; the oldest ones are dropped.
const MOST_SPANS: usize = 400;

/// Maximum number of restarts; the oldest ones are dropped.
const MOST_RESTARTS: usize = 100;

/// Worker group of this node, and the verdict once the run has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    /// Name of the job.
    pub run_id: String,
    /// Name of this host.
    pub node: HostName,
    /// Process id of the agent.
    pub agent_pid: u32,
    /// Role of the workers.
    pub role: String,
    /// State of the group, as torchelastic names it.
    pub state: String,
    /// Number of the round, once there is one.
    pub round: Option<u64>,
    /// Rank of this agent.
    pub group_rank: Option<u32>,
    /// Number of agents in the round.
    pub group_world_size: Option<u32>,
    /// Number of workers in the job.
    pub world_size: Option<u32>,
    /// Address of the workers' store, as host and port.
    pub master: Option<(String, u16)>,
    /// Number of restarts that this node has used.
    pub restart_count: u32,
    /// Number of restarts that all nodes have used, as far as this node knows.
    pub job_restarts: u32,
    /// Maximum number of restarts after failures (`--max-restarts`).
    pub max_restarts: u32,
    /// Number of restarts of this node's agent after it was killed or panicked.
    pub agent_restarts: u32,
    /// Time, in seconds, of this node's suspensions by a fence that have ended.
    pub suspended_seconds: f64,
    /// Workers of the current attempt, by local rank.
    pub workers: Vec<WorkerStatus>,
    /// Time of the first event, in seconds since the Unix epoch.
    pub began: Option<f64>,
    /// Sentence about the current wait: for whom, since when, and its limit.
    pub awaiting: Option<String>,
    /// `true` if the reports of the other nodes do not reach this agent.
    pub is_alone: bool,
    /// Ranks that are slower than the others, with a sentence about each.
    pub slow: Vec<(u64, String)>,
    /// First failure of the last attempt that failed, as far as this node knows.
    pub failure: Option<KnownFailure>,
    /// Rounds, waits, lives of workers and moments, ordered by their beginning.
    pub spans: Vec<TimelineSpan>,
    /// Time of the node by class.
    pub goodput: Goodput,
    /// Restarts of the workers, in order.
    pub restarts: Vec<RestartRow>,
    /// First failure of the job and failures of this node; empty during the run.
    /// Not part of `/status`.
    #[serde(skip)]
    pub verdict: Verdict,
}

/// Failure of a worker, an agent or a node, for views.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownFailure {
    /// Node on which the failure occurred.
    pub host: String,
    /// Rank of the worker, if a worker failed.
    pub rank: Option<u32>,
    /// Cause in one sentence.
    pub cause: String,
    /// Last lines of the worker's stderr, oldest first.
    pub lines: Vec<String>,
}

/// Time in which a node waited, had a round, or ran a worker; or a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineSpan {
    /// Rank of the worker; `None` for the node.
    pub rank: Option<u32>,
    /// Name for users.
    pub name: String,
    /// Beginning, in seconds since the Unix epoch.
    pub begin: f64,
    /// End; `None` if the span has not ended.
    pub end: Option<f64>,
    /// `true` for failures and other problems.
    pub is_bad: bool,
}

/// Durations of one restart, in seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartRow {
    /// Reason of the restart: `failure`, `membership` or `agent`.
    pub reason: String,
    /// Time at which all workers ran again, in seconds since the Unix epoch.
    pub completed: f64,
    /// Time between the failure and its detection.
    pub detect: f64,
    /// Time from the detection to the rendezvous.
    pub stop: f64,
    /// Duration of the rendezvous.
    pub rendezvous: f64,
    /// Time from the rendezvous to the start of the last worker.
    pub start: f64,
    /// Time from the start of the last worker to the first step; `None` if unknown.
    pub first_step: Option<f64>,
}

/// Report that several threads share.
#[derive(Debug, Clone)]
pub struct SharedReport(pub Arc<Mutex<NodeReport>>);

impl EventSink for SharedReport {
    fn record(&mut self, event: &AgentEvent) {
        let mut report = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let transition = |report: &NodeReport| (report.goodput.class, report.goodput.since);
        let before = transition(&report);
        report.apply(event);
        if transition(&report) != before
            && let Some(kept) = kept()
        {
            kept.update_note(|note| note.goodput = report.goodput.note());
        }
    }
}

/// One worker of the current attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default)]
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
    /// Processor time since the last sample, as a percentage of one processor.
    ///
    /// Only while a viewer is attached, like the following values.
    pub processor: Option<u32>,
    /// Resident memory in MiB.
    pub memory: Option<u64>,
    /// Time of the last output to a file, in seconds since the Unix epoch.
    pub output: Option<u64>,
    /// Last number that the worker's output names as step, iteration or epoch.
    pub step: Option<u64>,
}

impl Default for WorkerStatus {
    fn default() -> Self {
        Self {
            identity: WorkerIdentity::default(),
            running: true,
            exit_code: None,
            started: String::new(),
            ended: None,
            stdout: None,
            stderr: None,
            processor: None,
            memory: None,
            output: None,
            step: None,
        }
    }
}

impl Default for NodeReport {
    fn default() -> Self {
        Self {
            run_id: String::new(),
            node: HostName::Given(String::new()),
            agent_pid: 0,
            role: String::new(),
            state: GroupState::Init.name().to_owned(),
            round: None,
            group_rank: None,
            group_world_size: None,
            world_size: None,
            master: None,
            restart_count: 0,
            job_restarts: 0,
            max_restarts: 0,
            agent_restarts: 0,
            suspended_seconds: 0.0,
            workers: Vec::new(),
            began: None,
            awaiting: None,
            is_alone: false,
            slow: Vec::new(),
            failure: None,
            spans: Vec::new(),
            goodput: Goodput::default(),
            restarts: Vec::new(),
            verdict: Verdict::default(),
        }
    }
}

impl NodeReport {
    /// Creates the report of a run without any events.
    ///
    /// If this agent replaces one that was killed, the report continues the time of its node.
    pub fn new(facts: &RunFacts) -> Self {
        let earlier = kept().and_then(|kept| Goodput::of_note(&kept.note().goodput));
        let goodput = earlier.unwrap_or_else(|| {
            let mut goodput = Goodput::default();
            goodput.starting(wall().unix_seconds_f64());
            goodput
        });
        Self {
            goodput,
            run_id: facts.run_id.clone(),
            node: facts.host.clone(),
            agent_pid: std::process::id(),
            role: facts.role.clone(),
            max_restarts: facts.max_restarts,
            ..Self::default()
        }
    }

    /// Updates the report with one more event.
    pub fn apply(&mut self, event: &AgentEvent) {
        let at = event.at().unix_seconds_f64();
        match event {
            AgentEvent::Verdict { verdict, .. } => self.verdict.clone_from(verdict),
            AgentEvent::Restarting { failure, .. } => {
                // The JSON form has no failure.
                if let Some(failure) = failure.as_deref() {
                    self.failure = serde_json::to_value(failure).ok().map(|it| failed(&it));
                }
            }
            _ => {}
        }
        self.replay(event_name(event), at, &fields(event));
    }

    /// Updates the report with an event in its form for programs.
    pub fn replay(&mut self, name: &str, at: f64, fields: &Value) {
        let at = (at * 1e6).round() / 1e6;
        let number = |key: &str| fields[key].as_u64();
        let small = |key: &str| number(key).and_then(|number| u32::try_from(number).ok());
        let text = |key: &str| fields[key].as_str().unwrap_or_default();
        let path = |key: &str| fields[key].as_str().map(PathBuf::from);
        self.began.get_or_insert(at);
        self.account(name, at, fields);
        if let Some(count) = small("restart_count") {
            self.restart_count = count;
        }
        match name {
            "rendezvous_began" => {
                self.job_restarts = small("job_restarts").unwrap_or(self.restart_count);
                self.workers.clear();
                self.slow.clear();
                // A killed agent has reported no exit of its workers.
                let open = self.spans.iter_mut().filter(|span| span.end.is_none());
                open.for_each(|span| span.end = Some(at));
                self.begin_span(None, "waits for nodes", at);
            }
            "agent_restarted" => {
                self.agent_restarts = small("restarts").unwrap_or(0);
                self.mark("agent restarted", at, true);
            }
            "ranks_assigned" => {
                self.round = number("round");
                self.group_rank = small("group_rank");
                self.group_world_size = small("group_world_size");
                self.world_size = small("world_size");
                let port = small("master_port").and_then(|port| u16::try_from(port).ok());
                self.master = port.map(|port| (text("master_addr").to_owned(), port));
                self.end_spans(None, at);
                let (round, nodes) = (self.round.unwrap_or(0), self.group_world_size.unwrap_or(0));
                self.begin_span(
                    None,
                    &format!("round {round}, {}", count(nodes, "node")),
                    at,
                );
            }
            "worker_started" => {
                let identity = serde_json::from_value(fields.clone());
                let mut identity: WorkerIdentity = identity.unwrap_or_default();
                identity.world_size = self.world_size.unwrap_or(0);
                let rank = identity.rank.0;
                self.workers.push(WorkerStatus {
                    identity,
                    started: rfc3339_seconds(at),
                    stdout: path("stdout"),
                    stderr: path("stderr"),
                    ..WorkerStatus::default()
                });
                self.workers
                    .sort_by_key(|status| status.identity.local_rank);
                self.begin_span(Some(rank), &format!("pid {}", identity_pid(fields)), at);
            }
            "worker_exited" => self.exited(fields, at),
            "state_changed" => self.state = text("state").to_owned(),
            "restarting" => {
                self.max_restarts = small("max_restarts").unwrap_or(self.max_restarts);
                let left = small("remaining").unwrap_or(self.max_restarts);
                self.job_restarts = self.max_restarts.saturating_sub(left);
                self.mark("restart", at, true);
            }
            "regrouping" => self.mark(&format!("next round: {}", text("reason")), at, false),
            "hang" => self.mark("hang", at, true),
            "straggler" | "straggler_over" => {
                let rank = number("rank").unwrap_or(0);
                self.slow.retain(|(known, _)| *known != rank);
                if name == "straggler" {
                    self.slow.push((rank, text("text").to_owned()));
                    self.mark(&format!("rank {rank} is slow"), at, true);
                }
            }
            "signal_received" => self.mark("signal", at, false),
            "preempted" => self.mark("preempted", at, false),
            "unfenced" => self.suspended_seconds += fields["seconds"].as_f64().unwrap_or(0.0),
            "verdict" if !fields["first_failure"].is_null() => {
                self.failure = Some(failed(&fields["first_failure"]));
                self.mark("verdict", at, true);
            }
            "agent_final" => self.end_spans(None, at),
            "restarted" => {
                let seconds = |span: &str| fields["seconds"][span].as_f64().unwrap_or(0.0);
                if self.restarts.len() >= MOST_RESTARTS {
                    self.restarts.remove(0);
                }
                self.restarts.push(RestartRow {
                    reason: text("reason").to_owned(),
                    completed: at,
                    detect: seconds("detect"),
                    stop: seconds("stop"),
                    rendezvous: seconds("rendezvous"),
                    start: seconds("start"),
                    first_step: None,
                });
            }
            "step" => {
                let at = at - fields["age_seconds"].as_f64().unwrap_or(0.0);
                if let Some(restart) = self.restarts.last_mut() {
                    let took = (at - restart.completed).max(0.0);
                    restart.first_step.get_or_insert(took);
                }
            }
            _ => {}
        }
    }

    /// Counts the time up to an event, and finds the class of the time after it.
    fn account(&mut self, name: &str, at: f64, fields: &Value) {
        let goodput = &mut self.goodput;
        match name {
            "rendezvous_began" => goodput.rendezvous(at),
            "ranks_assigned" => goodput.starting(at),
            "state_changed" => match fields["state"].as_str().unwrap_or_default() {
                "HEALTHY" => goodput.running(at),
                "INIT" => {}
                _ => goodput.stopping(at),
            },
            "worker_exited" if fields["exit_code"] != 0 => goodput.stopping(at),
            "agent_restarted" | "worker_signalled" | "restarting" | "regrouping"
            | "signal_received" => goodput.stopping(at),
            "step" => {
                let age = fields["age_seconds"].as_f64().unwrap_or(0.0);
                goodput.step(at - age, !fields["new_from"].is_null());
            }
            "hang" => goodput.hang(at),
            "hang_over" => goodput.hang_over(at),
            "suspended" | "fenced" => goodput.suspended(at),
            "continued" | "unfenced" => goodput.resumed(at),
            "agent_final" => goodput.ended(at),
            _ if goodput.since == 0.0 => goodput.starting(at),
            _ => {}
        }
    }

    fn exited(&mut self, fields: &Value, at: f64) {
        let pid = identity_pid(fields);
        let mut workers = self.workers.iter_mut();
        let Some(ended) = workers.find(|known| known.identity.pid == pid) else {
            return;
        };
        let code = fields["exit_code"].as_i64().unwrap_or(0);
        ended.running = false;
        ended.exit_code = i32::try_from(code).ok();
        ended.ended = Some(rfc3339_seconds(at));
        let rank = Some(ended.identity.rank.0);
        self.end_spans(rank, at);
        let how = match code {
            0.. => format!("exit code {code}"),
            _ => format!("signal {}", -code),
        };
        let is_bad = code != 0 && fields["stopped_by_agent"] != true;
        let mut spans = self.spans.iter_mut().rev();
        if let Some(span) = spans.find(|span| span.rank == rank) {
            span.is_bad = is_bad;
            span.name = format!("{}, {how}", span.name);
        }
        if is_bad && self.failure.is_none() {
            self.failure = Some(KnownFailure {
                host: self.node.to_string(),
                rank,
                cause: how,
                lines: Vec::new(),
            });
        }
    }

    fn begin_span(&mut self, rank: Option<u32>, name: &str, begin: f64) {
        if self.spans.len() >= MOST_SPANS {
            self.spans.drain(..MOST_SPANS / 2);
        }
        self.spans.push(TimelineSpan {
            rank,
            name: name.to_owned(),
            begin,
            ..TimelineSpan::default()
        });
    }

    fn end_spans(&mut self, rank: Option<u32>, at: f64) {
        let spans = self.spans.iter_mut();
        for span in spans.filter(|span| span.rank == rank && span.end.is_none()) {
            span.end = Some(at);
        }
    }

    /// Adds a moment of the node.
    fn mark(&mut self, name: &str, at: f64, is_bad: bool) {
        self.begin_span(None, name, at);
        if let Some(span) = self.spans.last_mut() {
            (span.end, span.is_bad) = (Some(at), is_bad);
        }
    }
}

fn identity_pid(fields: &Value) -> u32 {
    let pid = fields["pid"].as_u64();
    pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0)
}

fn rfc3339_seconds(at: f64) -> String {
    rfc3339(Wall::from_unix_micros((at * 1e6).round() as i64))
}

/// Returns a failure from its form for programs.
fn failed(record: &Value) -> KnownFailure {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let lines = record["stderr_tail"].as_array();
    KnownFailure {
        host: text(&record["host"]),
        rank: record["rank"]
            .as_u64()
            .and_then(|rank| rank.try_into().ok()),
        cause: text(&record["cause"]["text"]),
        lines: lines.map_or_else(Vec::new, |lines| lines.iter().map(text).collect()),
    }
}
