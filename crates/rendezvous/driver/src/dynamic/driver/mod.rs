//! Rendezvous over a state that every agent can change.
//!
//! The driver runs the machine of [`rdzv_rendezvous_proto::Participant`] as a task of the runtime.
//!
//! ```text
//!   agent ── join, leave, close ──┐                      ┌─► read, compare-and-set ─► shared state
//!                                 ├─► one channel ─► task
//!   shared state ── changed, gone ┘     machine, clock   └─► formed, changes ─► agent
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the handle: the calls of the agent, and its work outside the machine |
//! | `command.rs` | the commands to the task, and the events of a join |
//! | `task.rs` | the task: it waits for inputs and applies outputs |
//! | `interruption.rs` | the end of a join from outside |
//! | `peer_failures.rs` | notices of the permanent failure of a member |
//! | `successes.rs` | notices of members that leave after their workers have succeeded |
//! | `messages.rs` | texts of changes and errors |
//!
//! Only the task sends the heartbeats of this node, so it never waits for other agents. The caller
//! of a join waits for rank 0 to publish the endpoint of the workers' store.

mod command;
mod interruption;
mod messages;
mod peer_failures;
mod successes;
mod task;

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous_proto::participant::Formed;
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState, Settings};
use rdzv_store::{Breaker, Pinger, Store, StoreError, StorePolicy};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use self::command::{Command, Event};
use self::interruption::Interruption;
use self::task::DriverTask;
use super::SharedState;
use super::bootstrap::{self, MasterEndpoint, Reading, WorkersStore};
use super::watch::Watch;
use crate::runtime::{Task, no_thread, spawn};
use crate::{
    Interrupter, JoiningAgent, Observer, RendezvousBackend, RendezvousError, RendezvousInfo,
};

/// Time limit for a node to leave the state after an interruption.
const LEAVING: Duration = Duration::from_secs(5);

/// Parameters of a driver in addition to the shared state.
#[derive(Debug, Clone)]
pub struct DriverOptions {
    /// Run to join.
    pub run_id: RunId,
    /// Numbers of nodes, and time limits.
    pub settings: Settings,
    /// This node.
    ///
    /// Its address is the one for other nodes and for its workers' store.
    pub me: NodeDesc,
    /// Time limit for rank 0 to publish the workers' endpoint in a complete round.
    pub timeout: Duration,
    /// Policy of the workers' store, here or on another node.
    pub policy: StorePolicy,
}

/// Rendezvous over a shared state.
pub struct Driver {
    name: String,
    endpoint: String,
    losses_known_within: Duration,
    options: DriverOptions,
    commands: UnboundedSender<Command>,
    interruption: Arc<Interruption>,
    workers: WorkersStore,
    failures: Option<Watch>,
    /// The agents' store of this node's round.
    round: Option<Arc<dyn Store>>,
    /// Breaker that ends the use of that store, which the agent may still hold.
    end_of_store: Option<Breaker>,
    /// `true` if all workers of this node have succeeded in the round.
    has_succeeded: bool,
    task: Option<Task>,
}

impl fmt::Debug for Driver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Driver({} at {})",
            self.options.me, self.endpoint
        )
    }
}

impl Driver {
    /// Starts the task, and starts to watch the state.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if the state cannot be watched, or no thread can be started.
    pub fn start(
        shared: Box<dyn SharedState>,
        options: DriverOptions,
    ) -> Result<Self, RendezvousError> {
        let (name, endpoint) = (shared.name().to_owned(), shared.endpoint());
        let losses_known_within = shared.losses_known_within();
        let (commands, receiver) = unbounded_channel();
        let interruption = Arc::new(Interruption::new(shared.breaker()));
        let task = DriverTask::new(
            shared,
            &options,
            commands.clone(),
            receiver,
            Arc::clone(&interruption),
        )?;
        let task = spawn(task.run())
            .map_err(|error| no_thread(&error, "for the rendezvous", endpoint.clone()))?;
        Ok(Self {
            name,
            endpoint,
            losses_known_within,
            workers: WorkersStore::new(&options.me.addr, options.policy.clone()),
            options,
            commands,
            interruption,
            failures: None,
            round: None,
            has_succeeded: false,
            end_of_store: None,
            task: Some(task),
        })
    }

    /// Lets the machine join, and waits until the round is complete.
    fn form(&self) -> Result<(Formed, Arc<dyn Store>), RendezvousError> {
        let (sender, events) = mpsc::channel();
        if !self.interruption.begin(sender.clone()) {
            return Err(RendezvousError::Interrupted);
        }
        let ended = self.commands.send(Command::Join(sender));
        if ended.is_err() {
            return Err(self.task_ended());
        }
        let mut timeout = Duration::MAX;
        loop {
            match events.recv_timeout(timeout) {
                Ok(Event::Formed(formed, store)) => return Ok((formed, store)),
                Ok(Event::Failed(error)) => return Err(error),
                Ok(Event::Interrupted) if self.interruption.is_before_all() => {
                    return Err(RendezvousError::Interrupted);
                }
                Ok(Event::Interrupted) => timeout = LEAVING,
                // The node can no longer reach the state; the others will notice.
                Err(mpsc::RecvTimeoutError::Timeout) => return Err(RendezvousError::Interrupted),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(self.task_ended()),
            }
        }
    }

    /// Agrees with the other nodes on the endpoint of the workers' store.
    fn agree_on_master(
        &mut self,
        member: &JoiningAgent,
        formed: &Formed,
        store: &Arc<dyn Store>,
    ) -> Result<MasterEndpoint, RendezvousError> {
        if formed.rank == 0 {
            self.workers.use_port(member.master_port);
            let master = self.workers.offer(member.share_store)?;
            bootstrap::publish(&**store, &master)?;
            return Ok(master);
        }
        self.workers.step_down();
        // A separate connection, so that the end of this wait disturbs no other request.
        let current = store.try_clone()?;
        let _reading = self
            .interruption
            .reading(current.connection().and_then(|it| it.breaker()));
        let leader = formed.participants.first();
        let started = Instant::now();
        let read = bootstrap::read(&Reading {
            current: &*current,
            round: formed.round,
            earlier: &|round| self.ask(|reply| Command::RoundStore(round, reply))?,
            leader: leader.map_or("", |leader| &leader.addr),
            share: member.share_store,
            timeout: self.options.timeout,
        });
        read.map_err(|error| match error {
            RendezvousError::Store(StoreError::WaitTimeout { .. }) => {
                RendezvousError::SilentLeader {
                    run_id: self.options.run_id.to_string(),
                    endpoint: self.endpoint.clone(),
                    round: formed.round,
                    leader: leader.map(NodeDesc::to_string),
                    elapsed: started.elapsed(),
                }
            }
            other => other,
        })
    }

    /// Sends a command and returns the answer of the task.
    fn ask<T>(
        &self,
        command: impl FnOnce(mpsc::SyncSender<T>) -> Command,
    ) -> Result<T, RendezvousError> {
        let (reply, answer) = mpsc::sync_channel(1);
        let sent = self.commands.send(command(reply));
        sent.map_err(|_| self.task_ended())?;
        answer.recv().map_err(|_| self.task_ended())
    }

    fn state(&self) -> Result<Option<RendezvousState>, RendezvousError> {
        self.ask(Command::ReadState)?
    }

    fn task_ended(&self) -> RendezvousError {
        RendezvousError::Unreachable {
            what: "the rendezvous task has stopped".to_owned(),
            endpoint: self.endpoint.clone(),
            elapsed: None,
            remedy: "report this bug in rdzv with the log of this agent",
        }
    }

    fn forget_round(&mut self) {
        self.failures = None;
        self.round = None;
        self.has_succeeded = false;
    }
}

impl RendezvousBackend for Driver {
    fn name(&self) -> &str {
        &self.name
    }

    fn run_id(&self) -> &RunId {
        &self.options.run_id
    }

    fn join(&mut self, member: &JoiningAgent) -> Result<RendezvousInfo, RendezvousError> {
        let started = Instant::now();
        loop {
            self.forget_round();
            let (formed, store) = self.form()?;
            let error = match self.agree_on_master(member, &formed, &store) {
                Ok(master) => {
                    if member.share_store {
                        bootstrap::announce(&self.options.policy, &master.addr, master.port)?;
                    }
                    let (me, commands) = (self.options.me.to_string(), self.commands.clone());
                    self.failures = peer_failures::watch(&*store, &me, move |node, reason| {
                        let _nobody_listens_any_more =
                            commands.send(Command::PeerFailed { node, reason });
                    });
                    self.end_of_store = store.connection().and_then(|it| it.breaker());
                    self.round = Some(Arc::clone(&store));
                    return Ok(RendezvousInfo {
                        round: formed.round,
                        store,
                        rank: GroupRank(formed.rank),
                        world_size: u32::try_from(formed.participants.len()).unwrap_or(u32::MAX),
                        assignment: None,
                        replaced: Vec::new(),
                        master_addr: master.addr,
                        master_port: master.port,
                        server: master.server,
                        reserved_port: master.reserved_port,
                    });
                }
                Err(error) => error,
            };
            if self.interruption.is_set() {
                let _best_effort = self.leave();
                return Err(RendezvousError::Interrupted);
            }
            let again = started.elapsed() < self.options.settings.join_timeout;
            if !(again && self.interruption.round_is_over()) {
                let _best_effort = self.leave();
                return Err(error);
            }
            tracing::info!(
                round = formed.round,
                "a node was lost before the workers were started; joining the next round"
            );
        }
    }

    fn interrupter(&self) -> Option<Interrupter> {
        let interruption = Arc::clone(&self.interruption);
        let commands = self.commands.clone();
        Some(Arc::new(move || {
            interruption.interrupt();
            // Without a task, no join is running.
            let _ = commands.send(Command::Interrupt);
        }))
    }

    fn set_observer(&mut self, observer: Observer) {
        let _ = self.commands.send(Command::Observe(observer));
    }

    fn losses_known_within(&self) -> Duration {
        self.losses_known_within
    }

    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        let commands = self.commands.clone();
        vec![(
            "rendezvous driver",
            Arc::new(move |alive| {
                let _ = commands.send(Command::Ping(alive));
            }),
        )]
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        Ok(self.state()?.is_some_and(|state| state.closed))
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        self.ask(Command::Close)?
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        let waiting = self.state()?.map_or(0, |state| state.wait_list.len());
        Ok(u32::try_from(waiting).unwrap_or(u32::MAX))
    }

    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        match &self.round {
            Some(round) => peer_failures::report(&**round, &self.options.me.to_string(), reason),
            None => Ok(()),
        }
    }

    fn report_success(&mut self) {
        self.has_succeeded = true;
    }

    fn leave(&mut self) -> Result<(), RendezvousError> {
        if let (true, Some(round)) = (self.has_succeeded, &self.round)
            && let Err(error) = successes::report(&**round, &self.options.me)
        {
            tracing::warn!(
                "cannot notify the other nodes of the success of this node: {error}; they may \
                 restart their workers"
            );
        }
        self.forget_round();
        if self.interruption.is_before_all() {
            return Ok(());
        }
        self.ask(Command::Leave)?
    }

    fn shutdown(&mut self) -> bool {
        self.forget_round();
        if self.interruption.is_before_all() {
            return false;
        }
        let closed = self.set_closed();
        if let Err(error) = &closed {
            tracing::debug!(%error, "cannot close the rendezvous");
        }
        self.end();
        closed.is_ok()
    }
}

impl Driver {
    fn end(&mut self) {
        self.workers.step_down();
        if let Some(breaker) = self.end_of_store.take() {
            breaker();
        }
        let _ = self.commands.send(Command::End);
        if let Some(task) = self.task.take()
            && !task.join()
        {
            tracing::error!("the rendezvous task panicked");
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The task may be waiting for an operation of the store; it ends after that.
        let _ = self.commands.send(Command::End);
    }
}
