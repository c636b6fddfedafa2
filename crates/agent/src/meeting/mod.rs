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
mod local;

use std::net::TcpListener;

use rdzv_core::group::{Round, WorkerPlace};
use rdzv_core::rank::{Assignment, GroupRank, RoleInfo};
use rdzv_store::{HashStore, StoreError};
use tokio::sync::mpsc::UnboundedSender;

use crate::{AgentError, LaunchPlan, RendezvousPlan};
use local::LocalMeeting;

/// What comes back, some time later.
#[derive(Debug)]
pub(crate) enum Answer {
    /// To [`Meeting::join`].
    Joined(Result<Round, AgentError>),
    /// To [`Meeting::assign`].
    Assigned(Result<Assignment, AgentError>),
    /// To [`Meeting::wait_for_others`].
    BarrierPassed(Result<(), StoreError>),
}

/// The agent's side of the rendezvous.
#[derive(Debug)]
pub(crate) struct Meeting {
    us: RoleInfo,
    identical_workers: bool,
    local: LocalMeeting,
    rendezvous: RendezvousPlan,
    answers: UnboundedSender<Answer>,
}

impl Meeting {
    pub(crate) fn new(plan: &LaunchPlan, answers: UnboundedSender<Answer>) -> Self {
        Self {
            us: RoleInfo {
                role: plan.role.clone(),
                rank: GroupRank(0),
                local_world_size: plan.local_world_size,
            },
            identical_workers: plan.identical_workers,
            local: LocalMeeting::new(plan),
            rendezvous: plan.rendezvous.clone(),
            answers,
        }
    }

    /// Finds the other agents.
    pub(crate) fn join(&mut self) {
        let round = match self.rendezvous {
            RendezvousPlan::Local => self.local.round(),
            RendezvousPlan::Static { .. } => Err(AgentError::Plan(
                "the static rendezvous needs the store's client".to_owned(),
            )),
        };
        self.answer(Answer::Joined(round));
    }

    /// Empties the workers' store.
    pub(crate) fn purge(&mut self) {
        self.local.purge();
    }

    /// Exchanges ranks.
    pub(crate) fn assign(&mut self, round: &Round) {
        let assigned = if self.identical_workers {
            Ok(exchange::without_store(&self.us, round.group_world_size))
        } else {
            // One path for all: alone, the agent talks to itself.
            exchange::by_store(&HashStore::new(), &self.us, round.group_world_size)
        };
        self.answer(Answer::Assigned(assigned));
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
    pub(crate) fn wait_for_others(&mut self) {
        self.answer(Answer::BarrierPassed(Ok(())));
    }

    fn answer(&self, answer: Answer) {
        // Nobody listens any more only when the agent is ending.
        let _ = self.answers.send(answer);
    }
}
