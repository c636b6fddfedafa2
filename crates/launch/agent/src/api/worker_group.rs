//! Snapshots of a worker group, updated by the agent's events.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rdzv_core::rank::{GroupRank, LocalRank};

use super::{Worker, WorkerLocation, WorkerSpec, WorkerState};
use crate::AgentEvent;
use crate::round_store::RoundStore;
use crate::worker::WorkerIdentity;

/// Workers of one agent at one moment.
#[derive(Debug, Clone)]
pub struct WorkerGroup {
    /// Specification of the workers.
    pub spec: Arc<WorkerSpec>,
    /// All workers by local rank, also before the first rendezvous.
    pub workers: Vec<Worker>,
    /// Store that the agents of the round share, once ranks are assigned.
    pub store: Option<RoundStore>,
    /// Endpoint of the workers' store, once ranks are assigned.
    pub master: Option<StoreInfo>,
    /// Rank of the agent among the agents of the round.
    pub group_rank: Option<GroupRank>,
    /// Number of agents in the round.
    pub group_world_size: Option<u32>,
    /// Number of restarts of the group after failures.
    pub restart_count: u32,
    /// State of the group as a whole.
    pub state: WorkerState,
}

/// Endpoint of the workers' store of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreInfo {
    /// Value of `MASTER_ADDR`.
    pub master_addr: String,
    /// Value of `MASTER_PORT`.
    pub master_port: u16,
}

impl WorkerGroup {
    /// Returns a group before its start.
    pub fn new(spec: Arc<WorkerSpec>) -> Self {
        let workers = (0..spec.local_world_size())
            .map(|local_rank| Worker::new(LocalRank(local_rank)))
            .collect();
        Self {
            spec,
            workers,
            store: None,
            master: None,
            group_rank: None,
            group_world_size: None,
            restart_count: 0,
            state: WorkerState::Init,
        }
    }

    /// Returns the group rank, or -1.
    pub fn group_rank_or_unset(&self) -> i64 {
        self.group_rank.map_or(-1, |rank| i64::from(rank.0))
    }

    /// Returns `MASTER_ADDR`, if known.
    pub fn master_addr(&self) -> Option<&str> {
        self.master
            .as_ref()
            .map(|master| master.master_addr.as_str())
    }

    /// Returns `MASTER_PORT`, if known.
    pub fn master_port(&self) -> Option<u16> {
        self.master.as_ref().map(|master| master.master_port)
    }

    fn apply(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Rendezvous {
                result: Ok((rank, agents)),
                restart_count,
                ..
            } => {
                let (spec, state) = (Arc::clone(&self.spec), self.state);
                *self = Self::new(spec);
                self.state = state;
                self.group_rank = Some(*rank);
                self.group_world_size = Some(*agents);
                self.restart_count = *restart_count;
            }
            AgentEvent::RanksAssigned {
                workers,
                master_addr,
                master_port,
                store,
                ..
            } => {
                self.workers = workers.iter().map(Worker::from).collect();
                self.store = Some(store.clone());
                self.master = Some(StoreInfo {
                    master_addr: master_addr.clone(),
                    master_port: *master_port,
                });
            }
            AgentEvent::WorkerStarted { worker, .. } => self.started(worker),
            AgentEvent::StateChanged {
                state,
                restart_count,
                ..
            } => {
                self.state = *state;
                self.restart_count = *restart_count;
            }
            _ => {}
        }
    }

    pub(super) fn set_ids(&mut self, ids: &BTreeMap<LocalRank, WorkerLocation>) {
        for worker in &mut self.workers {
            worker.id = ids.get(&worker.local_rank).cloned();
        }
    }

    fn started(&mut self, identity: &WorkerIdentity) {
        let local_rank = identity.local_rank;
        let known = self
            .workers
            .iter_mut()
            .find(|worker| worker.local_rank == local_rank);
        if let Some(worker) = known {
            let id = worker.id.take();
            *worker = Worker::from(identity);
            // Only processes have ids in events.
            worker.id = worker.id.take().or(id);
        }
    }
}

/// Group that its agent updates and other threads read.
#[derive(Debug, Clone)]
pub(super) struct View(Arc<Mutex<WorkerGroup>>);

impl View {
    pub(super) fn new(spec: Arc<WorkerSpec>) -> Self {
        Self(Arc::new(Mutex::new(WorkerGroup::new(spec))))
    }

    pub(super) fn change<T>(&self, change: impl FnOnce(&mut WorkerGroup) -> T) -> T {
        // If a thread panicked with the lock held, it was only reading.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records an event, and passes it to the handlers of the specification.
    pub(super) fn record(&self, spec: &WorkerSpec, event: &AgentEvent) {
        self.change(|group| group.apply(event));
        for handler in &spec.event_handlers {
            let mut handler = handler.lock().unwrap_or_else(PoisonError::into_inner);
            handler.record(event);
        }
    }

    pub(super) fn snapshot(&self) -> WorkerGroup {
        self.change(|group| group.clone())
    }
}
