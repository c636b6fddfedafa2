//! Channels of the task: its commands, and the events of a join.

use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender};

use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::participant::Formed;
use rdzv_store::Store;

use crate::dynamic::Notice;
use crate::{Observer, RendezvousError};

pub(super) enum Command {
    /// Joins a round and sends the events to the sender.
    Join(Sender<Event>),
    /// Ends the running join, and rejects later ones.
    Interrupt,
    /// Leaves the run.
    Leave(SyncSender<Result<(), RendezvousError>>),
    /// Closes the run for all nodes.
    Close(SyncSender<Result<(), RendezvousError>>),
    /// Reads the state, without changes to the machine.
    ReadState(SyncSender<Result<Option<RendezvousState>, RendezvousError>>),
    /// Opens the store of another round.
    RoundStore(u64, SyncSender<Result<Arc<dyn Store>, RendezvousError>>),
    /// Sets the receiver of changes.
    Observe(Observer),
    /// Passes a notice of the backend.
    Notice(Notice),
    /// Reports the permanent failure of a member.
    PeerFailed { node: String, reason: String },
    /// Asks whether the task is alive.
    Ping(Sender<()>),
    /// Ends the task.
    End,
}

pub(super) enum Event {
    /// The round is complete; the second value is its store.
    Formed(Formed, Arc<dyn Store>),
    Failed(RendezvousError),
    /// The agent interrupts the join; the node is about to leave.
    Interrupted,
}
