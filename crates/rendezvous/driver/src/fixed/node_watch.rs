//! Detection of lost static nodes.
//!
//! The agents join a run at the coordinator in node 0's store server, as agents of the c10d backend
//! do. The coordinator notifies them when a connection ends or becomes silent.
//!
//! If node 0 runs `torchrun`, there is no coordinator, and no loss is detected. If another node
//! runs `torchrun`, the run never completes, and no loss is detected either.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::debug;

use super::SharedObserver;
use crate::dynamic::native::{Native, NativeOptions};
use crate::runtime::{Call, beside};
use crate::{Change, Interrupter, JoiningAgent, RendezvousBackend, RendezvousError};

/// Time limit to find out whether the server has a coordinator.
const FOUND_WITHIN: Duration = Duration::from_secs(10);

/// Reason why this node leaves the others.
pub(super) enum Ending {
    /// All nodes have succeeded.
    Succeeded,
    /// The run has failed for this reason.
    Failed(String),
    Left,
}

/// Membership of this node in the watched run.
pub(super) struct NodeWatch {
    shared: Arc<Shared>,
    /// `None` reports that the workers of this node have succeeded.
    ending: Sender<Option<Ending>>,
    call: Call,
}

#[derive(Default)]
struct Shared {
    /// Message of the coordinator about a lost node.
    lost: OnceLock<String>,
    interrupter: OnceLock<Interrupter>,
}

impl NodeWatch {
    /// Joins the others on a separate thread. The observer receives the changes.
    pub(super) fn start(
        options: NativeOptions,
        member: JoiningAgent,
        observer: SharedObserver,
    ) -> io::Result<Self> {
        let shared: Arc<Shared> = Arc::default();
        let watch = Arc::clone(&shared);
        let (ending, ended) = channel();
        let call = beside(move || {
            if let Err(error) = watch.run(options, &member, observer, &ended) {
                debug!("cannot detect the loss of other nodes: {error}");
            }
        })?;
        Ok(Self {
            shared,
            ending,
            call,
        })
    }

    /// Returns the error that prevents a further round, if a node is lost.
    pub(super) fn failure(&self) -> Option<RendezvousError> {
        self.shared.lost.get().map(|reason| lost_node(reason))
    }

    /// Reports that the workers of this node have succeeded.
    pub(super) fn succeeded(&self) {
        let _it_has_ended = self.ending.send(None);
    }

    /// Leaves the others. This may take a while if the server does not answer.
    pub(super) fn end(self, ending: Ending) {
        let _it_has_ended = self.ending.send(Some(ending));
        if let Some(interrupt) = self.shared.interrupter.get() {
            interrupt();
        }
        self.call.join();
    }
}

impl Shared {
    fn run(
        self: Arc<Self>,
        options: NativeOptions,
        member: &JoiningAgent,
        observer: SharedObserver,
        ended: &Receiver<Option<Ending>>,
    ) -> Result<(), RendezvousError> {
        let met = Native::connect(options, FOUND_WITHIN)?;
        let Some(mut native) = met.coordinator() else {
            debug!("the store of node 0 has no coordinator");
            return Ok(());
        };
        if let Some(interrupter) = native.interrupter() {
            let _the_only_one_who_sets_it = self.interrupter.set(interrupter);
        }
        let mut has_succeeded = false;
        match ended.try_recv() {
            Ok(None) => has_succeeded = true,
            Ok(Some(_)) => return Ok(()),
            Err(_) => {}
        }
        self.observe(&mut native, observer);
        native.join(member)?;
        loop {
            if has_succeeded {
                native.report_success();
            }
            match ended.recv() {
                Ok(None) => has_succeeded = true,
                // The rest of the run does not matter, and no node is lost with it.
                Ok(Some(Ending::Succeeded)) => return native.set_closed(),
                // The failure channel has already sent the others a better reason than a loss.
                Ok(Some(Ending::Failed(reason))) => {
                    native.report_failure(&reason)?;
                    return native.leave();
                }
                Ok(Some(Ending::Left)) | Err(_) => return native.leave(),
            }
        }
    }

    fn observe(self: Arc<Self>, native: &mut Native, observer: SharedObserver) {
        let is_explained = OnceLock::new();
        native.set_observer(Box::new(move |change| match change {
            Change::PeerFailed { .. } => drop(is_explained.set(())),
            Change::Closed | Change::Lease { .. } | Change::LossesKnownWithin(_) => {}
            Change::Membership { .. } | Change::Lost(_) if is_explained.get().is_some() => {}
            Change::Membership { round, reason } => {
                let _the_first_one_counts = self.lost.set(reason.clone());
                observer(Change::Membership { round, reason });
            }
            change @ Change::Lost(_) => observer(change),
        }));
    }
}

/// Converts the coordinator's message `node ADDRESS_PROCESS_RANK is lost: …`.
fn lost_node(reason: &str) -> RendezvousError {
    let words = reason.strip_prefix("node ").unwrap_or(reason);
    let (node, how) = words.split_once(' ').unwrap_or((words, "is lost"));
    let rank = node.rsplit('_').next().unwrap_or_default();
    RendezvousError::PeerFailed {
        node: format!("{node} (node rank {rank})"),
        reason: format!(
            "it {how}; a static rendezvous cannot replace a lost node (--rdzv-backend c10d can)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_node_is_named_with_its_rank() {
        let lost = lost_node("node 10.0.0.2_417_3 is lost: its connection closed");
        let RendezvousError::PeerFailed { node, reason } = lost else {
            panic!("{lost:?}");
        };
        assert_eq!(node, "10.0.0.2_417_3 (node rank 3)");
        let how = "it is lost: its connection closed; ";
        assert!(reason.starts_with(how), "{reason}");
    }
}
