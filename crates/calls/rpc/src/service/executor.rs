//! Threads that run the functions of an agent.
//!
//! Async functions run on one thread of a tokio runtime. Blocking functions run on threads of its
//! blocking pool: up to a maximum number run at the same time, and the others wait in order.
//!
//! Threads that read large parts need no permit, because a function that waits for a reply holds
//! its permit until the reply has been read.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rdzv_lock::Mutex;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime};
use tokio::sync::watch;

/// Extra threads for large reads while functions occupy all worker threads.
const READERS: usize = 4;

/// Time in which cancelled async functions can return normally.
/// The agent does not wait for this time to pass.
const RETURN_TIME: Duration = Duration::from_secs(1);

type Work = Box<dyn FnOnce() + Send>;

/// Runtime of an agent, its permits, and its number of async functions.
pub(crate) struct Executor {
    runtime: Mutex<Option<Runtime>>,
    handle: Handle,
    permits: Permits,
    functions: Arc<watch::Sender<usize>>,
}

/// Guard that counts an async function until it is dropped.
pub(crate) struct CountedFunction(Arc<watch::Sender<usize>>);

impl Executor {
    /// Starts the threads of the agent with this name.
    pub(crate) fn new(name: &str, worker_threads: usize) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(worker_threads.saturating_add(READERS))
            .thread_name(format!("rpc:{name}"))
            .enable_time()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Mutex::new(Some(runtime)),
            permits: Permits::new(worker_threads),
            functions: Arc::default(),
        })
    }

    /// Returns a handle to the runtime, for tasks and large reads.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(work);
    }

    /// Runs a blocking function as soon as a permit is free.
    pub(crate) fn spawn_blocking(self: &Arc<Self>, work: impl FnOnce() + Send + 'static) {
        if let Some(first) = self.permits.enter(Box::new(work)) {
            let executor = Arc::clone(self);
            self.handle
                .spawn_blocking(move || executor.permits.work(first));
        }
    }

    /// Counts an async function that has started.
    pub(crate) fn begin(&self) -> CountedFunction {
        self.functions.send_modify(|count| *count += 1);
        CountedFunction(Arc::clone(&self.functions))
    }

    /// Shuts the threads down without waiting for them.
    ///
    /// Async functions were cancelled before, and have a short time to return normally. A task on
    /// the runtime waits for that.
    pub(crate) fn end(&self) {
        let runtime = self.runtime.lock().take();
        if let Some(runtime) = runtime {
            if *self.functions.borrow() == 0 {
                runtime.shutdown_background();
            } else {
                let mut count = self.functions.subscribe();
                self.handle.spawn(async move {
                    // The runtime shuts down even if some functions are still running.
                    let _ = tokio::time::timeout(RETURN_TIME, count.wait_for(|count| *count == 0))
                        .await;
                    runtime.shutdown_background();
                });
            }
        }
        self.permits.close();
    }
}

impl Drop for CountedFunction {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Permits of blocking functions, and the queue of waiting functions.
struct Permits {
    most: usize,
    state: Mutex<PermitState>,
}

#[derive(Default)]
struct PermitState {
    running: usize,
    waiting: VecDeque<Work>,
    closed: bool,
}

impl Permits {
    fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
        }
    }

    /// Returns the work if a permit is free; otherwise queues it.
    fn enter(&self, work: Work) -> Option<Work> {
        let mut state = self.state.lock();
        if state.closed || state.running < self.most {
            state.running += 1;
            return Some(work);
        }
        state.waiting.push_back(work);
        None
    }

    /// Runs the work, and then the queued work.
    fn work(&self, first: Work) {
        let mut next = Some(first);
        while let Some(work) = next {
            // A panic was reported when it happened; it must not consume a permit.
            let _ = catch_unwind(AssertUnwindSafe(work));
            let mut state = self.state.lock();
            next = state.waiting.pop_front();
            state.running -= usize::from(next.is_none());
        }
    }

    /// Drops the queued work.
    fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        // Dropped without holding the lock, because the drop fills slots of waiting callers.
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn up_to_a_number_run_and_the_others_follow_in_order_whoever_panics() {
        let permits = Permits::new(2);
        let done = Arc::new(Mutex::new(Vec::new()));
        let work = |number: u32| -> Work {
            let done = Arc::clone(&done);
            Box::new(move || {
                done.lock().push(number);
                assert_ne!(number, 2, "one that panics");
            })
        };
        let first = permits.enter(work(0)).unwrap();
        let second = permits.enter(work(1)).unwrap();
        for number in 2..5 {
            assert!(permits.enter(work(number)).is_none());
        }
        permits.work(first);
        assert_eq!(*done.lock(), [0, 2, 3, 4]);
        assert!(permits.enter(work(5)).is_some(), "one has ended");
        assert!(permits.enter(work(6)).is_none());
        permits.work(second);
        assert_eq!(*done.lock(), [0, 2, 3, 4, 1, 6]);
    }

    #[test]
    fn what_waits_at_the_end_is_dropped() {
        let permits = Permits::new(1);
        let counted = Arc::new(AtomicU32::new(0));
        let work = || -> Work {
            let counted = Arc::clone(&counted);
            Box::new(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            })
        };
        let first = permits.enter(work()).unwrap();
        assert!(permits.enter(work()).is_none());
        permits.close();
        permits.work(first);
        assert_eq!(counted.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
