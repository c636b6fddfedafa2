//! Workers that are processes of this machine.

mod probes;
mod steps;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::mem::take;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rdzv_agent_proto::goodput::Steps;
use rdzv_agent_proto::group::{
    Cause, Evidence, Exit, Finality, GroupInput, StartRequest, WorkerExit, membership,
};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_core::{env, signal};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use tokio::signal::unix::{self, SignalKind};
use tokio::task::yield_now;
use tracing::{error, warn};

use crate::clock::{Clock, or_forever};
use crate::control::Control;
use crate::control_group::ControlGroup;
use crate::error::system;
use crate::event::TORCHELASTIC;
use crate::exits::Exits;
use crate::hang::{HangEvent, HangMonitor, HangOutput, Peers, WatchdogAction};
use crate::keeper::launcher;
use crate::logs::{Capture, LiveView, Logs, Target};
use crate::memory::{OutOfMemoryCounters, OutOfMemoryKills};
use crate::reap::{Leftovers, continue_others};
use crate::signals::is_handled;
use crate::spawn::ForkServer;
use crate::supervisor::{Supervisor, Watch, WorkerEvent};
use crate::uninterruptible::KernelHolds;
use crate::worker::{WorkerFiles, WorkerIdentity};
use crate::{AgentConfig, AgentError, AgentEvent, error_file, host, spawn};

/// Maximum number of a failed worker's last stderr lines that are kept.
const MOST_LINES: usize = 200;

#[derive(Debug)]
struct Worker {
    identity: WorkerIdentity,
    pid: Pid,
    started: Wall,
    /// Last closing signal, or SIGKILL, that the agent sent to the running worker.
    closing_signal: Option<i32>,
    /// Fault for which the agent kills the worker (a hang, for example).
    /// The exit of the worker is then a failure with this cause, and not a consequence of a stop.
    kill_cause: Option<Cause>,
    error_file: Option<PathBuf>,
    oom_kills: OutOfMemoryKills,
    out_of_memory: Option<String>,
}

pub(crate) struct ProcessSupervisor {
    config: Arc<AgentConfig>,
    workers: BTreeMap<LocalRank, Worker>,
    exits: Exits,
    children: unix::Signal,
    leftovers: Leftovers,
    /// `true` if orphans must be reaped after the exited workers.
    orphans_wait: bool,
    /// `true` while leftovers are being killed.
    clearing: bool,
    logs: Logs,
    capture: Capture,
    view: Option<LiveView>,
    /// Control socket; `None` without `--in-process`.
    control: Option<Control>,
    hang: HangMonitor,
    steps: Steps,
    /// Workers whose missing heartbeat was reported.
    silent: BTreeSet<LocalRank>,
    kernel_holds: KernelHolds,
    fork_server: ForkServer,
    /// Control group of the workers, created with the first worker.
    control_group: OnceCell<Option<ControlGroup>>,
    oom_counters: OutOfMemoryCounters,
}

enum Wakeup<H> {
    Exits(std::io::Result<Vec<(LocalRank, Exit)>>),
    Orphans,
    ForkServer,
    Control(GroupInput),
    Hang(H),
    KernelHolds,
}

impl ProcessSupervisor {
    /// Creates the supervisor; must be called inside the runtime.
    ///
    /// From now on, orphans of workers become children of this process. A view shows the output of
    /// workers that goes to no file. Without a view, that output goes to the streams of this
    /// process.
    pub(crate) fn new(
        config: Arc<AgentConfig>,
        view: Option<&LiveView>,
    ) -> Result<Self, AgentError> {
        spawn::keep_descriptors_private().map_err(system("check inherited descriptors"))?;
        let children = unix::signal(SignalKind::child())
            .map_err(system("wait for exited processes (SIGCHLD)"))?;
        let leftovers =
            Leftovers::adopt().map_err(system("adopt orphaned processes (subreaper)"))?;
        if !leftovers.can_be_found() {
            warn!(
                "/proc is not mounted: processes that workers leave behind in separate sessions \
                 are not found and not killed; mount /proc, or run in a container that stops with \
                 the job"
            );
        }
        let exits = Exits::new().map_err(system("wait for exited workers (epoll)"))?;
        let control = config.recovery.as_ref();
        let control = control.map(|plan| Control::new(&plan.directory));
        let control = control.transpose().map_err(system(
            "create the control socket of the workers (--in-process)",
        ))?;
        let kept = config.rendezvous.kept.as_ref();
        let held_limit = config.variable(env::TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT);
        Ok(Self {
            workers: BTreeMap::new(),
            exits,
            children,
            leftovers,
            orphans_wait: false,
            clearing: false,
            logs: Logs::new(&config),
            capture: Capture::default(),
            view: view.cloned(),
            control,
            hang: HangMonitor::new(
                &config.hang,
                &config.identity.role,
                config.identity.local_world_size,
            )?,
            steps: Steps::new(kept.and_then(|kept| kept.note().most_step)),
            silent: BTreeSet::new(),
            kernel_holds: KernelHolds::new(held_limit.as_deref()),
            fork_server: ForkServer::start(&config),
            control_group: OnceCell::new(),
            oom_counters: OutOfMemoryCounters::find(),
            config,
        })
    }

    /// Returns the processes that this process has adopted or will adopt.
    pub(crate) fn leftovers(&self) -> &Leftovers {
        &self.leftovers
    }

    fn spawn(
        &mut self,
        clock: Clock,
        request: StartRequest,
        port: Option<Arc<TcpListener>>,
    ) -> Result<AgentEvent, AgentError> {
        let StartRequest {
            ranks,
            mut environment,
            restart_count,
        } = request;
        let local_rank = ranks.local_rank;
        environment.extend(self.hang.watches.variables(local_rank));
        let socket = self.config.worker_socket(local_rank);
        if let Some(path) = &socket {
            // A server refuses a path that exists, and a killed worker leaves its path behind.
            let _ = fs::remove_file(path);
            let path = path.to_string_lossy().into_owned();
            environment.push((env::TORCH_WORKER_SERVER_SOCKET, path));
        }
        if let Some(control) = &self.control {
            environment.push((env::RDZV_CONTROL, control.path()));
        }
        let round = round_of(&environment);
        if self.workers.is_empty() {
            self.logs.begin_attempt(restart_count)?;
            self.oom_counters.read();
        }
        let mut streams = self.logs.streams(&ranks)?;
        if let Some(view) = &self.view {
            view.attach(&ranks, &mut streams);
        } else {
            self.capture
                .attach(local_rank, &self.config.logs, &mut streams);
        }
        let error_file = streams.error_file.clone();
        let group = self
            .control_group
            .get_or_init(|| ControlGroup::make(launcher()))
            .as_ref();
        let entrance = group.and_then(|group| group.entrance(local_rank));
        let counted = group.map(|group| group.memory_events(local_rank));
        let oom_kills = self.oom_counters.of_worker(counted);
        let spawned = spawn::spawn(
            &self.config,
            &ranks,
            environment,
            streams,
            entrance,
            &mut self.fork_server,
        );
        drop(port);
        let spawned = spawned?;
        let now = clock.now();
        let pid = u32::try_from(spawned.pid.as_raw_nonzero().get()).unwrap_or(0);
        if let Some(control) = &mut self.control {
            control.enter(pid, round);
        }
        let identity = WorkerIdentity::new(&ranks, pid);
        let file = |stream| self.logs.file(local_rank, stream).map(Path::to_owned);
        let files = WorkerFiles {
            stdout: file(Target::Stdout),
            stderr: file(Target::Stderr),
            error_file: error_file.clone(),
        };
        self.workers.insert(
            local_rank,
            Worker {
                identity: identity.clone(),
                pid: spawned.pid,
                started: now.wall,
                closing_signal: None,
                kill_cause: None,
                error_file,
                oom_kills,
                out_of_memory: None,
            },
        );
        self.exits
            .watch(local_rank, spawned.pidfd)
            .map_err(system("watch a worker (epoll)"))?;
        self.hang.watches.started(now.mono, local_rank, pid);
        if let Some(socket) = socket {
            let error_file = files.error_file.as_deref();
            self.hang.serves(local_rank, socket, error_file);
        }
        Ok(AgentEvent::WorkerStarted {
            at: now.wall,
            worker: identity,
            files,
            restart_count,
        })
    }

    /// Reaps exited orphans, or continues to kill them.
    fn collect_orphans(&mut self) -> Vec<WorkerEvent> {
        let running = self.watched_pids();
        if !self.clearing {
            self.orphans_wait = !self.leftovers.collect(&running);
        } else if self.leftovers.kill(&running) {
            self.cleared();
            return vec![GroupInput::Cleared.into()];
        }
        Vec::new()
    }

    /// Records that all processes of this attempt have exited or are abandoned.
    fn cleared(&mut self) {
        self.clearing = false;
        self.logs.writers_are_gone();
    }

    fn exited(&mut self, now: Now, ends: Vec<(LocalRank, Exit)>) -> Vec<WorkerEvent> {
        let lines = self.hang.unread();
        let mut events = self.beats(now, &lines);
        let mut exits = Vec::new();
        for (local_rank, exit) in ends {
            self.hang.ended(now.mono, local_rank);
            let Some(worker) = self.workers.get_mut(&local_rank) else {
                continue;
            };
            if worker.closing_signal.is_none() {
                worker.out_of_memory = worker.oom_kills.explain(exit);
            }
            if let Some(control) = &mut self.control {
                control.forget(worker.identity.pid);
            }
            let stopped_by_agent = worker.closing_signal.is_some() && worker.kill_cause.is_none();
            exits.push(WorkerExit {
                local_rank,
                pid: worker.identity.pid,
                exit,
                at: now.wall,
                stopped_by_agent,
            });
            events.push(WorkerEvent::Notice(AgentEvent::WorkerExited {
                at: now.wall,
                worker: worker.identity.clone(),
                exit,
                stopped_by_agent,
            }));
            if !exit.is_success() && !stopped_by_agent {
                self.logs.worker_failed(local_rank);
            }
        }
        events.push(GroupInput::Exited(exits).into());
        events
    }

    fn apply(&mut self, clock: Clock, output: HangOutput) -> Vec<WorkerEvent> {
        let at = clock.now().wall;
        match output {
            HangOutput::Watchdog(action, timer) => {
                vec![AgentEvent::Watchdog { at, action, timer }.into()]
            }
            HangOutput::Report(report) => {
                let found = report.found.iter();
                let silent = found.filter(|(_, cause)| matches!(cause, Cause::Heartbeat { .. }));
                self.silent
                    .extend(silent.map(|(worker, _)| worker.local_rank));
                vec![AgentEvent::Hang { at, report }.into()]
            }
            HangOutput::Over => vec![AgentEvent::HangOver { at }.into()],
            HangOutput::Straggler(change) => vec![AgentEvent::Straggler { at, change }.into()],
            HangOutput::Condemn(worker, cause) => {
                if let Some(worker) = self.workers.get_mut(&worker) {
                    worker.kill_cause = Some(cause);
                }
                Vec::new()
            }
            HangOutput::Signal(worker, signal) => Vec::from_iter(self.close(clock, worker, signal)),
            HangOutput::Input(input) => vec![input.into()],
        }
    }

    fn check_kernel_holds(&mut self, now: Now) -> Vec<WorkerEvent> {
        let running: Vec<(LocalRank, Pid)> = running(&self.workers, &self.exits)
            .map(|worker| (worker.identity.local_rank, worker.pid))
            .collect();
        let mut workers = Vec::new();
        for (local_rank, cause) in self.kernel_holds.check(now.mono, &running) {
            if let Some(worker) = self.workers.get_mut(&local_rank) {
                worker.kill_cause.get_or_insert(cause);
                workers.push(local_rank);
            }
        }
        if workers.is_empty() {
            return Vec::new();
        }
        vec![
            GroupInput::Unhealthy {
                workers,
                is_final: Some(Finality::WorkersHeld),
            }
            .into(),
        ]
    }

    /// Returns the children that are no leftovers: the workers and the fork server.
    fn watched_pids(&self) -> HashSet<Pid> {
        self.workers
            .iter()
            .filter(|(local_rank, _)| self.exits.is_watched(**local_rank))
            .map(|(_, worker)| worker.pid)
            .chain(self.fork_server.pid())
            .collect()
    }

    /// Sends a closing signal to the process group of one worker.
    fn close(&mut self, clock: Clock, worker: LocalRank, number: i32) -> Option<WorkerEvent> {
        let signal = Signal::from_named_raw(number)?;
        let pid = self.send(worker, signal)?;
        warn!(
            target: TORCHELASTIC,
            "Sending process {pid} closing signal {}",
            signal_name(number)
        );
        Some(WorkerEvent::Notice(AgentEvent::WorkerSignalled {
            at: clock.now().wall,
            pid,
            signal: number,
            forced: false,
        }))
    }

    /// Kills the process group and the control group of a worker after a timeout.
    fn force(&mut self, clock: Clock, worker: LocalRank) -> Option<WorkerEvent> {
        let before = self.workers.get(&worker)?.closing_signal;
        let running = self.send(worker, Signal::KILL);
        if let Some(group) = self.control_group() {
            group.kill_worker(worker);
        }
        let pid = running?;
        let (before, kill) = (before.unwrap_or_default(), Signal::KILL.as_raw());
        warn!(
            target: TORCHELASTIC,
            "Unable to shutdown process {pid} via {before}, forcefully exiting via {kill}"
        );
        Some(WorkerEvent::Notice(AgentEvent::WorkerSignalled {
            at: clock.now().wall,
            pid,
            signal: kill,
            forced: true,
        }))
    }

    /// Sends a signal that ends processes.
    /// Returns the process id of the group's leader, if the leader was still running.
    fn send(&mut self, worker: LocalRank, signal: Signal) -> Option<u32> {
        let running = self.exits.is_running(worker);
        self.signal_group(worker, signal);
        if signal != Signal::KILL {
            // A suspended process handles no other signal before SIGCONT.
            self.signal_group(worker, Signal::CONT);
        }
        let worker = self.workers.get_mut(&worker).filter(|_| running)?;
        worker.closing_signal = Some(signal.as_raw());
        Some(worker.identity.pid)
    }

    /// Sends any signal to the whole process group of one worker, if it exists.
    /// The leader of the group may have exited.
    fn signal_group(&self, worker: LocalRank, signal: Signal) {
        let Some(worker) = self.workers.get(&worker) else {
            return;
        };
        let ours = self.watched_pids();
        // Until the leader and those of its orphans that are our children are reaped, no other
        // group can have the same number.
        if ours.contains(&worker.pid) || self.leftovers.holds_group(worker.pid, &ours) {
            let _ = kill_process_group(worker.pid, signal);
        }
    }

    fn resume_view(&self) {
        if let Some(view) = &self.view {
            view.suspend(false);
            // The terminal may have another size than before.
            view.resized();
        }
    }

    fn signal_all(&self, signal: Signal) {
        for worker in self.workers.keys() {
            self.signal_group(*worker, signal);
        }
    }

    fn pids(&self, workers: &[LocalRank]) -> Vec<u32> {
        let workers = workers.iter().filter_map(|worker| self.workers.get(worker));
        workers.map(|worker| worker.identity.pid).collect()
    }

    fn control_group(&self) -> Option<&ControlGroup> {
        self.control_group.get()?.as_ref()
    }
}

/// Returns the round in a worker's variables.
fn round_of(environment: &[(&'static str, String)]) -> u64 {
    let mut variables = environment.iter();
    let round = variables.find(|(name, _)| *name == env::RDZV_ROUND);
    round.and_then(|(_, round)| round.parse().ok()).unwrap_or(0)
}

fn running<'a>(
    workers: &'a BTreeMap<LocalRank, Worker>,
    exits: &Exits,
) -> impl Iterator<Item = &'a Worker> {
    workers
        .values()
        .filter(|worker| exits.is_running(worker.identity.local_rank))
}

impl Supervisor for ProcessSupervisor {
    fn begin(&mut self, clock: Clock) -> Vec<WorkerEvent> {
        let output = self.hang.watchdog(WatchdogAction::Started, None);
        output.map_or_else(Vec::new, |output| self.apply(clock, output))
    }

    fn forget(&mut self) {
        // Workers that recover in their processes are still running.
        self.workers.retain(|rank, _| self.exits.is_watched(*rank));
        if self.workers.is_empty() {
            self.hang.clear();
        }
        self.steps.begin_attempt();
        self.silent.clear();
        self.config.observe.beats.clear();
    }

    fn joined(&mut self, peers: Peers) {
        self.hang.joined(peers);
    }

    fn start(
        &mut self,
        clock: Clock,
        request: StartRequest,
        reserved_port: Option<Arc<TcpListener>>,
    ) -> Result<Vec<WorkerEvent>, AgentError> {
        let local_rank = request.ranks.local_rank;
        let started = self.spawn(clock, request, reserved_port)?;
        Ok(vec![started.into(), GroupInput::Started(local_rank).into()])
    }

    fn go(&mut self, now: Mono, request: StartRequest) {
        self.hang.continued(now, request.ranks.local_rank);
        let Some(control) = &mut self.control else {
            return;
        };
        if let Some(worker) = self.workers.get_mut(&request.ranks.local_rank) {
            let pid = worker.identity.pid;
            let round = round_of(&request.environment);
            worker.identity = WorkerIdentity::new(&request.ranks, pid);
            control.enter(pid, round);
            let variables: BTreeMap<_, _> = request.environment.into_iter().collect();
            control.send(
                pid,
                &json!({"type": "go", "round": round, "env": variables}),
            );
        }
    }

    fn lost(&self) -> Vec<u32> {
        let workers = self.workers.values().map(|worker| &worker.identity);
        workers
            .filter(|worker| self.control.is_some() && !self.exits.is_running(worker.local_rank))
            .map(|worker| worker.rank.0)
            .collect()
    }

    fn abort(&mut self, workers: &[LocalRank], reason: &str) {
        let (mut node, mut dead) = (host::full_name(), self.lost());
        if dead.is_empty()
            && let Some((other, ranks)) = membership::lost_ranks(reason)
        {
            (node, dead) = (other.to_owned(), ranks);
        }
        let reason = membership::hosts(reason);
        for pid in self.pids(workers) {
            if let Some(control) = &self.control {
                let round = control.round(pid);
                let abort = json!({
                    "type": "abort", "round": round, "reason": reason, "dead": dead, "node": node,
                });
                control.send(pid, &abort);
            }
        }
    }

    fn discard(&mut self, workers: &[LocalRank]) {
        for worker in workers {
            self.signal_group(*worker, Signal::KILL);
            if let Some(group) = self.control_group() {
                group.kill_worker(*worker);
            }
        }
        // A kill before this recovery does not explain a later exit of a survivor.
        self.oom_counters.read();
        let group = self.control_group().cloned();
        for (local_rank, worker) in &mut self.workers {
            let counted = group.as_ref().map(|it| it.memory_events(*local_rank));
            worker.oom_kills = self.oom_counters.of_worker(counted);
        }
    }

    fn fail(&mut self, worker: LocalRank) {
        for pid in self.pids(&[worker]) {
            if let Some(control) = &self.control {
                control.send(pid, &json!({"type": "stop"}));
            }
        }
    }

    async fn next(&mut self, clock: Clock, watch: Watch) -> Vec<WorkerEvent> {
        loop {
            let workers = &self.workers;
            let local_rank = |pid| {
                let mut known = workers.values().map(|worker| &worker.identity);
                Some(known.find(|worker| worker.pid == pid)?.local_rank)
            };
            let wakeup = tokio::select! {
                biased;
                ends = self.exits.next() => Wakeup::Exits(ends),
                input = or_forever(self.control.as_mut().map(|it| it.next(local_rank))) => {
                    Wakeup::Control(input)
                }
                _ = self.children.recv() => Wakeup::Orphans,
                () = self.fork_server.changed() => Wakeup::ForkServer,
                event = self.hang.next(clock, watch.healthy) => Wakeup::Hang(event),
                () = self.kernel_holds.due(watch.healthy) => Wakeup::KernelHolds,
            };
            let now = clock.now();
            let events = match wakeup {
                Wakeup::Exits(Ok(ends)) => {
                    let mut events = self.exited(now, ends);
                    if self.orphans_wait {
                        events.extend(self.collect_orphans());
                    }
                    return events;
                }
                Wakeup::Exits(Err(source)) => {
                    let error = system("wait for exited workers")(source);
                    return vec![WorkerEvent::Broken(error)];
                }
                // An exited fork server hides other exited children, as a worker does.
                Wakeup::Orphans | Wakeup::ForkServer => self.collect_orphans(),
                Wakeup::Control(input) => vec![input.into()],
                Wakeup::Hang(mut event) => {
                    let lines = match &mut event {
                        HangEvent::Lines(lines) => take(lines),
                        // Lines that workers wrote before a deadline still count.
                        HangEvent::Due | HangEvent::Stragglers(_) => self.hang.unread(),
                        _ => Vec::new(),
                    };
                    let mut events = self.beats(now, &lines);
                    let (workers, exits) = (&self.workers, &self.exits);
                    let running = || {
                        running(workers, exits)
                            .map(|worker| worker.identity.clone())
                            .collect()
                    };
                    let outputs = self.hang.handle(now, event, running, watch.healthy);
                    for output in outputs {
                        events.extend(self.apply(clock, output));
                    }
                    events
                }
                Wakeup::KernelHolds => self.check_kernel_holds(now),
            };
            if !events.is_empty() {
                return events;
            }
            yield_now().await;
        }
    }

    fn signal(
        &mut self,
        clock: Clock,
        workers: &[LocalRank],
        signal: i32,
        _shutdown_timeout: Duration,
    ) -> Vec<WorkerEvent> {
        let workers = workers.iter();
        workers
            .filter_map(|worker| self.close(clock, *worker, signal))
            .collect()
    }

    fn kill(&mut self, clock: Clock, workers: &[LocalRank]) -> Vec<WorkerEvent> {
        let workers = workers.iter();
        workers
            .filter_map(|worker| self.force(clock, *worker))
            .collect()
    }

    fn abandon(&mut self, workers: &[LocalRank]) {
        for local_rank in workers {
            if let Some(worker) = self.workers.get(local_rank) {
                let pid = worker.identity.pid;
                match tracer(pid) {
                    Some(tracer) => error!(
                        "Process {pid} was killed, but process {tracer} traces it and has not \
                         released it; the agent stops waiting for it"
                    ),
                    None => error!(
                        "Process {pid} did not exit after SIGKILL, because it is blocked in the \
                         kernel; the agent stops waiting for it"
                    ),
                }
            }
            self.exits.forget(*local_rank);
        }
    }

    fn kill_leftovers(&mut self) -> Vec<WorkerEvent> {
        self.clearing = true;
        if let Some(group) = self.control_group() {
            group.kill_all();
        }
        self.collect_orphans()
    }

    fn abandon_leftovers(&mut self) {
        self.cleared();
        error!("processes that workers left behind do not exit in spite of SIGKILL");
    }

    fn suspend(&mut self) {
        if let Some(view) = &self.view {
            view.suspend(true);
        }
        self.signal_all(Signal::STOP);
    }

    fn resume(&mut self) {
        self.resume_view();
        self.capture.resized();
        self.signal_all(Signal::CONT);
    }

    fn resume_others(&mut self) {
        self.resume_view();
        continue_others(self.fork_server.pid());
    }

    /// Sends the signal only to the workers themselves.
    /// In other processes of their groups the signal may mean something else.
    fn pass_on(&mut self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else {
            return;
        };
        if signal == Signal::WINCH {
            self.capture.resized();
            if let Some(view) = &self.view {
                view.resized();
            }
        }
        for worker in running(&self.workers, &self.exits) {
            let _ = kill_process(worker.pid, signal);
        }
    }

    fn notify(&mut self, workers: &[LocalRank], signal: i32) {
        let Some(known) = Signal::from_named_raw(signal) else {
            return;
        };
        for worker in running(&self.workers, &self.exits) {
            // Without a handler the worker would die of the signal and lose its remaining time.
            if workers.contains(&worker.identity.local_rank) && is_handled(worker.pid, signal) {
                let _ = kill_process(worker.pid, known);
            }
        }
    }

    fn report_failure(&mut self, exit: &WorkerExit) {
        self.capture.flush();
        if let Some(view) = &self.view {
            view.flush();
        }
        let number = exit.exit.as_number();
        let (local_rank, pid) = (exit.local_rank, exit.pid);
        let program = self.config.entrypoint.program.to_string_lossy();
        error!(
            target: TORCHELASTIC,
            "failed (exitcode: {number}) local_rank: {local_rank} (pid: {pid}) of binary: {program}"
        );
    }

    fn workers(&self) -> Vec<WorkerIdentity> {
        let workers = self.workers.values();
        workers.map(|worker| worker.identity.clone()).collect()
    }

    fn kill_cause(&self, worker: LocalRank) -> Option<&Cause> {
        self.workers.get(&worker)?.kill_cause.as_ref()
    }

    fn evidence(&self, local_rank: LocalRank) -> Option<Evidence> {
        let worker = self.workers.get(&local_rank)?;
        Some(Evidence {
            rank: Some(worker.identity.rank),
            started: Some(worker.started),
            kill_cause: worker.kill_cause.clone(),
            out_of_memory: worker.out_of_memory.clone(),
            error_file: worker.error_file.as_deref().and_then(error_file::read),
            stderr_tail: match self.logs.file(local_rank, Target::Stderr) {
                Some(_) => self.logs.tail(local_rank, Target::Stderr, MOST_LINES),
                None => match &self.view {
                    Some(view) => view.tail(local_rank, MOST_LINES),
                    None => self.capture.tail(local_rank, MOST_LINES),
                },
            },
            ..Evidence::default()
        })
    }

    fn probe(&self, exit: &WorkerExit) -> Option<Cause> {
        let worker = self.workers.get(&exit.local_rank)?;
        let logs = worker.error_file.as_deref().and_then(Path::parent);
        probes::explain(exit.exit, Path::new(&self.config.entrypoint.program), logs)
    }

    fn shutdown(&mut self, _signal: i32) {}

    async fn captured(&mut self) {
        if let Some(view) = &self.view {
            view.drained().await;
        }
        self.capture.drained().await;
    }

    async fn drained(&mut self) {
        self.logs.drained().await;
        self.captured().await;
    }

    fn unshown(&self) -> u64 {
        self.logs.unshown() + self.capture.unshown()
    }

    fn remove_files(&mut self, succeeded: bool) {
        self.logs.tidy_up(succeeded);
        if let Some(group) = self.control_group() {
            group.remove();
        }
        if let Some(control) = &self.control {
            control.remove();
        }
    }

    fn end(&mut self, clock: Clock) -> Vec<WorkerEvent> {
        let output = self.hang.watchdog(WatchdogAction::Stopped, None);
        output.map_or_else(Vec::new, |output| self.apply(clock, output))
    }
}

/// Returns `SIGTERM` and so on; the number for signals without a name.
pub(crate) fn signal_name(number: i32) -> String {
    signal::name(number).map_or_else(|| number.to_string(), str::to_owned)
}

/// Returns the process that traces `pid`, usually a debugger.
fn tracer(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok().filter(|tracer| *tracer != 0)
}
