//! Calls that wait: without the interpreter, and with an end that Ctrl-C or the end of the interpreter can
//! bring.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// Longest time between two looks at Python's signals.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Longest time that the end of the interpreter waits for the calls of other threads.
const LEAVING: Duration = Duration::from_millis(500);

/// The interpreter ends: no call may wait any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// The calls that are detached from the interpreter, and will attach again.
static DETACHED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The exception that ends the call that this thread is in.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs `call` without the interpreter. A `check` inside of it (see [`is_to_end`]) that says yes leaves an
/// exception, which is then the result.
pub(crate) fn detached<T: Send>(py: Python<'_>, call: impl FnOnce() -> T + Send) -> PyResult<T> {
    struct Counted;
    impl Drop for Counted {
        fn drop(&mut self) {
            DETACHED.fetch_sub(1, Ordering::Release);
        }
    }
    DETACHED.fetch_add(1, Ordering::Acquire);
    let counted = Counted;
    if ENDING.load(Ordering::Acquire) {
        return Err(ended());
    }
    let result = py.detach(call);
    drop(counted);
    match RAISED.take() {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

/// Runs `call`, in which operations of stores block, without the interpreter.
pub(crate) fn store_call<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, rdzv_store::StoreError> + Send,
) -> PyResult<T> {
    detached(py, || rdzv_store::interruptible(is_to_end, call))?
        .map_err(|error| crate::errors::of_store(py, &error))
}

/// Whether the call that this thread is in is to end; asked at least every [`SLICE`] while it waits. Runs
/// Python's signal handlers, and keeps their exception for [`detached`].
pub(crate) fn is_to_end() -> bool {
    if RAISED.with_borrow(Option::is_some) {
        return true;
    }
    let error = match ENDING.load(Ordering::Acquire) {
        true => Some(ended()),
        false => Python::try_attach(|py| match py.check_signals() {
            Err(error) => Some(error),
            Ok(()) => match main_thread_is_over(py) {
                Ok(is_over) => is_over.then(ended),
                Err(error) => Some(error),
            },
        })
        .unwrap_or_else(|| Some(ended())),
    };
    let to_end = error.is_some();
    RAISED.set(error);
    to_end
}

/// Waits in slices until `step` gives a value or `timeout` is over.
///
/// `step` gets the longest time that it may wait, runs detached from the interpreter, and gives `None` if
/// nothing has happened in that time. `None` as the result means that the timeout is over. An exception of a
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

/// Ends all calls that wait, and keeps new ones from beginning: the interpreter ends. A thread that attaches
/// later would hang or die in the middle of Rust code.
pub(crate) fn end_all(py: Python<'_>) {
    ENDING.store(true, Ordering::Release);
    py.detach(|| {
        let start = Instant::now();
        // The threads leave at their next check. There is nothing that could be waited for: the last thing
        // that they do here is to attach.
        while DETACHED.load(Ordering::Acquire) > 0 && start.elapsed() < LEAVING {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// After a fork only the forking thread is there.
pub(crate) fn forget_other_threads() {
    DETACHED.store(0, Ordering::Release);
}

/// The interpreter waits for its other threads as soon as the main one is over, before `atexit`. A program
/// with one thread has not loaded `threading`.
///
/// An error is the exception of a signal handler: a signal that arrives here runs it in the Python code of
/// `threading`.
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
