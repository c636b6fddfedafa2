//! Asynchronous operations: a thread runs the calls on one group in order.
//!
//! The group itself moves between the caller and the thread, so synchronous calls need no lock.
//! Synchronous calls run on the caller's thread, once the queue is empty.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdzv_lock::{Condvar, Mutex};
use rdzv_store::Breaker;

use crate::element::Element;
use crate::error::{CollectiveError, Result};
use crate::group::ProcessGroup;
use crate::messages::PointToPoint;
use crate::reduce_op::ReduceOp;
use crate::work::{Work, panicked, work};

/// Job for the queue thread: stores the group there, uses it or takes it.
type Order = Box<dyn FnOnce(&mut Option<Box<ProcessGroup>>) + Send>;

/// Process group whose asynchronous operations run in the order of the calls.
///
/// Dropping it interrupts pending operations, and leaves the group.
///
/// ```
/// use std::time::Duration;
/// use rdzv_collective::{GroupQueue, ProcessGroup, ReduceOp};
///
/// let store = rdzv_store::HashStore::new();
/// let group = ProcessGroup::new(&store, 0, 1, Duration::from_secs(60))?;
/// let mut queue = GroupQueue::new(group);
/// let first = queue.all_reduce_async(vec![1.0_f32, 2.0], ReduceOp::Sum)?;
/// let second = queue.submit(|group| group.all_gather_objects(&"rank 0".to_owned()))?;
/// assert_eq!(first.wait()?, [1.0, 2.0]);
/// assert_eq!(second.wait()?, ["rank 0"]);
/// queue.group()?.barrier()?;
/// # Ok::<(), rdzv_collective::CollectiveError>(())
/// ```
pub struct GroupQueue {
    /// Group, unless the thread has it.
    idle: Option<Box<ProcessGroup>>,
    thread: Option<QueueThread>,
    queued: Arc<Queued>,
    breaker: Breaker,
    point_to_point: PointToPoint,
}

/// Number of operations that have been queued and have not ended.
#[derive(Default)]
struct Queued {
    count: Mutex<usize>,
    empty: Condvar,
}

/// Operation in the queue, until it has ended or is dropped.
struct Enqueued(Arc<Queued>);

impl Enqueued {
    fn new(queued: &Arc<Queued>) -> Self {
        *queued.count.lock() += 1;
        Self(Arc::clone(queued))
    }
}

impl Drop for Enqueued {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.empty.notify_all();
        }
    }
}

struct QueueThread {
    orders: Sender<Order>,
    handle: JoinHandle<()>,
}

impl GroupQueue {
    /// Creates a queue for a group.
    ///
    /// The thread of the queue starts with the first asynchronous operation.
    pub fn new(group: ProcessGroup) -> Self {
        Self {
            breaker: group.breaker(),
            point_to_point: group.point_to_point(),
            idle: Some(Box::new(group)),
            thread: None,
            queued: Arc::default(),
        }
    }

    /// `true` if all operations in the queue have ended.
    pub fn is_empty(&self) -> bool {
        self.idle.is_some() || *self.queued.count.lock() == 0
    }

    /// Waits up to `timeout` for the queue to become empty; `true` if it is empty.
    pub fn wait_empty(&self, timeout: Duration) -> bool {
        if self.idle.is_some() {
            return true;
        }
        let count = self.queued.count.lock();
        let empty = &self.queued.empty;
        let (count, _) = empty.wait_timeout_while(count, timeout, |count| *count > 0);
        *count == 0
    }

    /// Queues an operation or a sequence of operations, and returns immediately.
    ///
    /// The operation fails with [`CollectiveError::Broken`] if an earlier one broke the group.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::System`] if the system cannot start a thread; [`CollectiveError::Broken`]
    /// if an operation in the queue panicked.
    pub fn submit<R: Send + 'static>(
        &mut self,
        operation: impl FnOnce(&mut ProcessGroup) -> Result<R> + Send + 'static,
    ) -> Result<Work<R>> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => start().map_err(|error| {
                CollectiveError::system("start the queue thread of a process group", error)
            })?,
        };
        let thread = self.thread.insert(thread);
        if let Some(mut group) = self.idle.take() {
            group.set_beside(true);
            thread.send(|held| *held = Some(group))?;
        }
        let (completer, work) = work();
        let entry = Enqueued::new(&self.queued);
        thread.send(|held| {
            let Some(group) = held else { return };
            let outcome = operation(group);
            // The queue slot is freed first, so that a caller that waits for the end finds the
            // queue empty.
            drop(entry);
            completer.complete(outcome);
        })?;
        // The queue thread may have been woken on this processor. Without the yield, the queue
        // thread would wait for the rest of this thread's time slice.
        thread::yield_now();
        Ok(work)
    }

    /// Queues [`ProcessGroup::all_reduce`].
    ///
    /// The work returns the reduced values.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`submit`](Self::submit).
    pub fn all_reduce_async<T: Element>(
        &mut self,
        mut values: Vec<T>,
        op: ReduceOp,
    ) -> Result<Work<Vec<T>>> {
        self.submit(move |group| group.all_reduce(&mut values, op).map(|()| values))
    }

    /// Waits until the queue is empty; returns the group for blocking calls.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Broken`] if an operation in the queue panicked.
    pub fn group(&mut self) -> Result<&mut ProcessGroup> {
        let group = match (self.idle.take(), &self.thread) {
            (Some(group), _) => group,
            (None, Some(thread)) => {
                let (give_back, returned) = mpsc::channel();
                thread.send(move |held| {
                    if let Some(group) = held.take() {
                        // Without a receiver the group is dropped, and this rank leaves it.
                        let _ = give_back.send(group);
                    }
                })?;
                let mut group = returned.recv().map_err(|_| panicked())?;
                group.set_beside(false);
                group
            }
            (None, None) => return Err(panicked()),
        };
        Ok(self.idle.insert(group))
    }

    /// Stops the thread once the queue is empty, and returns the group.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`group`](Self::group).
    pub fn into_group(mut self) -> Result<ProcessGroup> {
        self.group()?;
        // The thread ends before the group is taken out, because dropping the queue interrupts a
        // group that is not idle.
        if let Some(thread) = self.thread.take() {
            thread.end();
        }
        self.idle.take().map(|group| *group).ok_or_else(panicked)
    }

    /// Returns a handle for messages; see [`ProcessGroup::point_to_point`].
    ///
    /// Messages do not wait for the queue.
    pub fn point_to_point(&self) -> PointToPoint {
        self.point_to_point.clone()
    }

    /// Returns the function of [`ProcessGroup::breaker`].
    ///
    /// The function also interrupts all operations in the queue.
    pub fn breaker(&self) -> Breaker {
        Breaker::clone(&self.breaker)
    }
}

impl std::fmt::Debug for GroupQueue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("GroupQueue");
        shown.field("idle", &self.idle).finish_non_exhaustive()
    }
}

impl Drop for GroupQueue {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if self.idle.is_none() && !thread.handle.is_finished() {
            (self.breaker)();
        }
        thread.end();
    }
}

impl QueueThread {
    /// Ends the thread after it has executed the sent orders.
    fn end(self) {
        drop(self.orders);
        // A callback at the end of an operation may drop the queue on this thread.
        if self.handle.thread().id() == thread::current().id() {
            return;
        }
        // A panic of the thread was already reported by its work.
        let _ = self.handle.join();
    }

    fn send(
        &self,
        order: impl FnOnce(&mut Option<Box<ProcessGroup>>) + Send + 'static,
    ) -> Result<()> {
        self.orders.send(Box::new(order)).map_err(|_| panicked())
    }
}

fn start() -> std::io::Result<QueueThread> {
    let (orders, queued) = mpsc::channel::<Order>();
    let run = move || {
        let mut held = None;
        for order in queued {
            order(&mut held);
        }
    };
    let handle = thread::Builder::new()
        .name("rdzv-group".to_owned())
        .spawn(run)?;
    Ok(QueueThread { orders, handle })
}
