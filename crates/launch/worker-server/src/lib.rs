#![doc = include_str!("../README.md")]

mod service;
mod threads;

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::{fmt, io};

use rdzv_core::env::TORCH_WORKER_SERVER_SOCKET;
use thiserror::Error;
use tokio::sync::oneshot;

/// Error that the server could not be started.
#[derive(Debug, Error)]
#[error(
    "cannot serve the worker's control plane at {address}: {source}\n\
     help: choose a free port, or a path that does not exist and has at most 107 bytes"
)]
pub struct WorkerServerError {
    /// Path or address of the socket.
    pub address: String,
    /// Error of the system.
    pub source: io::Error,
}

/// A request to a handler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpRequest {
    /// Decoded parameters of the query.
    /// If a name is repeated, the last value counts.
    pub parameters: BTreeMap<String, String>,
    /// Body of at most 1 MiB.
    pub body: Vec<u8>,
}

impl HttpRequest {
    /// Returns the value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }
}

/// The answer of a handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status code.
    pub status: u16,
    /// Type of the content, such as `text/plain`.
    pub content_type: String,
    /// Content of the answer.
    pub content: Vec<u8>,
}

impl Answer {
    /// Creates an answer with status 200 and text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(200, "text/plain", text)
    }

    /// Creates an answer with status 200 and JSON.
    pub fn json(json: impl Into<String>) -> Self {
        Self::new(200, "application/json", json)
    }

    /// Creates an answer with any status and content type.
    pub fn new(status: u16, content_type: &str, text: impl Into<String>) -> Self {
        Self {
            status,
            content_type: content_type.to_owned(),
            content: text.into().into_bytes(),
        }
    }
}

type Handler = Arc<dyn Fn(&HttpRequest) -> Answer + Send + Sync>;

/// The handlers of a server that is not started yet.
pub struct WorkerServer {
    handlers: BTreeMap<String, Handler>,
}

impl WorkerServer {
    /// Creates a server with the handlers `ping` and `dump_traceback`.
    pub fn new() -> Self {
        let mut server = Self {
            handlers: BTreeMap::new(),
        };
        server.register("ping", |_| Answer::text("pong"));
        server.register("dump_traceback", |_| Answer::text(threads::describe()));
        server
    }

    /// Registers the handler of `POST /handler/⟨name⟩`.
    /// The handler replaces an earlier handler of that name.
    ///
    /// The handler is called on a separate thread, and concurrently if several requests arrive. A
    /// panic of the handler is answered with 500 and its text.
    pub fn register(
        &mut self,
        name: &str,
        handler: impl Fn(&HttpRequest) -> Answer + Send + Sync + 'static,
    ) -> &mut Self {
        self.handlers.insert(name.to_owned(), Arc::new(handler));
        self
    }

    /// Serves at the socket that `TORCH_WORKER_SERVER_SOCKET` names.
    /// Does nothing if that variable is unset or empty.
    pub fn start_from_environment(self) -> Result<Option<RunningServer>, WorkerServerError> {
        match std::env::var_os(TORCH_WORKER_SERVER_SOCKET).filter(|path| !path.is_empty()) {
            Some(path) => self.start_at(Path::new(&path)).map(Some),
            None => Ok(None),
        }
    }

    /// Serves on a Unix socket, which is removed when the server stops.
    ///
    /// # Errors
    ///
    /// Returns an error if the path already exists or is too long, or if the socket or the thread
    /// cannot be created.
    pub fn start_at(self, path: &Path) -> Result<RunningServer, WorkerServerError> {
        let failed = |source| WorkerServerError {
            address: path.display().to_string(),
            source,
        };
        let listener = UnixListener::bind(path).map_err(failed)?;
        let file = SocketFile(path.to_owned());
        listener.set_nonblocking(true).map_err(failed)?;
        let mut running = self
            .start(service::Socket::Unix(listener))
            .map_err(failed)?;
        running.file = Some(file);
        Ok(running)
    }

    /// Serves at a host and a port; port 0 selects a free one.
    /// There is no authentication: anyone who can reach the port can send requests.
    ///
    /// # Errors
    ///
    /// Returns an error if the address cannot be bound, or if the thread cannot be started.
    pub fn start_on(self, host: &str, port: u16) -> Result<RunningServer, WorkerServerError> {
        let failed = |source| WorkerServerError {
            address: format!("{host}:{port}"),
            source,
        };
        let listener = TcpListener::bind((host, port)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let mut running = self.start(service::Socket::Tcp(listener)).map_err(failed)?;
        running.address = Some(address);
        Ok(running)
    }

    fn start(self, socket: service::Socket) -> io::Result<RunningServer> {
        let (end, ended) = oneshot::channel();
        let thread = service::spawn(socket, self.handlers, ended)?;
        Ok(RunningServer {
            address: None,
            file: None,
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Default for WorkerServer {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WorkerServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.handlers.keys()).finish()
    }
}

/// A server that answers until it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct RunningServer {
    address: Option<SocketAddr>,
    file: Option<SocketFile>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl RunningServer {
    /// Returns the address of the server if it listens at a TCP port.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // The file is removed first, so that clients find no socket without a server.
        self.file = None;
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The file of a socket, which is removed when this value is dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
