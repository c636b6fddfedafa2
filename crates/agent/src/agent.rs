//! The agent's loop: wait for the first of everything that can happen, tell the machine, carry out
//! what it decides.

use std::collections::{BTreeMap, HashSet, VecDeque};

use rdzv_core::group::{Ending, GroupInput, GroupSpec, VisibleDevices, WorkerExit, WorkerGroup};
use rdzv_core::machine::Machine;
use rdzv_core::rank::LocalRank;
use rdzv_core::time::{Mono, Wall};
use rustix::process::Pid;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tracing::warn;

use crate::clock::Clock;
use crate::exits::Exits;
use crate::keeper::KeeperWatch;
use crate::logs::Logs;
use crate::meeting::{Answer, Meeting};
use crate::reap::Leftovers;
use crate::signals::Signals;
use crate::spawn::keep_descriptors_private;
use crate::{AgentError, AgentEvent, LaunchPlan, Outcome, RendezvousPlan, WorkerIdentity};

/// Runs the workers of one node to their end.
///
/// Blocks the calling thread, which has to be one that lives as long as the process (the main
/// thread): workers are killed when the thread that started them ends. The process must have no
/// other purpose meanwhile: signals are handled, and what workers leave behind is killed.
///
/// `observer` is called on this thread between two decisions, for each event as it happens. While
/// it runs, nothing is supervised; it must not block (a write to a terminal or file is fine).
pub fn run(plan: LaunchPlan, observer: &mut dyn FnMut(&AgentEvent)) -> Outcome {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default());
    match runtime {
        Ok(runtime) => runtime.block_on(async {
            match Agent::new(plan, observer) {
                Ok(agent) => agent.run().await,
                Err(error) => Outcome::Error(error),
            }
        }),
        Err(source) => Outcome::Error(AgentError::System {
            what: "start the agent's event loop",
            source,
        }),
    }
}

/// One worker of the current attempt.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) identity: WorkerIdentity,
    pub(crate) pid: Pid,
    pub(crate) started: Wall,
    /// The last signal that the agent sent it while it was running.
    pub(crate) closing_signal: Option<i32>,
    pub(crate) error_file: Option<std::path::PathBuf>,
}

/// The agent: one machine and everything that it needs to act.
pub(crate) struct Agent<'o> {
    pub(crate) plan: LaunchPlan,
    pub(crate) observer: &'o mut dyn FnMut(&AgentEvent),
    pub(crate) clock: Clock,
    pub(crate) group: WorkerGroup,
    /// What the machine is told next, before anything from outside.
    pub(crate) answers: VecDeque<GroupInput>,
    pub(crate) workers: BTreeMap<LocalRank, Worker>,
    pub(crate) exits: Exits,
    pub(crate) leftovers: Leftovers,
    /// Whether the machine waits until nothing is left behind.
    pub(crate) clearing: bool,
    pub(crate) meeting: Meeting,
    pub(crate) logs: Logs,
    /// When the current rendezvous or exchange began.
    pub(crate) step_began: Mono,
    /// The error that the machine knows as "broken".
    pub(crate) error: Option<AgentError>,
    pub(crate) ending: Option<Ending>,
    /// Whether the other nodes know that this one has failed.
    pub(crate) others_told: bool,
    pub(crate) signals: Signals,
    pub(crate) keeper: KeeperWatch,
    children: Signal,
    arrivals: mpsc::UnboundedReceiver<Answer>,
}

impl<'o> Agent<'o> {
    fn new(plan: LaunchPlan, observer: &'o mut dyn FnMut(&AgentEvent)) -> Result<Self, AgentError> {
        let system = |what| move |source| AgentError::System { what, source };
        // Signals first: from here on none is lost.
        let signals =
            Signals::new(plan.signals.iter().copied()).map_err(system("handle signals"))?;
        keep_descriptors_private().map_err(system("look at inherited descriptors"))?;
        let children =
            signal(SignalKind::child()).map_err(system("wait for ended processes (SIGCHLD)"))?;
        let leftovers =
            Leftovers::adopt().map_err(system("adopt orphaned processes (subreaper)"))?;
        let keeper = KeeperWatch::new(&leftovers).map_err(system("watch the keeper"))?;
        let exits = Exits::new().map_err(system("wait for ended workers (epoll)"))?;
        let (sender, arrivals) = mpsc::unbounded_channel();
        let group = WorkerGroup::new(spec(&plan));
        let logs = Logs::new(&plan);
        Ok(Self {
            meeting: Meeting::new(&plan, sender),
            plan,
            observer,
            clock: Clock::new(),
            group,
            answers: VecDeque::from([GroupInput::Begin]),
            workers: BTreeMap::new(),
            exits,
            leftovers,
            clearing: false,
            logs,
            step_began: Mono::ZERO,
            error: None,
            ending: None,
            others_told: false,
            signals,
            keeper,
            children,
            arrivals,
        })
    }

    async fn run(mut self) -> Outcome {
        loop {
            let input = match self.answers.pop_front() {
                Some(answer) => answer,
                None => match self.wait().await {
                    Some(input) => input,
                    None => continue,
                },
            };
            self.group.handle(self.clock.now(), input);
            while let Some(output) = self.group.poll_output() {
                self.carry_out(output);
            }
            if let Some(ending) = self.ending.take() {
                return self.end(ending).await;
            }
        }
    }

    /// Waits for the next thing that the machine has to know; `None` if what happened was not one.
    ///
    /// Ends of workers come first: they happened before whatever is ready at the same time could
    /// make the agent do something about them.
    async fn wait(&mut self) -> Option<GroupInput> {
        let deadline = self.group.deadline().map(|at| self.clock.instant(at));
        let due = async {
            match deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            ends = self.exits.next() => match ends {
                Ok(ends) => {
                    let exits = ends
                        .into_iter()
                        .filter_map(|(local_rank, exit)| self.worker_ended(local_rank, exit))
                        .collect();
                    Some(GroupInput::Exited(exits))
                }
                Err(source) => Some(self.broken(AgentError::System {
                    what: "wait for ended workers",
                    source,
                })),
            },
            () = self.keeper.lost() => Some(GroupInput::KeeperLost),
            signal = self.signals.next() => {
                warn!("Received {signal} death signal, shutting down workers");
                self.emit(AgentEvent::SignalReceived {
                    at: self.clock.now().wall,
                    signal,
                });
                Some(GroupInput::Signal(signal))
            }
            Some(answer) = self.arrivals.recv() => self.arrived(answer),
            _ = self.children.recv() => self.look_after_orphans(),
            () = due => Some(GroupInput::TimePassed),
        }
    }

    fn worker_ended(
        &mut self,
        local_rank: LocalRank,
        exit: rdzv_core::group::Exit,
    ) -> Option<WorkerExit> {
        let at = self.clock.now().wall;
        let worker = self.workers.get(&local_rank)?;
        let ended = WorkerExit {
            local_rank,
            pid: worker.identity.pid,
            exit,
            at,
            stopped_by_agent: worker.closing_signal.is_some(),
        };
        let event = AgentEvent::WorkerExited {
            at,
            worker: worker.identity.clone(),
            exit,
            stopped_by_agent: ended.stopped_by_agent,
        };
        self.emit(event);
        Some(ended)
    }

    /// Collects orphans that have ended, or goes on with killing them.
    pub(crate) fn look_after_orphans(&mut self) -> Option<GroupInput> {
        let running = self.running_pids();
        if !self.clearing {
            self.leftovers.collect(&running);
            return None;
        }
        if self.leftovers.kill(&running) {
            self.cleared();
            return Some(GroupInput::Cleared);
        }
        None
    }

    /// Nothing of this attempt is left, or only what the kernel does not end.
    pub(crate) fn cleared(&mut self) {
        self.clearing = false;
        self.logs.writers_are_gone();
    }

    /// The process ids of the workers whose ends are waited for.
    pub(crate) fn running_pids(&self) -> HashSet<Pid> {
        self.workers
            .iter()
            .filter(|(local_rank, _)| self.exits.is_watched(**local_rank))
            .map(|(_, worker)| worker.pid)
            .collect()
    }

    pub(crate) fn emit(&mut self, event: AgentEvent) {
        (self.observer)(&event);
    }

    /// Keeps the first error; the machine only knows that there is one.
    pub(crate) fn broken(&mut self, error: AgentError) -> GroupInput {
        self.error.get_or_insert(error);
        GroupInput::Broken
    }
}

fn spec(plan: &LaunchPlan) -> GroupSpec {
    let variable = |name: &str| {
        plan.environment
            .get(std::ffi::OsStr::new(name))
            .map(|value| value.to_string_lossy().into_owned())
    };
    let dynamic = matches!(plan.rendezvous, RendezvousPlan::Dynamic { .. });
    GroupSpec {
        role: plan.role.clone(),
        run_id: plan.run_id.clone(),
        local_world_size: plan.local_world_size,
        max_restarts: plan.max_restarts,
        grace: plan.shutdown_timeout,
        // A dynamic rendezvous hands out an empty store by itself.
        purge_store: !dynamic && plan.rendezvous.nodes() == 1,
        dynamic,
        signals_text: plan.signals_text.clone(),
        nccl_error_handling: variable(rdzv_core::env::TORCH_NCCL_ASYNC_ERROR_HANDLING),
        virtual_local_rank: plan.virtual_local_rank.then(|| VisibleDevices {
            hip: variable(rdzv_core::env::HIP_VISIBLE_DEVICES),
            cuda: variable(rdzv_core::env::CUDA_VISIBLE_DEVICES),
        }),
    }
}
