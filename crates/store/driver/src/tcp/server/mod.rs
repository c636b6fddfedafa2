//! Handle to the server, for use by other threads.
//!
//! The handle starts, queries, purges and stops the server.
//!
//! The server itself is one thread that owns the state machine in [`rdzv_store_proto::server`]. The
//! handle sends it commands through a mailbox.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the handle |
//! | `service.rs` | the thread: waiting, commands, purge, shutdown |
//! | `sockets.rs` | the table of connections, with the events that the kernel reports for each |
//! | `service/traffic.rs` | accepting, reading, writing |
//! | `service/descriptors.rs` | the number of open file descriptors, and the reserve for agents |
//! | `service/notices.rs` | log lines that peers can cause, with a rate limit |
//! | `admission.rs` | which clients the server admits if its job has a token or certificates |
//! | `keep_alive.rs` | detecting that a silent peer is lost |
//! | `listen.rs` | binding: dual-stack, to a specified host, or to a specified socket |

mod admission;
mod keep_alive;
mod listen;
mod service;
mod sockets;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rdzv_event::{Sender, mailbox};
use rdzv_lock::Mutex;
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{Extension, ServerMachine, ServerStats};

use crate::StoreError;
use admission::Gate;
pub use admission::{Admission, TorchClients};
pub use keep_alive::KeepAlive;
use service::Service;

/// Address and limits of a server.
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// Name or address to bind; `None` binds all addresses of this host.
    pub host: Option<String>,
    /// Port to listen on; 0 selects a free port.
    pub port: u16,
    /// Sockets that are already bound, used instead of `host`.
    /// `port` must be 0 or the port of these sockets.
    pub listeners: Vec<TcpListener>,
    /// Limits of the server.
    pub limits: Limits,
    /// Rule for admitting clients. By default every client is admitted.
    pub admission: Admission,
    /// Handler for requests that are not store requests.
    pub extension: Option<Box<dyn Extension>>,
    /// Times after which the server drops the connection to a silent peer.
    /// The connection to an agent is dropped after 15 s, unless the extension sets another time.
    pub keep_alive: KeepAlive,
}

/// A running c10d store server.
/// Dropping it stops the server, and the stored data is lost. The server stops immediately, or when
/// its extension lets it end.
#[derive(Debug)]
pub struct TcpStoreServer {
    address: SocketAddr,
    /// `None` once the server is shutting down.
    /// After that, the kernel queues no further clients, unless another process holds the socket.
    listener: Option<TcpListener>,
    commands: Sender<Command>,
    figures: Arc<Figures>,
    thread: Option<JoinHandle<()>>,
}

/// Function that checks whether a thread is alive, without waiting.
/// The thread sends one message in its next iteration. If the thread has exited, the sender is
/// dropped without a message.
pub type Pinger = Arc<dyn Fn(mpsc::Sender<()>) + Send + Sync>;

/// Traffic of a server since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerTraffic {
    /// Number of bytes received in requests.
    pub received_bytes: u64,
    /// Number of bytes sent in replies.
    pub sent_bytes: u64,
    /// Number of connections that were dropped because the peer no longer answered.
    pub lost_connections: u64,
}

/// Request from the handle to the thread.
#[derive(Debug)]
enum Command {
    /// Remove all keys that start with none of these, then report completion.
    Purge {
        keep: Vec<Vec<u8>>,
        done: mpsc::SyncSender<()>,
    },
    /// Answer, to show that the thread is alive.
    /// An extension may record its state first.
    Ping(mpsc::Sender<()>),
    /// Stop accepting, and exit when all clients have left or time is up.
    /// After that time, the server still waits until the extension lets it end.
    Shutdown { linger: Duration },
}

impl TcpStoreServer {
    /// Binds and listens on the socket, and starts the server thread.
    /// The server accepts connections when this function returns. The kernel queues earlier ones.
    ///
    /// # Errors
    ///
    /// [`StoreError::Listen`] if the server cannot listen, or its thread cannot be started, and
    /// [`StoreError::Argument`] if a listener has another port than `port`.
    pub fn start(options: ServerOptions) -> Result<Self, StoreError> {
        let refused = refused(options.port);
        let figures = Arc::new(Figures::default());
        let (listener, commands, service) = set_up(options, Arc::clone(&figures))?;
        let address = listener.local_addr().map_err(&refused)?;
        let thread = std::thread::Builder::new()
            .name("rdzv-store".to_owned())
            .spawn(move || service.run())
            .map_err(refused)?;
        Ok(Self {
            address,
            listener: Some(listener),
            commands,
            figures,
            thread: Some(thread),
        })
    }

    /// Serves on the calling thread, for a process that does nothing else.
    ///
    /// `ready` receives the address and a pinger like the one from [`TcpStoreServer::pinger`]. When
    /// `end` becomes readable (for example, a signal descriptor), the server ends like
    /// [`TcpStoreServer::shutdown`] with this `linger`, and this function returns.
    ///
    /// # Errors
    ///
    /// [`StoreError::Listen`] if the server cannot listen, or cannot watch `end`, and
    /// [`StoreError::Argument`] if a listener has another port than `port`.
    pub fn serve(
        options: ServerOptions,
        end: OwnedFd,
        linger: Duration,
        ready: impl FnOnce(SocketAddr, Pinger),
    ) -> Result<(), StoreError> {
        let refused = refused(options.port);
        let (listener, commands, mut service) = set_up(options, Arc::default())?;
        let address = listener.local_addr().map_err(&refused)?;
        service.end_when(end, linger).map_err(refused)?;
        ready(address, pinger(commands));
        service.run();
        Ok(())
    }

    /// Binds and listens without serving, for [`ServerOptions::listeners`].
    ///
    /// The kernel queues connections until a server accepts them. Several processes can serve the
    /// same sockets, one after another. `host` and `port` have the same meaning as in
    /// [`ServerOptions`].
    ///
    /// # Errors
    ///
    /// Returns an error if `host` has no address on this machine, or if the port is in use.
    pub fn listen(host: Option<&str>, port: u16) -> Result<Vec<TcpListener>, StoreError> {
        listen::listen(host, port)
    }

    /// Returns the bound address, including the actual port.
    /// If no host was specified and there are two sockets, this is the IPv6 address.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the listening socket, to pass it to another process.
    /// If no host was specified and there are two sockets, this is the IPv6 socket.
    pub fn listener(&self) -> &TcpListener {
        let listener = self.listener.as_ref();
        listener.expect("the server has not begun to end")
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the statistics as of the thread's most recent iteration.
    pub fn stats(&self) -> ServerStats {
        self.figures.lock().0
    }

    /// Returns the traffic on all connections as of the most recent iteration.
    pub fn traffic(&self) -> ServerTraffic {
        self.figures.lock().1
    }

    /// Returns a function that checks whether the server's thread is alive.
    /// It can be called at any time and from any thread.
    pub fn pinger(&self) -> Pinger {
        pinger(self.commands.clone())
    }

    /// Removes all keys and queues that start with none of the prefixes.
    ///
    /// The names are those on the wire, with the leading `/`. The method returns when the removal
    /// is complete. The server first executes the requests that clients sent before this call, up
    /// to 16 MiB per connection. Requests that processes left in their connections when they exited
    /// therefore cannot take effect later.
    pub fn purge(&self, keep: &[&str]) {
        let keep = keep.iter().map(|prefix| prefix.as_bytes().to_vec());
        let (done, wait) = mpsc::sync_channel(1);
        self.commands.send(Command::Purge {
            keep: keep.collect(),
            done,
        });
        // An error means that the thread has exited, and that its data is lost.
        let _ = wait.recv();
    }

    /// Stops accepting connections, and stops once all clients have left.
    /// The server stops after `linger` at the latest, unless its extension delays the end
    /// ([`Extension::has_ended`]). Replies that were already written are not lost.
    pub fn shutdown(mut self, linger: Duration) {
        self.end(linger);
    }

    fn end(&mut self, linger: Duration) {
        self.listener = None;
        if let Some(thread) = self.thread.take() {
            self.commands.send(Command::Shutdown { linger });
            if thread.join().is_err() {
                tracing::error!(address = %self.address, "the store server's thread panicked");
            }
        }
    }
}

impl Drop for TcpStoreServer {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

fn pinger(commands: Sender<Command>) -> Pinger {
    // Without a thread the sender is dropped, which the receiver detects.
    Arc::new(move |alive| commands.send(Command::Ping(alive)))
}

fn set_up(
    options: ServerOptions,
    figures: Arc<Figures>,
) -> Result<(TcpListener, Sender<Command>, Service), StoreError> {
    let refused = refused(options.port);
    let (commands, mailbox) = mailbox().map_err(&refused)?;
    let listeners = if options.listeners.is_empty() {
        listen::listen(options.host.as_deref(), options.port)?
    } else {
        let adopted = options.listeners.into_iter();
        let adopted = adopted.map(|listener| listen::adopt(listener, options.port));
        adopted.collect::<Result<_, _>>()?
    };
    for listener in &listeners {
        // Accepted sockets inherit this.
        let set = options.keep_alive.set(listener);
        set.map_err(|error| refused(error.into()))?;
    }
    let listener = listeners[0].try_clone().map_err(&refused)?;
    let has_agents = options.extension.is_some();
    let mut machine = ServerMachine::new(options.limits);
    if let Some(extension) = options.extension {
        machine = machine.with_extension(extension);
    }
    if let Some(prefix) = &options.admission.agent_prefix
        && !options.admission.credentials.is_empty()
    {
        machine = machine.with_agent_prefix(prefix.clone());
    }
    let gate = Gate::new(options.admission, has_agents);
    let service = Service::new(machine, listeners, gate, has_agents, mailbox, figures);
    let service = service.map_err(&refused)?;
    tracing::debug!(?listener, "the store server is listening");
    Ok((listener, commands, service))
}

fn refused(port: u16) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Listen {
        address: format!("port {port}"),
        source,
    }
}

/// Statistics that the thread shares. The lock is held only during a copy.
type Figures = Mutex<(ServerStats, ServerTraffic)>;
