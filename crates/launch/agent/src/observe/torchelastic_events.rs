//! Milestones of a run as JSON in torchelastic's form.
//!
//! `--event-log-handler console` prints them. Names, keys and the one-element arrays of the inner
//! object are torchelastic's, because programs read them. Some values differ:
//!
//! - `timestamp` is a real time in milliseconds, whereas torchelastic writes 0.
//! - The last event of a worker has its `exit_code` and `worker_pid` if its exit is known.
//!   Torchelastic writes them for failed workers only.
//! - `total_run_time` of workers and watchdogs counts from the end of the first rendezvous.
//!   Torchelastic counts from the start of the agent, and writes 0 for watchdogs.
//! - The agent's last event has an `outcome`.

use std::io::Write;
use std::time::Duration;

use rdzv_core::time::Wall;
use serde::Serialize;

use super::sink::{EventSink, RunFacts};
use crate::AgentEvent;
use crate::hang::WatchdogTimer;
use crate::host::HostName;
use crate::worker::WorkerIdentity;
use rdzv_agent_proto::group::Exit;

/// Sink that writes the milestones on stderr, one JSON object per line.
#[derive(Debug)]
pub struct ConsoleEvents(TorchelasticEvents);

impl ConsoleEvents {
    /// Creates the sink for one run.
    pub fn new(facts: RunFacts) -> Self {
        Self(TorchelasticEvents::new(facts))
    }
}

impl EventSink for ConsoleEvents {
    fn record(&mut self, event: &AgentEvent) {
        if let Some(line) = self.0.line(event) {
            // One write; if stderr has no reader, there is nothing to do.
            let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// Conversion of events to torchelastic's form.
#[derive(Debug)]
pub struct TorchelasticEvents {
    facts: RunFacts,
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
    hostname: &'a HostName,
    state: &'a str,
    total_run_time: u64,
    rdzv_backend: &'a str,
    raw_error: Option<String>,
    /// JSON as text.
    metadata: String,
    agent_restarts: u32,
    /// Null if unknown; watchdog events do not have this key at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<Option<f64>>,
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

/// Details of a watchdog event; all values are texts, as in torchelastic.
#[derive(Serialize)]
struct WatchdogDetails<'a> {
    watchdog_event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker_pid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expiration_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
}

impl<'a> WatchdogDetails<'a> {
    fn new(name: &'a str, timer: Option<&'a WatchdogTimer>) -> Self {
        Self {
            watchdog_event: name,
            worker_pid: timer.map(|timer| timer.pid.to_string()),
            scope_id: timer.map(|timer| timer.scope.as_str()),
            // Debug keeps the `.0` of whole seconds, as Python does.
            expiration_time: timer.map(|timer| format!("{:?}", timer.expiration)),
            signal: timer.map(|timer| timer.signal.to_string()),
        }
    }
}

impl TorchelasticEvents {
    /// Creates the conversion for one run.
    pub fn new(facts: RunFacts) -> Self {
        Self {
            facts,
            group: None,
            restart_count: 0,
            started: None,
        }
    }

    /// Returns the JSON of one event, without a newline.
    /// `None` if torchelastic has no such event.
    pub fn line(&mut self, event: &AgentEvent) -> Option<String> {
        if let AgentEvent::Rendezvous {
            at,
            result,
            restart_count,
            ..
        } = event
        {
            self.restart_count = *restart_count;
            self.started.get_or_insert(*at);
            if let Ok((rank, size)) = result {
                self.group = Some((rank.0, *size));
            }
        }
        Some(json(&self.event(event)?))
    }

    fn event<'a>(&'a self, event: &'a AgentEvent) -> Option<Event<'a>> {
        Some(match event {
            AgentEvent::Rendezvous {
                at, took, result, ..
            } => {
                let mut rendezvous = self.milestone(*at, "RENDEZVOUS", None);
                rendezvous.metadata.duration_ms = Some(Some(millis(*took)));
                rendezvous.metadata.raw_error = result.as_ref().err().cloned();
                rendezvous
            }
            AgentEvent::RanksAssigned { at, took, .. } => {
                let mut assigned = self.milestone(*at, "ASSIGN_WORKER_RANKS", None);
                assigned.metadata.duration_ms = Some(Some(millis(*took)));
                assigned
            }
            AgentEvent::WorkerStarted { at, worker, .. } => {
                self.milestone(*at, "START", Some((worker, None)))
            }
            AgentEvent::WorkerFinal {
                at,
                worker,
                state,
                exit,
                raw_error,
                ..
            } => {
                let mut ended = self.milestone(*at, state, Some((worker, *exit)));
                let without_file = (*state == "FAILED").then(|| without_file(*exit));
                ended.metadata.total_run_time = self.since_start(*at);
                ended.metadata.raw_error = raw_error.clone().or(without_file);
                ended
            }
            AgentEvent::AgentFinal {
                at,
                state,
                took,
                workers_succeeded,
                raw_error,
            } => {
                let mut ended = self.milestone(*at, state, None);
                ended.metadata.total_run_time = took.as_secs();
                ended.metadata.raw_error.clone_from(raw_error);
                ended.metadata.outcome = Some(if *workers_succeeded {
                    "SUCCEEDED"
                } else {
                    "FAILED"
                });
                ended
            }
            AgentEvent::Watchdog { at, action, timer } => {
                let mut watchdog = self.milestone(*at, "RUNNING", None);
                watchdog.name = action.name().to_owned();
                watchdog.metadata.total_run_time = self.since_start(*at);
                watchdog.metadata.metadata =
                    json(&WatchdogDetails::new(action.name(), timer.as_ref()));
                watchdog.metadata.duration_ms = None;
                watchdog
            }
            _ => return None,
        })
    }

    fn since_start(&self, at: Wall) -> u64 {
        let started = self.started.unwrap_or(at);
        at.since(started).as_secs()
    }

    /// Returns the parts that all events have in common.
    fn milestone<'a>(
        &'a self,
        at: Wall,
        state: &'a str,
        worker: Option<(&WorkerIdentity, Option<Exit>)>,
    ) -> Event<'a> {
        let facts = &self.facts;
        Event {
            name: format!("torchelastic.worker.status.{state}"),
            source: if worker.is_some() { "WORKER" } else { "AGENT" },
            timestamp: at.unix_micros() / 1000,
            metadata: Metadata {
                run_id: &facts.run_id,
                global_rank: worker.map(|(worker, _)| worker.rank.0),
                group_rank: self.group.map(|(rank, _)| rank),
                worker_id: worker.map(|(worker, _)| worker.pid.to_string()),
                role: &facts.role,
                hostname: &facts.host,
                state,
                total_run_time: 0,
                rdzv_backend: &facts.backend,
                raw_error: None,
                metadata: json(&self.details(worker)),
                agent_restarts: self.restart_count,
                duration_ms: Some(None),
                outcome: None,
            },
        }
    }

    fn details(&self, worker: Option<(&WorkerIdentity, Option<Exit>)>) -> Details<'_> {
        Details {
            group_world_size: self.group.map(|(_, size)| size),
            entry_point: &self.facts.entry_point,
            worker: worker.map(|(worker, exit)| WorkerDetails {
                local_rank: [worker.local_rank.0],
                role_rank: [worker.role_rank.0],
                role_world_size: [worker.role_world_size],
                exit_code: [exit.map(Exit::as_number)],
                worker_pid: [exit.map(|_| worker.pid)],
            }),
        }
    }
}

/// Returns torchelastic's text for a failure without an error file.
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

fn millis(took: Duration) -> f64 {
    took.as_secs_f64() * 1000.0
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("these types have text keys only, so they are JSON")
}

/// Returns the JSON of one event of the rendezvous, without a newline.
/// `None` for other events. Intended for a sink that is registered as `dynamic_rendezvous`.
///
/// The keys are torchelastic's. `name` is the same in all events of rdzv. `local_id` is null,
/// because rdzv's nodes have no local id that the user could know.
pub fn torchelastic_rendezvous(facts: &RunFacts, event: &AgentEvent) -> Option<String> {
    let AgentEvent::RendezvousNotice {
        state,
        message,
        endpoint,
        rank,
        error,
        ..
    } = event
    else {
        return None;
    };
    let json = serde_json::json!({
        "name": "agent_loop:rendezvous",
        "run_id": facts.run_id,
        "message": message,
        "hostname": facts.host,
        "pid": std::process::id(),
        "node_state": state.name(),
        "master_endpoint": endpoint,
        "rank": rank.map(|rank| rank.0),
        "local_id": null,
        "error_trace": error.as_deref().unwrap_or_default(),
    });
    Some(json.to_string())
}

#[cfg(test)]
mod tests {
    use rdzv_core::rank::GroupRank;
    use rdzv_core::time::Wall;
    use serde_json::Value;

    use super::*;
    use crate::observe::tests::facts;
    use rdzv_rendezvous::NodeState;

    #[test]
    fn rendezvous_events_have_torchelastics_keys() {
        let event = AgentEvent::RendezvousNotice {
            at: Wall::default(),
            state: NodeState::Running,
            message: "joined".to_owned(),
            endpoint: "host:29400".to_owned(),
            rank: Some(GroupRank(1)),
            error: None,
        };
        let json = torchelastic_rendezvous(&facts(), &event).unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        let mut keys: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        assert_eq!(
            keys.join(" "),
            "error_trace hostname local_id master_endpoint message name node_state pid rank run_id"
        );
        assert_eq!(json["node_state"], "RUNNING");
        assert_eq!(json["rank"], 1);
    }
}
