//! Calls on their way.

use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rdzv_lock::{Condvar, Mutex};
use rdzv_rpc::{RpcError, RpcFuture as Call};

use super::errors::of_rpc;
use super::message::Reply;
use super::queue::Queue;
use super::reference::{Content, incoming};
use crate::handle::Origin;
use crate::interrupt::{SLICE, detach, detached, is_to_end};
use crate::timeout::{FOREVER, timeout};

/// Threads that wait until less is in flight.
#[derive(Default)]
pub(super) struct Room {
    waiting: AtomicUsize,
    lock: Mutex<()>,
    freed: Condvar,
}

impl Room {
    /// A call has ended.
    pub(super) fn notify(&self) {
        if self.waiting.load(Ordering::Acquire) > 0 {
            drop(self.lock.lock());
            self.freed.notify_all();
        }
    }

    /// Waits until a call has ended, at most so long.
    pub(super) fn wait(&self, at_most: Duration) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let lock = self.lock.lock();
        // Woken or not, the caller looks.
        drop(self.freed.wait_timeout(lock, at_most));
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A call whose result is told when it is there: no thread waits for it.
pub(super) struct Pending {
    state: Mutex<State>,
    arrived: Condvar,
    room: Arc<Room>,
    done: Arc<Queue<Py<PyAny>>>,
}

struct State {
    /// Until its result is there.
    call: Option<Call<Reply>>,
    result: Option<Result<Reply, RpcError>>,
    is_done: bool,
    has_failed: bool,
    /// Number of threads that wait.
    waiting: usize,
    /// Put into the queue when it is done.
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
            result: None,
            is_done: false,
            has_failed: false,
            waiting: 0,
            watcher: None,
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

    /// Takes the result, or asks to be woken.
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
        state.has_failed = result.is_err();
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
        // Without the interpreter; a queue that is closed drops it later.
        if let Some(watcher) = watcher {
            let _ = self.done.push(watcher);
        }
    }

    /// Whether it is done before `until`. Ends early with the wait of the thread.
    fn wait(&self, until: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while !state.is_done {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            state.waiting += 1;
            let slice = left.unwrap_or(SLICE).min(SLICE);
            state = self.arrived.wait_timeout(state, slice).0;
            state.waiting -= 1;
            if state.is_done {
                break;
            }
            drop(state);
            if is_to_end() {
                return false;
            }
            state = self.state.lock();
        }
        true
    }
}

impl Wake for Pending {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// The native half of a future. In a forked child it is left alone.
#[pyclass(frozen, name = "RpcFuture", module = "rdzv._rdzv")]
pub(crate) struct RpcFuture {
    origin: Origin,
    pending: Option<Arc<Pending>>,
}

impl RpcFuture {
    pub(super) fn new(pending: Arc<Pending>) -> Self {
        Self {
            origin: Origin::here(),
            pending: Some(pending),
        }
    }

    fn pending(&self) -> PyResult<&Arc<Pending>> {
        self.origin.check("Future")?;
        let pending = self.pending.as_ref();
        pending.ok_or_else(|| pyo3::exceptions::PyRuntimeError::new_err("the future is gone"))
    }
}

impl Drop for RpcFuture {
    fn drop(&mut self) {
        if self.origin.is_foreign() {
            let _left = ManuallyDrop::new(self.pending.take());
        }
    }
}

#[pymethods]
impl RpcFuture {
    /// Waits until the call is over; False if that is not so after the timeout.
    #[pyo3(name = "wait", signature = (within=None))]
    fn wait_py(&self, py: Python<'_>, within: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let within = timeout("timeout", within)?.unwrap_or(FOREVER);
        let pending = self.pending()?;
        if pending.state.lock().is_done {
            return Ok(true);
        }
        detached(py, || pending.wait(Instant::now().checked_add(within)))
    }

    #[getter]
    fn is_done(&self) -> PyResult<bool> {
        Ok(self.pending()?.state.lock().is_done)
    }

    #[getter]
    fn has_failed(&self) -> PyResult<bool> {
        Ok(self.pending()?.state.lock().has_failed)
    }

    /// Pickle, memory and references of the result. None if it is not there, or was taken.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Content<'py>>> {
        let result = self.pending()?.state.lock().result.take();
        match result {
            None => Ok(None),
            Some(Ok(reply)) => incoming(py, reply).map(Some),
            Some(Err(error)) => Err(of_rpc(py, &error)),
        }
    }

    /// Has `watcher` put into the queue of the agent as soon as the call is over.
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

    /// Gives the call up.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        let pending = Arc::clone(self.pending()?);
        detach(py, || {
            let taken = pending.state.lock().call.take();
            if let Some(call) = taken {
                call.cancel();
                let mut state = pending.state.lock();
                state.call = Some(call);
                drop(state);
                // It was woken meanwhile, and had no call.
                pending.look();
            }
        });
        Ok(())
    }
}
