//! The control plane of one worker: a small HTTP server inside it that answers requests about it.
//!
//! It speaks what PyTorch's worker server speaks, so the same tools reach workers of both kinds:
//!
//! | request | answer |
//! |---|---|
//! | `GET /` | 200 `text/html`, a heading and a link to `/handler/` |
//! | `GET /handler/` | 200 `application/json`, the names of all handlers |
//! | `POST /handler/⟨name⟩?key=value` | what the handler answers |
//! | `POST /handler/⟨unknown⟩` | 404 `text/plain`, `Handler ⟨name⟩ not found: …` |
//! | anything else | 404, empty |
//!
//! Handlers that are always there: `ping` (answers `pong`) and `dump_traceback` (what every thread
//! of the process is doing, as the kernel sees it; one's own handler of that name replaces it).
//!
//! ```no_run
//! use rdzv_worker_server::{Answer, WorkerServer};
//! # fn main() -> Result<(), rdzv_worker_server::WorkerServerError> {
//! let mut server = WorkerServer::new();
//! server.register("step", |request| match request.parameter("unit") {
//!     Some("epoch") => Answer::text("3\n"),
//!     _ => Answer::json("{\"step\": 1200}"),
//! });
//! // With `rdzv run --worker-server`, TORCH_WORKER_SERVER_SOCKET says where; without, nothing happens.
//! let _running = server.start_from_environment()?;
//! # Ok(())
//! # }
//! ```
//!
//! One thread, which sleeps until it is asked. Handlers run on threads of their own, so one that
//! takes long holds up no other.

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

/// Why there is no server.
#[derive(Debug, Error)]
#[error(
    "serve the worker's control plane at {place}: {source}; a path must not exist yet and has 107 \
     bytes at most"
)]
pub struct WorkerServerError {
    /// Path or address.
    pub place: String,
    /// What the system said.
    pub source: io::Error,
}

/// What a handler is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    /// The parameters of the query, decoded; of several with one name, the last.
    pub parameters: BTreeMap<String, String>,
    /// The body: 1 MiB at most.
    pub body: Vec<u8>,
}

impl Request {
    /// The value of a parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }
}

/// What a handler answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status code.
    pub status: u16,
    /// What the content is, such as `text/plain`.
    pub content_type: String,
    /// The content.
    pub content: Vec<u8>,
}

impl Answer {
    /// 200 with text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(200, "text/plain", text)
    }

    /// 200 with text that is JSON.
    pub fn json(json: impl Into<String>) -> Self {
        Self::new(200, "application/json", json)
    }

    /// Any.
    pub fn new(status: u16, content_type: &str, text: impl Into<String>) -> Self {
        Self {
            status,
            content_type: content_type.to_owned(),
            content: text.into().into_bytes(),
        }
    }
}

type Handler = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

/// The handlers of a server that is not started yet.
pub struct WorkerServer {
    handlers: BTreeMap<String, Handler>,
}

impl WorkerServer {
    /// With `ping` and `dump_traceback`.
    pub fn new() -> Self {
        let mut server = Self {
            handlers: BTreeMap::new(),
        };
        server.register("ping", |_| Answer::text("pong"));
        server.register("dump_traceback", |_| Answer::text(threads::describe()));
        server
    }

    /// Answers `POST /handler/⟨name⟩` from now on; whoever had the name before has it no more.
    ///
    /// The handler is called on a thread of its own, several times at once if asked so. A panic in
    /// it is answered with 500 and its text.
    pub fn register(
        &mut self,
        name: &str,
        handler: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> &mut Self {
        self.handlers.insert(name.to_owned(), Arc::new(handler));
        self
    }

    /// Serves at the socket that `TORCH_WORKER_SERVER_SOCKET` names; nowhere if it is not set.
    pub fn start_from_environment(self) -> Result<Option<RunningServer>, WorkerServerError> {
        match std::env::var_os(TORCH_WORKER_SERVER_SOCKET).filter(|path| !path.is_empty()) {
            Some(path) => self.start_at(Path::new(&path)).map(Some),
            None => Ok(None),
        }
    }

    /// Serves at a Unix socket, which goes when the server does.
    ///
    /// # Errors
    ///
    /// If the path is there already, too long, or no socket can be made there.
    pub fn start_at(self, path: &Path) -> Result<RunningServer, WorkerServerError> {
        let failed = |source| WorkerServerError {
            place: path.display().to_string(),
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

    /// Serves at a host and a port; port 0 is one that is free. There is no authentication: whoever
    /// reaches the port may ask.
    ///
    /// # Errors
    ///
    /// If nothing can be bound there.
    pub fn start_on(self, host: &str, port: u16) -> Result<RunningServer, WorkerServerError> {
        let failed = |source| WorkerServerError {
            place: format!("{host}:{port}"),
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
    /// Where it listens, if that is a TCP port.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // First, so that nobody finds a socket that nobody serves.
        self.file = None;
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Removed when it is dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
