//! Calls in progress.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pyo3::prelude::*;
use rdzv_lock::{Condvar, Mutex};
use rdzv_rpc::{RpcError, RpcFuture as Call};

use super::errors::of_rpc;
use super::message::{Content, Reply};
use super::queue::Queue;
use crate::argument::Object;
use crate::handle::Own;
use crate::interrupt::{detach, wait_in_slices};
use crate::timeout::{FOREVER, timeout};

/// Threads that wait until fewer calls are in flight.
#[derive(Default)]
pub(super) struct Room {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    freed: Condvar,
}

impl Room {
    /// Notifies the waiting threads that a call has ended.
    pub(super) fn notify(&self) {
        if self.waiting.load(Ordering::Acquire) > 0 {
            drop(self.lock.lock());
            self.freed.notify_all();
        }
    }

    /// Waits until a call has ended, for up to `at_most`.
    pub(super) fn wait(&self, at_most: Duration) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let lock = self.lock.lock();
        // The caller checks again after every wake-up.
        drop(self.freed.wait_timeout(lock, at_most));
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Call whose result is reported when it arrives: no thread has to wait for it.
pub(super) struct Pending {
    state: Mutex<State>,
    arrived: Condvar,
    room: Arc<Room>,
    done: Arc<Queue<Py<PyAny>>>,
}

#[derive(Default)]
struct State {
    /// Call, until its result has arrived.
    call: Option<Call<Reply>>,
    result: Option<Result<Reply, RpcError>>,
    is_done: bool,
    waiting: usize,
    /// Object to put into the queue when the call has ended.
    watcher: Option<Py<PyAny>>,
}

impl Pending {
    pub(super) fn start(
        call: Call<Reply>,
        room: Arc<Room>,
        done: Arc<Queue<Py<PyAny>>>,
    ) -> Arc<Self> {
        let state = State {
            call: Some(call),
            ..State::default()
        };
        let pending = Arc::new(Self {
            state: Mutex::new(state),
            arrived: Condvar::new(),
            room,
            done,
        });
        Arc::clone(&pending).look();
        pending
    }

    /// Takes the result, or registers for a wake-up.
    fn look(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let mut state = self.state.lock();
        let Some(call) = &mut state.call else {
            return;
        };
        let Poll::Ready(result) = Pin::new(call).poll(&mut Context::from_waker(&waker)) else {
            return;
        };
        let call = state.call.take();
        state.result = Some(result);
        state.is_done = true;
        let watcher = state.watcher.take();
        let is_awaited = state.waiting > 0;
        drop(state);
        drop(call);
        if is_awaited {
            self.arrived.notify_all();
        }
        self.room.notify();
        // This works without the interpreter. If the queue is closed, pyo3 releases the object
        // once a thread is attached.
        if let Some(watcher) = watcher {
            let _ = self.done.push(watcher);
        }
    }

    /// Waits until the call has ended; `true` if it has. The wait may end early.
    fn wait(&self, within: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_done {
            state.waiting += 1;
            state = self.arrived.wait_timeout(state, within).0;
            state.waiting -= 1;
        }
        state.is_done
    }
}

impl Wake for Pending {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// Native half of a future.
#[pyclass(frozen, name = "RpcFuture", module = "rdzv._rdzv")]
pub(crate) struct RpcFuture(Own<Arc<Pending>>);

impl RpcFuture {
    pub(super) fn new(pending: Arc<Pending>) -> Self {
        Self(Own::new(pending))
    }

    fn pending(&self) -> PyResult<&Arc<Pending>> {
        self.0.get("Future")
    }
}

#[pymethods]
impl RpcFuture {
    /// Waits until the call has ended; False after the timeout.
    #[pyo3(name = "wait", signature = (within=None))]
    fn wait_py(&self, py: Python<'_>, within: Option<Object<'_>>) -> PyResult<bool> {
        let within = timeout("timeout", within)?.unwrap_or(FOREVER);
        let pending = self.pending()?;
        if pending.state.lock().is_done {
            return Ok(true);
        }
        let done = wait_in_slices(py, within, |slice| pending.wait(slice).then_some(()));
        Ok(done?.is_some())
    }

    #[getter]
    fn is_done(&self) -> PyResult<bool> {
        Ok(self.pending()?.state.lock().is_done)
    }

    /// True if the call has failed, and the error was not taken.
    #[getter]
    fn has_failed(&self) -> PyResult<bool> {
        let state = self.pending()?.state.lock();
        Ok(matches!(state.result, Some(Err(_))))
    }

    /// Takes the pickle, memory and references of the result.
    ///
    /// None if the result has not arrived, or was already taken.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Content<'py>>> {
        let result = self.pending()?.state.lock().result.take();
        match result {
            None => Ok(None),
            Some(Ok(reply)) => reply.into_content(py).map(Some),
            Some(Err(error)) => Err(of_rpc(py, &error)),
        }
    }

    /// Puts `watcher` into the queue of the agent as soon as the call has ended.
    fn watch(&self, watcher: Py<PyAny>) -> PyResult<()> {
        let pending = self.pending()?;
        let mut state = pending.state.lock();
        if !state.is_done {
            state.watcher = Some(watcher);
            return Ok(());
        }
        drop(state);
        let _ = pending.done.push(watcher);
        Ok(())
    }

    /// Cancels the call.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let pending = Arc::clone(self.pending()?);
        detach(py, || {
            let taken = pending.state.lock().call.take();
            if let Some(call) = taken {
                call.cancel();
                let mut state = pending.state.lock();
                state.call = Some(call);
                drop(state);
                // A wake-up at the same time may have found no call.
                pending.look();
            }
        });
        Ok(())
    }
}
