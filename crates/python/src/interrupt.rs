//! Calls that wait: without the interpreter, and with an end that Ctrl-C or the end of the interpreter can
//! bring.
//!
//! A thread that wants the interpreter while that ends is unwound by Python (up to 3.13), from
//! wherever it is, and frames of Rust abort the process then. So once the end has begun no thread
//! but the one that ends it comes back: it gives the interpreter away and stays where it is
//! ([`stay`]), and the end waits until no other thread runs code of Python's below code of ours
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

/// Longest time between two looks at Python's signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Longest time that the end of the interpreter waits for what other threads run in it.
const LEAVING: Duration = Duration::from_millis(500);

/// Time that threads have at the end of the interpreter to come to the end of a short call.
const GRACE: Duration = Duration::from_millis(20);

/// The interpreter ends: no call may wait any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The threads that run code of Python's below code of ours.
static BELOW: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The exception that ends the call that this thread is in.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
    /// Whether this thread comes back after the end has begun: it is the one that ends the interpreter, or one of
    /// Rust's, for whose end others may wait.
    static RETURNS: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has to leave the interpreter alone from now on.
fn must_stay() -> bool {
    ENDING.load(Ordering::SeqCst) && !RETURNS.get()
}

/// Keeps a thread that is detached from the interpreter until the process is gone.
fn stay() -> ! {
    loop {
        thread::park();
    }
}

/// A thread that runs code of Python's below code of ours, for as long as this lives.
struct Below;

impl Below {
    /// `None` once the end has begun, which either sees the count or was begun before.
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

/// Runs code that calls functions of Python's. The end of the interpreter waits for it.
pub(crate) fn below<T>(py: Python<'_>, call: impl FnOnce() -> T) -> T {
    let entered = Below::enter();
    if entered.is_none() && must_stay() {
        py.detach(|| stay());
    }
    call()
}

/// The same on a thread of Rust's. `None` if the interpreter ends or has ended.
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

/// Runs `call` without the interpreter. A `check` inside of it (see [`is_to_end`]) that says yes leaves an
/// exception, which is then the result.
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

/// Has [`detached`] raise this as the result of the call that this thread is in.
pub(crate) fn raise_at_end(error: PyErr) {
    RAISED.set(Some(error));
}

/// Whether the call that this thread is in is to end; asked at least every [`SLICE`] while it waits. Runs
/// Python's signal handlers, and keeps their exception for [`detached`].
pub(crate) fn is_to_end() -> bool {
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    let error = match ENDING.load(Ordering::SeqCst) {
        true => Some(ended()),
        false => Python::try_attach(|py| {
            // The end may have begun meanwhile. This thread may hold locks that the end waits for,
            // so it does not stay here but ends its call, and stays after that.
            let Some(_entered) = Below::enter() else {
                return Some(ended());
            };
            let is_over = py.check_signals().and_then(|()| main_thread_is_over(py));
            is_over.map_or_else(Some, |is_over| is_over.then(ended))
        })
        .unwrap_or_else(|| Some(ended())),
    };
    let to_end = error.is_some();
    RAISED.set(error);
    to_end
}

/// Waits in slices until `step` gives a value or `timeout` is over.
///
/// `step` gets the longest time that it may wait, runs detached from the interpreter, and gives
/// `None` if nothing has happened in that time. `None` as the result means that the timeout is
/// over. An exception of a signal handler ends the wait.
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

/// Runs `call` on a thread of its own and waits for its result. `None`: the thread has panicked. If the wait of the
/// caller is ended early, the thread goes on.
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

/// Ends all calls that wait, and keeps new ones from beginning: the interpreter ends, by this thread.
pub(crate) fn end_all(py: Python<'_>) {
    RETURNS.set(true);
    ENDING.store(true, Ordering::SeqCst);
    let others = has_other_threads(py).unwrap_or(true);
    py.detach(|| {
        let start = Instant::now();
        // A thread says so while it has the interpreter, which it then uses further: there is no
        // event to wait for.
        while BELOW.load(Ordering::SeqCst) > 0 && start.elapsed() < LEAVING {
            thread::sleep(Duration::from_millis(1));
        }
        if others {
            // Those in a call that only has the interpreter come to its end.
            thread::sleep(GRACE);
        }
    });
}

/// Whether there are threads of Python's beside this one.
fn has_other_threads(py: Python<'_>) -> PyResult<bool> {
    let frames = py.import("sys")?.call_method0("_current_frames")?;
    Ok(frames.len()? > 1)
}

/// After a fork only the forking thread is there.
pub(crate) fn forget_other_threads() {
    BELOW.store(0, Ordering::SeqCst);
}

/// The interpreter waits for its other threads as soon as the main one is over, before `atexit`. A program
/// with one thread has not loaded `threading`.
///
/// An error is the exception of a signal handler: a signal that arrives here runs it in the Python
/// code of `threading`.
fn main_thread_is_over(py: Python<'_>) -> PyResult<bool> {
    static THREADING: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let threading = THREADING.get_or_try_init(py, || -> PyResult<_> {
        let loaded = py.import("sys")?.getattr("modules")?;
        Ok(loaded.get_item("threading")?.cast_into()?.unbind())
    });
    let threading = match threading {
        Ok(threading) => threading,
        // Not loaded yet, perhaps later.
        Err(error) if error.is_instance_of::<PyKeyError>(py) => return Ok(false),
        Err(error) => return Err(error),
    };
    let main = threading.bind(py).call_method0("main_thread")?;
    let is_alive: bool = main.call_method0("is_alive")?.extract()?;
    Ok(!is_alive)
}

fn ended() -> PyErr {
    PyRuntimeError::new_err("the interpreter ends: the call was given up")
}
