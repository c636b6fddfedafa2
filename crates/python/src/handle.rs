//! The state of Python objects of this crate, and when it may not be used: after `close()`, and in a process
//! that was forked from the one that made it.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rdzv_lock::{Mutex, RwLock};

use crate::interrupt;

/// The number of forks between this process and the first one that loaded the module.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Ends what an object owns; does nothing if it has ended.
type End = Box<dyn FnOnce() + Send>;

/// The things that end with the interpreter, by number.
static LIVE: Mutex<Vec<(u64, Own<End>)>> = Mutex::new(Vec::new());

/// The number of the next entry.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The process in which an object was made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    process: u32,
    forks: u64,
}

impl Origin {
    /// This process.
    pub(crate) fn here() -> Self {
        Self {
            process: std::process::id(),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }

    /// Whether this is a child that was forked later.
    pub(crate) fn is_foreign(&self) -> bool {
        self.forks != FORKS.load(Ordering::Relaxed)
    }

    /// Refuses the use of a `name` in a forked child.
    pub(crate) fn check(&self, name: &str) -> PyResult<()> {
        match self.is_foreign() {
            false => Ok(()),
            true => Err(PyRuntimeError::new_err(format!(
                "this {name} was made in process {} and does not cross a fork; make a new one in this \
                 process",
                self.process
            ))),
        }
    }
}

/// A value that belongs to one process. In a forked child, whose parent has it, it is not dropped.
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

    /// The value; in a forked child an error that calls it `name`.
    pub(crate) fn get(&self, name: &str) -> PyResult<&T> {
        self.origin.check(name).map(|()| &**self)
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is taken by its drop only")
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.origin.is_foreign() {
            let _left = ManuallyDrop::new(self.value.take());
        }
    }
}

/// Something that can be closed, and that belongs to one process. In a forked child it is left alone, also
/// when it is dropped: its threads are not there, and its sockets and files are the parent's.
#[derive(Debug)]
pub(crate) struct Handle<T> {
    name: &'static str,
    /// The value, or `file:line` of the call that closed it.
    state: Own<RwLock<Result<T, String>>>,
}

impl<T: Clone> Handle<T> {
    /// Owns `value`; errors call it `name`.
    pub(crate) fn new(name: &'static str, value: T) -> Self {
        Self {
            name,
            state: Own::new(RwLock::new(Ok(value))),
        }
    }

    /// The value, unless it is closed or of another process.
    pub(crate) fn get(&self) -> PyResult<T> {
        let state = self.state.get(self.name)?.read().clone();
        state.map_err(|place| {
            PyRuntimeError::new_err(format!("{} was closed at {place}", self.name))
        })
    }

    /// Closes it, in the name of the Python code that runs; the value is the caller's then. `None` if it was
    /// closed before, or is of another process.
    pub(crate) fn close(&self, py: Python<'_>) -> Option<T> {
        if self.state.is_foreign() {
            return None;
        }
        let place = place(py).unwrap_or_else(|_| "an unknown place".to_owned());
        let mut state = self.state.write();
        if state.is_err() {
            return None;
        }
        std::mem::replace(&mut *state, Err(place)).ok()
    }
}

/// `file:line` of the Python code that called us.
fn place(py: Python<'_>) -> PyResult<String> {
    let frame = py.import("sys")?.call_method0("_getframe")?;
    let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
    let line: u32 = frame.getattr("f_lineno")?.extract()?;
    Ok(format!("{file}:{line}"))
}

/// Has `end` called before the interpreter ends; the number is that of its entry.
pub(crate) fn end_with_interpreter(end: impl FnOnce() + Send + 'static) -> u64 {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let end: End = Box::new(end);
    LIVE.lock().push((number, Own::new(end)));
    number
}

/// Ends a value with the interpreter, until this is dropped.
#[derive(Debug)]
pub(crate) struct Ending(u64);

impl Ending {
    /// Has `end` called with `value` before the interpreter ends, if `value` is still there.
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

/// Python runs this in the child of each fork.
#[pyfunction]
fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    interrupt::forget_other_threads();
}

/// Python runs this before the interpreter ends.
#[pyfunction]
fn at_exit(py: Python<'_>) {
    interrupt::end_all(py);
    // In a child, a thread that is not there may have held the lock when it was forked.
    let Some(mut live) = LIVE.try_lock().map(|mut live| std::mem::take(&mut *live)) else {
        return;
    };
    py.detach(|| {
        while let Some((_, end)) = live.pop() {
            // What is the parent's is not even dropped.
            if !end.is_foreign()
                && let Some(end) = end.into_inner()
            {
                end();
            }
        }
    });
}

/// Has Python tell this module of forks and of the end.
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
