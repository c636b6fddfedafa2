//! References of an agent: its state machine, its values, and the waiters.
//!
//! The register records the outputs of the state machine under the lock. It applies them after the
//! release of the lock; see [`effects`].

mod effects;
mod travel;

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_lock::Mutex;
use rdzv_rpc_proto::rref::{
    Counters, Fetch, FetchId, ForkId, Handle, Input, Leak, Member, RRefId, ReferenceFailure,
    References, Settings, UserInfo,
};
use rdzv_rpc_proto::worker::WorkerInfo;

use super::kept::{Keep, Kept, Made};
use crate::channel::slot::Slot;
use crate::error::RpcError;
use crate::runtime::core::{Confirmation, Core, RpcAgent};
use crate::wire::clock;

/// Share in a value of any type.
///
/// Dropping it releases the share.
pub(crate) struct Held {
    /// Agent of the reference. The reference does not keep the agent running.
    pub(super) core: Arc<Core>,
    pub(super) handle: Handle,
    pub(super) owner: WorkerInfo,
    /// Name of the value's type on the worker that created the first reference.
    pub(super) type_name: Box<str>,
}

impl Drop for Held {
    fn drop(&mut self) {
        let register = Register::of(&self.core);
        register.tell(&self.core, Input::Dropped(self.handle));
        if let Handle::User(_, fork) = self.handle {
            register.forget_cause(fork);
        }
    }
}

pub(super) type Answer = Arc<Slot<Made>>;

/// Remote references of an agent.
pub(crate) struct Register {
    me: Member,
    /// Functions that keep the results of methods, by method number.
    keeps: BTreeMap<u64, Keep>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    machine: References,
    /// Values that exist here, and the errors of functions that failed.
    values: HashMap<RRefId, Made>,
    confirmations: HashMap<ForkId, Vec<Confirmation>>,
    /// Waiters for a value, by request.
    questions: HashMap<FetchId, (RRefId, Answer)>,
    next_question: u64,
    /// Reasons why creations failed.
    causes: HashMap<ForkId, RpcError>,
    drained: Vec<Arc<Slot<()>>>,
    leaks: Vec<Leak>,
}

impl Register {
    pub(crate) fn new(me: Member, settings: Settings, keeps: BTreeMap<u64, Keep>) -> Self {
        Self {
            me,
            keeps,
            state: Mutex::new(State {
                machine: References::new(me, settings),
                ..State::default()
            }),
        }
    }

    /// Returns the register of an agent.
    ///
    /// # Panics
    ///
    /// Panics if the agent was created with another type of register, which no code does.
    pub(crate) fn of(core: &Core) -> &Self {
        let references: &dyn Any = &*core.references;
        references
            .downcast_ref()
            .expect("the references of an agent are a register")
    }

    /// Returns the function that keeps the result of a method, if there is one.
    pub(super) fn keep(&self, method: u64) -> Option<&Keep> {
        self.keeps.get(&method)
    }

    /// Returns this worker as a holder of references.
    pub(crate) fn me(&self) -> Member {
        self.me
    }

    /// Runs `ask` on the state machine under the lock; then applies the outputs.
    pub(super) fn with<R>(
        &self,
        core: &Arc<Core>,
        ask: impl FnOnce(&mut References, Now) -> R,
    ) -> R {
        self.with_state(core, |state, now| ask(&mut state.machine, now))
    }

    fn with_state<R>(&self, core: &Arc<Core>, ask: impl FnOnce(&mut State, Now) -> R) -> R {
        let now = Now::at(clock::mono(Instant::now()));
        let mut state = self.state.lock();
        let answer = ask(&mut state, now);
        let effects = state.effects();
        let deadline = state.machine.deadline();
        drop(state);
        for effect in effects {
            effect(core);
        }
        if let Some(deadline) = deadline {
            core.note_deadline(clock::instant(deadline));
        }
        answer
    }

    pub(super) fn tell(&self, core: &Arc<Core>, input: Input<'_>) {
        self.with(core, |machine, now| machine.handle(now, input));
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().machine.counters()
    }

    /// Returns the number of values here, even if no other worker uses them.
    #[cfg(test)]
    pub(crate) fn values(&self) -> usize {
        self.state.lock().values.len()
    }

    /// Keeps a value that the application created.
    pub(super) fn own(&self, core: &Arc<Core>, value: Kept) -> Result<RRefId, RpcError> {
        self.with_state(core, |state, _| {
            let rref = state.machine.create()?;
            state.values.insert(rref, Ok(value));
            Ok(rref)
        })
    }

    /// Stores the result of a function that creates a value.
    pub(super) fn made(&self, core: &Arc<Core>, rref: RRefId, made: Made) {
        self.with_state(core, |state, now| {
            let failed = made.is_err();
            state.values.insert(rref, made);
            state.machine.handle(now, Input::Made { rref, failed });
        });
    }

    pub(super) fn creation_failed(&self, core: &Arc<Core>, fork: ForkId, cause: RpcError) {
        self.with_state(core, |state, now| {
            state.causes.insert(fork, cause);
            state.machine.handle(now, Input::CreationFailed(fork));
            if state.machine.user(fork).is_none() {
                state.causes.remove(&fork);
            }
        });
    }

    /// Returns the reason why a fork cannot be used.
    pub(super) fn why(&self, fork: ForkId, failure: &ReferenceFailure) -> RpcError {
        let cause = match failure {
            ReferenceFailure::CreationFailed => self.state.lock().causes.get(&fork).cloned(),
            _ => None,
        };
        let Some(cause) = cause else {
            return failure.clone().into();
        };
        use crate::RpcErrorKind::{Deadline, PeerLost};
        match cause.kind {
            Deadline | PeerLost => RpcError {
                message: format!("{failure} {}", cause.message),
                ..cause
            },
            _ => cause,
        }
    }

    /// Removes the reason of a fork that is no longer used.
    pub(super) fn forget_cause(&self, fork: ForkId) {
        self.state.lock().causes.remove(&fork);
    }

    /// Returns a slot for the confirmation of a fork; `None` if it is confirmed.
    pub(super) fn confirmation(&self, fork: ForkId) -> Result<Option<Confirmation>, RpcError> {
        let mut state = self.state.lock();
        match state.machine.user(fork) {
            Some(user) if user.confirmed => Ok(None),
            // The failure was already reported, and no confirmation will follow.
            Some(UserInfo {
                broken: Some(failure),
                ..
            }) => Err(failure.into()),
            Some(_) => {
                let slot = Confirmation::default();
                state
                    .confirmations
                    .entry(fork)
                    .or_default()
                    .push(Arc::clone(&slot));
                Ok(Some(slot))
            }
            None => Err(ReferenceFailure::Stopping.into()),
        }
    }

    /// Returns a slot for a value that this worker keeps.
    pub(super) fn ask(&self, core: &Arc<Core>, question: Fetch) -> (FetchId, Answer) {
        let slot = Answer::default();
        let answer = Arc::clone(&slot);
        let fetch = self.with_state(core, |state, now| {
            let fetch = FetchId(state.next_question);
            state.next_question += 1;
            state.questions.insert(fetch, (question.rref, answer));
            state.machine.handle(now, Input::Fetch(fetch, question));
            fetch
        });
        (fetch, slot)
    }

    pub(super) fn no_answer(&self, core: &Arc<Core>, rref: RRefId, fetch: FetchId) {
        self.with_state(core, |state, now| {
            if state.questions.remove(&fetch).is_some() {
                let input = Input::FetchCancelled(rref, fetch);
                state.machine.handle(now, input);
            }
        });
    }
}

impl RpcAgent {
    /// Returns statistics about the remote references of this agent.
    pub fn references(&self) -> Counters {
        Register::of(self.core()).counters()
    }
}
