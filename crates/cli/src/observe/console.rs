//! The ranks of a round as a log line (`LOGLEVEL=INFO`). All other lines come from the agent, which
//! logs what it does where it does it.

use rdzv_agent::{AgentEvent, WorkerIdentity};
use tracing::info;

/// Logs one event, if it has a line.
pub(crate) fn log(role: &str, event: &AgentEvent) {
    let AgentEvent::RanksAssigned {
        workers,
        master_addr,
        master_port,
        restart_count,
        ..
    } = event
    else {
        return;
    };
    let list = |number: fn(&WorkerIdentity) -> u32| {
        let numbers: Vec<String> = workers
            .iter()
            .map(|worker| number(worker).to_string())
            .collect();
        format!("[{}]", numbers.join(", "))
    };
    info!(
        "[{role}] Rendezvous complete for workers. Result:\n  restart_count={restart_count}\n  \
         master_addr={master_addr}\n  master_port={master_port}\n  local_ranks={}\n  \
         role_ranks={}\n  global_ranks={}\n  role_world_sizes={}\n  global_world_sizes={}",
        list(|worker| worker.local_rank.0),
        list(|worker| worker.role_rank.0),
        list(|worker| worker.rank.0),
        list(|worker| worker.role_world_size),
        list(|worker| worker.world_size),
    );
}
