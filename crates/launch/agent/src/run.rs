//! One run on this node: its event loop and the parts that the loop connects.

use std::sync::Arc;

use rustix::process::Signal;
use tokio::runtime::{Builder, LocalOptions};

use crate::agent_loop::AgentLoop;
use crate::config::RendezvousPlan;
use crate::error::system;
use crate::keeper::{KeeperWatch, kept};
use crate::logs::LiveView;
use crate::processes::ProcessSupervisor;
use crate::requests::{Requests, StopHandle};
use crate::signals::{FOR_WORKERS, JobControl, Signals, carriers, unblock};
use crate::supervisor::Supervisor;
use crate::{AgentConfig, AgentError, AgentEvent, Outcome, host};

/// Runs the workers of one node to their end.
///
/// Blocks the calling thread. That thread must live as long as the process (the main thread),
/// because the kernel kills workers when the thread that started them exits. The process must have
/// no other purpose during the run: this function handles signals and kills what workers leave
/// behind.
///
/// The agent calls `observer` on this thread between two decisions, for each event as it happens.
/// The agent supervises nothing during the call, so `observer` must not block. A write to a
/// terminal or a file is fine.
pub fn run(config: AgentConfig, observer: &mut dyn FnMut(&AgentEvent)) -> Outcome {
    run_in_view(config, None, observer)
}

/// Runs the workers like [`run`], with a view that shows their output.
/// Without a view the workers share the console.
pub fn run_in_view(
    config: AgentConfig,
    view: Option<&LiveView>,
    observer: &mut dyn FnMut(&AgentEvent),
) -> Outcome {
    run_processes(config, view, &StopHandle::default(), observer)
}

/// Runs the workers like [`run_in_view`]; a handle can stop the run too.
pub(crate) fn run_processes(
    config: AgentConfig,
    view: Option<&LiveView>,
    stop: &StopHandle,
    observer: &mut dyn FnMut(&AgentEvent),
) -> Outcome {
    let config = outliving(config);
    block_on(async {
        let config = Arc::new(config);
        // Signals come first: from here on none is lost.
        let notice = config.preemption.as_ref().map(|plan| plan.signal);
        let others = config.stop.signals.iter().copied();
        let signals = Signals::new(others.filter(|signal| Some(*signal) != notice))
            .map_err(system("handle signals"))?;
        let stops = |signal: &i32| config.stop.signals.contains(signal) && Some(*signal) != notice;
        let has_terminals = view.is_some() || config.logs.capture_terminal;
        let resized = has_terminals.then_some(Signal::WINCH);
        let for_workers = FOR_WORKERS.into_iter().chain(resized).map(Signal::as_raw);
        let for_workers = for_workers.chain(notice);
        let for_workers = Signals::new(for_workers.filter(|signal| !stops(signal)))
            .map_err(system("handle signals"))?;
        let by_guard =
            Signals::new(carriers().map(Signal::as_raw)).map_err(system("handle signals"))?;
        let job_control = JobControl::new().map_err(system("handle SIGTSTP and SIGCONT"))?;
        unblock().map_err(system("unblock signals"))?;
        let supervisor = ProcessSupervisor::new(Arc::clone(&config), view)?;
        let keeper =
            KeeperWatch::new(supervisor.leftovers()).map_err(system("watch the keeper"))?;
        let stopping = config.stop.signals.iter().copied();
        let stopping = stopping.filter(stops).collect();
        let requests = Requests::new(signals, keeper, job_control, stop, &config.observe.liveness)
            .with_signals_for_workers(for_workers, by_guard, stopping, notice);
        Ok(AgentLoop::new(config, supervisor, requests, observer)
            .run()
            .await)
    })
}

/// Prepares a restart of this agent, if the configuration allows restarts.
fn outliving(mut config: AgentConfig) -> AgentConfig {
    let kept = kept();
    if let RendezvousPlan::Dynamic { parameters } = &mut config.rendezvous.plan {
        // If the process has other purposes, the processes that it forks inherit the descriptors of
        // the agent.
        parameters.ends_workers = kept.is_some();
    }
    if let Some(kept) = kept.filter(|_| config.rendezvous.agent_restarts > 0) {
        kept.update_note(|note| note.restarts = config.rendezvous.agent_restarts);
        if let RendezvousPlan::Dynamic { parameters } = &mut config.rendezvous.plan {
            parameters.kept = Some(kept.clone());
        }
        config.rendezvous.kept = Some(kept.clone());
    }
    config
}

/// Runs workers under any supervisor; the process may have other purposes.
pub(crate) fn run_supervised(
    config: AgentConfig,
    supervisor: impl Supervisor,
    stop: &StopHandle,
    observer: &mut dyn FnMut(&AgentEvent),
) -> Outcome {
    block_on(async {
        let signals =
            Signals::new(config.stop.signals.iter().copied()).map_err(system("handle signals"))?;
        let (keeper, job_control) = (KeeperWatch::default(), JobControl::default());
        let requests = Requests::new(signals, keeper, job_control, stop, &config.observe.liveness);
        Ok(
            AgentLoop::new(Arc::new(config), supervisor, requests, observer)
                .run()
                .await,
        )
    })
}

fn block_on(run: impl Future<Output = Result<Outcome, AgentError>>) -> Outcome {
    // Reports need the host name; the answer comes while the workers run.
    host::look_up();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default());
    match runtime {
        Ok(runtime) => runtime.block_on(run).unwrap_or_else(Outcome::Error),
        Err(source) => Outcome::Error(system("start the agent's event loop")(source)),
    }
}
