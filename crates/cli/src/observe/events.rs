//! The milestones of a run as JSON, one object per line (`--event-log-handler console`).
//!
//! Names, keys and the one-element arrays of the inner object are the reference's, because programs
//! read them. Ours are: `timestamp` is a real time in milliseconds (the reference has 0), and the
//! agent's last event has an `outcome`.

use std::path::Path;
use std::time::Duration;

use rdzv_agent::{AgentEvent, Exit, LaunchPlan, WorkerIdentity};
use rdzv_core::time::Wall;
use serde::Serialize;

use crate::resolve::RUN_PATH_NAME;

/// What all events of a run say about it.
#[derive(Debug)]
pub(crate) struct Events {
    run_id: String,
    role: String,
    host: String,
    backend: String,
    entry_point: String,
    group: Option<(u32, u32)>,
    restart_count: u32,
    started: Option<Wall>,
}

#[derive(Serialize)]
struct Event<'a> {
    name: String,
    source: &'static str,
    timestamp: i64,
    metadata: Metadata<'a>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    run_id: &'a str,
    global_rank: Option<u32>,
    group_rank: Option<u32>,
    worker_id: Option<String>,
    role: &'a str,
    hostname: &'a str,
    state: &'a str,
    total_run_time: u64,
    rdzv_backend: &'a str,
    raw_error: Option<String>,
    /// JSON as text.
    metadata: String,
    agent_restarts: u32,
    duration_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
}

#[derive(Serialize)]
struct Details<'a> {
    group_world_size: Option<u32>,
    entry_point: &'a str,
    #[serde(flatten)]
    worker: Option<WorkerDetails>,
}

#[derive(Serialize)]
struct WorkerDetails {
    local_rank: [u32; 1],
    role_rank: [u32; 1],
    role_world_size: [u32; 1],
    exit_code: [Option<i32>; 1],
    worker_pid: [Option<u32>; 1],
}

/// What differs from event to event.
struct Happening<'a> {
    at: Wall,
    state: &'a str,
    took: Option<Duration>,
    total: Option<Duration>,
    worker: Option<(&'a WorkerIdentity, Option<Exit>)>,
    raw_error: Option<String>,
    outcome: Option<&'static str>,
}

impl Events {
    /// For a launch on this host.
    pub(crate) fn new(plan: &LaunchPlan, host: &str) -> Self {
        let program = match plan.entrypoint.name.as_str() {
            RUN_PATH_NAME => RUN_PATH_NAME.to_owned(),
            _ => Path::new(&plan.entrypoint.program)
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default(),
        };
        Self {
            run_id: plan.run_id.to_string(),
            role: plan.role.clone(),
            host: host.to_owned(),
            backend: plan.rendezvous_backend.clone(),
            entry_point: program,
            group: None,
            restart_count: 0,
            started: None,
        }
    }

    /// The line for one event, if it has one.
    pub(crate) fn line(&mut self, event: &AgentEvent) -> Option<String> {
        let happening = self.happening(event)?;
        Some(self.render(&happening))
    }

    fn happening<'a>(&mut self, event: &'a AgentEvent) -> Option<Happening<'a>> {
        let plain = |at: &Wall, state: &'a str| Happening {
            at: *at,
            state,
            took: None,
            total: None,
            worker: None,
            raw_error: None,
            outcome: None,
        };
        Some(match event {
            AgentEvent::Rendezvous {
                at,
                took,
                result,
                restart_count,
            } => {
                self.restart_count = *restart_count;
                self.started.get_or_insert(*at);
                let mut happening = plain(at, "RENDEZVOUS");
                happening.took = Some(*took);
                match result {
                    Ok((rank, size)) => self.group = Some((rank.0, *size)),
                    Err(text) => happening.raw_error = Some(text.clone()),
                }
                happening
            }
            AgentEvent::RanksAssigned { at, took, .. } => {
                let mut happening = plain(at, "ASSIGN_WORKER_RANKS");
                happening.took = Some(*took);
                happening
            }
            AgentEvent::WorkerStarted { at, worker, .. } => {
                let mut happening = plain(at, "START");
                happening.worker = Some((worker, None));
                happening
            }
            AgentEvent::WorkerFinal {
                at,
                worker,
                state,
                exit,
                raw_error,
            } => {
                let mut happening = plain(at, state);
                happening.worker = Some((worker, *exit));
                happening.total = self.since_start(*at);
                happening.raw_error = raw_error
                    .clone()
                    .or_else(|| (*state == "FAILED").then(|| without_file(*exit)));
                happening
            }
            AgentEvent::AgentFinal {
                at,
                state,
                took,
                workers_succeeded,
                raw_error,
            } => {
                let mut happening = plain(at, state);
                happening.total = Some(*took);
                happening.raw_error.clone_from(raw_error);
                happening.outcome = Some(if *workers_succeeded {
                    "SUCCEEDED"
                } else {
                    "FAILED"
                });
                happening
            }
            AgentEvent::WorkerExited { .. }
            | AgentEvent::WorkerSignalled { .. }
            | AgentEvent::Restarting { .. }
            | AgentEvent::Regrouping { .. }
            | AgentEvent::SignalReceived { .. } => return None,
        })
    }

    fn since_start(&self, at: Wall) -> Option<Duration> {
        let micros = at.unix_micros() - self.started?.unix_micros();
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
    }

    fn render(&self, happening: &Happening<'_>) -> String {
        let worker = happening.worker;
        let details = Details {
            group_world_size: self.group.map(|(_, size)| size),
            entry_point: &self.entry_point,
            worker: worker.map(|(worker, exit)| WorkerDetails {
                local_rank: [worker.local_rank.0],
                role_rank: [worker.role_rank.0],
                role_world_size: [worker.role_world_size],
                exit_code: [exit.map(Exit::as_number)],
                worker_pid: [exit.map(|_| worker.pid)],
            }),
        };
        let event = Event {
            name: format!("torchelastic.worker.status.{}", happening.state),
            source: if worker.is_some() { "WORKER" } else { "AGENT" },
            timestamp: happening.at.unix_micros() / 1000,
            metadata: Metadata {
                run_id: &self.run_id,
                global_rank: worker.map(|(worker, _)| worker.rank.0),
                group_rank: self.group.map(|(rank, _)| rank),
                worker_id: worker.map(|(worker, _)| worker.pid.to_string()),
                role: &self.role,
                hostname: &self.host,
                state: happening.state,
                total_run_time: happening.total.unwrap_or_default().as_secs(),
                rdzv_backend: &self.backend,
                raw_error: happening.raw_error.clone(),
                metadata: json(&details),
                agent_restarts: self.restart_count,
                duration_ms: happening.took.map(|took| took.as_secs_f64() * 1000.0),
                outcome: happening.outcome,
            },
        };
        json(&event)
    }
}

/// What the reference says of a failure without an error file.
fn without_file(exit: Option<Exit>) -> String {
    match exit {
        Some(Exit::Signal(_)) => r#"{"message": "<NONE>"}"#.to_owned(),
        _ => concat!(
            r#"{"message": "<NONE>", "errorTraits": "#,
            r#"{"category": "system_terminated_error", "retryability": "False"}}"#
        )
        .to_owned(),
    }
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("these types have text keys only, so they are JSON")
}
