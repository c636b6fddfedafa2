//! The ranks of a round as a log line (`LOGLEVEL=INFO`). All other lines come from the agent, which
//! logs what it does where it does it.

use rdzv_agent::observe::{EventSink, RunFacts};
use rdzv_agent::{AgentEvent, WorkerIdentity};
use tracing::info;

/// Logs the result of each rendezvous.
#[derive(Debug)]
pub(crate) struct Console {
    role: String,
    event_log_handler: String,
}

impl Console {
    /// For one run.
    pub(crate) fn new(facts: &RunFacts, event_log_handler: &str) -> Self {
        Self {
            role: facts.role.clone(),
            event_log_handler: event_log_handler.to_owned(),
        }
    }
}

impl EventSink for Console {
    fn record(&mut self, event: &AgentEvent) {
        let AgentEvent::RanksAssigned {
            group_rank,
            group_world_size,
            workers,
            master_addr,
            master_port,
            restart_count,
            ..
        } = event
        else {
            return;
        };
        let fields = [
            ("restart_count", restart_count.to_string()),
            ("master_addr", master_addr.clone()),
            ("master_port", master_port.to_string()),
            ("group_rank", group_rank.to_string()),
            ("group_world_size", group_world_size.to_string()),
            ("local_ranks", list(workers, |worker| worker.local_rank.0)),
            ("role_ranks", list(workers, |worker| worker.role_rank.0)),
            ("global_ranks", list(workers, |worker| worker.rank.0)),
            (
                "role_world_sizes",
                list(workers, |worker| worker.role_world_size),
            ),
            (
                "global_world_sizes",
                list(workers, |worker| worker.world_size),
            ),
            ("event_log_handler", self.event_log_handler.clone()),
        ];
        let lines = fields.map(|(name, value)| format!("\n  {name}={value}"));
        info!(
            "[{}] Rendezvous complete for workers. Result:{}",
            self.role,
            lines.concat()
        );
    }
}

fn list(workers: &[WorkerIdentity], number: fn(&WorkerIdentity) -> u32) -> String {
    let numbers: Vec<String> = workers
        .iter()
        .map(|worker| number(worker).to_string())
        .collect();
    format!("[{}]", numbers.join(", "))
}
