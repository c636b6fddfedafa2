//! Store object of torch, or one that has its methods, as a store of rdzv.
//!
//! Its calls attach to the interpreter until the object returns. Waits are cut into slices, because
//! a wait in torch cannot be interrupted.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pyo3::call::PyCallArgs;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use rdzv_store::{
    Store, StoreConnection, StoreError, address_for_others, address_towards, interrupt,
};

use super::{Kind, StoreObject};
use crate::argument::{Object, type_name};
use crate::interrupt::{SLICE, attached, raise_at_end};
use crate::timeout::{FOREVER, timedelta};

/// Methods that every store of torch has.
const METHODS: [&str; 7] = [
    "set",
    "get",
    "add",
    "compare_set",
    "check",
    "wait",
    "delete_key",
];

/// Maximum time of a wait in torch, which nothing can end.
const IN_TORCH: Duration = Duration::from_millis(50);

/// Returns a store of rdzv for the object `object`.
pub(super) fn of(object: Object<'_>) -> PyResult<Py<PyAny>> {
    let py = object.py();
    if let Ok(store) = object.cast::<StoreObject>()
        && !matches!(store.get().kind, Kind::Python)
    {
        return Ok(object.clone().unbind());
    }
    for method in METHODS {
        if !object.hasattr(method)? {
            return Err(PyTypeError::new_err(format!(
                "torch_store must be a torch.distributed.Store, but {} has no {method}",
                type_name(object)
            )));
        }
    }
    let of = type_name(object);
    let store = ForeignStore {
        object: Arc::new(object.clone().unbind()),
        name: of.clone(),
        is_subclass: object.is_instance_of::<StoreObject>(),
    };
    Ok(Py::new(py, StoreObject::new(Arc::new(store), Kind::Foreign { of }))?.into_any())
}

/// Refuses to make a store of a class that does not define all methods.
pub(super) fn check_subclass(class: &Bound<'_, PyType>) -> PyResult<()> {
    let base = class.py().get_type::<StoreObject>();
    let mut missing = Vec::new();
    for method in METHODS {
        if class.getattr(method)?.is(&base.getattr(method)?) {
            missing.push(method);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(PyTypeError::new_err(format!(
        "{} is abstract: it does not define {}",
        class.name()?,
        missing.join(", ")
    )))
}

struct ForeignStore {
    object: Arc<Py<PyAny>>,
    /// Name of the object's class.
    name: String,
    /// `true` for a subclass of `rdzv.Store`, which may have only some methods.
    is_subclass: bool,
}

impl fmt::Debug for ForeignStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

/// Reason why a call of the object failed.
struct Failed {
    /// Class and text of the exception.
    text: String,
    is_timeout: bool,
    is_empty_queue: bool,
}

impl ForeignStore {
    fn call<A, T>(&self, method: &str, arguments: A) -> Result<T, Failed>
    where
        A: for<'py> PyCallArgs<'py>,
        T: for<'py> FromPyObjectOwned<'py>,
    {
        let called = attached(|py| {
            let called = self.object.bind(py).call_method1(method, arguments);
            let read = |result: Bound<'_, PyAny>| result.extract().map_err(Into::into);
            called.and_then(read).map_err(|error: PyErr| {
                // An exception such as Ctrl-C is the result of the whole call.
                if !error.is_instance_of::<PyException>(py) {
                    raise_at_end(error.clone_ref(py));
                }
                error.to_string()
            })
        });
        let text = match called {
            Some(Ok(result)) => return Ok(result),
            Some(Err(text)) => text,
            None => "the interpreter has exited".to_owned(),
        };
        let lower = text.to_lowercase();
        Err(Failed {
            is_timeout: lower.contains("timeout") || lower.contains("timed out"),
            is_empty_queue: lower.contains("queue is empty"),
            text,
        })
    }

    fn ask<A, T>(&self, method: &'static str, key: &str, arguments: A) -> Result<T, StoreError>
    where
        A: for<'py> PyCallArgs<'py>,
        T: for<'py> FromPyObjectOwned<'py>,
    {
        let start = Instant::now();
        self.call(method, arguments)
            .map_err(|failed| self.failed(method, key, failed, start))
    }

    /// [`Self::ask`] for a method that returns nothing.
    fn tell<A>(&self, method: &'static str, key: &str, arguments: A) -> Result<(), StoreError>
    where
        A: for<'py> PyCallArgs<'py>,
    {
        self.ask::<A, Py<PyAny>>(method, key, arguments).map(drop)
    }

    fn failed(
        &self,
        operation: &'static str,
        key: &str,
        failed: Failed,
        start: Instant,
    ) -> StoreError {
        if failed.is_empty_queue {
            StoreError::QueueEmpty {
                key: key.to_owned(),
            }
        } else {
            StoreError::Service {
                operation,
                key: key.to_owned(),
                what: failed.text,
                endpoint: self.name.clone(),
                elapsed: start.elapsed(),
                remedy: "check the store and its server",
            }
        }
    }

    /// Waits for all keys, on another thread.
    ///
    /// In the main thread torch would swallow the exception of a signal handler.
    fn wait_for(
        &self,
        operation: &'static str,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        if self.check(keys)? {
            return Ok(());
        }
        let start = Instant::now();
        let timeout = timeout.unwrap_or_else(|| self.timeout());
        let is_over = AtomicBool::new(false);
        let (sender, receiver) = mpsc::channel();
        let ended = thread::scope(|scope| {
            scope.spawn(|| {
                let _the_caller_waits_for_it =
                    sender.send(self.wait_in_slices(keys, timeout, &is_over));
            });
            loop {
                if let Ok(ended) = receiver.recv_timeout(SLICE) {
                    let key = keys.join(", ");
                    return ended.map_err(|failed| self.failed(operation, &key, failed, start));
                }
                interrupt::check(operation, keys, start.elapsed())
                    .inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
            }
        });
        if ended? {
            return Ok(());
        }
        let missing = |key: &&&str| !self.check(&[**key]).unwrap_or(false);
        let owned = |key: &&str| (*key).to_owned();
        Err(StoreError::WaitTimeout {
            store: self.name.clone(),
            keys: keys.iter().map(owned).collect(),
            missing: keys.iter().filter(missing).map(owned).collect(),
            elapsed: start.elapsed(),
        })
    }

    /// Waits in torch; `true` if all keys exist.
    ///
    /// The wait also ends after the timeout, or when `is_over` is `true`.
    fn wait_in_slices(
        &self,
        keys: &[&str],
        timeout: Duration,
        is_over: &AtomicBool,
    ) -> Result<bool, Failed> {
        let start = Instant::now();
        loop {
            // torch counts in milliseconds, and 0 means without a limit.
            let left = timeout.saturating_sub(start.elapsed());
            let slice = left.clamp(Duration::from_millis(1), IN_TORCH);
            match self.call::<_, Py<PyAny>>("wait", (keys, slice)) {
                Ok(_) => return Ok(true),
                Err(failed) if !failed.is_timeout => return Err(failed),
                Err(_) if start.elapsed() >= timeout || is_over.load(Ordering::Relaxed) => {
                    return Ok(false);
                }
                Err(_) => {}
            }
        }
    }
}

/// Returns the host of a torch store in the form that it was given.
///
/// A store with a prefix has the host of the store below.
fn host_of(object: Object<'_>) -> PyResult<String> {
    match object.getattr_opt("underlying_store")? {
        Some(below) => host_of(&below),
        None => object.getattr("host")?.extract(),
    }
}

impl Store for ForeignStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.tell("set", key, (key, value))
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.get_within(key, None)
    }

    fn get_within(&self, key: &str, timeout: Option<Duration>) -> Result<Bytes, StoreError> {
        self.wait_for("get", &[key], timeout)?;
        self.ask("get", key, (key,))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.ask("add", key, (key, delta))
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        // torch takes text here.
        let text = |bytes| {
            str::from_utf8(bytes).map_err(|_| {
                StoreError::Argument(format!(
                    "compare_set of {} accepts only text, but a value of key {key} is not UTF-8",
                    self.name
                ))
            })
        };
        let (expected, desired) = (text(expected)?, text(desired)?);
        self.ask("compare_set", key, (key, expected, desired))
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.ask("check", &keys.join(", "), (keys,))
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.wait_for("wait for", keys, timeout)
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        self.ask("delete_key", key, (key,))
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.ask("num_keys", "", ())
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        self.ask("list_keys", "", ())
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.tell("append", key, (key, value))
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        if self.is_subclass {
            return keys.iter().map(|key| self.get(key)).collect();
        }
        self.wait_for("get", keys, None)?;
        self.ask("multi_get", &keys.join(", "), (keys,))
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        if self.is_subclass {
            let mut pairs = pairs.iter();
            return pairs.try_for_each(|(key, value)| self.set(key, value));
        }
        let (keys, values): (Vec<&str>, Vec<&[u8]>) = pairs.iter().copied().unzip();
        self.tell("multi_set", &keys.join(", "), (&keys, values))
    }

    fn has_extended_api(&self) -> bool {
        self.call("has_extended_api", ()).unwrap_or(false)
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.tell("queue_push", key, (key, value))
    }

    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        let start = Instant::now();
        loop {
            // The length is checked first, to avoid an exception in torch. That exception could
            // replace the one of a signal handler.
            if !block || self.queue_len(key)? > 0 {
                match self.ask("queue_pop", key, (key, false)) {
                    // Another client was faster.
                    Err(StoreError::QueueEmpty { .. }) if block => {}
                    popped => return popped,
                }
            }
            let left = self.timeout().saturating_sub(start.elapsed());
            // Over TCP a queue that is not empty counts as an existing key. Other stores are polled
            // again after each slice.
            match self.wait_for("queue_pop", &[key], Some(left.min(IN_TORCH))) {
                Err(StoreError::WaitTimeout { .. }) if left > IN_TORCH => {
                    interrupt::check("queue_pop", &[key], start.elapsed())?;
                }
                waited => waited?,
            }
        }
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        self.ask("queue_len", key, (key,))
    }

    fn timeout(&self) -> Duration {
        let seconds = Python::try_attach(|py| {
            let timeout = self.object.bind(py).getattr("timeout")?;
            timeout.call_method0("total_seconds")?.extract::<f64>()
        });
        match seconds {
            Some(Ok(seconds)) => Duration::try_from_secs_f64(seconds).unwrap_or(FOREVER),
            _ => super::kinds::DEFAULT_TIMEOUT,
        }
    }

    fn set_timeout(&self, timeout: Duration) {
        // A store that does not support another timeout keeps its timeout.
        let delta = attached(|py| timedelta(py, timeout).map(Bound::unbind).ok());
        let _ = self.call::<_, Py<PyAny>>("set_timeout", (delta.flatten(),));
    }

    fn connection(&self) -> Option<&dyn StoreConnection> {
        Some(self)
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        let object = if self.is_subclass {
            Arc::clone(&self.object)
        } else {
            Arc::new(self.ask::<_, Py<PyAny>>("clone", "", ())?)
        };
        Ok(Box::new(Self {
            object,
            name: self.name.clone(),
            is_subclass: self.is_subclass,
        }))
    }
}

impl StoreConnection for ForeignStore {
    fn address_of_this_host(&self) -> Option<IpAddr> {
        let host = Python::try_attach(|py| host_of(self.object.bind(py)).ok())??;
        address_for_others(&host, address_towards(&host).ok()?)
    }
}
