//! State of the Python objects of this crate, and checks of its use.
//!
//! The state may not be used after `close()`, or in a process that was forked from the one that
//! created it.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rdzv_lock::{Mutex, RwLock};

use crate::interrupt;

/// Number of forks between the process that loaded the module and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Function that closes a resource, at most once.
type End = Box<dyn FnOnce() + Send>;

/// Functions to call when the interpreter exits, by number.
static LIVE: Mutex<Vec<(u64, Own<End>)>> = Mutex::new(Vec::new());

/// Number of the next entry.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Process in which an object was created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    process: u32,
    forks: u64,
}

impl Origin {
    pub(crate) fn here() -> Self {
        Self {
            process: std::process::id(),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }

    /// `true` if this process was forked later from that one.
    pub(crate) fn is_foreign(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Refuses the use of a `name` in a forked child.
    pub(crate) fn check(&self, name: &str) -> PyResult<()> {
        if self.is_foreign() {
            Err(PyRuntimeError::new_err(format!(
                "this {name} was created in process {} and does not cross a fork; create a new \
                 {name} in this process",
                self.process
            )))
        } else {
            Ok(())
        }
    }
}

/// Value of one process.
///
/// A forked child does not drop the value, because the parent has it.
#[derive(Debug)]
pub(crate) struct Own<T> {
    origin: Origin,
    value: Option<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            origin: Origin::here(),
            value: Some(value),
        }
    }

    /// `true` in a forked child.
    pub(crate) fn is_foreign(&self) -> bool {
        self.origin.is_foreign()
    }

    pub(crate) fn into_inner(mut self) -> Option<T> {
        self.value.take()
    }

    /// Returns the value; in a forked child an error that names it `name`.
    pub(crate) fn get(&self, name: &str) -> PyResult<&T> {
        self.origin.check(name).map(|()| &**self)
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("only its drop takes it")
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.origin.is_foreign() {
            let _left = ManuallyDrop::new(self.value.take());
        }
    }
}

/// Closable value of one process.
///
/// A forked child does not touch the value, not even on drop. Its threads do not exist in the
/// child, and its sockets and files are the parent's.
#[derive(Debug)]
pub(crate) struct Handle<T> {
    name: &'static str,
    /// Value, or `file:line` of the call that closed it.
    state: Own<RwLock<Result<T, String>>>,
}

impl<T: Clone> Handle<T> {
    /// Owns `value`; errors name it `name`.
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        Self {
            name,
            state: Own::new(RwLock::new(Ok(value))),
        }
    }

    /// Returns the value, unless it is closed or of another process.
    pub(crate) fn get(&self) -> PyResult<T> {
        let state = self.state.get(self.name)?.read().clone();
        state.map_err(|location| {
            PyRuntimeError::new_err(format!("{} was closed at {location}", self.name))
        })
    }

    /// Closes and returns the value, and records the location in Python.
    ///
    /// `None` if the value was already closed, or is of another process.
    pub(crate) fn close(&self, py: Python<'_>) -> Option<T> {
        if self.state.is_foreign() {
            return None;
        }
        let location = caller_location(py).unwrap_or_else(|_| "an unknown location".to_owned());
        let mut state = self.state.write();
        if state.is_err() {
            return None;
        }
        std::mem::replace(&mut *state, Err(location)).ok()
    }
}

/// Returns `file:line` of the Python code that called this crate.
fn caller_location(py: Python<'_>) -> PyResult<String> {
    let frame = py.import("sys")?.call_method0("_getframe")?;
    let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
    let line: u32 = frame.getattr("f_lineno")?.extract()?;
    Ok(format!("{file}:{line}"))
}

/// Registers `end` for the end of the interpreter, and returns its number.
pub(crate) fn end_with_interpreter(end: impl FnOnce() + Send + 'static) -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let end: End = Box::new(end);
    LIVE.lock().push((number, Own::new(end)));
    number
}

/// Registration of a value for the end of the interpreter, until it is dropped.
#[derive(Debug)]
pub(crate) struct Ending(u64);

impl Ending {
    /// Registers `end` for the end of the interpreter, if `value` exists then.
    pub(crate) fn of<T: Send + Sync + 'static>(value: &Weak<T>, end: fn(&T)) -> Self {
        let value = Weak::clone(value);
        Self(end_with_interpreter(move || {
            if let Some(value) = value.upgrade() {
                end(&value);
            }
        }))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        LIVE.lock().retain(|(number, _)| *number != self.0);
    }
}

/// Hook that Python runs in the child of a fork.
#[pyfunction]
fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    interrupt::forget_other_threads();
}

/// Hook that Python runs before the interpreter ends.
#[pyfunction]
fn at_exit(py: Python<'_>) {
    interrupt::end_all(py);
    // In a child, a thread that exists only in the parent may have held the lock at the fork.
    let Some(mut live) = LIVE.try_lock().map(|mut live| std::mem::take(&mut *live)) else {
        return;
    };
    py.detach(|| {
        while let Some((_, end)) = live.pop() {
            // A value of the parent is not even dropped.
            if !end.is_foreign()
                && let Some(end) = end.into_inner()
            {
                end();
            }
        }
    });
}

/// Registers the hooks for forks and for the end of the interpreter.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let hooks = pyo3::types::PyDict::new(py);
    hooks.set_item("after_in_child", wrap_pyfunction!(after_fork, module)?)?;
    py.import("os")?
        .call_method("register_at_fork", (), Some(&hooks))?;
    let exit = wrap_pyfunction!(at_exit, module)?;
    py.import("atexit")?.call_method1("register", (exit,))?;
    Ok(())
}
