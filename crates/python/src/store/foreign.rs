//! A store object of torch, or one that has its methods, as a store of ours.
//!
//! Its calls attach to the interpreter, and block it for as long as the object does. Waits are cut into
//! slices, because torch's own cannot be interrupted.

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDelta, PyTuple};
use rdzv_store::interrupt::is_wanted;
use rdzv_store::{Store, StoreError, address_for_others, address_towards};

use super::{Kind, StoreObject};
use crate::argument::type_name;
use crate::interrupt::{SLICE, attached, raise_at_end};

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

/// Longest wait in torch, which nothing can end.
const IN_TORCH: Duration = Duration::from_millis(50);

/// A store over the object `object`.
pub(super) fn of(object: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    let py = object.py();
    if object.is_instance_of::<StoreObject>() {
        return Ok(object.clone().unbind());
    }
    for method in METHODS {
        if !object.hasattr(method)? {
            return Err(PyTypeError::new_err(format!(
                "torch_store must be a torch.distributed.Store, and {} has no {method}",
                type_name(object)
            )));
        }
    }
    let of = type_name(object);
    let store = ForeignStore {
        object: Arc::new(object.clone().unbind()),
        name: of.clone(),
    };
    Ok(Py::new(py, StoreObject::new(Arc::new(store), Kind::Foreign { of }))?.into_any())
}

struct ForeignStore {
    object: Arc<Py<PyAny>>,
    /// Of the object's class.
    name: String,
}

impl fmt::Debug for ForeignStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

/// Why a call of the object failed.
struct Failed {
    /// The class and text of the exception.
    text: String,
    is_timeout: bool,
    is_empty_queue: bool,
}

impl ForeignStore {
    /// Calls a method and reads its result.
    fn call<T>(
        &self,
        method: &str,
        arguments: impl FnOnce(Python<'_>) -> PyResult<Py<PyTuple>>,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, Failed> {
        attached(|py| {
            let called = arguments(py).and_then(|arguments| {
                let arguments = arguments.bind(py);
                read(&self.object.bind(py).call_method1(method, arguments)?)
            });
            called.map_err(|error| {
                // Ctrl-C, for example, is the result of the whole call.
                if !error.is_instance_of::<PyException>(py) {
                    raise_at_end(error.clone_ref(py));
                }
                let text = error.to_string();
                let lower = text.to_lowercase();
                Failed {
                    is_timeout: lower.contains("timeout") || lower.contains("timed out"),
                    is_empty_queue: lower.contains("queue is empty"),
                    text,
                }
            })
        })
        .unwrap_or_else(|| {
            Err(Failed {
                text: "the interpreter has ended".to_owned(),
                is_timeout: false,
                is_empty_queue: false,
            })
        })
    }

    fn ask<T>(
        &self,
        method: &'static str,
        key: &str,
        arguments: impl FnOnce(Python<'_>) -> PyResult<Py<PyTuple>>,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, StoreError> {
        let start = Instant::now();
        self.call(method, arguments, read)
            .map_err(|failed| self.failed(method, key, failed, start))
    }

    fn failed(
        &self,
        operation: &'static str,
        key: &str,
        failed: Failed,
        start: Instant,
    ) -> StoreError {
        match failed.is_empty_queue {
            true => StoreError::QueueEmpty {
                key: key.to_owned(),
            },
            false => StoreError::Service {
                operation,
                key: key.to_owned(),
                what: failed.text,
                place: self.name.clone(),
                elapsed: start.elapsed(),
                remedy: "see what that store says of it",
            },
        }
    }

    /// Waits for all keys. Only another thread may wait in torch: in the main one torch would swallow the
    /// exception of a signal handler.
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
                match receiver.recv_timeout(SLICE) {
                    Ok(ended) => return Some(ended),
                    Err(_) if is_wanted() => {
                        is_over.store(true, Ordering::Relaxed);
                        return None;
                    }
                    Err(_) => {}
                }
            }
        });
        match ended {
            Some(Ok(true)) => Ok(()),
            Some(Ok(false)) => {
                let missing = |key: &&&str| !self.check(&[**key]).unwrap_or(false);
                let owned = |key: &&str| (*key).to_owned();
                Err(StoreError::WaitTimeout {
                    store: self.name.clone(),
                    keys: keys.iter().map(owned).collect(),
                    missing: keys.iter().filter(missing).map(owned).collect(),
                    elapsed: start.elapsed(),
                })
            }
            Some(Err(failed)) => Err(self.failed(operation, &keys.join(", "), failed, start)),
            None => Err(StoreError::Interrupted {
                operation,
                key: keys.join(", "),
                elapsed: start.elapsed(),
            }),
        }
    }

    /// Waits in torch, until all keys are there (true), the time is over, or `is_over` says so.
    fn wait_in_slices(
        &self,
        keys: &[&str],
        timeout: Duration,
        is_over: &AtomicBool,
    ) -> Result<bool, Failed> {
        let start = Instant::now();
        loop {
            // torch counts in milliseconds, and takes 0 of them for permanently.
            let left = timeout.saturating_sub(start.elapsed());
            let slice = left.clamp(Duration::from_millis(1), IN_TORCH);
            let waited = self.call(
                "wait",
                |py| {
                    let slice = PyDelta::new(py, 0, 0, slice.as_micros() as i32, true)?;
                    Ok((keys.to_vec(), slice).into_pyobject(py)?.unbind())
                },
                |_| Ok(()),
            );
            match waited {
                Ok(()) => return Ok(true),
                Err(failed) if !failed.is_timeout => return Err(failed),
                Err(_) if start.elapsed() >= timeout || is_over.load(Ordering::Relaxed) => {
                    return Ok(false);
                }
                Err(_) => {}
            }
        }
    }
}

fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    Ok(Bytes::copy_from_slice(object.extract::<&[u8]>()?))
}

fn values(objects: &Bound<'_, PyAny>) -> PyResult<Vec<Bytes>> {
    objects
        .try_iter()?
        .map(|object| bytes_of(&object?))
        .collect()
}

/// The host that a store of torch's is at, as it was given; of one with a prefix that of the store below.
fn host_of(object: &Bound<'_, PyAny>) -> PyResult<String> {
    match object.getattr_opt("underlying_store")? {
        Some(below) => host_of(&below),
        None => object.getattr("host")?.extract(),
    }
}

impl Store for ForeignStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.ask(
            "set",
            key,
            |py| Ok((key, PyBytes::new(py, value)).into_pyobject(py)?.unbind()),
            |_| Ok(()),
        )
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.get_within(key, None)
    }

    fn get_within(&self, key: &str, timeout: Option<Duration>) -> Result<Bytes, StoreError> {
        self.wait_for("get", &[key], timeout)?;
        self.ask(
            "get",
            key,
            |py| Ok((key,).into_pyobject(py)?.unbind()),
            bytes_of,
        )
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.ask(
            "add",
            key,
            |py| Ok((key, delta).into_pyobject(py)?.unbind()),
            |sum| sum.extract(),
        )
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        // torch takes text here.
        let text = |bytes: &[u8]| {
            str::from_utf8(bytes).map(str::to_owned).map_err(|_| {
                StoreError::Argument(format!(
                    "compare_set of {} takes text only, and a value of key {key} is not UTF-8",
                    self.name
                ))
            })
        };
        let (expected, desired) = (text(expected)?, text(desired)?);
        self.ask(
            "compare_set",
            key,
            |py| Ok((key, expected, desired).into_pyobject(py)?.unbind()),
            bytes_of,
        )
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.ask(
            "check",
            &keys.join(", "),
            |py| Ok((keys.to_vec(),).into_pyobject(py)?.unbind()),
            |answer| answer.extract(),
        )
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.wait_for("wait for", keys, timeout)
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        self.ask(
            "delete_key",
            key,
            |py| Ok((key,).into_pyobject(py)?.unbind()),
            |answer| answer.extract(),
        )
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.ask(
            "num_keys",
            "",
            |py| Ok(PyTuple::empty(py).unbind()),
            |count| count.extract(),
        )
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        self.ask(
            "list_keys",
            "",
            |py| Ok(PyTuple::empty(py).unbind()),
            |keys| keys.extract(),
        )
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.ask(
            "append",
            key,
            |py| Ok((key, PyBytes::new(py, value)).into_pyobject(py)?.unbind()),
            |_| Ok(()),
        )
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        self.wait_for("get", keys, None)?;
        self.ask(
            "multi_get",
            &keys.join(", "),
            |py| Ok((keys.to_vec(),).into_pyobject(py)?.unbind()),
            values,
        )
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        self.ask(
            "multi_set",
            &keys.join(", "),
            |py| {
                let values = pairs.iter().map(|(_, value)| PyBytes::new(py, value));
                let values: Vec<_> = values.collect();
                Ok((keys.clone(), values).into_pyobject(py)?.unbind())
            },
            |_| Ok(()),
        )
    }

    fn has_extended_api(&self) -> bool {
        let answer = self.call(
            "has_extended_api",
            |py| Ok(PyTuple::empty(py).unbind()),
            |answer| answer.extract(),
        );
        answer.unwrap_or(false)
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.ask(
            "queue_push",
            key,
            |py| Ok((key, PyBytes::new(py, value)).into_pyobject(py)?.unbind()),
            |_| Ok(()),
        )
    }

    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        let start = Instant::now();
        loop {
            // The question before it spares an exception in torch, which could swallow that of a signal.
            if !block || self.queue_len(key)? > 0 {
                let popped = self.ask(
                    "queue_pop",
                    key,
                    |py| Ok((key, false).into_pyobject(py)?.unbind()),
                    bytes_of,
                );
                match popped {
                    // Somebody else was faster.
                    Err(StoreError::QueueEmpty { .. }) if block => {}
                    popped => return popped,
                }
            }
            let left = self.timeout().saturating_sub(start.elapsed());
            // Over TCP a queue that is not empty counts as a key that is there; elsewhere it is looked at
            // again after each slice.
            match self.wait_for("queue_pop", &[key], Some(left.min(IN_TORCH))) {
                Err(StoreError::WaitTimeout { .. }) if left > IN_TORCH => {
                    if is_wanted() {
                        return Err(StoreError::Interrupted {
                            operation: "queue_pop",
                            key: key.to_owned(),
                            elapsed: start.elapsed(),
                        });
                    }
                }
                waited => waited?,
            }
        }
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        self.ask(
            "queue_len",
            key,
            |py| Ok((key,).into_pyobject(py)?.unbind()),
            |length| length.extract(),
        )
    }

    fn timeout(&self) -> Duration {
        let seconds = Python::try_attach(|py| {
            let timeout = self.object.bind(py).getattr("timeout")?;
            timeout.call_method0("total_seconds")?.extract::<f64>()
        });
        match seconds {
            Some(Ok(seconds)) => {
                Duration::try_from_secs_f64(seconds).unwrap_or(crate::timeout::FOREVER)
            }
            _ => super::kinds::DEFAULT_TIMEOUT,
        }
    }

    fn set_timeout(&self, timeout: Duration) {
        // A store that cannot have its timeout changed keeps it.
        let _ = self.call(
            "set_timeout",
            |py| {
                let delta = crate::timeout::timedelta(py, timeout)?;
                Ok((delta,).into_pyobject(py)?.unbind())
            },
            |_| Ok(()),
        );
    }

    fn address_of_this_host(&self) -> Option<IpAddr> {
        let host = Python::try_attach(|py| host_of(self.object.bind(py)).ok())??;
        address_for_others(&host, address_towards(&host).ok()?)
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        let object = self.ask(
            "clone",
            "",
            |py| Ok(PyTuple::empty(py).unbind()),
            |clone| Ok(clone.clone().unbind()),
        )?;
        Ok(Box::new(Self {
            object: Arc::new(object),
            name: self.name.clone(),
        }))
    }
}
