//! The classes that make a store.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use rdzv_store::{FileStore, HashStore, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions};

use super::{Kind, StoreObject, store_call};
use crate::argument::{Object, integer};
use crate::credentials::credentials;
use crate::errors::of_store;
use crate::interrupt::on_thread;
use crate::timeout::timeout;

/// Default timeout of stores, seconds.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A client of a store server: a ``StoreServer``, ``rdzv store``, or PyTorch's own server from 2.5 on.
///
/// One object is one connection. Connecting is tried until the server answers, within ``timeout``.
///
/// Args:
///     host (str): name or address of the server's host.
///     port (int): its port.
///     timeout (float | timedelta | None): seconds for connecting, and for later waits that are given none.
///         Default 300.
///     wait (bool): whether to wait for a server that is not there yet. Default True.
///     token (str | bytes | None): the secret of the job, 16 bytes or more, which client and server prove to each
///         other to have. It is not sent. Default None: the server must ask for none.
///     tls (dict | None): PEM files ``certificate`` and ``key`` of this process, and ``authorities``, which have signed
///         the server's. Default None: no TLS.
///
/// Raises:
///     StoreError: no connection was made; the text says what was found at the address, or which side lacks what.
///     ValueError: a token is too short, or a file of ``tls`` cannot be used.
///
/// Example:
///     >>> with rdzv.StoreServer() as server:
///     ...     store = rdzv.TCPStore(server.host, server.port)
///     ...     store.set("model", b"ready")
#[pyclass(extends = StoreObject, frozen, name = "TCPStore", module = "rdzv")]
pub(crate) struct TcpStoreObject {
    /// The host of the server, as it was given: a ``str``.
    #[pyo3(get)]
    host: String,
    /// The port of the server: an ``int``.
    #[pyo3(get)]
    port: u16,
}

#[pymethods]
impl TcpStoreObject {
    #[new]
    #[pyo3(signature = (host, port, *, timeout=None, wait=true, token=None, tls=None))]
    fn new(
        py: Python<'_>,
        host: String,
        port: Object<'_>,
        timeout: Option<Object<'_>>,
        wait: bool,
        token: Option<Object<'_>>,
        tls: Option<Object<'_>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let port = integer("port", port, 1, i64::from(u16::MAX))? as u16;
        let timeout = self::timeout("timeout", timeout)?.unwrap_or(DEFAULT_TIMEOUT);
        let options = TcpStoreOptions {
            timeout,
            wait_for_server: wait,
            credentials: credentials(token, tls)?,
            ..TcpStoreOptions::new(host, port)
        };
        let store = connected(py, move || TcpStore::connect(options))?;
        Ok(client(store))
    }
}

/// A store in one file, for processes of one host, or of several that share a file system.
///
/// PyTorch's ``FileStore`` can use the same file. There are no queues.
///
/// Args:
///     path (str | os.PathLike): the file; its folder must be there.
///     world_size (int): number of objects, in all processes, after whose closing the file is removed. -1, the
///         default: it stays.
///
/// Raises:
///     StoreError: the file cannot be used, or holds something else.
///     ValueError: the world size is 0 or less than -1.
///
/// Example:
///     >>> import tempfile, os
///     >>> store = rdzv.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
#[pyclass(extends = StoreObject, frozen, name = "FileStore", module = "rdzv")]
pub(crate) struct FileStoreObject {
    /// The path of the file: a ``str``.
    #[pyo3(get)]
    path: String,
}

#[pymethods]
impl FileStoreObject {
    #[new]
    #[pyo3(signature = (path, world_size=None))]
    #[pyo3(text_signature = "(path, world_size=-1)")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        world_size: Option<Object<'_>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let world_size = match world_size {
            Some(size) => integer("world_size", size, -1, i64::from(u32::MAX))?,
            None => -1,
        };
        if world_size == 0 {
            return Err(PyValueError::new_err(
                "world_size is 0: give the number of objects on the file, or -1 to keep it",
            ));
        }
        let store = store_call(py, || {
            FileStore::open(&path, u32::try_from(world_size).ok())
        })?;
        let path = path.display().to_string();
        Ok(file(Arc::new(store), path, world_size))
    }
}

/// A store inside this process, for its threads and for tests. ``clone()`` shares the data.
///
/// Example:
///     >>> store = rdzv.HashStore()
///     >>> store.add("n", 2)
///     2
#[pyclass(extends = StoreObject, frozen, name = "HashStore", module = "rdzv")]
pub(crate) struct HashStoreObject {}

#[pymethods]
impl HashStoreObject {
    #[new]
    fn new() -> PyClassInitializer<Self> {
        initializer(Arc::new(HashStore::new()), Kind::Hash, Self {})
    }
}

/// Another store, with ``prefix/`` put before every key. It shares the other one's connection and timeout.
///
/// Args:
///     prefix (str): the prefix, without the slash.
///     store (Store): the store below. For a store of torch give ``rdzv.Store.of(store)``.
///
/// Example:
///     >>> job = rdzv.PrefixStore("job 7", rdzv.HashStore())
///     >>> job.set("model", b"ready")
#[pyclass(extends = StoreObject, frozen, name = "PrefixStore", module = "rdzv")]
pub(crate) struct PrefixStoreObject {
    /// The prefix, without the slash that joins it to the keys: a ``str``.
    #[pyo3(get)]
    prefix_name: String,
}

#[pymethods]
impl PrefixStoreObject {
    #[new]
    fn new(prefix: String, store: &Bound<'_, StoreObject>) -> PyResult<PyClassInitializer<Self>> {
        let inner = store.get().open()?;
        let over = Arc::new(PrefixStore::new(prefix.clone(), inner));
        let prefix_name = prefix.clone();
        let under = store.clone().unbind();
        let kind = Kind::Prefix { prefix, under };
        Ok(initializer(over, kind, Self { prefix_name }))
    }

    /// The store below: a ``Store``.
    #[getter]
    fn underlying_store(slf: PyRef<'_, Self>) -> Option<Py<StoreObject>> {
        match &slf.as_super().kind {
            Kind::Prefix { under, .. } => Some(under.clone_ref(slf.py())),
            _ => None,
        }
    }
}

impl PrefixStoreObject {
    /// A prefix store over `store`.
    pub(super) fn over(store: &Bound<'_, StoreObject>, prefix: String) -> PyResult<Py<Self>> {
        Py::new(store.py(), Self::new(prefix, store)?)
    }
}

fn client(store: TcpStore) -> PyClassInitializer<TcpStoreObject> {
    let store = Arc::new(store);
    let (host, port) = (store.host().to_owned(), store.port());
    let kind = Kind::Tcp {
        host: host.clone(),
        port,
        client: Arc::downgrade(&store),
    };
    initializer(store, kind, TcpStoreObject { host, port })
}

fn file(
    store: Arc<dyn Store>,
    path: String,
    world_size: i64,
) -> PyClassInitializer<FileStoreObject> {
    let kind = Kind::File {
        path: path.clone(),
        world_size,
    };
    initializer(store, kind, FileStoreObject { path })
}

/// The object for a store that a URL has led to.
pub(crate) fn of_url(py: Python<'_>, store: Box<dyn Store>) -> PyResult<Py<PyAny>> {
    let store = match (store as Box<dyn Any>).downcast::<TcpStore>() {
        Ok(tcp) => return any(py, client(*tcp)),
        Err(other) => other,
    };
    let store = store.downcast::<FileStore>().map_err(|_| {
        PyTypeError::new_err(
            "the handler of the URL has made a store of a class that is not known here",
        )
    })?;
    let path = store.path().display().to_string();
    any(py, file(Arc::new(*store), path, -1))
}

/// The object that `made` makes, as one of any class.
fn any<T: pyo3::PyClass>(
    py: Python<'_>,
    made: impl Into<PyClassInitializer<T>>,
) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, made)?.into_any())
}

fn initializer<T>(store: Arc<dyn Store>, kind: Kind, of: T) -> PyClassInitializer<T>
where
    T: pyo3::PyClass<BaseType = StoreObject>,
{
    PyClassInitializer::from(StoreObject::new(store, kind)).add_subclass(of)
}

/// Makes a connection, on a thread of its own: looking a name up and dialling cannot be ended early. If
/// Ctrl-C ends the wait, that thread goes on until its timeout, and what it makes is closed.
fn connected(
    py: Python<'_>,
    connect: impl FnOnce() -> Result<TcpStore, StoreError> + Send + 'static,
) -> PyResult<TcpStore> {
    let made = on_thread(py, "rdzv-connect", connect)?;
    match made {
        Some(made) => made.map_err(|error| of_store(py, &error)),
        None => Err(PyRuntimeError::new_err(
            "the thread that connects has ended",
        )),
    }
}

/// A second handle to the data of `store`, of the same class.
pub(super) fn clone(store: &Bound<'_, StoreObject>) -> PyResult<Py<PyAny>> {
    let py = store.py();
    let object = store.get();
    let inner = object.open()?;
    if let Kind::Prefix { prefix, under } = &object.kind {
        let under = clone(under.bind(py))?;
        let under = under.bind(py).cast::<StoreObject>()?;
        return Ok(PrefixStoreObject::over(under, prefix.clone())?.into_any());
    }
    if let Kind::Tcp { client: tcp, .. } = &object.kind
        && let Some(tcp) = tcp.upgrade()
    {
        return any(py, client(connected(py, move || tcp.reconnected())?));
    }
    let made: Arc<dyn Store> = Arc::from(store_call(py, || inner.try_clone())?);
    match &object.kind {
        Kind::File { path, world_size } => any(py, file(made, path.clone(), *world_size)),
        Kind::Hash => any(py, initializer(made, Kind::Hash, HashStoreObject {})),
        Kind::Foreign { of } => any(py, StoreObject::new(made, Kind::Foreign { of: of.clone() })),
        _ => any(py, StoreObject::new(made, Kind::Round)),
    }
}
