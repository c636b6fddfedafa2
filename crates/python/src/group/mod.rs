//! Process groups, the base of `rdzv.Group` and of torch's backend in Python.
//!
//! | file | content |
//! |---|---|
//! | `operations.rs` | one method for each operation: checks its arguments, then moves memory |
//! | `arguments.rs` | arguments of the operations |
//! | `work.rs` | the handle of an asynchronous operation |
//! | `turn.rs` | order of threads that call one group |
//! | `signals.rs` | Ctrl-C |
//! | `callbacks.rs` | callbacks at the end of an operation |
//! | `life.rs` | the end of the interpreter |
//! | `errors.rs` | errors as exceptions |
//!
//! A synchronous collective operation runs on the thread that calls it, detached from the
//! interpreter. It starts when all earlier asynchronous collective operations have ended.

mod arguments;
mod callbacks;
mod errors;
mod life;
mod operations;
mod signals;
mod turn;
mod work;

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use rdzv_collective::{CollectiveError, GroupOptions, GroupQueue, PointToPoint, ProcessGroup};
use rdzv_lock::Mutex;
use rdzv_store::Breaker;

use self::errors::of_group;
use self::operations::Mode;
use self::turn::Turn;
pub(crate) use self::work::NativeWork;
use self::work::Outcome;
use crate::argument::Object;
use crate::handle::{Ending, Origin};
use crate::interrupt::{SLICE, detach};
use crate::timeout::timeout;

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<NativeGroup>()?;
    module.add_class::<NativeWork>()
}

/// Membership of one rank in a group.
#[pyclass(frozen, module = "rdzv._rdzv", name = "Group")]
pub(crate) struct NativeGroup(Arc<Shared>);

struct Shared {
    origin: Origin,
    /// Number of this group in the process.
    number: u64,
    _ending: Ending,
    rank: u32,
    world_size: u32,
    epoch: u64,
    name: String,
    address: Option<IpAddr>,
    timeout: Mutex<Duration>,
    turn: Turn,
    /// Queue; `None` once the group is closed.
    ///
    /// A forked child never drops the queue, because the drop would notify the peers that this rank
    /// leaves.
    queue: Mutex<Option<ManuallyDrop<GroupQueue>>>,
    messages: Mutex<Option<PointToPoint>>,
    /// Function that ends operations in progress; `None` after the end.
    breaker: Mutex<Option<Breaker>>,
    /// Number of collective operations that were called.
    calls: AtomicU64,
    /// Source location at which the group was closed.
    ///
    /// At the end of the interpreter, this is a text instead.
    closed: Mutex<Option<String>>,
}

/// Reads a rank, for which a caller may pass any integer.
fn rank_argument(name: &str, value: i64, world_size: u32) -> PyResult<u32> {
    let rank = u32::try_from(value).ok().filter(|rank| *rank < world_size);
    rank.ok_or_else(|| {
        PyValueError::new_err(format!(
            "{name} is {value}: the group has ranks 0 to {}",
            world_size - 1
        ))
    })
}

impl NativeGroup {
    /// Reads a time limit; the default is that of the group.
    fn limit(&self, limit: Option<Object<'_>>) -> PyResult<Duration> {
        Ok(timeout("timeout", limit)?.unwrap_or(*self.0.timeout.lock()))
    }

    fn closed(&self) -> PyErr {
        let location = self.0.closed.lock();
        let location = location.as_deref().unwrap_or("an unknown location");
        PyRuntimeError::new_err(format!("this Group was closed at {location}"))
    }

    fn failed(&self, py: Python<'_>, error: &CollectiveError, operation: &str) -> PyErr {
        of_group(py, error, operation, self.0.rank)
    }

    /// Runs an operation on this thread, or queues it and returns its work.
    fn run(
        &self,
        mode: Mode<'_>,
        operation: &'static str,
        act: impl FnOnce(&mut ProcessGroup) -> Result<Outcome, CollectiveError> + Send + 'static,
    ) -> PyResult<Result<Outcome, NativeWork>> {
        let py = mode.py;
        let limit = self.limit(mode.limit.as_ref())?;
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let act = move |group: &mut ProcessGroup| {
            group.set_timeout(limit);
            act(group)
        };
        self.0.origin.check("Group")?;
        if !mode.is_async {
            callbacks::refuse(self.0.number, operation)?;
        }
        let _turn = self.0.turn.enter(py, operation)?;
        if mode.is_async {
            let mut queue = self.0.queue.lock();
            let queue = queue.as_mut().ok_or_else(|| self.closed())?;
            let work = detach(py, || queue.submit(act));
            let work = work.map_err(|error| self.failed(py, &error, operation))?;
            return Ok(Err(NativeWork::new(work, operation, &self.0)));
        }
        let outcome = signals::run(py, || {
            let mut queue = self.0.queue.lock();
            let queue = queue.as_mut()?;
            while !queue.wait_empty(SLICE) {
                if signals::is_raised() {
                    self.0.interrupt();
                }
            }
            Some(queue.group().and_then(act))
        })?;
        match outcome {
            Some(Ok(outcome)) => Ok(Ok(outcome)),
            Some(Err(error)) => Err(self.failed(py, &error, operation)),
            None => Err(self.closed()),
        }
    }

    /// Returns the handle for messages.
    fn messages(&self, limit: Option<Object<'_>>) -> PyResult<PointToPoint> {
        self.0.origin.check("Group")?;
        let limit = self.limit(limit)?;
        let messages = self.0.messages.lock().clone();
        Ok(messages.ok_or_else(|| self.closed())?.with_timeout(limit))
    }
}

impl Shared {
    fn of(group: ProcessGroup, rank: u32, world_size: u32, options: GroupOptions) -> Arc<Self> {
        // The number 0 means no group.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let queue = GroupQueue::new(group);
        Arc::new_cyclic(|shared| Self {
            origin: Origin::here(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            _ending: Ending::of(shared, life::end),
            rank,
            world_size,
            epoch: options.epoch,
            name: options.name,
            address: options.address,
            timeout: Mutex::new(options.timeout),
            turn: Turn::default(),
            messages: Mutex::new(Some(queue.point_to_point())),
            breaker: Mutex::new(Some(queue.breaker())),
            queue: Mutex::new(Some(ManuallyDrop::new(queue))),
            calls: AtomicU64::new(0),
            closed: Mutex::new(None),
        })
    }

    fn interrupt(&self) {
        let breaker = self.breaker.lock().clone();
        if let Some(breaker) = breaker {
            breaker();
        }
    }

    fn close(&self) {
        let queue = match self.queue.try_lock() {
            Some(mut queue) => queue.take(),
            // Another thread is in an operation.
            None => {
                self.interrupt();
                self.queue.lock().take()
            }
        };
        // The breaker has a descriptor.
        drop(self.breaker.lock().take());
        drop(self.messages.lock().take());
        if let Some(queue) = queue {
            drop(ManuallyDrop::into_inner(queue));
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.origin.is_foreign() {
            return;
        }
        // The threads of the group may need the interpreter before they exit.
        if Python::try_attach(|py| py.detach(|| self.close())).is_none() {
            self.close();
        }
    }
}
