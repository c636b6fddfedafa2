//! Outputs of the state machine: recorded under its lock, applied afterwards.
//!
//! Sending can close a connection, and the state machine must then receive an input. Dropping a
//! value can drop references inside it. Both need the lock again.

use std::sync::Arc;

use rdzv_core::machine::Machine as _;
use rdzv_rpc_proto::frame::FrameKind;
use rdzv_rpc_proto::rref::{Batch, ForkId, Output, RRefId, ReferenceFailure};

use super::State;
use crate::error::RpcError;
use crate::rref::kept::Made;
use crate::runtime::core::Core;
use crate::wire::link::fail;

/// Work to do after the lock is released.
pub(super) type Effect = Box<dyn FnOnce(&Arc<Core>)>;

impl State {
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        let mut effects: Vec<Effect> = Vec::new();
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(batch) => effects.push(Box::new(move |core| send(core, &batch))),
                Output::Confirmed(fork) => effects.push(self.confirm(fork, Ok(()))),
                Output::Broken(fork, failure) => {
                    effects.push(self.confirm(fork, Err(failure.into())));
                }
                Output::Free(rref) => {
                    if let Some(value) = self.values.remove(&rref) {
                        // A destructor of the application must not delay a connection.
                        let free = async move { drop(value) };
                        effects.push(Box::new(|core| core.executor.spawn(free)));
                    }
                }
                Output::Fetched(fetch, outcome) => {
                    if let Some((rref, waiting)) = self.questions.remove(&fetch) {
                        let made = self.answer(rref, outcome);
                        effects.push(Box::new(move |_| {
                            waiting.fill(made);
                        }));
                    }
                }
                Output::Drained => {
                    let waiting = std::mem::take(&mut self.drained);
                    effects.push(Box::new(move |_| {
                        for slot in waiting {
                            slot.fill(());
                        }
                    }));
                }
                Output::Lost { member, released } => effects.push(Box::new(move |_| {
                    tracing::warn!(
                        %member,
                        released,
                        "a worker is lost: its references are released, those to its values fail"
                    );
                })),
                Output::Ended(leaks) => self.leaks = leaks,
                Output::Completed { .. } => {}
            }
        }
        effects
    }

    /// Notifies all waiters for the confirmation of a fork.
    fn confirm(&mut self, fork: ForkId, outcome: Result<(), RpcError>) -> Effect {
        let waiting = self.confirmations.remove(&fork).unwrap_or_default();
        Box::new(move |_| {
            for confirmation in waiting {
                confirmation.fill(outcome.clone());
            }
        })
    }

    fn answer(&self, rref: RRefId, outcome: Result<(), ReferenceFailure>) -> Made {
        outcome?;
        self.values
            .get(&rref)
            .cloned()
            .unwrap_or_else(|| Err(ReferenceFailure::Gone(rref).into()))
    }
}

/// Sends a batch over the connection to the member.
/// If there is no connection yet, this opens one, and the state machine resends the batch later.
fn send(core: &Arc<Core>, batch: &Batch) {
    let members = core.members();
    let same = |incarnation| incarnation == batch.to.incarnation;
    let Some(member) = members.get(&batch.to.id).filter(|it| same(it.incarnation)) else {
        return;
    };
    let Some(client) = core.reach(member) else {
        return;
    };
    // The batch has only types that postcard supports.
    let body = postcard::to_stdvec(batch).unwrap_or_default();
    if let Err(error) = client.tell(FrameKind::References, 0, &body) {
        fail(&client, error);
    }
}
