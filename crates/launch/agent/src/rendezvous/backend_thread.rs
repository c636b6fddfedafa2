//! Rendezvous with other nodes: a backend on a separate thread.
//!
//! The thread takes commands and answers through the agent's channel.
//!
//! ```text
//!   agent's loop ── Join, Leave, … ──► thread, owns the backend
//!                ◄── Joined, NotNeeded ─┘
//!                ◄── Changed ──────────── a thread of the backend
//! ```
//!
//! Other threads use only the interrupter, the exit barrier and the pings of the backend: an agent
//! that must end cannot wait for peers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{io, thread};

use rdzv_agent_proto::group::policy::EXPLAINED_WITHIN;
use rdzv_agent_proto::group::{Master, Round};
use rdzv_core::ident::RunId;
use rdzv_rendezvous::{
    Change, ExitBarrier, Interrupter, JoiningAgent, RendezvousBackend, RendezvousError,
    RendezvousInfo,
};
use rdzv_store::Pinger;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{Answer, Joined, LeaveReason, STORE_SERVER};
use crate::AgentError;
use crate::round_store::RoundStore;

/// Function that creates the backend, on its thread.
pub(super) type NewBackend =
    Box<dyn Fn() -> Result<Box<dyn RendezvousBackend>, RendezvousError> + Send>;

/// Command to the thread.
enum Command {
    /// Join the next round; the node has lost these ranks.
    Join(Vec<u32>),
    Announce(String),
    /// Report that all workers of this node have succeeded.
    Succeeded,
    /// Confirm that the thread is alive.
    Ping(Sender<()>),
    /// Leave the rendezvous; this is the last command.
    ///
    /// The thread sends a message through the channel when it has left.
    Leave(LeaveReason, oneshot::Sender<()>),
}

/// Agent's handle of the thread.
pub(super) struct BackendHandle {
    /// State that the thread takes over at the first join; `None` afterwards.
    idle: Option<Rendezvous>,
    commands: Option<Sender<Command>>,
    interruption: Arc<Interruption>,
    joining: bool,
    pub(super) round: Option<Box<JoinedRound>>,
}

pub(super) struct JoinedRound {
    pub(super) info: RendezvousInfo,
    /// Store of the round on separate connections.
    /// A wait on these connections delays nothing else, and can be ended.
    pub(super) store: RoundStore,
    /// Threads of the backend, by name.
    threads: Threads,
    /// Exit barrier that the backend itself provides for the round.
    pub(super) exit_barrier: Option<ExitBarrier>,
}

type Threads = Vec<(&'static str, Pinger)>;

impl JoinedRound {
    fn new(info: RendezvousInfo, backend: Option<&dyn RendezvousBackend>) -> Self {
        Self {
            store: RoundStore::new(Arc::clone(&info.store)),
            info,
            threads: backend.map_or_else(Vec::new, RendezvousBackend::threads),
            exit_barrier: backend.and_then(RendezvousBackend::exit_barrier),
        }
    }

    /// Converts the round for the worker group.
    fn round(&self, share_store: bool, losses_known_within: Duration) -> Round {
        let info = &self.info;
        Round {
            number: info.round,
            group_rank: info.rank,
            group_world_size: info.world_size,
            replaced: info.replaced.clone(),
            master: Master {
                addr: info.master_addr.clone(),
                port: info.master_port,
                hosted_by_agent: share_store,
            },
            losses_known_within,
            answers_barrier: self.exit_barrier.is_some(),
        }
    }
}

impl Drop for JoinedRound {
    fn drop(&mut self) {
        self.store.end();
    }
}

impl BackendHandle {
    pub(super) fn new(
        new_backend: NewBackend,
        member: JoiningAgent,
        answers: UnboundedSender<Answer>,
    ) -> Self {
        let interruption = Arc::new(Interruption::default());
        Self {
            idle: Some(Rendezvous {
                new_backend,
                member,
                answers,
                interruption: Arc::clone(&interruption),
                backend: None,
            }),
            commands: None,
            interruption,
            joining: false,
            round: None,
        }
    }

    /// Joins the next round.
    ///
    /// The answer is [`Answer::Joined`] or [`Answer::NotNeeded`].
    pub(super) fn join(&mut self, lost: Vec<u32>) -> io::Result<()> {
        self.round = None;
        self.joining = true;
        self.interruption.in_progress.store(true, Ordering::SeqCst);
        if let Some(rendezvous) = self.idle.take() {
            let (sender, commands) = channel();
            thread::Builder::new()
                .name("rendezvous".to_owned())
                .spawn(move || {
                    let answers = rendezvous.answers.clone();
                    let serve = AssertUnwindSafe(|| rendezvous.serve(&commands));
                    if catch_unwind(serve).is_err() {
                        // Otherwise the agent would wait for an answer without a limit.
                        let _ = answers.send(Answer::Changed(Change::Lost(panicked())));
                    }
                })?;
            self.commands = Some(sender);
        }
        self.send(Command::Join(lost));
        Ok(())
    }

    pub(super) fn joined(&mut self, round: Box<JoinedRound>) {
        self.joining = false;
        self.round = Some(round);
    }

    /// Returns the threads that the current round needs.
    pub(super) fn threads(&self) -> Threads {
        let mut threads = Vec::new();
        if let Some(commands) = self.commands.clone() {
            let pinger: Pinger = Arc::new(move |alive| {
                let _ = commands.send(Command::Ping(alive));
            });
            threads.push(("rendezvous", pinger));
        }
        if let Some(round) = &self.round {
            threads.extend(round.threads.iter().cloned());
            let server = round.info.server.as_ref();
            threads.extend(server.map(|server| (STORE_SERVER, server.pinger())));
        }
        threads
    }

    /// Removes the keys that workers left in the store.
    /// The keys of the agents stay: they are below the run id, and below `init/`, where agents
    /// count themselves.
    pub(super) fn purge(&self, run_id: &RunId) {
        let server = self
            .round
            .as_ref()
            .and_then(|round| round.info.server.as_ref());
        if let Some(server) = server {
            server.purge(&[&format!("/{run_id}/"), "/init/"]);
        }
    }

    pub(super) fn announce(&self, reason: String) {
        self.send(Command::Announce(reason));
    }

    pub(super) fn succeeded(&self) {
        self.send(Command::Succeeded);
    }

    /// Leaves the other nodes.
    /// `None` if the agent has never joined, or if its join cannot be ended yet.
    pub(super) fn leave(&mut self, reason_to_leave: LeaveReason) -> Option<oneshot::Receiver<()>> {
        self.round = None;
        let interrupted = !self.joining || self.interruption.interrupt();
        let (sender, left) = oneshot::channel();
        let commands = self.commands.take()?;
        commands
            .send(Command::Leave(reason_to_leave, sender))
            .ok()?;
        interrupted.then_some(left)
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // The thread ends only by panic, and then its answer, an error, is on its way.
            let _ = commands.send(command);
        }
    }
}

/// Means to end a join from another thread.
#[derive(Default)]
struct Interruption {
    in_progress: AtomicBool,
    wanted: AtomicBool,
    how: OnceLock<Interrupter>,
}

impl Interruption {
    /// Ends the join.
    /// Returns `false` if the join is in progress and cannot be ended yet.
    fn interrupt(&self) -> bool {
        self.wanted.store(true, Ordering::SeqCst);
        let how = self.how.get();
        if let Some(interrupter) = how {
            interrupter();
        }
        how.is_some() || !self.in_progress.load(Ordering::SeqCst)
    }
}

fn panicked() -> RendezvousError {
    RendezvousError::Unreachable {
        what: "the rendezvous thread panicked".to_owned(),
        endpoint: "the rendezvous backend".to_owned(),
        elapsed: None,
        remedy: "fix this bug in the backend; stderr has the message of the panic",
    }
}

struct Rendezvous {
    new_backend: NewBackend,
    member: JoiningAgent,
    answers: UnboundedSender<Answer>,
    interruption: Arc<Interruption>,
    backend: Option<Box<dyn RendezvousBackend>>,
}

impl Rendezvous {
    fn serve(mut self, commands: &Receiver<Command>) {
        // The loop also ends when the agent has exited, as in a test that fails.
        while let Ok(command) = commands.recv() {
            match command {
                Command::Join(lost) => {
                    self.member.lost = lost;
                    let answer = self.answer();
                    let _ = self.answers.send(answer);
                }
                Command::Ping(alive) => {
                    let _ = alive.send(());
                }
                Command::Announce(reason) => self.announce(&reason),
                Command::Succeeded => {
                    if let Some(backend) = &mut self.backend {
                        backend.report_success();
                    }
                }
                Command::Leave(reason_to_leave, done) => {
                    self.leave_rendezvous(reason_to_leave);
                    drop(self);
                    let _ = done.send(());
                    return;
                }
            }
        }
    }

    fn answer(&mut self) -> Answer {
        let joined = self
            .join()
            .map(|info| JoinedRound::new(info, self.backend.as_deref()));
        self.interruption.in_progress.store(false, Ordering::SeqCst);
        let backend = self.backend.as_ref();
        let within = backend.map_or(EXPLAINED_WITHIN, |backend| backend.losses_known_within());
        match joined {
            Ok(joined) => Answer::Joined(Ok(Joined {
                round: joined.round(self.member.share_store, within),
                state: Some(Box::new(joined)),
            })),
            Err(error @ RendezvousError::NotNeeded { .. }) => Answer::NotNeeded(error.to_string()),
            Err(RendezvousError::PeerFailed { node, reason }) => {
                Answer::Joined(Err(AgentError::PeerFailed { node, reason }))
            }
            Err(error) => Answer::Joined(Err(error.into())),
        }
    }

    fn join(&mut self) -> Result<RendezvousInfo, RendezvousError> {
        let backend = match &mut self.backend {
            Some(backend) => backend,
            None => {
                let mut backend = (self.new_backend)()?;
                let answers = self.answers.clone();
                backend.set_observer(Box::new(move |change| {
                    let _ = answers.send(Answer::Changed(change));
                }));
                if let Some(interrupter) = backend.interrupter() {
                    let _ = self.interruption.how.set(interrupter);
                }
                self.backend.insert(backend)
            }
        };
        if self.interruption.wanted.load(Ordering::SeqCst) {
            return Err(RendezvousError::Interrupted);
        }
        backend.join(&self.member)
    }

    fn announce(&mut self, reason: &str) {
        if let Some(backend) = &mut self.backend
            && let Err(error) = backend.report_failure(reason)
        {
            warn!("cannot notify the other nodes of the failure on this node: {error}");
        }
    }

    fn leave_rendezvous(&mut self, reason_to_leave: LeaveReason) {
        if let LeaveReason::Failed {
            reason: Some(reason),
        } = &reason_to_leave
        {
            self.announce(reason);
        }
        let Some(backend) = &mut self.backend else {
            return;
        };
        match reason_to_leave {
            LeaveReason::Succeeded | LeaveReason::Failed { .. } => {
                if !backend.shutdown() {
                    info!("cannot close the rendezvous for the other nodes");
                }
            }
            LeaveReason::Left | LeaveReason::Killed => {
                let left = match reason_to_leave {
                    LeaveReason::Killed => backend.leave_to_successor(),
                    _ => backend.leave(),
                };
                if let Err(error) = left {
                    info!("cannot leave the rendezvous in order: {error}");
                }
            }
        }
    }
}
