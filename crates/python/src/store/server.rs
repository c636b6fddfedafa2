//! Server of a store, as an object of Python.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rdzv_core::endpoint::bare_host;
use rdzv_lock::Mutex;
use rdzv_store::{Admission, ServerOptions, TcpStoreServer, TorchClients};

use crate::argument::{Object, integer};
use crate::credentials::credentials;
use crate::errors::of_store;
use crate::handle::{Ending, Handle};
use crate::interrupt::detach;

/// State of a server object, until it is closed.
#[derive(Debug)]
struct Serving {
    server: Mutex<Option<TcpStoreServer>>,
    /// Descriptor of its listening socket.
    fd: RawFd,
    _ending: Ending,
}

/// Store server in this process, listening when the constructor returns.
///
/// Clients are ``rdzv.TCPStore`` and ``torch.distributed.TCPStore``. The server stops and its data
/// is deleted when the object is closed or dropped, or when the interpreter exits.
///
/// Args:
///     host (str): name or address to listen on. Default "127.0.0.1": this host only. Without a
///         token, any process that can reach the port can use the store, so use another address
///         only with a token or in a trusted network.
///     port (int): the port. Default 0: the system chooses a free port.
///     fd (int | None): a bound socket, taken over from the caller, instead of host and port.
///     token (str | bytes | None): the job token, at least 16 bytes, which clients must
///         prove to have. Default None: clients prove nothing.
///     tls (dict | None): PEM files: ``certificate`` and ``key`` of this process, and
///         ``authorities`` that signed the certificates of the clients. Default None: no TLS.
///     torch_clients (str): PyTorch's clients to accept despite a token or TLS, although they can
///         prove nothing. ``"job"``, the default, accepts clients over loopback, and from
///         addresses from which another client has proven its membership. ``"deny"`` accepts
///         none, and ``"any"`` all.
///
/// Raises:
///     StoreError: the address or port cannot be used.
///     ValueError: a number is out of range, the descriptor is no bound socket, or ``token``,
///         ``tls`` or ``torch_clients`` cannot be used.
///
/// Example:
///     >>> with rdzv.StoreServer() as server:
///     ...     rdzv.TCPStore(server.host, server.port).add("n", 1)
///     1
#[pyclass(frozen, name = "StoreServer", module = "rdzv")]
#[derive(Debug)]
pub(super) struct StoreServer {
    handle: Handle<Arc<Serving>>,
    /// Host, without the brackets of an IPv6 address: a ``str``.
    #[pyo3(get)]
    host: String,
    /// Port on which the server listens: an ``int``.
    #[pyo3(get)]
    port: u16,
}

#[pymethods]
impl StoreServer {
    #[new]
    #[pyo3(signature = (host=None, port=None, *, fd=None, token=None, tls=None, torch_clients=None))]
    #[pyo3(
        text_signature = "(host=\"127.0.0.1\", port=0, *, fd=None, token=None, tls=None, torch_clients=\"job\")"
    )]
    fn new(
        py: Python<'_>,
        host: Option<String>,
        port: Option<Object<'_>>,
        fd: Option<Object<'_>>,
        token: Option<Object<'_>>,
        tls: Option<Object<'_>>,
        torch_clients: Option<&str>,
    ) -> PyResult<Self> {
        let admission = Admission {
            credentials: credentials(token, tls)?,
            torch_clients: match torch_clients {
                None | Some("job") => TorchClients::Job,
                Some("deny") => TorchClients::Deny,
                Some("any") => TorchClients::Any,
                Some(other) => {
                    return Err(PyValueError::new_err(format!(
                        "torch_clients is {other:?}: pass \"job\", \"deny\" or \"any\""
                    )));
                }
            },
            ..Admission::default()
        };
        let port = port.map(|port| integer("port", port, 0, i64::from(u16::MAX)));
        let port = port.transpose()?.unwrap_or_default() as u16;
        let fd = fd.map(|fd| integer("fd", fd, 0, i64::from(RawFd::MAX)));
        let listener = fd.transpose()?.map(|fd| taken_over(py, fd as RawFd));
        let listener = listener.transpose()?;
        let bound = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let host = match (host, bound) {
            (Some(host), _) => bare_host(&host).to_owned(),
            (None, Some(address)) => address.ip().to_string(),
            (None, None) => "127.0.0.1".to_owned(),
        };
        let options = ServerOptions {
            host: Some(host.clone()),
            port,
            listeners: Vec::from_iter(listener),
            admission,
            ..ServerOptions::default()
        };
        let server =
            detach(py, || TcpStoreServer::start(options)).map_err(|error| of_store(py, &error))?;
        let port = server.port();
        let fd = server.listener().as_raw_fd();
        let serving = Arc::new_cyclic(|serving| Serving {
            server: Mutex::new(Some(server)),
            fd,
            _ending: Ending::of(serving, |serving: &Serving| {
                drop(serving.server.lock().take());
            }),
        });
        Ok(Self {
            handle: Handle::new("StoreServer", serving),
            host,
            port,
        })
    }

    /// Returns the descriptor of the listening socket, to pass to a new process.
    ///
    /// The descriptor belongs to the server. If the caller closes it, or a socket made from it, the
    /// server can no longer use it. Python's ``subprocess`` accepts it in ``pass_fds``.
    ///
    /// Returns:
    ///     int: the descriptor.
    ///
    /// Raises:
    ///     RuntimeError: the server is closed.
    ///
    /// Example:
    ///     >>> with rdzv.StoreServer() as server:
    ///     ...     server.fileno() > 2
    ///     True
    fn fileno(&self) -> PyResult<RawFd> {
        Ok(self.handle.get()?.fd)
    }

    /// Ends the server: clients lose their connections, and the data is deleted.
    ///
    /// Further calls do nothing.
    ///
    /// Example:
    ///     >>> server = rdzv.StoreServer()
    ///     >>> server.close()
    fn close(&self, py: Python<'_>) {
        if let Some(serving) = self.handle.close(py) {
            detach(py, || drop(serving));
        }
    }

    fn __enter__(slf: Py<Self>) -> PyResult<Py<Self>> {
        slf.get().handle.get()?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: Object<'_>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("StoreServer('{}', {})", self.host, self.port)
    }
}

/// Takes over the socket of a caller's descriptor, which is closed there.
///
/// A number alone gives Rust no right to a descriptor. Python knows that the descriptor is the
/// caller's, so Python sends it over a pair of sockets.
fn taken_over(py: Python<'_>, fd: RawFd) -> PyResult<TcpListener> {
    let refused = |error: &dyn std::fmt::Display| {
        PyValueError::new_err(format!("fd {fd} is not a bound TCP socket: {error}"))
    };
    let (ours, theirs) = UnixStream::pair()?;
    let passed = py.import("rdzv._sockets")?;
    let passed = passed.call_method1("pass_on", (fd, theirs.as_raw_fd()));
    passed.map_err(|error| refused(&error))?;
    let mut byte = [0];
    let (_, passed) = rdzv_shm::pass::receive(&ours, &mut byte)?;
    let passed: OwnedFd = passed
        .into_iter()
        .next()
        .ok_or_else(|| refused(&"it was not passed"))?;
    let listener = TcpListener::from(passed);
    match listener.local_addr() {
        Ok(address) if address.port() != 0 => {}
        Ok(_) => return Err(refused(&"it is not bound")),
        Err(error) => return Err(refused(&error)),
    }
    py.import("os")?.call_method1("close", (fd,))?;
    Ok(listener)
}
