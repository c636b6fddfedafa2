//! Events of the worker group as INFO log lines, in torchelastic's form.

use std::fmt::Debug;

use rdzv_agent_proto::group::GroupState;
use tracing::info;

use super::sink::{EventSink, RunFacts};
use crate::AgentEvent;
use crate::worker::WorkerIdentity;

/// Sink that logs the start, the ranks, the stop and the success of the group.
/// The agent itself logs failures and restarts.
#[derive(Debug)]
pub struct InfoLines {
    role: String,
    entry_point: String,
    event_log_handler: String,
    began: bool,
}

impl InfoLines {
    /// Creates the sink for a run.
    /// `event_log_handler` is the name of the run's event handler, which one of the lines contains.
    pub fn new(facts: &RunFacts, event_log_handler: &str) -> Self {
        Self {
            role: facts.role.clone(),
            entry_point: facts.entry_point.clone(),
            event_log_handler: event_log_handler.to_owned(),
            began: false,
        }
    }

    pub(super) fn lines(&mut self, event: &AgentEvent) -> Vec<String> {
        let line = |text: &str| vec![text.to_owned()];
        match event {
            AgentEvent::RendezvousBegan { .. } => {
                let mut lines = Vec::new();
                if !std::mem::replace(&mut self.began, true) {
                    lines.push(format!(
                        "starting workers for entrypoint: {}",
                        self.entry_point
                    ));
                }
                lines.push("Rendezvous'ing worker group".to_owned());
                lines
            }
            AgentEvent::RanksAssigned {
                group_rank,
                group_world_size,
                workers,
                master_addr,
                master_port,
                restart_count,
                ..
            } => {
                let list = |number: fn(&WorkerIdentity) -> u32| {
                    workers.iter().map(number).collect::<Vec<_>>()
                };
                let handler = &self.event_log_handler;
                let fields: [(&str, &dyn Debug); 11] = [
                    ("restart_count", restart_count),
                    ("master_addr", &format_args!("{master_addr}")),
                    ("master_port", master_port),
                    ("group_rank", &format_args!("{group_rank}")),
                    ("group_world_size", group_world_size),
                    ("local_ranks", &list(|worker| worker.local_rank.0)),
                    ("role_ranks", &list(|worker| worker.role_rank.0)),
                    ("global_ranks", &list(|worker| worker.rank.0)),
                    ("role_world_sizes", &list(|worker| worker.role_world_size)),
                    ("global_world_sizes", &list(|worker| worker.world_size)),
                    ("event_log_handler", &format_args!("{handler}")),
                ];
                let result = fields
                    .map(|(name, value)| format!("\n  {name}={value:?}"))
                    .concat();
                vec![
                    format!("Rendezvous complete for workers. Result:{result}"),
                    "Starting worker group".to_owned(),
                ]
            }
            AgentEvent::StateChanged { state, .. } => match state {
                GroupState::Stopped | GroupState::Unhealthy => line("Stopping worker group"),
                GroupState::Succeeded => line("All workers successfully finished."),
                _ => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}

impl EventSink for InfoLines {
    fn record(&mut self, event: &AgentEvent) {
        for line in self.lines(event) {
            info!("[{}] {line}", self.role);
        }
    }
}
