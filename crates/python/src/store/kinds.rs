//! The classes that make a store.

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rdzv_store::{FileStore, HashStore, PrefixStore, Store, StoreError, TcpStore, TcpStoreOptions};

use super::{Kind, StoreObject, store_call};
use crate::argument::integer;
use crate::credentials::credentials;
use crate::errors::of_store;
use crate::interrupt::wait_in_slices;
use crate::timeout::{FOREVER, timeout};

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
pub(crate) struct TcpStoreObject {}

#[pymethods]
impl TcpStoreObject {
    #[new]
    #[pyo3(signature = (host, port, *, timeout=None, wait=true, token=None, tls=None))]
    fn new(
        py: Python<'_>,
        host: String,
        port: &Bound<'_, PyAny>,
        timeout: Option<&Bound<'_, PyAny>>,
        wait: bool,
        token: Option<&Bound<'_, PyAny>>,
        tls: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let port = integer("port", port, 1, i64::from(u16::MAX))? as u16;
        let timeout = self::timeout("timeout", timeout)?.unwrap_or(DEFAULT_TIMEOUT);
        let options = TcpStoreOptions {
            timeout,
            wait_for_server: wait,
            credentials: credentials(token, tls)?,
            ..TcpStoreOptions::new(host.clone(), port)
        };
        let store = connected(py, move || TcpStore::connect(options))?;
        Ok(client(store, Kind::Tcp { host, port }))
    }

    /// The host of the server, as it was given: a ``str``.
    #[getter]
    fn host(slf: PyRef<'_, Self>) -> String {
        match &slf.as_super().kind {
            Kind::Tcp { host, .. } => host.clone(),
            _ => String::new(),
        }
    }

    /// The port of the server: an ``int``.
    #[getter]
    fn port(slf: PyRef<'_, Self>) -> u16 {
        match &slf.as_super().kind {
            Kind::Tcp { port, .. } => *port,
            _ => 0,
        }
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
pub(crate) struct FileStoreObject {}

#[pymethods]
impl FileStoreObject {
    #[new]
    #[pyo3(signature = (path, world_size=None))]
    #[pyo3(text_signature = "(path, world_size=-1)")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        world_size: Option<&Bound<'_, PyAny>>,
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
        let kind = Kind::File { path, world_size };
        Ok(initializer(Arc::new(store), kind, Self {}))
    }

    /// The path of the file: a ``str``.
    #[getter]
    fn path(slf: PyRef<'_, Self>) -> String {
        match &slf.as_super().kind {
            Kind::File { path, .. } => path.clone(),
            _ => String::new(),
        }
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
pub(crate) struct PrefixStoreObject {}

#[pymethods]
impl PrefixStoreObject {
    #[new]
    fn new(prefix: String, store: &Bound<'_, StoreObject>) -> PyResult<PyClassInitializer<Self>> {
        let inner = store.get().open()?;
        let over: Arc<dyn Store> = Arc::new(PrefixStore::new(prefix.clone(), inner));
        let mut object = StoreObject::new(over, Kind::Prefix { prefix });
        object.under = Some(store.clone().unbind());
        Ok(PyClassInitializer::from(object).add_subclass(Self {}))
    }

    /// The prefix, without the slash that joins it to the keys: a ``str``.
    #[getter]
    fn prefix_name(slf: PyRef<'_, Self>) -> String {
        match &slf.as_super().kind {
            Kind::Prefix { prefix } => prefix.clone(),
            _ => String::new(),
        }
    }

    /// The store below: a ``Store``.
    #[getter]
    fn underlying_store(slf: PyRef<'_, Self>) -> Option<Py<StoreObject>> {
        let py = slf.py();
        slf.as_super()
            .under
            .as_ref()
            .map(|under| under.clone_ref(py))
    }
}

impl PrefixStoreObject {
    /// A prefix store over `store`.
    pub(super) fn over(store: &Bound<'_, StoreObject>, prefix: String) -> PyResult<Py<Self>> {
        Py::new(store.py(), Self::new(prefix, store)?)
    }
}

fn client(store: TcpStore, kind: Kind) -> PyClassInitializer<TcpStoreObject> {
    let store = Arc::new(store);
    let tcp = Arc::downgrade(&store);
    let object = StoreObject {
        tcp,
        ..StoreObject::new(store, kind)
    };
    PyClassInitializer::from(object).add_subclass(TcpStoreObject {})
}

/// The object for a store that a URL has led to.
pub(crate) fn of_url(py: Python<'_>, store: Box<dyn Store>) -> PyResult<Py<PyAny>> {
    let store = match (store as Box<dyn Any>).downcast::<TcpStore>() {
        Ok(tcp) => {
            let (host, port) = (tcp.host().to_owned(), tcp.port());
            return Ok(Py::new(py, client(*tcp, Kind::Tcp { host, port }))?.into_any());
        }
        Err(other) => other,
    };
    match store.downcast::<FileStore>() {
        Ok(file) => {
            let kind = Kind::File {
                path: file.path().display().to_string(),
                world_size: -1,
            };
            let made = initializer(Arc::new(*file), kind, FileStoreObject {});
            Ok(Py::new(py, made)?.into_any())
        }
        Err(_) => Err(pyo3::exceptions::PyTypeError::new_err(
            "the handler of the URL has made a store of a class that is not known here",
        )),
    }
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
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("rdzv-connect".to_owned())
        .spawn(move || {
            let _nobody_waits_any_more = sender.send(connect());
        })?;
    let receiver = std::sync::Mutex::new(receiver);
    let made = wait_in_slices(py, FOREVER, |slice| {
        let receiver = receiver.lock().ok()?;
        receiver.recv_timeout(slice).ok()
    })?;
    match made {
        Some(made) => made.map_err(|error| of_store(py, &error)),
        None => Err(pyo3::exceptions::PyRuntimeError::new_err(
            "the thread that connects has ended",
        )),
    }
}

/// A second handle to the data of `store`, of the same class.
pub(super) fn clone(store: &Bound<'_, StoreObject>) -> PyResult<Py<PyAny>> {
    let py = store.py();
    let object = store.get();
    let kind = object.kind.clone();
    if let (Kind::Prefix { prefix }, Some(under)) = (&kind, &object.under) {
        object.open()?;
        let under = clone(under.bind(py))?;
        let under = under.bind(py).cast::<StoreObject>()?;
        return Ok(PrefixStoreObject::over(under, prefix.clone())?.into_any());
    }
    let inner = object.open()?;
    if let Some(tcp) = object.tcp.upgrade() {
        let made = connected(py, move || tcp.reconnected())?;
        return Ok(Py::new(py, client(made, kind))?.into_any());
    }
    let made: Arc<dyn Store> = Arc::from(store_call(py, || inner.try_clone())?);
    Ok(match kind {
        Kind::File { .. } => Py::new(py, initializer(made, kind, FileStoreObject {}))?.into_any(),
        Kind::Hash => Py::new(py, initializer(made, kind, HashStoreObject {}))?.into_any(),
        Kind::Foreign { .. } | Kind::Prefix { .. } | Kind::Round | Kind::Tcp { .. } => {
            Py::new(py, StoreObject::new(made, kind))?.into_any()
        }
    })
}
