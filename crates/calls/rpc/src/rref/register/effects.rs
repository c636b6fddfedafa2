//! What the machine wants done: noted under the lock, and done after it is released.
//!
//! Sending may end a connection, which the machine has to be told; dropping a value may drop
//! references in it. Both would need the lock again.

use std::sync::Arc;

use rdzv_core::machine::Machine as _;
use rdzv_rpc_proto::frame::FrameKind;
use rdzv_rpc_proto::rref::{Batch, Failure, Member, Output, RRefId};

use super::{Answer, State};
use crate::channel::slot::Slot;
use crate::error::RpcError;
use crate::rref::kept::Made;
use crate::runtime::core::{Confirmation, Core};
use crate::wire::link::fail;

/// What is done after the lock is released.
pub(super) enum Effect {
    Send(Batch),
    Confirm(Vec<Confirmation>, Result<(), RpcError>),
    Answer(Answer, Made),
    Drop(Made),
    Drained(Arc<Slot<()>>),
    Lost(Member, usize),
}

impl State {
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(batch) => effects.push(Effect::Send(batch)),
                Output::Confirmed(fork) => {
                    if let Some(waiting) = self.confirmations.remove(&fork) {
                        effects.push(Effect::Confirm(waiting, Ok(())));
                    }
                }
                Output::Broken(fork, failure) => {
                    if let Some(waiting) = self.confirmations.remove(&fork) {
                        effects.push(Effect::Confirm(waiting, Err(failure.into())));
                    }
                }
                Output::Free(rref) => {
                    if let Some(value) = self.values.remove(&rref) {
                        effects.push(Effect::Drop(value));
                    }
                }
                Output::Fetched(fetch, outcome) => {
                    if let Some((rref, waiting)) = self.questions.remove(&fetch) {
                        effects.push(Effect::Answer(waiting, self.answer(rref, outcome)));
                    }
                }
                Output::Drained => {
                    let waiting = self.drained.drain(..);
                    effects.extend(waiting.map(Effect::Drained));
                }
                Output::Lost { member, released } => effects.push(Effect::Lost(member, released)),
                Output::Ended(leaks) => self.leaks = leaks,
                Output::Completed { .. } => {}
            }
        }
        effects
    }

    fn answer(&self, rref: RRefId, outcome: Result<(), Failure>) -> Made {
        outcome?;
        self.values
            .get(&rref)
            .cloned()
            .unwrap_or_else(|| Err(Failure::Gone(rref).into()))
    }
}

impl Effect {
    pub(super) fn apply(self, core: &Arc<Core>) {
        match self {
            Self::Send(batch) => send(core, &batch),
            Self::Confirm(waiting, outcome) => {
                for confirmation in waiting {
                    confirmation.fill(outcome.clone());
                }
            }
            Self::Answer(answer, made) => {
                answer.fill(made);
            }
            // What a destructor of the application does must not hold up a connection.
            Self::Drop(value) => core.executor.spawn(async move { drop(value) }),
            Self::Drained(slot) => {
                slot.fill(());
            }
            Self::Lost(member, released) => {
                tracing::warn!(
                    %member,
                    released,
                    "a worker is lost: its references are released, those to its values fail"
                );
            }
        }
    }
}

/// Sends a batch, if there is a connection; else there will be one, and the machine sends it again.
fn send(core: &Arc<Core>, batch: &Batch) {
    let members = core.members();
    let same = |incarnation| incarnation == batch.to.incarnation;
    let Some(member) = members.get(&batch.to.id).filter(|it| same(it.incarnation)) else {
        return;
    };
    let Some(client) = core.reach(member) else {
        return;
    };
    // There is nothing in it that postcard does not know.
    let body = postcard::to_stdvec(batch).unwrap_or_default();
    if let Err(error) = client.tell(FrameKind::References, 0, &body) {
        fail(&client, error);
    }
}
