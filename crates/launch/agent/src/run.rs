//! One run on this node: the event loop of the runtime, and who takes part.

use std::sync::Arc;

use rustix::process::Signal;
use tokio::runtime::{Builder, LocalOptions};

use crate::agent_loop::AgentLoop;
use crate::error::system;
use crate::keeper::{KeeperWatch, kept};
use crate::logs::LiveView;
use crate::processes::ProcessSupervisor;
use crate::requests::{Requests, StopHandle};
use crate::signals::{FOR_WORKERS, JobControl, Signals, carriers, unblock};
use crate::supervisor::Supervisor;
use crate::{AgentConfig, AgentError, AgentEvent, Outcome, RendezvousPlan, host};

/// Runs the workers of one node to their end.
///
/// Blocks the calling thread, which has to be one that lives as long as the process (the main
/// thread): workers are killed when the thread that started them ends. The process must have no
/// other purpose meanwhile: signals are handled, and what workers leave behind is killed.
///
/// `observer` is called on this thread between two decisions, for each event as it happens. While
/// it runs, nothing is supervised; it must not block (a write to a terminal or file is fine).
pub fn run(config: AgentConfig, observer: &mut dyn FnMut(&AgentEvent)) -> Outcome {
    run_in_view(config, None, observer)
}

/// The same, with a view that shows the workers' output on a terminal. Without one they share the console.
pub fn run_in_view(
    config: AgentConfig,
    view: Option<&LiveView>,
    observer: &mut dyn FnMut(&AgentEvent),
) -> Outcome {
    run_processes(config, view, &StopHandle::default(), observer)
}

/// The same, but may be stopped by a handle too.
pub(crate) fn run_processes(
    config: AgentConfig,
    view: Option<&LiveView>,
    stop: &StopHandle,
    observer: &mut dyn FnMut(&AgentEvent),
) -> Outcome {
    let config = outliving(config);
    block_on(async {
        let config = Arc::new(config);
        // Signals first: from here on none is lost.
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

/// Has another agent started in place of this one if it is killed, as far as the configuration wants that.
fn outliving(mut config: AgentConfig) -> AgentConfig {
    let kept = kept();
    if let RendezvousPlan::Dynamic { parameters } = &mut config.rendezvous.plan {
        // An agent in a process that has other purposes shares its descriptors with what that
        // forks.
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

/// Runs workers that a supervisor of any kind looks after. The process may have other purposes.
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
    // Reports will want it; the answer comes while the workers run.
    host::look_up();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default());
    match runtime {
        Ok(runtime) => runtime.block_on(run).unwrap_or_else(Outcome::Error),
        Err(source) => Outcome::Error(system("start the agent's event loop")(source)),
    }
}
