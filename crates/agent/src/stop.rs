//! Signals to workers: always to the whole process group, whether its leader is still there or not.

use rdzv_core::rank::LocalRank;
use rustix::process::{Signal, kill_process_group};
use tracing::warn;

use crate::AgentEvent;
use crate::agent::Agent;

/// Sends a closing signal to the process group of one worker.
pub(crate) fn signal(agent: &mut Agent<'_>, local_rank: LocalRank, number: i32) {
    let Some(signal) = Signal::from_named_raw(number) else {
        return;
    };
    if send(agent, local_rank, signal) {
        let pid = agent.workers[&local_rank].identity.pid;
        warn!("Sending process {pid} closing signal {}", name(number));
        let at = agent.clock.now().wall;
        agent.emit(AgentEvent::WorkerSignalled {
            at,
            pid,
            signal: number,
            forced: false,
        });
    }
}

/// Sends SIGKILL to the process group of one worker whose grace is over.
pub(crate) fn kill(agent: &mut Agent<'_>, local_rank: LocalRank) {
    let before = agent
        .workers
        .get(&local_rank)
        .and_then(|worker| worker.closing_signal);
    let running = send(agent, local_rank, Signal::KILL);
    if let Some(group) = agent.control_group() {
        group.kill_worker(local_rank);
    }
    if running {
        let pid = agent.workers[&local_rank].identity.pid;
        let (before, kill) = (before.unwrap_or_default(), Signal::KILL.as_raw());
        warn!("Unable to shutdown process {pid} via {before}, forcefully exiting via {kill}");
        let at = agent.clock.now().wall;
        agent.emit(AgentEvent::WorkerSignalled {
            at,
            pid,
            signal: kill,
            forced: true,
        });
    }
}

/// Sends a signal that ends processes; true if the leader of the group was still running.
fn send(agent: &mut Agent<'_>, local_rank: LocalRank, signal: Signal) -> bool {
    let running = agent.exits.is_running(local_rank);
    tell(agent, local_rank, signal);
    if signal != Signal::KILL {
        // Who stands still does not take any other signal before it goes on.
        tell(agent, local_rank, Signal::CONT);
    }
    if running && let Some(worker) = agent.workers.get_mut(&local_rank) {
        worker.closing_signal = Some(signal.as_raw());
    }
    running
}

/// Sends any signal to the process group of one worker, as far as there is one.
pub(crate) fn tell(agent: &Agent<'_>, local_rank: LocalRank, signal: Signal) {
    let Some(worker) = agent.workers.get(&local_rank) else {
        return;
    };
    let ours = agent.running_pids();
    // As long as the leader is not collected, or one of its orphans is our child, the number of the
    // group cannot be anybody else's.
    if ours.contains(&worker.pid) || agent.leftovers.holds_group(worker.pid, &ours) {
        let _ = kill_process_group(worker.pid, signal);
    }
}

/// `SIGTERM` and so on; the number for signals without a name.
pub(crate) fn name(number: i32) -> String {
    let known = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        12 => "SIGUSR2",
        15 => "SIGTERM",
        _ => return number.to_string(),
    };
    known.to_owned()
}
