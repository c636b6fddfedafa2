//! The agent's loop: wait for the first of everything that can happen, tell the machine, carry out
//! what it decides.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use rdzv_agent_proto::group::{
    Cause, Ending, Exit, GroupInput, GroupSpec, GroupState, VisibleDevices, WorkerExit, WorkerGroup,
};
use rdzv_core::env;
use rdzv_core::machine::Machine;
use rdzv_core::rank::LocalRank;
use rdzv_core::time::{Mono, Now, Wall};
use rustix::process::Pid;
use tokio::runtime::{Builder, LocalOptions};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep_until;
use tracing::warn;

use crate::api::StopHandle;
use crate::clock::Clock;
use crate::control_group::ControlGroup;
use crate::exits::Exits;
use crate::hang::Watches;
use crate::health::Watched;
use crate::job_control::JobControl;
use crate::keeper::KeeperWatch;
use crate::logs::Logs;
use crate::meeting::{Answer, Meeting};
use crate::memory::{OutOfMemoryCounters, OutOfMemoryKills};
use crate::reap::Leftovers;
use crate::signals::Signals;
use crate::spawn::keep_descriptors_private;
use crate::uninterruptible::KernelHolds;
use crate::verdict::{Heard, Listener, LostNode};
use crate::{
    AgentError, AgentEvent, LaunchPlan, Outcome, RendezvousPlan, WatchdogAction, WorkerIdentity,
};

/// Runs the workers of one node to their end.
///
/// Blocks the calling thread, which has to be one that lives as long as the process (the main
/// thread): workers are killed when the thread that started them ends. The process must have no
/// other purpose meanwhile: signals are handled, and what workers leave behind is killed.
///
/// `observer` is called on this thread between two decisions, for each event as it happens. While
/// it runs, nothing is supervised; it must not block (a write to a terminal or file is fine).
pub fn run(plan: LaunchPlan, observer: &mut dyn FnMut(&AgentEvent)) -> Outcome {
    run_until(plan, &StopHandle::default(), observer)
}

/// The same, but may be stopped by a handle too.
pub(crate) fn run_until(
    plan: LaunchPlan,
    stop: &StopHandle,
    observer: &mut dyn FnMut(&AgentEvent),
) -> Outcome {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build_local(LocalOptions::default());
    match runtime {
        Ok(runtime) => runtime.block_on(async {
            match Agent::new(plan, stop, observer) {
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
    /// Why it is being killed, if that is for a fault of its own (a hang, say): its end is then a
    /// failure with this cause, and not a consequence of being stopped.
    pub(crate) condemned: Option<Cause>,
    pub(crate) error_file: Option<std::path::PathBuf>,
    /// The kernel's counters when it was started.
    pub(crate) oom_kills: OutOfMemoryKills,
    /// What shows that the kernel killed it because memory had run out, if anything does.
    pub(crate) out_of_memory: Option<String>,
}

/// The agent: one machine and everything that it needs to act.
pub(crate) struct Agent<'o> {
    pub(crate) plan: LaunchPlan,
    pub(crate) observer: &'o mut dyn FnMut(&AgentEvent),
    pub(crate) clock: Clock,
    pub(crate) group: WorkerGroup,
    /// The state of the group that observers know of.
    told_state: GroupState,
    /// What the machine is told next, before anything from outside.
    pub(crate) answers: VecDeque<GroupInput>,
    pub(crate) workers: BTreeMap<LocalRank, Worker>,
    pub(crate) exits: Exits,
    pub(crate) leftovers: Leftovers,
    /// Whether the machine waits until nothing is left behind.
    pub(crate) clearing: bool,
    pub(crate) meeting: Meeting,
    pub(crate) logs: Logs,
    pub(crate) listener: Listener,
    /// Looks after workers that hang.
    pub(crate) hang: Watches,
    /// When the current rendezvous or exchange began.
    pub(crate) step_began: Mono,
    /// The error that the machine knows as "broken".
    pub(crate) error: Option<AgentError>,
    pub(crate) ending: Option<Ending>,
    /// Whether anybody told this agent to stop, whatever ended the run in the end.
    pub(crate) told_to_stop: bool,
    /// The worker that could not be started.
    pub(crate) not_started: Option<WorkerIdentity>,
    /// The failure that another node has ended the run with.
    pub(crate) heard: Option<Heard>,
    /// A node that was lost, and no round has been formed since.
    pub(crate) lost: Option<LostNode>,
    /// Whether the other nodes know that this one has failed.
    pub(crate) others_told: bool,
    pub(crate) signals: Signals,
    pub(crate) job_control: JobControl,
    /// Since when the job stands still, if it does.
    pub(crate) standing_still: Option<Mono>,
    pub(crate) keeper: KeeperWatch,
    /// Where the workers are, from the start of the first one on.
    pub(crate) control_group: OnceCell<Option<ControlGroup>>,
    pub(crate) oom_counters: OutOfMemoryCounters,
    pub(crate) kernel_holds: KernelHolds,
    children: Signal,
    arrivals: mpsc::UnboundedReceiver<Answer>,
    /// Who wants to know whether this loop is alive.
    pub(crate) pings: mpsc::UnboundedReceiver<std::sync::mpsc::Sender<()>>,
    _watched: Watched,
}

impl<'o> Agent<'o> {
    fn new(
        plan: LaunchPlan,
        stop: &StopHandle,
        observer: &'o mut dyn FnMut(&AgentEvent),
    ) -> Result<Self, AgentError> {
        let system = |what| move |source| AgentError::System { what, source };
        // Signals first: from here on none is lost.
        let signals =
            Signals::new(plan.signals.iter().copied()).map_err(system("handle signals"))?;
        let job_control = JobControl::new().map_err(system("handle SIGTSTP and SIGCONT"))?;
        keep_descriptors_private().map_err(system("look at inherited descriptors"))?;
        let children =
            signal(SignalKind::child()).map_err(system("wait for ended processes (SIGCHLD)"))?;
        let leftovers =
            Leftovers::adopt().map_err(system("adopt orphaned processes (subreaper)"))?;
        let keeper = KeeperWatch::new(&leftovers).map_err(system("watch the keeper"))?;
        let exits = Exits::new().map_err(system("wait for ended workers (epoll)"))?;
        let (sender, arrivals) = mpsc::unbounded_channel();
        let (pinger, pings) = mpsc::unbounded_channel();
        let watched = plan.liveness.watch(
            "agent loop",
            Arc::new(move |alive| {
                let _ = pinger.send(alive);
            }),
        );
        stop.attach(&sender);
        let group = WorkerGroup::new(spec(&plan));
        let logs = Logs::new(&plan);
        let held_limit = variable(&plan, env::TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT);
        let hang = Watches::new(&plan.hang, plan.local_world_size)?;
        Ok(Self {
            kernel_holds: KernelHolds::new(held_limit.as_deref()),
            meeting: Meeting::new(&plan, sender),
            plan,
            observer,
            clock: Clock::new(),
            told_state: group.state(),
            group,
            answers: VecDeque::from([GroupInput::Begin]),
            workers: BTreeMap::new(),
            exits,
            leftovers,
            clearing: false,
            logs,
            listener: Listener::default(),
            hang,
            step_began: Mono::ZERO,
            error: None,
            ending: None,
            told_to_stop: false,
            not_started: None,
            heard: None,
            lost: None,
            others_told: false,
            signals,
            job_control,
            standing_still: None,
            keeper,
            control_group: OnceCell::new(),
            oom_counters: OutOfMemoryCounters::find(),
            children,
            arrivals,
            pings,
            _watched: watched,
        })
    }

    async fn run(mut self) -> Outcome {
        self.tell_of_watchdog(WatchdogAction::Started, None);
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
            self.tell_state();
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
        if let Some(since) = self.standing_still {
            return self.stand_still(since).await;
        }
        let judging = self.judging();
        let deadline = self.group.deadline().map(|at| self.clock.instant(at));
        let healthy = self.group.state() == GroupState::Healthy;
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
            signal = self.signals.next() => Some(self.signalled(signal)),
            wish = self.job_control.next() => {
                self.job_control_wishes(wish);
                None
            }
            Some(alive) = self.pings.recv() => {
                let _ = alive.send(());
                None
            }
            Some(answer) = self.arrivals.recv() => self.arrived(answer),
            _ = self.children.recv() => self.look_after_orphans(),
            news = self.hang.next(self.clock, judging) => self.hang_news(news),
            () = due => Some(GroupInput::TimePassed),
            () = self.kernel_holds.due(healthy) => self.look_for_held_workers(),
        }
    }

    fn worker_ended(&mut self, local_rank: LocalRank, exit: Exit) -> Option<WorkerExit> {
        let Now { mono, wall: at } = self.clock.now();
        self.hang.ended(mono, local_rank);
        let worker = self.workers.get_mut(&local_rank)?;
        if worker.closing_signal.is_none() {
            worker.out_of_memory = worker.oom_kills.explain(exit);
        }
        let ended = WorkerExit {
            local_rank,
            pid: worker.identity.pid,
            exit,
            at,
            stopped_by_agent: worker.closing_signal.is_some() && worker.condemned.is_none(),
        };
        let event = AgentEvent::WorkerExited {
            at,
            worker: worker.identity.clone(),
            exit,
            stopped_by_agent: ended.stopped_by_agent,
        };
        self.emit(event);
        if !exit.is_success() && !ended.stopped_by_agent {
            self.logs.worker_failed(local_rank);
        }
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

    /// The group that the workers are in, if there is one.
    pub(crate) fn control_group(&self) -> Option<&ControlGroup> {
        self.control_group.get()?.as_ref()
    }

    /// The process ids of the workers whose ends are waited for.
    pub(crate) fn running_pids(&self) -> HashSet<Pid> {
        self.workers
            .iter()
            .filter(|(local_rank, _)| self.exits.is_watched(**local_rank))
            .map(|(_, worker)| worker.pid)
            .collect()
    }

    /// Says so if the group is in another state than when this was last called.
    fn tell_state(&mut self) {
        let state = self.group.state();
        if state != self.told_state {
            self.told_state = state;
            self.emit(AgentEvent::StateChanged {
                at: self.clock.now().wall,
                state,
                restart_count: self.group.restart_count(),
            });
        }
    }

    pub(crate) fn emit(&mut self, event: AgentEvent) {
        (self.observer)(&event);
    }

    /// The agent was told to stop: by a signal, or by who holds its [`StopHandle`].
    pub(crate) fn signalled(&mut self, signal: i32) -> GroupInput {
        self.told_to_stop = true;
        warn!("Received {signal} death signal, shutting down workers");
        self.emit(AgentEvent::SignalReceived {
            at: self.clock.now().wall,
            signal,
        });
        GroupInput::Signal(signal)
    }

    /// Keeps the first error; the machine only knows that there is one.
    pub(crate) fn broken(&mut self, error: AgentError) -> GroupInput {
        self.error.get_or_insert(error);
        GroupInput::Broken
    }
}

fn variable(plan: &LaunchPlan, name: &str) -> Option<String> {
    plan.environment
        .get(std::ffi::OsStr::new(name))
        .map(|value| value.to_string_lossy().into_owned())
}

/// What the machine is told of a plan.
pub(crate) fn spec(plan: &LaunchPlan) -> GroupSpec {
    let variable = |name| variable(plan, name);
    let dynamic = matches!(plan.rendezvous, RendezvousPlan::Dynamic { .. });
    GroupSpec {
        role: plan.role.clone(),
        run_id: plan.run_id.clone(),
        local_world_size: plan.local_world_size,
        max_restarts: plan.max_restarts,
        grace: plan.shutdown_timeout,
        settle_delay: plan.settle_delay,
        non_retryable: plan.non_retryable.clone(),
        // A dynamic rendezvous hands out an empty store by itself.
        purge_store: !dynamic && plan.rendezvous.nodes() == 1,
        dynamic,
        signals_text: plan.signals_text.clone(),
        nccl_error_handling: variable(env::TORCH_NCCL_ASYNC_ERROR_HANDLING),
        virtual_local_rank: plan.virtual_local_rank.then(|| VisibleDevices {
            hip: variable(env::HIP_VISIBLE_DEVICES),
            cuda: variable(env::CUDA_VISIBLE_DEVICES),
        }),
    }
}
