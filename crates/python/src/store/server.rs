//! The server of a store, as an object of Python.

use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rdzv_lock::Mutex;
use rdzv_store::{Admission, ServerOptions, TcpStoreServer, TorchClients};

use crate::argument::{Object, integer};
use crate::credentials::credentials;
use crate::errors::of_store;
use crate::handle::{Ending, Handle};
use crate::interrupt::detach;

/// The state of a server object, until it is closed.
#[derive(Debug)]
struct Serving {
    server: Mutex<Option<TcpStoreServer>>,
    /// Its listening socket.
    fd: RawFd,
    _ending: Ending,
}

/// A store server in this process, bound and listening when the constructor returns.
///
/// Clients are ``rdzv.TCPStore`` and ``torch.distributed.TCPStore``. It ends, and its data with it,
/// when it is closed, dropped, or the interpreter ends.
///
/// Args:
///     host (str): name or address to listen on. Default "127.0.0.1": this host only. Without a token everybody who
///         reaches the port can use the store, so give another address with one, or in a network that you trust.
///     port (int): the port; 0, the default, lets the system choose a free one.
///     fd (int | None): a socket that is bound already, taken over from the caller, instead of host and port.
///     token (str | bytes | None): the secret of the job, 16 bytes or more, which clients have to prove. Default None:
///         clients prove nothing.
///     tls (dict | None): PEM files ``certificate`` and ``key`` of this process, and ``authorities``, which have signed
///         those of the clients. Default None: no TLS.
///     torch_clients (str): which clients of PyTorch, which can prove nothing, are let in all the same where there is a
///         token or TLS: ``"job"``, the default, on this host and on addresses from which the token was proven;
///         ``"deny"``; ``"any"``.
///
/// Raises:
///     StoreError: the address or port cannot be used.
///     ValueError: a number is out of range, or the descriptor is no bound socket.
///
/// Example:
///     >>> with rdzv.StoreServer() as server:
///     ...     rdzv.TCPStore(server.host, server.port).add("n", 1)
///     1
#[pyclass(frozen, name = "StoreServer", module = "rdzv")]
#[derive(Debug)]
pub(super) struct StoreServer {
    handle: Handle<Arc<Serving>>,
    /// The host, as it was given: a ``str``.
    #[pyo3(get)]
    host: String,
    /// The port that it listens on: an ``int``.
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
                        "torch_clients is {other:?}: give \"job\", \"deny\" or \"any\""
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
            (Some(host), _) => host,
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

    /// Returns the descriptor of the listening socket, to be passed on to a process that is started.
    ///
    /// It belongs to the server: closing it, or calling ``detach`` on a socket made of it, ends the server's
    /// use of it. Python's ``subprocess`` takes it in ``pass_fds``.
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

    /// Ends the server: its clients lose their connections, and its data is gone. The second call does nothing.
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

/// The socket behind a number of the caller's, which is closed there.
///
/// A number alone gives Rust no right to a descriptor, so Python, which knows that it is the
/// caller's, sends it over a pair of sockets.
fn taken_over(py: Python<'_>, fd: RawFd) -> PyResult<TcpListener> {
    let refused = |error: &dyn std::fmt::Display| {
        PyValueError::new_err(format!("fd {fd} is no bound TCP socket: {error}"))
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
