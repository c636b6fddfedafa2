//! Finding the other agents, exchanging ranks with them, and the store that the workers meet at.
//!
//! | step | one node (`local`) | static (`fixed`) |
//! |---|---|---|
//! | join | the agent's own server, from the first attempt on | node 0's store, joined once |
//! | purge | every key | every key but the agents', if there is one node |
//! | exchange | with itself, through a store in memory | through the store, keys below the run id (`exchange`) |
//! | exit barrier | – | through the store |
//!
//! Everything here that may wait for others does so on a thread of its own and answers through a
//! channel, so that the agent's loop never waits for anything but events.

mod exchange;
mod fixed;
mod local;

use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use rdzv_core::group::{Round, WorkerPlace, barrier};
use rdzv_core::rank::{Assignment, GroupRank, RoleInfo};
use rdzv_rendezvous::StaticParameters;
use rdzv_store::{HashStore, Store, StoreError};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::{AgentError, LaunchPlan, RendezvousPlan};
pub(crate) use fixed::Met;
use local::LocalMeeting;

/// What comes back, some time later.
#[derive(Debug)]
pub(crate) enum Answer {
    /// To [`Meeting::join`]: for [`Meeting::joined`].
    Joined(Result<Joined, AgentError>),
    /// To [`Meeting::assign`].
    Assigned(Result<Assignment, AgentError>),
    /// To [`Meeting::wait_for_others`].
    BarrierPassed(Result<(), StoreError>),
}

/// A rendezvous that is complete.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) round: Round,
    met: Option<Box<Met>>,
}

/// The agent's side of the rendezvous.
#[derive(Debug)]
pub(crate) struct Meeting {
    us: RoleInfo,
    identical_workers: bool,
    local: LocalMeeting,
    /// `None` if there is nobody to meet.
    parameters: Option<StaticParameters>,
    met: Option<Box<Met>>,
    /// What agents exchange their ranks through.
    store: Arc<dyn Store>,
    answers: UnboundedSender<Answer>,
}

impl Meeting {
    pub(crate) fn new(plan: &LaunchPlan, answers: UnboundedSender<Answer>) -> Self {
        let parameters = match &plan.rendezvous {
            RendezvousPlan::Local => None,
            RendezvousPlan::Static {
                endpoint,
                node_rank,
                nodes,
                timeout,
            } => Some(StaticParameters {
                endpoint: endpoint.clone(),
                node_rank: *node_rank,
                nodes: *nodes,
                timeout: *timeout,
                run_id: plan.run_id.clone(),
            }),
        };
        Self {
            us: RoleInfo {
                role: plan.role.clone(),
                rank: parameters
                    .as_ref()
                    .map_or(GroupRank(0), |parameters| parameters.node_rank),
                local_world_size: plan.local_world_size,
            },
            identical_workers: plan.identical_workers,
            local: LocalMeeting::new(plan),
            parameters,
            met: None,
            // Alone, the agent talks to itself.
            store: Arc::new(HashStore::new()),
            answers,
        }
    }

    /// Finds the other agents.
    pub(crate) fn join(&mut self) {
        let round = match (&self.parameters, &self.met) {
            (None, _) => self.local.round(),
            (Some(_), Some(met)) => Ok(met.round()),
            (Some(parameters), None) => {
                let parameters = parameters.clone();
                self.apart("rendezvous", move || {
                    Answer::Joined(Met::others(parameters).map(|met| Joined {
                        round: met.round(),
                        met: Some(Box::new(met)),
                    }))
                });
                return;
            }
        };
        self.answer(Answer::Joined(
            round.map(|round| Joined { round, met: None }),
        ));
    }

    /// Keeps what a rendezvous brought, and returns its round.
    pub(crate) fn joined(&mut self, joined: Joined) -> Round {
        if let Some(met) = joined.met {
            self.store = met.store();
            self.met = Some(met);
        }
        joined.round
    }

    /// Empties the workers' store.
    pub(crate) fn purge(&mut self) {
        match &self.met {
            Some(met) => met.purge(),
            None => self.local.purge(),
        }
    }

    /// Exchanges ranks.
    pub(crate) fn assign(&mut self, round: &Round) {
        let agents = round.group_world_size;
        if self.identical_workers {
            let assigned = exchange::without_store(&self.us, agents);
            self.answer(Answer::Assigned(Ok(assigned)));
        } else if agents == 1 {
            let assigned = exchange::by_store(&*self.store, &self.us, agents);
            self.answer(Answer::Assigned(assigned));
        } else {
            let (store, us) = (Arc::clone(&self.store), self.us.clone());
            self.apart("ranks", move || {
                Answer::Assigned(exchange::by_store(&*store, &us, agents))
            });
        }
    }

    /// Hands out the port that was kept free for the worker that hosts the store, to be dropped
    /// when that worker has been started.
    pub(crate) fn release_port(&mut self, place: &WorkerPlace) -> Option<TcpListener> {
        if place.rank.0 == 0 {
            self.local.release_port()
        } else {
            None
        }
    }

    /// Waits until the workers of all agents have succeeded.
    pub(crate) fn wait_for_others(&mut self, agents: u32) {
        let store = Arc::clone(&self.store);
        self.apart("exit barrier", move || {
            let timeout = Some(barrier::EXIT_BARRIER_TIMEOUT);
            Answer::BarrierPassed(store.barrier(barrier::TERMINAL_STATE, agents, timeout))
        });
    }

    /// Leaves the others; the receiver hears when that is done. After success they may still have
    /// something to read from the store.
    pub(crate) fn leave(&mut self, succeeded: bool) -> Option<oneshot::Receiver<()>> {
        self.store = Arc::new(HashStore::new());
        let met = self.met.take()?;
        let others_may_read = succeeded && met.round().group_world_size > 1;
        let (sender, left) = oneshot::channel();
        let leaving = thread::Builder::new()
            .name("leave".to_owned())
            .spawn(move || {
                met.leave(others_may_read);
                let _ = sender.send(());
            });
        leaving.ok().map(|_| left)
    }

    /// Does something that may wait for others.
    fn apart(&self, name: &str, work: impl FnOnce() -> Answer + Send + 'static) {
        let answers = self.answers.clone();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = answers.send(work());
        });
        if let Err(source) = thread {
            self.answer(Answer::Joined(Err(AgentError::System {
                what: "start a thread for the rendezvous",
                source,
            })));
        }
    }

    fn answer(&self, answer: Answer) {
        // Nobody listens any more only when the agent is ending.
        let _ = self.answers.send(answer);
    }
}
