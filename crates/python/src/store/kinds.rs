//! Classes that make a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rdzv_rendezvous::url::UrlStore;
use rdzv_store::{
    FileStore, HashStore, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions, interruptible,
};

use super::{Kind, StoreObject, store_call};
use crate::argument::{Object, integer};
use crate::credentials::credentials;
use crate::errors::of_store;
use crate::interrupt::{detached, is_to_end};
use crate::timeout::timeout;

/// Default timeout of stores.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Client of a store server.
///
/// The server is a ``StoreServer``, ``rdzv store``, or PyTorch's own server from 2.5 on. Each
/// object has one connection. With ``wait``, the constructor retries until the server answers, for
/// up to ``timeout``.
///
/// Args:
///     host (str): name or address of the server's host.
///     port (int): port of the server.
///     timeout (float | timedelta | None): default time limit in seconds, for connecting and for
///         waits. Default 300.
///     wait (bool): True to wait for a server that has not started yet. Default True.
///     token (str | bytes | None): the job token, at least 16 bytes. Client and server
///         prove to each other that they have it, without sending it. Default None: the client
///         proves nothing.
///     tls (dict | None): PEM files: ``certificate`` and ``key`` of this process, and
///         ``authorities`` that signed the server's certificate. Default None: no TLS.
///
/// Raises:
///     StoreError: no connection was made. The text has the cause, for example another service at
///         the address, or a missing credential.
///     ValueError: a token is too short, or a file of ``tls`` cannot be used.
///
/// Example:
///     >>> with rdzv.StoreServer() as server:
///     ...     store = rdzv.TCPStore(server.host, server.port)
///     ...     store.set("model", b"ready")
#[pyclass(extends = StoreObject, frozen, name = "TCPStore", module = "rdzv")]
pub(crate) struct TcpStoreObject {
    /// Host of the server, without the brackets of an IPv6 address: a ``str``.
    #[pyo3(get)]
    host: String,
    /// Port of the server: an ``int``.
    #[pyo3(get)]
    port: u16,
}

#[pymethods]
impl TcpStoreObject {
    #[new]
    #[pyo3(signature = (host, port, *more, timeout=None, wait=true, token=None, tls=None, **unknown))]
    #[pyo3(text_signature = "(host, port, *, timeout=None, wait=True, token=None, tls=None)")]
    #[expect(clippy::too_many_arguments, reason = "they are those of Python")]
    fn new(
        py: Python<'_>,
        host: String,
        port: Object<'_>,
        more: &Bound<'_, PyTuple>,
        timeout: Option<Object<'_>>,
        wait: bool,
        token: Option<Object<'_>>,
        tls: Option<Object<'_>>,
        unknown: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        if !more.is_empty() || unknown.is_some() {
            let unknown = unknown.map(|unknown| unknown.keys().to_string());
            return Err(PyTypeError::new_err(format!(
                "rdzv.TCPStore accepts host and port, and the keywords timeout, wait, token and \
                 tls, not {}\n\
                 help: create an rdzv.StoreServer(host, port) in the process that hosts the store; \
                 rdzv.TCPStore is only a client",
                unknown.unwrap_or_else(|| more.to_string())
            )));
        }
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

/// Store in one file, for processes with a common file system.
///
/// The processes can be on one host or on several. PyTorch's ``FileStore`` can use the same file.
/// The store has no queues.
///
/// Args:
///     path (str | os.PathLike): the file; its folder must exist.
///     world_size (int): number of store objects in all processes. The file is removed once no
///         object has it open and this number of objects have been closed. Default -1: the file
///         stays.
///
/// Raises:
///     StoreError: the file cannot be used, or has other content.
///     ValueError: the world size is 0 or less than -1.
///
/// Example:
///     >>> import tempfile, os
///     >>> store = rdzv.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
#[pyclass(extends = StoreObject, frozen, name = "FileStore", module = "rdzv")]
pub(crate) struct FileStoreObject {
    /// Path of the file: a ``str``.
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
                "world_size is 0: specify the number of objects that use the file, or -1 to retain \
                 the file",
            ));
        }
        let store = store_call(py, || {
            FileStore::open(&path, u32::try_from(world_size).ok())
        })?;
        let path = path.display().to_string();
        Ok(file(Arc::new(store), path, world_size))
    }
}

/// Store inside this process, for its threads and for tests.
///
/// ``clone()`` shares the data.
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

/// Store that adds ``prefix/`` before every key of another store.
///
/// The new store shares the connection and timeout of the other store.
///
/// Args:
///     prefix (str): the prefix, without the slash.
///     store (Store): the store below. For a store of torch pass ``rdzv.Store.of(store)``.
///
/// Example:
///     >>> job = rdzv.PrefixStore("job 7", rdzv.HashStore())
///     >>> job.set("model", b"ready")
#[pyclass(extends = StoreObject, frozen, name = "PrefixStore", module = "rdzv")]
pub(crate) struct PrefixStoreObject {
    /// Prefix, without the slash that joins it to the keys: a ``str``.
    #[pyo3(get)]
    prefix_name: String,
}

#[pymethods]
impl PrefixStoreObject {
    #[new]
    fn new(prefix: String, store: &Bound<'_, StoreObject>) -> PyResult<PyClassInitializer<Self>> {
        let below = StoreObject::of(store)?;
        let store = below.bind(store.py()).cast::<StoreObject>()?;
        let inner = store.get().open()?;
        let over = Arc::new(PrefixStore::new(prefix.clone(), inner));
        let prefix_name = prefix.clone();
        let under = store.clone().unbind();
        let kind = Kind::Prefix { prefix, under };
        Ok(initializer(over, kind, Self { prefix_name }))
    }

    /// Store below this one: a ``Store``.
    #[getter]
    fn underlying_store(slf: PyRef<'_, Self>) -> Option<Py<StoreObject>> {
        match &slf.as_super().kind {
            Kind::Prefix { under, .. } => Some(under.clone_ref(slf.py())),
            _ => None,
        }
    }
}

impl PrefixStoreObject {
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

/// Returns the object for a store that a URL has made.
pub(crate) fn of_url(py: Python<'_>, store: UrlStore) -> PyResult<Py<PyAny>> {
    match store {
        UrlStore::Tcp(store) => any(py, client(store)),
        UrlStore::File(store) => {
            let path = store.path().display().to_string();
            any(py, file(Arc::new(store), path, -1))
        }
        _ => Err(PyTypeError::new_err(
            "the handler of the URL returned a store of an unknown class",
        )),
    }
}

/// Returns a new object of any store class.
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

/// Connects, until Ctrl-C ends the wait.
///
/// A name lookup and a dial cannot be interrupted, so each runs on a separate thread. If Ctrl-C
/// ends the wait, that thread continues until the system call ends.
fn connected(
    py: Python<'_>,
    connect: impl FnOnce() -> Result<TcpStore, StoreError> + Send,
) -> PyResult<TcpStore> {
    let made = detached(py, || interruptible(is_to_end, connect))?;
    made.map_err(|error| of_store(py, &error))
}

/// Creates a second handle to the data of `store`, of the same class.
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
