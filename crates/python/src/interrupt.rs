//! Calls that wait without the interpreter, until Ctrl-C or its end.
//!
//! If a thread requests the interpreter while the interpreter ends, Python (up to 3.13) unwinds the
//! thread from wherever it is. Frames of Rust then abort the process. Therefore, once the end has
//! begun, only the thread that ends the interpreter returns to it, and threads of Rust that are
//! running Python code ([`attached`]). Every other thread stays detached forever ([`stay`]). The
//! end waits for up to 500 ms until no other thread runs Python code called by this crate
//! ([`below`]).

mod approach;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Maximum time between two checks of Python's signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Maximum wait for code of other threads at the end of the interpreter.
const LEAVING: Duration = Duration::from_millis(500);

/// Time for threads to finish a short call at the end of the interpreter.
const SHORT_CALL: Duration = Duration::from_millis(20);

/// `true` once the interpreter ends: no call may wait any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Number of threads that run Python code called by this crate.
static BELOW: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Exception that ends the current call of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// `true` if this thread may return to the interpreter after its end has begun.
    ///
    /// This is the thread that ends the interpreter, or a thread of Rust that other threads may
    /// wait for.
    static RETURNS: Cell<bool> = const { Cell::new(false) };
}

/// `true` if this thread must not use the interpreter any more.
fn must_stay() -> bool {
    ENDING.load(Ordering::SeqCst) && !RETURNS.get()
}

/// Keeps a detached thread waiting until the process ends.
fn stay() -> ! {
    loop {
        thread::park();
    }
}

/// Marker of a thread that runs Python code called by this crate.
struct Below;

impl Below {
    /// Counts this thread; `None` once the end of the interpreter has begun.
    ///
    /// The end either sees the count, or has begun before it.
    fn enter() -> Option<Self> {
        BELOW.fetch_add(1, Ordering::SeqCst);
        let entered = Self;
        (!ENDING.load(Ordering::SeqCst)).then_some(entered)
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        BELOW.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs code that calls Python functions.
///
/// The end of the interpreter waits for it, for up to 500 ms.
pub(crate) fn below<T>(py: Python<'_>, call: impl FnOnce() -> T) -> T {
    let entered = Below::enter();
    if entered.is_none() && must_stay() {
        py.detach(|| stay());
    }
    call()
}

/// Runs code on a thread of Rust with the interpreter.
///
/// `None` if the interpreter ends or has ended.
pub(crate) fn attached<T>(call: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _entered = Below::enter()?;
    let before = RETURNS.replace(true);
    let result = Python::try_attach(call);
    RETURNS.set(before);
    result
}

/// Runs `call` without the interpreter, for a moment.
pub(crate) fn detach<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        approach::left();
        if must_stay() {
            stay();
        }
        let result = call();
        if must_stay() {
            stay();
        }
        approach::wait();
        result
    })
}

/// Runs `call` without the interpreter.
///
/// If [`is_to_end`] returns `true` inside it, that check leaves an exception, which is the result.
pub(crate) fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    if ENDING.load(Ordering::SeqCst) && !must_stay() {
        return Err(ended());
    }
    let result = detach(py, call);
    match RAISED.take() {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

/// Sets the exception with which [`detached`] ends this thread's call.
pub(crate) fn raise_at_end(error: PyErr) {
    RAISED.set(Some(error));
}

/// `true` if the current call of this thread must end.
///
/// Check this at least every [`SLICE`] during a wait. The check runs Python's signal handlers, and
/// keeps their exception for [`detached`].
pub(crate) fn is_to_end() -> bool {
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    let error = if ENDING.load(Ordering::SeqCst) {
        Some(ended())
    } else {
        Python::try_attach(|py| {
            // The end may have begun by now. This thread may hold locks that the end waits for, so
            // it does not stay here. It ends its call, and stays after that.
            let Some(_entered) = Below::enter() else {
                return Some(ended());
            };
            let is_over = py.check_signals().and_then(|()| main_thread_is_over(py));
            is_over.map_or_else(Some, |is_over| is_over.then(ended))
        })
        .unwrap_or_else(|| Some(ended()))
    };
    let to_end = error.is_some();
    RAISED.set(error);
    to_end
}

/// Waits in slices until `step` returns a value or `timeout` expires.
///
/// `step` gets the maximum time to wait, and runs detached from the interpreter. It returns `None`
/// if nothing has happened in that time. The result is `None` after the timeout. An exception of a
/// signal handler ends the wait.
pub(crate) fn wait_in_slices<T: Send>(
    py: Python<'_>,
    timeout: Duration,
    mut step: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    detached(py, || {
        let start = Instant::now();
        loop {
            let left = timeout.saturating_sub(start.elapsed());
            if let Some(value) = step(left.min(SLICE)) {
                return Some(value);
            }
            if start.elapsed() >= timeout || is_to_end() {
                return None;
            }
        }
    })
}

/// Runs `call` on a separate thread, and waits for its result.
///
/// `None` if the thread has panicked. If the wait ends early, the thread continues.
pub(crate) fn on_thread<T: Send + 'static>(
    py: Python<'_>,
    name: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> PyResult<Option<T>> {
    let (sender, receiver) = mpsc::channel();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || sender.send(call()))?;
    detached(py, move || {
        loop {
            match receiver.recv_timeout(SLICE) {
                Err(RecvTimeoutError::Timeout) if !is_to_end() => {}
                result => return result.ok(),
            }
        }
    })
}

/// Ends all waiting calls and refuses new ones.
///
/// The calling thread ends the interpreter.
pub(crate) fn end_all(py: Python<'_>) {
    RETURNS.set(true);
    ENDING.store(true, Ordering::SeqCst);
    let others = has_other_threads(py).unwrap_or(true);
    py.detach(|| {
        let start = Instant::now();
        // The last use of the interpreter by a thread may come after its update of the count. So
        // there is no event to wait for.
        while BELOW.load(Ordering::SeqCst) > 0 && start.elapsed() < LEAVING {
            thread::sleep(Duration::from_millis(1));
        }
        if others {
            // Threads in a short call, which the count does not include, get time to finish it.
            thread::sleep(SHORT_CALL);
        }
    });
}

fn has_other_threads(py: Python<'_>) -> PyResult<bool> {
    let frames = py.import("sys")?.call_method0("_current_frames")?;
    Ok(frames.len()? > 1)
}

/// Resets the count after a fork, because only the forking thread exists.
pub(crate) fn forget_other_threads() {
    BELOW.store(0, Ordering::SeqCst);
}

/// `true` once the main thread has ended.
///
/// The interpreter then waits for its other threads.
///
/// It does so before `atexit`. A program with one thread need not have loaded `threading`.
///
/// An error is the exception of a signal handler: a signal that arrives here runs the handler in
/// the Python code of `threading`.
fn main_thread_is_over(py: Python<'_>) -> PyResult<bool> {
    static THREADING: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let threading = THREADING.get_or_try_init(py, || -> PyResult<_> {
        let loaded = py.import("sys")?.getattr("modules")?;
        Ok(loaded.get_item("threading")?.cast_into()?.unbind())
    });
    let threading = match threading {
        Ok(threading) => threading,
        // The module is not loaded yet, but may be loaded later.
        Err(error) if error.is_instance_of::<PyKeyError>(py) => return Ok(false),
        Err(error) => return Err(error),
    };
    let main = threading.bind(py).call_method0("main_thread")?;
    let is_alive: bool = main.call_method0("is_alive")?.extract()?;
    Ok(!is_alive)
}

fn ended() -> PyErr {
    PyRuntimeError::new_err("the interpreter is shutting down, so the call was cancelled")
}
