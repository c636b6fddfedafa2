//! The two channels of the task: the commands that it receives, and the events of a join.

use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};

use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::participant::Formed;
use rdzv_store::Store;

use crate::dynamic::Notice;
use crate::{Observer, RendezvousError};

/// A command to the task.
pub(super) enum Command {
    /// Take part; the events go to the sender.
    Join(Sender<Event>),
    /// End the join under way, and begin no other.
    Interrupt,
    /// Do not take part any more.
    Leave(SyncSender<Result<(), RendezvousError>>),
    /// End it for everybody.
    Close(SyncSender<Result<(), RendezvousError>>),
    /// Read the state, without consequences.
    ReadState(SyncSender<Result<Option<RendezvousState>, RendezvousError>>),
    /// Make the store of another round.
    RoundStore(u64, SyncSender<Result<Arc<dyn Store>, RendezvousError>>),
    /// Notify this one of changes.
    Observe(Observer),
    /// The backend has noticed something.
    Notice(Notice),
    /// A participant has failed for good.
    PeerFailed { node: String, reason: String },
    /// Say that the task is alive.
    Ping(Sender<()>),
    /// End.
    End,
}

/// What becomes of a join.
pub(super) enum Event {
    /// The round is complete; with its store.
    Formed(Formed, Arc<dyn Store>),
    Failed(RendezvousError),
    /// Somebody interrupts it; the node is about to leave.
    Interrupted,
}
