//! Finding the other agents, exchanging ranks with them, and the store that the workers meet at.
//!
//! Everything here that may wait for others does so on a thread of its own and answers through a
//! channel, so that the agent's loop never waits for anything but events.

use std::net::TcpListener;

use rdzv_core::group::{Master, Round, WorkerPlace};
use rdzv_core::rank::{Assignment, GroupRank, RoleInfo, assign};
use rdzv_store::StoreError;
use tokio::sync::mpsc::UnboundedSender;

use crate::{AgentError, LaunchPlan, RendezvousPlan};

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
    rendezvous: RendezvousPlan,
    address: String,
    us: RoleInfo,
    answers: UnboundedSender<Answer>,
    port: Option<TcpListener>,
}

impl Meeting {
    pub(crate) fn new(plan: &LaunchPlan, answers: UnboundedSender<Answer>) -> Self {
        Self {
            rendezvous: plan.rendezvous.clone(),
            address: plan
                .local_addr
                .clone()
                .unwrap_or_else(|| "127.0.0.1".to_owned()),
            us: RoleInfo {
                role: plan.role.clone(),
                rank: GroupRank(0),
                local_world_size: plan.local_world_size,
            },
            answers,
            port: None,
        }
    }

    /// Finds the other agents.
    pub(crate) fn join(&mut self, restart_count: u32) {
        let _ = restart_count;
        let round = match self.rendezvous {
            RendezvousPlan::Local => self.local_round(),
            RendezvousPlan::Static { .. } => Err(AgentError::Plan(
                "the static rendezvous needs the store's client".to_owned(),
            )),
        };
        let _ = self.answers.send(Answer::Joined(round));
    }

    fn local_round(&mut self) -> Result<Round, AgentError> {
        let listener = TcpListener::bind((self.address.as_str(), 0));
        let bound = listener.and_then(|listener| {
            let port = listener.local_addr()?.port();
            self.port = Some(listener);
            Ok(port)
        });
        let port = bound.map_err(|source| AgentError::System {
            what: "find a free port for the workers' store",
            source,
        })?;
        Ok(Round {
            group_rank: GroupRank(0),
            group_world_size: 1,
            master: Master {
                addr: self.address.clone(),
                port,
                hosted_by_agent: false,
            },
        })
    }

    /// Empties the workers' store.
    pub(crate) fn purge(&mut self) -> Result<(), AgentError> {
        Ok(())
    }

    /// Exchanges ranks.
    pub(crate) fn assign(&mut self, round: &Round) {
        let _ = round;
        let assigned = assign(std::slice::from_ref(&self.us))[0];
        let _ = self.answers.send(Answer::Assigned(Ok(assigned)));
    }

    /// Hands out the port that was kept free for the worker that hosts the store, to be dropped
    /// when that worker is about to run.
    pub(crate) fn release_port(&mut self, place: &WorkerPlace) -> Option<TcpListener> {
        if place.rank.0 == 0 {
            self.port.take()
        } else {
            None
        }
    }

    /// Waits until the workers of all agents have succeeded.
    pub(crate) fn wait_for_others(&mut self) {
        let _ = self.answers.send(Answer::BarrierPassed(Ok(())));
    }

    /// Ends what this agent hosts.
    pub(crate) fn leave(&mut self) {
        self.port = None;
    }
}
