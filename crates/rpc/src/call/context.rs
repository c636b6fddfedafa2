//! What a function is told beside its argument, and where code of a function is running.

use std::cell::Cell;
use std::time::Instant;

use rdzv_rpc_proto::rref::Member as Holder;
use rdzv_rpc_proto::worker::WorkerInfo;

use super::cancellation::Cancellation;
use crate::agent::RpcAgent;

/// Who calls, until when, and from where this call descends.
#[derive(Debug, Clone)]
pub struct CallContext {
    pub(crate) agent: RpcAgent,
    pub(crate) caller: WorkerInfo,
    pub(crate) caller_incarnation: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancellation: Cancellation,
    pub(crate) trace: u128,
}

impl CallContext {
    /// The agent that the function runs under, to call back or on.
    pub fn agent(&self) -> &RpcAgent {
        &self.agent
    }

    /// The worker that called.
    pub fn caller(&self) -> &WorkerInfo {
        &self.caller
    }

    /// When the caller gives up, if it does.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Fires when nobody waits for the result any more.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// The number of the trace that this call belongs to. Calls that the function makes belong to
    /// the same one.
    pub fn trace(&self) -> u128 {
        self.trace
    }

    /// The caller, as the references know it.
    pub(crate) fn holder(&self) -> Holder {
        Holder {
            id: self.caller.id,
            incarnation: self.caller_incarnation,
        }
    }
}

/// What kind of code this thread runs just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The application's own.
    Application,
    /// A step of an async function that was called: it must not block.
    Async,
    /// A blocking function that was called: it has a thread of its own.
    Blocking,
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Application) };
    static TRACE: Cell<u128> = const { Cell::new(0) };
}

/// Where the calling code is.
pub(crate) fn place() -> Place {
    PLACE.get()
}

/// The trace that the calling code belongs to; 0 if to none.
pub(crate) fn trace() -> u128 {
    TRACE.get()
}

/// Runs code of a function that was called.
pub(crate) fn inside<T>(place: Place, trace: u128, run: impl FnOnce() -> T) -> T {
    /// Puts back what was before, also after a panic.
    struct Restore(Place, u128);
    impl Drop for Restore {
        fn drop(&mut self) {
            PLACE.set(self.0);
            TRACE.set(self.1);
        }
    }
    let _restore = Restore(PLACE.replace(place), TRACE.replace(trace));
    run()
}
