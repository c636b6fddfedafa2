//! Handle of an asynchronous operation.

use std::sync::OnceLock;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use rdzv_collective::{CollectiveError, Received, Work};

use super::Shared;
use super::callbacks;
use super::errors::of_group;
use super::signals;
use crate::argument::Object;
use crate::interrupt::{SLICE, attached, wait_in_slices};
use crate::memory::Memory;
use crate::timeout::{FOREVER, timeout};

/// Result of an operation.
///
/// It keeps the memory of the arguments until a thread that is attached to the interpreter drops
/// it.
#[derive(Default)]
pub(super) struct Outcome {
    #[expect(dead_code, reason = "keeps the memory")]
    pub(super) memory: Vec<Memory>,
    /// Rank that sent the message.
    pub(super) from: Option<u32>,
    pub(super) objects: Vec<Vec<u8>>,
}

impl Outcome {
    pub(super) fn of_objects(objects: Vec<Vec<u8>>) -> Self {
        Self {
            objects,
            ..Self::default()
        }
    }
}

impl From<Vec<Memory>> for Outcome {
    fn from(memory: Vec<Memory>) -> Self {
        Self {
            memory,
            ..Self::default()
        }
    }
}

impl From<Memory> for Outcome {
    fn from(memory: Memory) -> Self {
        vec![memory].into()
    }
}

impl From<Received<Memory>> for Outcome {
    fn from(received: Received<Memory>) -> Self {
        Self {
            memory: vec![received.buffer],
            from: Some(received.from),
            ..Self::default()
        }
    }
}

pub(super) trait AnyWork: Send + Sync {
    fn is_done(&self) -> bool;
    fn wait(&self, timeout: Duration) -> bool;
    fn on_done(&self, call: Box<dyn FnOnce() + Send>);
    fn take(&self) -> Option<Result<Outcome, CollectiveError>>;
}

impl<R: Into<Outcome> + Send + 'static> AnyWork for Work<R> {
    fn is_done(&self) -> bool {
        Self::is_done(self)
    }

    fn wait(&self, timeout: Duration) -> bool {
        self.wait_timeout(timeout)
    }

    fn on_done(&self, call: Box<dyn FnOnce() + Send>) {
        Self::on_done(self, call);
    }

    fn take(&self) -> Option<Result<Outcome, CollectiveError>> {
        Self::take(self).map(|result| result.map(Into::into))
    }
}

/// Waits for work on the calling thread. Ctrl-C breaks the group.
pub(super) fn finish(
    py: Python<'_>,
    work: &dyn AnyWork,
    interrupt: impl Fn() + Sync,
) -> PyResult<Result<Outcome, CollectiveError>> {
    let waited = signals::run(py, || {
        while !work.wait(SLICE) {
            if signals::is_raised() {
                interrupt();
                // The interrupt ends the operation, which still has the memory.
                work.wait(FOREVER);
            }
        }
    });
    let outcome = work.take();
    waited?;
    Ok(outcome.unwrap_or_else(|| Ok(Outcome::default())))
}

/// Operation that runs without its caller.
#[pyclass(frozen, module = "rdzv._rdzv", name = "Work")]
pub(crate) struct NativeWork {
    work: Box<dyn AnyWork>,
    ended: OnceLock<Result<Outcome, CollectiveError>>,
    operation: &'static str,
    rank: u32,
    /// Number of the group in the process.
    group: u64,
}

impl NativeWork {
    pub(super) fn new(
        work: impl AnyWork + 'static,
        operation: &'static str,
        group: &Shared,
    ) -> Self {
        Self {
            work: Box::new(work),
            ended: OnceLock::new(),
            operation,
            rank: group.rank,
            group: group.number,
        }
    }

    fn outcome(&self, py: Python<'_>) -> PyResult<Option<&Outcome>> {
        if !self.work.is_done() {
            return Ok(None);
        }
        let taken = || self.work.take().unwrap_or_else(|| Ok(Outcome::default()));
        match self.ended.get_or_init(taken) {
            Ok(outcome) => Ok(Some(outcome)),
            Err(error) => Err(of_group(py, error, self.operation, self.rank)),
        }
    }
}

#[pymethods]
impl NativeWork {
    /// Waits for up to `timeout` seconds.
    ///
    /// True if the operation has succeeded; False if it is still in progress.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Object<'_>>) -> PyResult<bool> {
        if !self.work.is_done() {
            callbacks::refuse(self.group, "wait")?;
            let limit = self::timeout("timeout", timeout)?.unwrap_or(FOREVER);
            let step = |left| self.work.wait(left).then_some(());
            if wait_in_slices(py, limit, step)?.is_none() {
                return Ok(false);
            }
        }
        self.outcome(py).map(|_| true)
    }

    /// True if the operation has ended, successfully or not.
    fn done(&self) -> bool {
        self.work.is_done()
    }

    /// Returns the rank that sent a message, once the message has arrived.
    fn source(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        Ok(self.outcome(py)?.and_then(|outcome| outcome.from))
    }

    /// Returns the bytes of objects, one item for each rank.
    fn objects<'py>(&self, py: Python<'py>) -> PyResult<Option<Vec<Bound<'py, PyByteArray>>>> {
        let outcome = self.outcome(py)?;
        Ok(outcome.map(|outcome| as_bytes(py, &outcome.objects)))
    }

    /// Calls `call()` once the operation has ended, successfully or not.
    fn on_done(&self, call: Py<PyAny>) {
        let group = self.group;
        self.work.on_done(Box::new(move || {
            // After the interpreter has exited, no callback runs.
            let _ = attached(|py| {
                callbacks::run(group, || {
                    if let Err(error) = call.call0(py) {
                        error.write_unraisable(py, Some(call.bind(py)));
                    }
                });
                drop(call);
            });
        }));
    }
}

pub(super) fn as_bytes<'py>(py: Python<'py>, objects: &[Vec<u8>]) -> Vec<Bound<'py, PyByteArray>> {
    objects
        .iter()
        .map(|bytes| PyByteArray::new(py, bytes))
        .collect()
}
