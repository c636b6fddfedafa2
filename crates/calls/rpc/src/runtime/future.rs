//! Handle to a call at the caller.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rdzv_rpc_proto::rref::ForkId;
use rdzv_rpc_proto::worker::WorkerInfo;

use crate::channel::client::Client;
use crate::channel::request::time_is_over;
use crate::channel::slot::{Promise, Slot};
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::{Answer, Payload};
use crate::runtime::codec::strayed;
use crate::runtime::core::Core;
use crate::runtime::peers::no_connection_in_time;
use crate::runtime::run::panic_text;
use crate::service::code_kind::{CodeKind, code_kind, trace};

/// Future result of a call.
///
/// The call has begun and needs no further action. To get the result, block with
/// [`wait`](Self::wait) or for a limited time with [`wait_for`](Self::wait_for), or `.await` it in
/// async code. Dropping the future does not cancel the call; [`cancel`](Self::cancel) does.
#[must_use = "a call can report its failure only through its future"]
pub struct RpcFuture<T> {
    state: State<T>,
}

enum State<T> {
    Call(Box<InFlight<T>>),
    /// Result of a task, or result that already exists.
    Slot(Arc<Core>, Arc<Slot<Result<T, RpcError>>>),
}

impl<T> State<T> {
    /// Blocks until the result arrives or the deadline has passed.
    ///
    /// Returns `None` if the result has not arrived in time, or was already taken.
    fn wait(&self, deadline: Option<Instant>) -> Option<Result<T, RpcError>> {
        match self {
            Self::Call(call) => call.wait(deadline).map(|answer| call.decode(answer)),
            Self::Slot(_, slot) => {
                slot.park(deadline);
                slot.take()
            }
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Call(call) => call.begun.slot.is_filled(),
            Self::Slot(_, slot) => slot.is_filled(),
        }
    }
}

/// Function that reads a value from a reply.
type Read<T> = fn(&Arc<Core>, &WorkerInfo, &Payload) -> Result<T, RpcError>;

pub(crate) struct Begun {
    pub(crate) id: u64,
    pub(crate) slot: Arc<Slot<Answer>>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) limit: Option<Duration>,
}

/// A call that has begun, with the function that reads its answer.
pub(crate) struct InFlight<T> {
    pub(crate) core: Arc<Core>,
    pub(crate) worker: WorkerInfo,
    pub(crate) method: &'static str,
    pub(crate) begun: Begun,
    pub(crate) read: Read<T>,
    /// References in the argument.
    pub(crate) forks: Vec<ForkId>,
}

impl<T> InFlight<T> {
    fn decode(&self, answer: Answer) -> Result<T, RpcError> {
        if answer.is_err() {
            strayed(&self.core, &self.forks);
        }
        let value = answer.and_then(|payload| (self.read)(&self.core, &self.worker, &payload));
        value.map_err(|error| self.named(error))
    }

    fn named(&self, error: RpcError) -> RpcError {
        error
            .with_worker(self.worker.clone())
            .with_method(self.method)
    }

    /// Blocks until the answer arrives, the call times out, or `at_most` passes.
    fn wait(&self, at_most: Option<Instant>) -> Option<Answer> {
        let deadline = self.begun.deadline.into_iter().chain(at_most).min();
        loop {
            if let Some(answer) = self.begun.slot.take() {
                return Some(answer);
            }
            let client = self.core.peers.client(self.worker.id);
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                if self
                    .begun
                    .deadline
                    .is_none_or(|deadline| deadline > Instant::now())
                {
                    return None;
                }
                self.time_over(client.as_ref());
                continue;
            }
            match client {
                Some(client) => client.wait(&self.begun.slot, deadline),
                // The connection is being made or is lost: another thread will fill the slot.
                None => self.begun.slot.park(deadline),
            }
        }
    }

    /// Ends the call with a timeout error, wherever the call is queued.
    fn time_over(&self, client: Option<&Arc<Client>>) {
        let limit = self.begun.limit.unwrap_or_default();
        let error = match client {
            Some(client) => {
                client.time_over(self.begun.id);
                time_is_over(limit, "the request or the answer was being processed")
            }
            None => {
                // The driver already knows the next deadline.
                let _ = self.core.peers.expire(Instant::now());
                no_connection_in_time(limit)
            }
        };
        // The call may currently be in no table. If the call was found above, its slot is already
        // filled.
        self.begun.slot.fill(Err(error));
    }
}

impl<T: Send + 'static> RpcFuture<T> {
    pub(crate) fn of_call(call: InFlight<T>) -> Self {
        Self {
            state: State::Call(Box::new(call)),
        }
    }

    pub(crate) fn ready(core: Arc<Core>, result: Result<T, RpcError>) -> Self {
        Self {
            state: State::Slot(core, Arc::new(Slot::full(result))),
        }
    }

    /// `true` if the result has arrived.
    pub fn is_done(&self) -> bool {
        self.state.is_done()
    }

    /// Blocks until the result arrives, for up to `at_most`.
    ///
    /// The result stays in the future: the next wait returns the same result.
    ///
    /// # Errors
    ///
    /// Returns the error of the call. [`RpcErrorKind::Deadline`] if there is no result within
    /// `at_most`; the call continues, and the caller can wait again.
    /// [`RpcErrorKind::InvalidArgument`] as for [`wait`](Self::wait).
    pub fn wait_for(&mut self, at_most: Duration) -> Result<T, RpcError>
    where
        T: Clone,
    {
        must_not_be_async()?;
        let deadline = Some(Instant::now() + at_most);
        let Some(result) = self.blocked(deadline) else {
            let text = format!(
                "no result arrived within {} s; the call continues",
                at_most.as_secs_f64()
            );
            let error = RpcError::new(RpcErrorKind::Deadline, text);
            return Err(match &self.state {
                State::Call(call) => call.named(error),
                State::Slot(..) => error,
            });
        };
        self.state = State::Slot(self.core(), Arc::new(Slot::full(result.clone())));
        result
    }

    /// Blocks until the result arrives.
    ///
    /// # Errors
    ///
    /// Returns the error of the call. [`RpcErrorKind::InvalidArgument`] in an async function that
    /// serves a call: blocking would stop the work that the function waits for, so `.await` the
    /// future there.
    pub fn wait(self) -> Result<T, RpcError> {
        must_not_be_async()?;
        self.blocked(None).unwrap_or_else(|| {
            let text = "the result was already taken";
            Err(RpcError::new(RpcErrorKind::Internal, text))
        })
    }

    /// Cancels the call, and notifies the function.
    ///
    /// The call ends with [`RpcErrorKind::Cancelled`] unless its result has arrived. The function
    /// receives the notification through its [`Cancellation`](crate::Cancellation). A future that
    /// [`then`](Self::then) or [`collect`](Self::collect) returned ends alone: its calls continue.
    pub fn cancel(&self) {
        match &self.state {
            State::Call(call) => {
                if let Some(client) = call.core.peers.client(call.worker.id) {
                    client.cancel(call.begun.id);
                }
                // A call that still waits for a connection will not be sent.
                let text = "the call was cancelled by its caller";
                let error = call.named(RpcError::new(RpcErrorKind::Cancelled, text));
                call.begun.slot.fill(Err(error));
            }
            State::Slot(_, slot) => {
                let text = "the future was cancelled";
                slot.fill(Err(RpcError::new(RpcErrorKind::Cancelled, text)));
            }
        }
    }

    /// Runs `go_on` with the result when it arrives, even if no code waits for it.
    ///
    /// A panic in `go_on` becomes the error of the returned future.
    pub fn then<U, F>(self, go_on: F) -> RpcFuture<U>
    where
        U: Send + 'static,
        F: FnOnce(Result<T, RpcError>) -> Result<U, RpcError> + Send + 'static,
    {
        let core = self.core();
        Self::task(core, async move {
            let result = self.await;
            catch_unwind(AssertUnwindSafe(|| go_on(result))).unwrap_or_else(|panic| {
                let text = format!(
                    "Got the following error when running the callback: panic: {}",
                    panic_text(panic.as_ref())
                );
                Err(RpcError::new(RpcErrorKind::Internal, text))
            })
        })
    }

    /// Returns a future of all results, in order; `None` if `futures` is empty.
    pub fn collect(futures: Vec<Self>) -> Option<RpcFuture<Vec<Result<T, RpcError>>>> {
        let core = futures.first()?.core();
        Some(Self::task(core, async move {
            let mut results = Vec::with_capacity(futures.len());
            for future in futures {
                results.push(future.await);
            }
            Ok(results)
        }))
    }

    /// Blocks; the executor runs nested functions in the meantime.
    fn blocked(&self, deadline: Option<Instant>) -> Option<Result<T, RpcError>> {
        if code_kind() == CodeKind::Blocking && !self.state.is_done() {
            let core = self.core();
            return core.executor.waiting(trace(), || self.state.wait(deadline));
        }
        self.state.wait(deadline)
    }

    fn core(&self) -> Arc<Core> {
        match &self.state {
            State::Call(call) => Arc::clone(&call.core),
            State::Slot(core, _) => Arc::clone(core),
        }
    }

    fn task<U: Send + 'static>(
        core: Arc<Core>,
        work: impl Future<Output = Result<U, RpcError>> + Send + 'static,
    ) -> RpcFuture<U> {
        let slot = Arc::new(Slot::default());
        let promise = Promise::new(&slot);
        core.executor.spawn(async move {
            promise.keep(work.await);
        });
        RpcFuture {
            state: State::Slot(core, slot),
        }
    }
}

/// Rejects blocking in async functions, where it would stop other work.
fn must_not_be_async() -> Result<(), RpcError> {
    if code_kind() == CodeKind::Async {
        let text = "an async function must not block: await the call, or wrap the function in \
                    `blocking`";
        return Err(RpcError::invalid(text));
    }
    Ok(())
}

impl<T> Future for RpcFuture<T> {
    type Output = Result<T, RpcError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.state {
            State::Call(call) => call
                .begun
                .slot
                .poll(context)
                .map(|answer| call.decode(answer)),
            State::Slot(_, slot) => slot.poll(context),
        }
    }
}

impl<T> fmt::Debug for RpcFuture<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = self.state.is_done();
        match &self.state {
            State::Call(call) => {
                let (method, worker) = (call.method, &call.worker);
                write!(formatter, "RpcFuture({method} on {worker}, done: {done})")
            }
            State::Slot(..) => write!(formatter, "RpcFuture(done: {done})"),
        }
    }
}
