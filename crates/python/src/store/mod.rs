//! Stores: a common class with the operations, and one class for each kind.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | `Store`: the operations |
//! | `kinds.rs` | `TCPStore`, `FileStore`, `HashStore`, `PrefixStore` |
//! | `foreign.rs` | a store of torch as a store of rdzv |
//! | `server.rs` | `StoreServer` |
//! | `waits.rs` | waits of coroutines |

mod foreign;
pub(crate) mod kinds;
mod server;
mod waits;

use std::sync::{Arc, Weak};

use bytes::Bytes;
use pyo3::exceptions::{PyNotImplementedError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use rdzv_core::quantity::count;
use rdzv_store::{HashStore, Store, StoreError, TcpStore, interruptible};

use crate::argument::{self, Object, integer, keys, value};
use crate::errors::of_store;
use crate::handle::Handle;
use crate::interrupt::{detach, detached, is_to_end};
use crate::timeout::{timedelta, timeout};

pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<StoreObject>()?;
    module.add_class::<kinds::TcpStoreObject>()?;
    module.add_class::<kinds::FileStoreObject>()?;
    module.add_class::<kinds::HashStoreObject>()?;
    module.add_class::<kinds::PrefixStoreObject>()?;
    module.add_class::<server::StoreServer>()
}

/// Kind of a store, with the arguments of its constructor.
#[derive(Debug)]
pub(crate) enum Kind {
    Tcp {
        host: String,
        port: u16,
        client: Weak<TcpStore>,
    },
    File {
        path: String,
        world_size: i64,
    },
    Hash,
    Prefix {
        prefix: String,
        /// Store below this one.
        under: Py<StoreObject>,
    },
    Foreign {
        of: String,
    },
    /// The store of a round, which an agent has made.
    Round,
    /// Store of a subclass of `Store` in Python, which has the operations.
    Python,
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Tcp { .. } => "TCPStore",
            Self::File { .. } => "FileStore",
            Self::Hash => "HashStore",
            Self::Prefix { .. } => "PrefixStore",
            Self::Foreign { .. } | Self::Round | Self::Python => "Store",
        }
    }
}

/// Keys and values that processes share, with waits, counters and queues.
///
/// The class is abstract: create a ``TCPStore``, ``FileStore``, ``HashStore`` or ``PrefixStore``. A
/// subclass must define ``set``, ``get``, ``add``, ``compare_set``, ``check``, ``wait`` and
/// ``delete_key``. The package calls them with positional arguments.
///
/// Keys are ``str``; values are ``bytes`` or ``str`` (UTF-8), and are returned as ``bytes``.
/// Timeouts are seconds or a ``timedelta``; ``None`` means the store's timeout, and ``math.inf``
/// waits without a limit. Several threads can use a store. Over TCP a wait in one thread delays the
/// others, so give each thread a ``clone()``. Ctrl-C ends a wait within 200 ms, and the store stays
/// usable. If the connection is lost, operations raise ``StoreError``.
///
/// Example:
///     >>> import rdzv
///     >>> store = rdzv.HashStore()
///     >>> store.set("model", b"ready")
///     >>> store.get("model")
///     b'ready'
#[pyclass(subclass, frozen, name = "Store", module = "rdzv")]
#[derive(Debug)]
pub(crate) struct StoreObject {
    handle: Handle<Arc<dyn Store>>,
    kind: Kind,
}

impl StoreObject {
    pub(crate) fn new(store: Arc<dyn Store>, kind: Kind) -> Self {
        Self {
            handle: Handle::new(kind.name(), store),
            kind,
        }
    }

    /// Returns the store of an argument, which may be a store of torch.
    pub(crate) fn of_argument(object: Object<'_>) -> PyResult<Arc<dyn Store>> {
        let store = foreign::of(object)?;
        store.bind(object.py()).cast::<Self>()?.get().open()
    }

    /// Returns the store, unless it or the one below is closed.
    ///
    /// The store of another process, and a subclass without the operation, are errors too.
    pub(crate) fn open(&self) -> PyResult<Arc<dyn Store>> {
        match &self.kind {
            Kind::Prefix { under, .. } => drop(under.get().open()?),
            Kind::Python => {
                return Err(PyNotImplementedError::new_err(
                    "this store is of a subclass of rdzv.Store that does not define the operation",
                ));
            }
            _ => {}
        }
        self.handle.get()
    }

    /// Returns the TCP client below this store, with the keys that it uses.
    fn below(&self, keys: &[String]) -> Option<(Arc<TcpStore>, Vec<String>)> {
        match &self.kind {
            Kind::Prefix { prefix, under } => {
                let joined: Vec<String> =
                    keys.iter().map(|key| format!("{prefix}/{key}")).collect();
                under.get().below(&joined)
            }
            Kind::Tcp { client, .. } => Some((client.upgrade()?, keys.to_vec())),
            _ => None,
        }
    }

    /// Runs an operation without the interpreter.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let store = self.open()?;
        store_call(py, || call(&*store))
    }
}

/// Runs `call`, which blocks in store operations, without the interpreter.
pub(crate) fn store_call<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, StoreError> + Send,
) -> PyResult<T> {
    detached(py, || interruptible(is_to_end, call))?.map_err(|error| of_store(py, &error))
}

fn borrowed(keys: &[String]) -> Vec<&str> {
    keys.iter().map(String::as_str).collect()
}

#[pymethods]
impl StoreObject {
    #[new]
    #[classmethod]
    #[pyo3(signature = (*_arguments, **_keywords), text_signature = None)]
    fn of_subclass(
        class: &Bound<'_, PyType>,
        _arguments: &Bound<'_, PyTuple>,
        _keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        foreign::check_subclass(class)?;
        Ok(Self::new(Arc::new(HashStore::new()), Kind::Python))
    }

    /// Stores a value, and wakes the waiters of its key.
    ///
    /// Over TCP the server does not answer, so a failure shows in the next call.
    ///
    /// Args:
    ///     key (str): the key, at most 8191 bytes over TCP.
    ///     value (bytes | str): the value, at most 8 MiB over TCP.
    ///
    /// Raises:
    ///     ValueError: the key or the value is too long; nothing was sent.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().set("model", b"ready")
    fn set(&self, py: Python<'_>, key: &str, value: Object<'_>) -> PyResult<()> {
        let value = argument::value("value", value)?;
        self.call(py, |store| store.set(key, value))
    }

    /// Returns the value of a key; waits for the key.
    ///
    /// Args:
    ///     key (str): the key.
    ///     timeout (float | timedelta | None): seconds to wait; None means the store's timeout.
    ///
    /// Returns:
    ///     bytes: the value.
    ///
    /// Raises:
    ///     StoreTimeout: the key did not exist in time.
    ///
    /// Example:
    ///     >>> store = rdzv.HashStore(); store.set("model", "ready")
    ///     >>> store.get("model", timeout=1.0)
    ///     b'ready'
    #[pyo3(signature = (key, *, timeout=None))]
    fn get(&self, py: Python<'_>, key: &str, timeout: Option<Object<'_>>) -> PyResult<Bytes> {
        let within = self::timeout("timeout", timeout)?;
        self.call(py, |store| store.get_within(key, within))
    }

    /// Adds to the decimal number under a key, and returns the sum.
    ///
    /// A missing key counts as 0.
    ///
    /// Args:
    ///     key (str): the key.
    ///     amount (int): the summand, a signed 64-bit number.
    ///
    /// Returns:
    ///     int: the sum.
    ///
    /// Raises:
    ///     ValueError: the value under the key is no number, in a ``FileStore`` or ``HashStore``.
    ///     StoreError: the connection is lost. A server also closes it if the value is no number,
    ///         because PyTorch's protocol has no answer for that. ``clone()`` connects again.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().add("ready", 1)
    ///     1
    fn add(&self, py: Python<'_>, key: &str, amount: Object<'_>) -> PyResult<i64> {
        let amount = integer("amount", amount, i64::MIN, i64::MAX)?;
        self.call(py, |store| store.add(key, amount))
    }

    /// Appends to the value of a key, or creates it.
    ///
    /// Args:
    ///     key (str): the key.
    ///     value (bytes | str): the bytes to append.
    ///
    /// Raises:
    ///     ValueError: the value is too long.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().append("log", "line 1")
    fn append(&self, py: Python<'_>, key: &str, value: Object<'_>) -> PyResult<()> {
        let value = argument::value("value", value)?;
        self.call(py, |store| store.append(key, value))
    }

    /// Stores ``desired`` if the key has ``expected``; returns the current value.
    ///
    /// A missing key equals an empty ``expected``.
    ///
    /// If the key is missing and ``expected`` is not empty, nothing is stored, and ``expected`` is
    /// returned, as in PyTorch.
    ///
    /// Args:
    ///     key (str): the key.
    ///     expected (bytes | str): the value that the key must have.
    ///     desired (bytes | str): the new value.
    ///
    /// Returns:
    ///     bytes: the value of the key after the call, or ``expected`` if the key is still missing.
    ///
    /// Raises:
    ///     ValueError: a value is too long.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().compare_set("leader", "", "me")
    ///     b'me'
    fn compare_set(
        &self,
        py: Python<'_>,
        key: &str,
        expected: Object<'_>,
        desired: Object<'_>,
    ) -> PyResult<Bytes> {
        let expected = value("expected", expected)?;
        let desired = value("desired", desired)?;
        self.call(py, |store| store.compare_set(key, expected, desired))
    }

    /// Returns True if all keys exist, without waiting for them.
    ///
    /// Args:
    ///     keys (list[str]): the keys.
    ///
    /// Returns:
    ///     bool: True if all of them exist.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().check(["model"])
    ///     False
    fn check(&self, py: Python<'_>, keys: Object<'_>) -> PyResult<bool> {
        let keys = self::keys("keys", keys)?;
        self.call(py, |store| store.check(&borrowed(&keys)))
    }

    /// Waits until all keys exist.
    ///
    /// Args:
    ///     keys (list[str]): the keys.
    ///     timeout (float | timedelta | None): seconds to wait; None means the store's timeout.
    ///
    /// Raises:
    ///     StoreTimeout: a key did not exist in time; the text names the missing keys.
    ///
    /// Example:
    ///     >>> store = rdzv.HashStore(); store.set("model", "ready"); store.wait(["model"], 1.0)
    #[pyo3(signature = (keys, timeout=None))]
    fn wait(&self, py: Python<'_>, keys: Object<'_>, timeout: Option<Object<'_>>) -> PyResult<()> {
        let keys = self::keys("keys", keys)?;
        let within = self::timeout("timeout", timeout)?;
        self.call(py, |store| store.wait(&borrowed(&keys), within))
    }

    /// Removes a key.
    ///
    /// Args:
    ///     key (str): the key.
    ///
    /// Returns:
    ///     bool: True if the key existed; a ``FileStore`` always returns True.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().delete_key("model")
    ///     False
    fn delete_key(&self, py: Python<'_>, key: &str) -> PyResult<bool> {
        self.call(py, |store| store.delete_key(key))
    }

    /// Returns the number of keys in the whole store, including internal keys.
    ///
    /// Returns:
    ///     int: the number; a ``PrefixStore`` counts all keys of the store below it.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().num_keys()
    ///     0
    fn num_keys(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |store| store.num_keys())
    }

    /// Returns all keys, in no particular order.
    ///
    /// Returns:
    ///     list[str]: the keys. A ``PrefixStore`` returns the keys with its prefix, without the
    ///         prefix.
    ///
    /// Raises:
    ///     StoreError: the store cannot list its keys.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().list_keys()
    ///     []
    fn list_keys(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.call(py, |store| store.list_keys())
    }

    /// Returns the values of several keys, in their order; waits for all of them.
    ///
    /// Args:
    ///     keys (list[str]): the keys.
    ///
    /// Returns:
    ///     list[bytes]: the values.
    ///
    /// Raises:
    ///     StoreTimeout: a key did not exist within the store's timeout.
    ///
    /// Example:
    ///     >>> store = rdzv.HashStore(); store.multi_set(["a", "b"], ["1", "2"])
    ///     >>> store.multi_get(["b", "a"])
    ///     [b'2', b'1']
    fn multi_get(&self, py: Python<'_>, keys: Object<'_>) -> PyResult<Vec<Bytes>> {
        let keys = self::keys("keys", keys)?;
        self.call(py, |store| store.multi_get(&borrowed(&keys)))
    }

    /// Stores several values.
    ///
    /// Args:
    ///     keys (list[str]): the keys.
    ///     values (list[bytes | str]): a value for each key.
    ///
    /// Raises:
    ///     ValueError: the lists differ in length, or a value is too long.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().multi_set(["a", "b"], ["1", "2"])
    fn multi_set(&self, py: Python<'_>, keys: Object<'_>, values: Object<'_>) -> PyResult<()> {
        let keys = self::keys("keys", keys)?;
        let objects = values.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        if keys.len() != objects.len() {
            return Err(PyValueError::new_err(format!(
                "keys has {} and values has {}: pass one value for each key",
                count(keys.len(), "item"),
                objects.len()
            )));
        }
        let mut pairs = Vec::with_capacity(keys.len());
        for (key, object) in keys.iter().zip(&objects) {
            pairs.push((key.as_str(), value("values", object)?));
        }
        self.call(py, |store| store.multi_set(&pairs))
    }

    /// Returns True if the store has the extended operations.
    ///
    /// Then ``append``, ``multi_get`` and ``multi_set`` are single operations.
    ///
    /// Returns:
    ///     bool: False for a ``FileStore``, and for a store of torch that lacks them.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().has_extended_api()
    ///     True
    fn has_extended_api(&self) -> PyResult<bool> {
        Ok(self.open()?.has_extended_api())
    }

    /// Appends an item to a queue.
    ///
    /// Queues and keys have separate name spaces, but ``check`` and ``wait`` also accept a queue
    /// with items as an existing key.
    ///
    /// Args:
    ///     key (str): name of the queue.
    ///     value (bytes | str): the item.
    ///
    /// Raises:
    ///     StoreError: the store has no queues (``FileStore``).
    ///     ValueError: the value is too long.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().queue_push("work", b"item")
    fn queue_push(&self, py: Python<'_>, key: &str, value: Object<'_>) -> PyResult<()> {
        let value = argument::value("value", value)?;
        self.call(py, |store| store.queue_push(key, value))
    }

    /// Takes the first item of a queue.
    ///
    /// Args:
    ///     key (str): name of the queue.
    ///     block (bool): True to wait for an item, up to the store's timeout. Default True.
    ///
    /// Returns:
    ///     bytes: the item.
    ///
    /// Raises:
    ///     QueueEmpty: the queue is empty, and ``block`` is False.
    ///     StoreTimeout: no item arrived in time.
    ///     StoreError: the store has no queues (``FileStore``).
    ///
    /// Example:
    ///     >>> store = rdzv.HashStore(); store.queue_push("work", b"item"); store.queue_pop("work")
    ///     b'item'
    #[pyo3(signature = (key, block=true))]
    fn queue_pop(&self, py: Python<'_>, key: &str, block: bool) -> PyResult<Bytes> {
        self.call(py, |store| store.queue_pop(key, block))
    }

    /// Returns the number of items in a queue.
    ///
    /// Args:
    ///     key (str): name of the queue.
    ///
    /// Returns:
    ///     int: the number.
    ///
    /// Raises:
    ///     StoreError: the store has no queues (``FileStore``).
    ///
    /// Example:
    ///     >>> rdzv.HashStore().queue_len("work")
    ///     0
    fn queue_len(&self, py: Python<'_>, key: &str) -> PyResult<u64> {
        self.call(py, |store| store.queue_len(key))
    }

    /// Waits until ``world_size`` callers have arrived.
    ///
    /// A key can be used for only one barrier. A caller that timed out is not counted, and can call
    /// again.
    ///
    /// Args:
    ///     key (str): name of the barrier.
    ///     world_size (int): number of callers.
    ///     timeout (float | timedelta | None): seconds to wait; None means the store's timeout.
    ///
    /// Raises:
    ///     StoreTimeout: some callers did not arrive in time; the text has the number of those that
    ///         did.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().barrier("start", world_size=1)
    #[pyo3(signature = (key, world_size, timeout=None))]
    fn barrier(
        &self,
        py: Python<'_>,
        key: &str,
        world_size: Object<'_>,
        timeout: Option<Object<'_>>,
    ) -> PyResult<()> {
        let world_size = integer("world_size", world_size, 1, i64::from(u32::MAX))? as u32;
        let within = self::timeout("timeout", timeout)?;
        self.call(py, |store| store.barrier(key, world_size, within))
    }

    /// Returns a store that adds ``prefix/`` before every key of this one.
    ///
    /// Args:
    ///     prefix (str): the prefix, without the slash.
    ///
    /// Returns:
    ///     PrefixStore: the store, which shares this store's connection and timeout.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().prefix("job 7")
    ///     PrefixStore('job 7', HashStore())
    fn prefix(slf: &Bound<'_, Self>, prefix: String) -> PyResult<Py<kinds::PrefixStoreObject>> {
        kinds::PrefixStoreObject::over(slf, prefix)
    }

    /// Returns a second handle to the same data, with a separate connection.
    ///
    /// Returns:
    ///     Store: a store of the same class.
    ///
    /// Raises:
    ///     StoreError: no connection could be made within the store's timeout.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().clone()
    ///     HashStore()
    fn clone(slf: &Bound<'_, Self>) -> PyResult<Py<PyAny>> {
        kinds::clone(slf)
    }

    /// Default timeout of operations that wait: a ``timedelta``.
    ///
    /// It can be set to seconds or a ``timedelta``, and counts in whole milliseconds. Default: 300
    /// s.
    #[getter(timeout)]
    fn get_timeout<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        timedelta(py, self.open()?.timeout())
    }

    #[setter(timeout)]
    fn assign_timeout(&self, timeout: Object<'_>) -> PyResult<()> {
        self.set_timeout(timeout)
    }

    /// Sets the default timeout of operations that wait.
    ///
    /// Args:
    ///     timeout (float | timedelta): seconds; ``math.inf`` waits without a limit.
    ///
    /// Raises:
    ///     ValueError: the timeout is 0, negative, NaN or None.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().set_timeout(5.0)
    fn set_timeout(&self, timeout: Object<'_>) -> PyResult<()> {
        let Some(given) = self::timeout("timeout", Some(timeout))? else {
            return Err(PyValueError::new_err(
                "timeout must be seconds or a timedelta, not None",
            ));
        };
        self.open()?.set_timeout(given);
        Ok(())
    }

    /// Closes the store: its connection ends, and a ``FileStore`` leaves its file.
    ///
    /// A ``PrefixStore`` leaves the store below it open. Closing a store again does nothing.
    /// Leaving a ``with`` block closes the store too.
    ///
    /// Example:
    ///     >>> rdzv.HashStore().close()
    fn close(&self, py: Python<'_>) {
        if let Some(store) = self.handle.close(py) {
            detach(py, || {
                // A prefix store uses the connection of another store, which stays open.
                if !matches!(self.kind, Kind::Prefix { .. })
                    && let Some(breaker) = store.connection().and_then(|it| it.breaker())
                {
                    breaker();
                }
                drop(store);
            });
        }
    }

    /// Returns the value of a key in a coroutine.
    ///
    /// The coroutine waits for the key without blocking the event loop.
    ///
    /// Args:
    ///     key (str): the key.
    ///     timeout (float | timedelta | None): seconds to wait; None means the store's timeout.
    ///
    /// Returns:
    ///     Awaitable[bytes]: the value.
    ///
    /// Raises:
    ///     StoreTimeout: the key did not exist in time.
    ///
    /// Example:
    ///     >>> import asyncio
    ///     >>> store = rdzv.HashStore(); store.set("model", b"ready")
    ///     >>> async def main():
    ///     ...     return await store.aget("model", timeout=1.0)
    ///     >>> asyncio.run(main())
    ///     b'ready'
    #[pyo3(signature = (key, *, timeout=None))]
    fn aget<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyString>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        coroutine(slf, "value", [key], timeout)
    }

    /// Waits in a coroutine until all keys exist, without blocking the event loop.
    ///
    /// Args:
    ///     keys (list[str]): the keys.
    ///     timeout (float | timedelta | None): seconds to wait; None means the store's timeout.
    ///
    /// Returns:
    ///     Awaitable[None]: an awaitable that completes once the keys exist.
    ///
    /// Raises:
    ///     StoreTimeout: a key did not exist in time.
    ///
    /// Example:
    ///     >>> import asyncio
    ///     >>> store = rdzv.HashStore(); store.set("model", b"ready")
    ///     >>> async def main():
    ///     ...     await store.await_keys(["model"], 1.0)
    ///     >>> asyncio.run(main())
    #[pyo3(signature = (keys, timeout=None))]
    fn await_keys<'py>(
        slf: &Bound<'py, Self>,
        keys: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        coroutine(slf, "keys", keys, timeout)
    }

    /// Takes the first item of a queue in a coroutine.
    ///
    /// The coroutine waits for an item, up to the store's timeout, without blocking the event loop.
    /// If it is cancelled after it took an item, the item returns to the end of the queue.
    ///
    /// Args:
    ///     key (str): name of the queue.
    ///
    /// Returns:
    ///     Awaitable[bytes]: the item.
    ///
    /// Raises:
    ///     StoreTimeout: no item arrived in time.
    ///     StoreError: the store has no queues (``FileStore``).
    ///
    /// Example:
    ///     >>> import asyncio
    ///     >>> store = rdzv.HashStore(); store.queue_push("work", b"item")
    ///     >>> async def main():
    ///     ...     return await store.aqueue_pop("work")
    ///     >>> asyncio.run(main())
    ///     b'item'
    fn aqueue_pop<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyString>,
    ) -> PyResult<Bound<'py, PyAny>> {
        coroutine(slf, "item", [key], None)
    }

    /// Begins a wait of a coroutine.
    ///
    /// `done` gets a value and an exception, on another thread.
    fn _begin_wait(
        &self,
        wanted: &str,
        keys: Object<'_>,
        timeout: Option<Object<'_>>,
        done: Py<PyAny>,
    ) -> PyResult<u64> {
        let keys = self::keys("keys", keys)?;
        let within = self::timeout("timeout", timeout)?;
        let store = self.open()?;
        waits::begin(waits::Request {
            wanted: match wanted {
                "value" => waits::Wanted::Value,
                "item" => waits::Wanted::Item,
                _ => waits::Wanted::Keys,
            },
            below: self.below(&keys),
            timeout: within.unwrap_or_else(|| store.timeout()),
            store,
            keys,
            done,
        })
    }

    /// Ends a wait of a coroutine.
    fn _cancel_wait(&self, number: u64) {
        waits::cancel(number);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: Object<'_>) {
        self.close(py);
    }

    /// Wraps a store object of torch as a store of rdzv.
    ///
    /// Args:
    ///     torch_store (torch.distributed.Store): any object with the methods of that class.
    ///
    /// Returns:
    ///     Store: a store that calls the methods of that object.
    ///
    /// Raises:
    ///     TypeError: the object lacks a method; the text names it.
    ///
    /// Example:
    ///     >>> import torch.distributed as dist
    ///     >>> rdzv.Store.of(dist.HashStore()).add("n", 1)
    ///     1
    #[staticmethod]
    fn of(torch_store: Object<'_>) -> PyResult<Py<PyAny>> {
        foreign::of(torch_store)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(match &self.kind {
            Kind::Tcp { host, port, .. } => format!("TCPStore({}, {port})", quoted(py, host)?),
            Kind::File { path, world_size } => {
                format!("FileStore({}, {world_size})", quoted(py, path)?)
            }
            Kind::Hash => "HashStore()".to_owned(),
            Kind::Python => "Store of a subclass".to_owned(),
            Kind::Prefix { prefix, under } => {
                let under = under.get().__repr__(py)?;
                format!("PrefixStore({}, {under})", quoted(py, prefix)?)
            }
            Kind::Foreign { of } => format!("Store.of({of})"),
            Kind::Round => "WorkerGroup.store".to_owned(),
        })
    }
}

/// Returns the coroutine of a wait; see `rdzv/_waits.py`.
fn coroutine<'py>(
    store: &Bound<'py, StoreObject>,
    wanted: &str,
    keys: impl IntoPyObject<'py>,
    timeout: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let waits = store.py().import("rdzv._waits")?;
    waits.call_method1("wait", (store, wanted, keys, timeout))
}

fn quoted(py: Python<'_>, text: &str) -> PyResult<String> {
    Ok(PyString::new(py, text).repr()?.to_string())
}
