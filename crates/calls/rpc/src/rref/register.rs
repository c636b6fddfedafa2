//! The references of an agent: its machine under a lock, the values, and who waits for what.
//!
//! What the machine wants done is noted under the lock and done after it is released, see
//! [`effects`].

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
    Counters, Failure, Fetch, FetchId, ForkId, Handle, Input, Leak, Member, RRefId, References,
    Settings, UserInfo,
};
use rdzv_rpc_proto::worker::WorkerInfo;

use super::kept::{Keep, Kept, Made};
use crate::channel::slot::Slot;
use crate::error::RpcError;
use crate::runtime::core::{Confirmation, Core, RpcAgent};
use crate::wire::clock;

/// A share in a value, whatever the type of the value. Dropping the share gives it back.
pub(crate) struct Held {
    /// It does not keep the agent running, and ends with it.
    pub(super) core: Arc<Core>,
    pub(super) handle: Handle,
    pub(super) owner: WorkerInfo,
    /// The name of the value's type, on whichever worker made the first reference.
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

/// Where one waits for a value.
pub(super) type Answer = Arc<Slot<Made>>;

/// The references of an agent.
pub(crate) struct Register {
    me: Member,
    /// The functions that keep the results of methods, by the numbers of these.
    keeps: BTreeMap<u64, Keep>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    machine: References,
    /// Values here that exist, and the errors of those that don't.
    values: HashMap<RRefId, Made>,
    /// Who waits for forks to be confirmed.
    confirmations: HashMap<ForkId, Vec<Confirmation>>,
    /// Who waits for which values.
    questions: HashMap<FetchId, (RRefId, Answer)>,
    next_question: u64,
    /// Why creations failed.
    causes: HashMap<ForkId, RpcError>,
    /// Who waits for the shutdown.
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

    /// The references of an agent.
    ///
    /// # Panics
    ///
    /// If the agent was made with others, which nobody does.
    pub(crate) fn of(core: &Core) -> &Self {
        let references: &dyn Any = &*core.references;
        references
            .downcast_ref()
            .expect("the references of an agent are a register")
    }

    /// The function that keeps the result of a method instead of sending it, if there is such a method.
    pub(super) fn keep(&self, method: u64) -> Option<&Keep> {
        self.keeps.get(&method)
    }

    /// Who this agent is.
    pub(crate) fn me(&self) -> Member {
        self.me
    }

    /// Asks the machine something, or tells it something, and does what it wants done.
    pub(super) fn with<R>(
        &self,
        core: &Arc<Core>,
        ask: impl FnOnce(&mut References, Now) -> R,
    ) -> R {
        self.with_state(core, |state, now| ask(&mut state.machine, now))
    }

    fn with_state<R>(&self, core: &Arc<Core>, ask: impl FnOnce(&mut State, Now) -> R) -> R {
        let now = Now {
            mono: clock::mono(Instant::now()),
            ..Now::default()
        };
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

    /// Tells the machine something.
    pub(super) fn tell(&self, core: &Arc<Core>, input: Input<'_>) {
        self.with(core, |machine, now| machine.handle(now, input));
    }

    pub(crate) fn counters(&self) -> Counters {
        self.state.lock().machine.counters()
    }

    /// How many values are here, also those that nobody refers to from elsewhere.
    #[cfg(test)]
    pub(crate) fn values(&self) -> usize {
        self.state.lock().values.len()
    }

    /// Keeps a value of the application's own.
    pub(super) fn own(&self, core: &Arc<Core>, value: Kept) -> Result<RRefId, RpcError> {
        self.with_state(core, |state, _| {
            let rref = state.machine.create()?;
            state.values.insert(rref, Ok(value));
            Ok(rref)
        })
    }

    /// A function that makes a value has ended.
    pub(super) fn made(&self, core: &Arc<Core>, rref: RRefId, made: Made) {
        self.with_state(core, |state, now| {
            let failed = made.is_err();
            state.values.insert(rref, made);
            state.machine.handle(now, Input::Made { rref, failed });
        });
    }

    /// A creation has failed.
    pub(super) fn creation_failed(&self, core: &Arc<Core>, fork: ForkId, cause: RpcError) {
        self.with_state(core, |state, now| {
            state.causes.insert(fork, cause);
            state.machine.handle(now, Input::CreationFailed(fork));
            if state.machine.user(fork).is_none() {
                state.causes.remove(&fork);
            }
        });
    }

    /// Why a fork is of no use.
    pub(super) fn why(&self, fork: ForkId, failure: &Failure) -> RpcError {
        let cause = match failure {
            Failure::CreationFailed => self.state.lock().causes.get(&fork).cloned(),
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

    /// Nobody uses this fork any more.
    pub(super) fn forget_cause(&self, fork: ForkId) {
        self.state.lock().causes.remove(&fork);
    }

    /// A place where the confirmation of a fork arrives, if it is not there yet.
    pub(super) fn confirmation(&self, fork: ForkId) -> Result<Option<Confirmation>, RpcError> {
        let mut state = self.state.lock();
        match state.machine.user(fork) {
            Some(user) if user.confirmed => Ok(None),
            // It was told already, and nobody will be told again.
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
            None => Err(Failure::Stopping.into()),
        }
    }

    /// A place where a value arrives that is kept here.
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

    /// Nobody waits for an answer any more.
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
    /// How many remote references this agent has to do with.
    pub fn references(&self) -> Counters {
        Register::of(self.core()).counters()
    }
}
