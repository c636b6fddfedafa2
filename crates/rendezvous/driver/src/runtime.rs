//! Thread with a tokio runtime, for the tasks of this crate.
//!
//! Blocking calls run on additional threads.
//!
//! Connections, timers and links are tasks of the runtime. A task must never block, because it
//! would stop the heartbeats and leases of this process. [`blocking`] and [`beside`] run calls that
//! can block: stores behind [`Store`](rdzv_store::Store), etcd, name resolution, attempts to
//! connect, files.
//!
//! The runtime never runs on a caller's thread. So programs with a tokio runtime and programs
//! without such a runtime (Python) can call the crate. The thread ends after the last task and the
//! last call of [`beside`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Weak, mpsc};
use std::thread;
use std::time::Duration;

use rdzv_lock::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::RendezvousError;

/// Limit of threads for calls that block.
///
/// Each wait in a store keeps a thread, and no call may queue behind such a wait.
const MOST_THREADS: usize = 1 << 16;

/// Runtime of this process; it ends with its last user.
static RUNTIME: Mutex<Weak<Runtime>> = Mutex::new(Weak::new());

#[derive(Debug)]
struct Runtime {
    handle: Handle,
    /// Process id: a forked child has a copy of this value, but not the thread.
    process: u32,
    /// The thread ends when this is dropped.
    _end: oneshot::Sender<Infallible>,
}

/// Returns the runtime of this process, and starts it if there is none.
fn runtime() -> io::Result<Arc<Runtime>> {
    let mut current = RUNTIME.lock();
    let process = std::process::id();
    if let Some(runtime) = current.upgrade().filter(|it| it.process == process) {
        return Ok(runtime);
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MOST_THREADS)
        .thread_name("rdzv-blocking")
        .build()?;
    let (end, ended) = oneshot::channel::<Infallible>();
    let started = Arc::new(Runtime {
        handle: runtime.handle().clone(),
        process,
        _end: end,
    });
    let thread = thread::Builder::new().name("rdzv-rendezvous".to_owned());
    thread.spawn(move || {
        let _ = runtime.block_on(ended);
        // A blocking call may last longer than any task that waits for it.
        runtime.shutdown_background();
    })?;
    *current = Arc::downgrade(&started);
    Ok(started)
}

/// A task of the runtime, which outlives this handle.
#[derive(Debug)]
pub(crate) struct Task {
    handle: JoinHandle<()>,
    ended: Mutex<mpsc::Receiver<()>>,
}

/// Starts a task.
///
/// # Errors
///
/// Returns an error if the system has no thread or descriptors for the runtime.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> io::Result<Task> {
    let runtime = runtime()?;
    let handle = runtime.handle.clone();
    let (end, ended) = mpsc::channel();
    let handle = handle.spawn(async move {
        task.await;
        let _ = end.send(());
        drop(runtime);
    });
    Ok(Task {
        handle,
        ended: Mutex::new(ended),
    })
}

impl Task {
    /// Waits until the task has ended.
    ///
    /// Returns `false` if it panicked or was cancelled.
    pub(crate) fn join(self) -> bool {
        self.ended.into_inner().recv().is_ok()
    }

    /// Ends the task at its next wait.
    pub(crate) fn cancel(&self) {
        self.handle.abort();
    }
}

/// A call on a thread beside the runtime, which outlives this handle.
#[derive(Debug)]
pub(crate) struct Call(Mutex<mpsc::Receiver<Infallible>>);

/// Runs a call that can block, for a caller outside of the runtime.
///
/// # Errors
///
/// Returns an error if the system has no thread or descriptors left.
pub(crate) fn beside(call: impl FnOnce() + Send + 'static) -> io::Result<Call> {
    let runtime = runtime()?;
    let handle = runtime.handle.clone();
    let (end, ended) = mpsc::channel();
    let call = move || {
        let _held = (runtime, end);
        call();
    };
    // tokio panics if the system has no thread left.
    let spawned = catch_unwind(AssertUnwindSafe(|| handle.spawn_blocking(call)));
    spawned.map_err(|_| io::Error::other("too many threads"))?;
    Ok(Call(Mutex::new(ended)))
}

impl Call {
    /// Waits until the call has returned or panicked.
    pub(crate) fn join(self) {
        // Nothing is ever sent.
        let _ = self.0.into_inner().recv();
    }
}

/// Returns the error for a caller that cannot start a thread for `purpose`.
pub(crate) fn no_thread(error: &io::Error, purpose: &str, endpoint: String) -> RendezvousError {
    RendezvousError::Unreachable {
        what: format!("cannot start a thread {purpose} ({error})"),
        endpoint,
        elapsed: None,
        remedy: "raise the limit of processes (ulimit -u)",
    }
}

/// Runs a call that can block, for a task of the runtime.
///
/// If the call panics, the task panics.
pub(crate) async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    returned(&mut spawn_blocking(call)).await
}

async fn returned<T>(call: &mut JoinHandle<T>) -> T {
    match call.await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime ends, and drops this task at its next wait.
            Err(_) => pending().await,
        },
    }
}

/// Queue of blocking calls on one value, in order, for a task.
pub(crate) struct Calls<T, R> {
    /// `None` while a call runs.
    value: Option<T>,
    waiting: VecDeque<BlockingCall<T, R>>,
    running: Option<JoinHandle<(T, R)>>,
}

type BlockingCall<T, R> = Box<dyn FnOnce(&mut T) -> R + Send>;

impl<T: Send + 'static, R: Send + 'static> Calls<T, R> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            value: Some(value),
            waiting: VecDeque::new(),
            running: None,
        }
    }

    /// Adds a call.
    ///
    /// [`Calls::next`] starts it after all earlier calls have returned.
    pub(crate) fn push(&mut self, call: impl FnOnce(&mut T) -> R + Send + 'static) {
        self.waiting.push_back(Box::new(call));
    }

    /// Returns the result of the next call. The caller may abandon the wait.
    pub(crate) async fn next(&mut self) -> R {
        if let Some(mut value) = self.value.take_if(|_| !self.waiting.is_empty())
            && let Some(call) = self.waiting.pop_front()
        {
            self.running = Some(spawn_blocking(move || {
                let result = call(&mut value);
                (value, result)
            }));
        }
        let Some(running) = &mut self.running else {
            return pending().await;
        };
        let (value, result) = returned(running).await;
        (self.value, self.running) = (Some(value), None);
        result
    }
}

/// Waits for this duration; `None` never returns.
pub(crate) async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_task_differs_from_its_panic() {
        assert!(spawn(async {}).unwrap().join());
        let panics = spawn(async { resume_unwind(Box::new(())) });
        assert!(!panics.unwrap().join());
        let waits = spawn(pending()).unwrap();
        waits.cancel();
        assert!(!waits.join());
    }

    #[test]
    fn the_panic_of_a_call_is_one_of_its_task() {
        let task = spawn(blocking(|| resume_unwind(Box::new(()))));
        assert!(!task.unwrap().join());
        beside(|| resume_unwind(Box::new(()))).unwrap().join();
    }

    #[test]
    fn calls_on_a_value_keep_their_order_though_a_wait_for_one_is_abandoned() {
        let task = spawn(async {
            let (go, held) = mpsc::channel::<()>();
            let mut held = Some(held);
            let mut calls = Calls::new(Vec::new());
            for number in 0..3 {
                let held = held.take();
                calls.push(move |numbers: &mut Vec<u32>| {
                    // The first call lasts until its wait has been abandoned.
                    let _ = held.map(|held| held.recv());
                    numbers.push(number);
                    numbers.clone()
                });
            }
            tokio::select! {
                biased;
                _ = calls.next() => panic!("the call is held"),
                () = async {} => {}
            }
            drop(go);
            assert_eq!(calls.next().await, [0]);
            assert_eq!(calls.next().await, [0, 1]);
            assert_eq!(calls.next().await, [0, 1, 2]);
        });
        assert!(task.unwrap().join());
    }
}
