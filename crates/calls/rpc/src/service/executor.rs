//! Threads that run the functions of an agent.
//!
//! Async functions that have to wait run on one thread of a tokio runtime. Blocking functions run
//! on threads of its blocking pool: up to a maximum number run at the same time, and the others
//! wait in order.
//!
//! A call that belongs to the same trace as a blocking function that waits for a call is *nested*:
//! the function may wait for it. Nested functions therefore need no permit, and run on further
//! threads.
//!
//! Threads that read large parts need no permit, because a function that waits for a reply holds
//! its permit until the reply has been read.

use std::collections::{BTreeMap, VecDeque};
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
        let nested = most_nested(worker_threads);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(
                worker_threads
                    .saturating_add(nested)
                    .saturating_add(READERS),
            )
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

    /// Runs a blocking function of this trace as soon as a permit is free.
    ///
    /// A nested function runs immediately, unless [`most_nested`] of them are already running.
    pub(crate) fn spawn_blocking(
        self: &Arc<Self>,
        trace: u128,
        work: impl FnOnce() + Send + 'static,
    ) {
        if let Some(entered) = self.permits.enter(trace, Box::new(work)) {
            self.start(entered);
        }
    }

    fn start(self: &Arc<Self>, entered: Entered) {
        let executor = Arc::clone(self);
        self.handle
            .spawn_blocking(move || executor.permits.work(entered));
    }

    /// Runs `wait` for a blocking function, and its nested functions.
    pub(crate) fn waiting<T>(self: &Arc<Self>, trace: u128, wait: impl FnOnce() -> T) -> T {
        /// Ends the wait, also after a panic.
        struct Ends<'a>(&'a Permits, u128);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.end_wait(self.1);
            }
        }
        for nested in self.permits.begin_wait(trace) {
            self.start(nested);
        }
        let _ends = Ends(&self.permits, trace);
        wait()
    }

    /// Counts an async function that has started.
    pub(crate) fn begin(&self) -> CountedFunction {
        self.functions.send_modify(|count| *count += 1);
        CountedFunction(Arc::clone(&self.functions))
    }

    /// Shuts the threads down without waiting for them.
    ///
    /// Cancelled async functions have a short time to return normally. A task on the runtime waits
    /// for that.
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

/// Returns the maximum number of nested functions that run at the same time.
fn most_nested(worker_threads: usize) -> usize {
    worker_threads.saturating_mul(16).max(256)
}

/// A blocking function that may run now.
struct Entered {
    work: Work,
    /// `true` if the function has no permit.
    is_nested: bool,
}

/// Permits of blocking functions, and the queue of waiting functions.
struct Permits {
    most: usize,
    state: Mutex<PermitState>,
}

#[derive(Default)]
struct PermitState {
    running: usize,
    /// Number of functions that run without a permit.
    nested: usize,
    /// Number of waits inside functions, by trace.
    waits: BTreeMap<u128, usize>,
    waiting: VecDeque<(u128, Work)>,
    closed: bool,
}

impl Permits {
    fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
        }
    }

    /// Returns the work if it may run now; otherwise queues it.
    fn enter(&self, trace: u128, work: Work) -> Option<Entered> {
        let mut state = self.state.lock();
        let has_permit = state.closed || state.running < self.most;
        let is_nested = !has_permit
            && state.nested < most_nested(self.most)
            && state.waits.contains_key(&trace);
        if has_permit || is_nested {
            state.running += usize::from(has_permit);
            state.nested += usize::from(is_nested);
            return Some(Entered { work, is_nested });
        }
        state.waiting.push_back((trace, work));
        None
    }

    /// Runs the work. If it holds a permit, then also runs queued work.
    fn work(&self, entered: Entered) {
        let mut next = Some(entered.work);
        while let Some(work) = next {
            // A panic was reported when it happened; it must not consume a permit.
            let _ = catch_unwind(AssertUnwindSafe(work));
            let mut state = self.state.lock();
            if entered.is_nested {
                state.nested -= 1;
                return;
            }
            next = state.waiting.pop_front().map(|(_, work)| work);
            state.running -= usize::from(next.is_none());
        }
    }

    /// Begins a wait in a function, and returns the trace's queued functions.
    fn begin_wait(&self, trace: u128) -> Vec<Entered> {
        let mut state = self.state.lock();
        *state.waits.entry(trace).or_default() += 1;
        let free = most_nested(self.most).saturating_sub(state.nested);
        let mut nested = Vec::new();
        for (other, work) in std::mem::take(&mut state.waiting) {
            if other == trace && nested.len() < free {
                nested.push(Entered {
                    work,
                    is_nested: true,
                });
            } else {
                state.waiting.push_back((other, work));
            }
        }
        state.nested += nested.len();
        nested
    }

    fn end_wait(&self, trace: u128) {
        let mut state = self.state.lock();
        if let Some(waits) = state.waits.get_mut(&trace) {
            *waits -= 1;
            if *waits == 0 {
                state.waits.remove(&trace);
            }
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
        let first = permits.enter(0, work(0)).unwrap();
        let second = permits.enter(0, work(1)).unwrap();
        for number in 2..5 {
            assert!(permits.enter(0, work(number)).is_none());
        }
        permits.work(first);
        assert_eq!(*done.lock(), [0, 2, 3, 4]);
        assert!(permits.enter(0, work(5)).is_some(), "one has ended");
        assert!(permits.enter(0, work(6)).is_none());
        permits.work(second);
        assert_eq!(*done.lock(), [0, 2, 3, 4, 1, 6]);
    }

    #[test]
    fn functions_of_a_trace_that_waits_need_no_permit() {
        let permits = Permits::new(1);
        let work = || -> Work { Box::new(|| ()) };
        let first = permits.enter(7, work()).unwrap();
        assert!(permits.enter(7, work()).is_none());
        assert!(permits.enter(8, work()).is_none());
        let queued = permits.begin_wait(7);
        assert_eq!(queued.len(), 1, "the other trace has no wait");
        let nested = permits.enter(7, work()).unwrap();
        assert!(permits.enter(8, work()).is_none());
        for nested in queued.into_iter().chain([nested]) {
            assert!(nested.is_nested);
            permits.work(nested);
        }
        permits.end_wait(7);
        assert!(permits.enter(7, work()).is_none());
        permits.work(first);
        let state = permits.state.lock();
        assert_eq!(
            (state.running, state.nested, state.waiting.len()),
            (0, 0, 0)
        );
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
        let first = permits.enter(0, work()).unwrap();
        assert!(permits.enter(0, work()).is_none());
        permits.close();
        permits.work(first);
        assert_eq!(counted.load(Ordering::Relaxed), 1);
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
