//! The one way to wait: a thread with a tokio runtime.
//!
//! Calls that block have threads beside that thread: [`beside`] runs stores behind
//! [`Store`](rdzv_store::Store), etcd, name resolution, attempts to connect, files.
//!
//! The runtime never runs inside a caller. So a program with a runtime can call the crate, and so
//! can one without it, as Python. The thread ends with its last user.

use std::convert::Infallible;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak, mpsc};
use std::thread;

use rdzv_lock::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::RendezvousError;

/// Limit of threads for calls that block.
///
/// Each wait in a store keeps a thread, and no call may queue behind such a wait.
const MOST_THREADS: usize = 1 << 16;

/// The runtime of this process, while it has users.
static RUNTIME: Mutex<Weak<Runtime>> = Mutex::new(Weak::new());

#[derive(Debug)]
struct Runtime {
    handle: Handle,
    /// A forked child has a copy of this value, and not the thread.
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
        // A call that blocks may last longer than anything that waits for it.
        runtime.shutdown_background();
    })?;
    *current = Arc::downgrade(&started);
    Ok(started)
}

/// A call on a thread beside the runtime, which outlives this handle.
#[derive(Debug)]
pub(crate) struct Call(Mutex<mpsc::Receiver<Infallible>>);

/// Runs a call that can block, for a caller outside of the runtime.
///
/// # Errors
///
/// The system's, if it has no thread or descriptors.
pub(crate) fn beside(call: impl FnOnce() + Send + 'static) -> io::Result<Call> {
    let runtime = runtime()?;
    let handle = runtime.handle.clone();
    let (end, ended) = mpsc::channel();
    let call = move || {
        let _held = (runtime, end);
        call();
    };
    // tokio has no other answer to a system that has no thread left.
    let spawned = catch_unwind(AssertUnwindSafe(|| handle.spawn_blocking(call)));
    spawned.map_err(|_| io::Error::other("there are too many threads"))?;
    Ok(Call(Mutex::new(ended)))
}

impl Call {
    /// Waits until the call has returned or panicked.
    pub(crate) fn join(self) {
        // Nothing is ever sent.
        let _ = self.0.into_inner().recv();
    }
}

/// The error of a caller that gets no thread for a purpose.
pub(crate) fn no_thread(error: &io::Error, purpose: &str, place: String) -> RendezvousError {
    RendezvousError::Unreachable {
        what: format!("cannot start a thread ({error}) {purpose}"),
        place,
        elapsed: None,
        remedy: "raise the limit of processes (ulimit -u)",
    }
}

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use super::*;

    #[test]
    fn a_call_that_panics_has_ended() {
        beside(|| resume_unwind(Box::new(()))).unwrap().join();
    }
}
