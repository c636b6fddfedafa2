//! Backend that records its events, as torchelastic does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdzv_core::ident::RunId;
use rdzv_store::Pinger;

use crate::event::{NodeState, Recorder, RendezvousEvent};
use crate::{
    Change, ExitBarrier, Interrupter, JoiningAgent, Observer, RendezvousBackend, RendezvousError,
    RendezvousInfo,
};

/// Wrapper that records the events of a node.
pub(crate) struct Recorded {
    backend: Box<dyn RendezvousBackend>,
    recorder: Recorder,
    /// `true` while the node joins a round, or is in one that it can leave.
    takes_part: Arc<AtomicBool>,
    /// `true` if the backend has its observer. Some backends accept only one.
    is_observed: bool,
}

impl Recorded {
    pub(crate) fn new(mut backend: Box<dyn RendezvousBackend>, recorder: Recorder) -> Self {
        backend.set_recorder(Arc::clone(&recorder));
        Self {
            backend,
            recorder,
            takes_part: Arc::default(),
            is_observed: false,
        }
    }

    fn record(&self, state: NodeState, message: String) {
        (self.recorder)(RendezvousEvent::new(state, message));
    }

    /// Records that the node has left, if `left` is a success.
    fn has_left(&self, left: Result<(), RendezvousError>) -> Result<(), RendezvousError> {
        self.checked(left)?;
        if self.takes_part.swap(false, Ordering::SeqCst) {
            let message = format!("The node has left the rendezvous '{}'.", self.run_id());
            self.record(NodeState::Succeeded, message);
        }
        Ok(())
    }

    /// Records an error on its way to the caller.
    fn checked<T>(&self, result: Result<T, RendezvousError>) -> Result<T, RendezvousError> {
        result.inspect_err(|error| (self.recorder)(RendezvousEvent::failed(error)))
    }
}

impl RendezvousBackend for Recorded {
    fn name(&self) -> &str {
        self.backend.name()
    }

    fn run_id(&self) -> &RunId {
        self.backend.run_id()
    }

    fn join(&mut self, member: &JoiningAgent) -> Result<RendezvousInfo, RendezvousError> {
        if !self.is_observed {
            self.set_observer(Box::new(drop));
        }
        let run_id = self.run_id().clone();
        self.record(
            NodeState::Init,
            format!("The node joins the next round of the rendezvous '{run_id}'."),
        );
        // Set before the join, because the loss of the store can arrive before the join returns.
        self.takes_part.store(true, Ordering::SeqCst);
        let joined = self.backend.join(member);
        match &joined {
            Ok(info) => {
                let (rank, size) = (info.rank, info.world_size);
                let message = format!(
                    "The node has joined round {} of the rendezvous '{run_id}' as rank {rank} of \
                     {size}.",
                    info.round
                );
                (self.recorder)(RendezvousEvent {
                    rank: Some(rank),
                    ..RendezvousEvent::new(NodeState::Running, message)
                });
            }
            Err(error) => {
                self.takes_part.store(false, Ordering::SeqCst);
                match error {
                    RendezvousError::Interrupted => {}
                    RendezvousError::NotNeeded { .. } => {
                        self.record(NodeState::Succeeded, error.to_string());
                    }
                    error => (self.recorder)(RendezvousEvent::failed(error)),
                }
            }
        }
        joined
    }

    fn interrupter(&self) -> Option<Interrupter> {
        self.backend.interrupter()
    }

    fn set_observer(&mut self, observer: Observer) {
        self.is_observed = true;
        let (recorder, takes_part) = (Arc::clone(&self.recorder), Arc::clone(&self.takes_part));
        let run_id = self.run_id().clone();
        self.backend.set_observer(Box::new(move |change| {
            match &change {
                Change::Membership { reason, .. } => {
                    recorder(RendezvousEvent::new(NodeState::Running, reason));
                }
                // The agents word the reason of a failure, so they record it.
                Change::PeerFailed { .. } | Change::Lease { .. } | Change::LossesKnownWithin(_) => {
                }
                Change::Closed => recorder(RendezvousEvent::new(
                    NodeState::Running,
                    format!("The rendezvous '{run_id}' was closed."),
                )),
                Change::Lost(error) => {
                    takes_part.store(false, Ordering::SeqCst);
                    recorder(RendezvousEvent::failed(error));
                }
            }
            observer(change);
        }));
    }

    fn losses_known_within(&self) -> Duration {
        self.backend.losses_known_within()
    }

    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        self.backend.threads()
    }

    fn report_success(&mut self) {
        self.backend.report_success();
    }

    fn exit_barrier(&self) -> Option<ExitBarrier> {
        self.backend.exit_barrier()
    }

    fn shares_store_with_workers(&self) -> bool {
        self.backend.shares_store_with_workers()
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        self.checked(self.backend.is_closed())
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        let closed = self.backend.set_closed();
        self.checked(closed)?;
        let message = format!("The node has closed the rendezvous '{}'.", self.run_id());
        self.record(NodeState::Succeeded, message);
        Ok(())
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        self.checked(self.backend.num_nodes_waiting())
    }

    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        self.backend.report_failure(reason)
    }

    fn leave(&mut self) -> Result<(), RendezvousError> {
        let left = self.backend.leave();
        self.has_left(left)
    }

    fn leave_to_successor(&mut self) -> Result<(), RendezvousError> {
        let left = self.backend.leave_to_successor();
        self.has_left(left)
    }

    fn shutdown(&mut self) -> bool {
        let closed = self.backend.shutdown();
        let run_id = self.run_id();
        match (self.takes_part.swap(false, Ordering::SeqCst), closed) {
            // A node that was in no round has closed nothing, and its failure is recorded already.
            (false, _) => {}
            (true, true) => self.record(
                NodeState::Succeeded,
                format!("The node has closed the rendezvous '{run_id}'."),
            ),
            (true, false) => self.record(
                NodeState::Failed,
                format!("The node could not close the rendezvous '{run_id}'."),
            ),
        }
        closed
    }
}
