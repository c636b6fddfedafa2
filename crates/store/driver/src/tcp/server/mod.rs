//! The handle of the server, for use by other threads.
//!
//! It starts, queries, purges and ends the server.
//!
//! The server itself is one thread that owns the machine of [`rdzv_store_proto::server`]. The
//! handle sends it commands through a mailbox.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the handle |
//! | `service.rs` | the thread: waiting, commands, purge, end |
//! | `sockets.rs` | the table of connections, with the events that the kernel reports of each |
//! | `service/traffic.rs` | accepting, reading, writing |
//! | `service/descriptors.rs` | the number of descriptors of the process, and their reserves |
//! | `admission.rs` | the clients that may use the server, if its job has a token or certificates |
//! | `keep_alive.rs` | detecting that a silent peer is lost |
//! | `listen.rs` | binding: dual-stack, a given host, a given socket |

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
    /// Name or address to bind; `None` means every address of this host.
    pub host: Option<String>,
    /// Port; 0 selects a free one.
    pub port: u16,
    /// Bound sockets, instead of `host`. `port` must then be 0 or their port.
    pub listeners: Vec<TcpListener>,
    /// Limits; a connection that exceeds one is closed.
    pub limits: Limits,
    /// Rule for clients. By default every client is admitted.
    pub admission: Admission,
    /// Answers requests that a store does not know.
    pub extension: Option<Box<dyn Extension>>,
    /// Times after which connections with silent peers are dropped.
    /// Connections of agents are dropped after 15 s.
    pub keep_alive: KeepAlive,
}

/// A running c10d store server.
/// Dropping it ends it immediately and without an error; its data is lost.
#[derive(Debug)]
pub struct TcpStoreServer {
    address: SocketAddr,
    /// `None` once the server is to end.
    /// Then the kernel queues no further clients.
    listener: Option<TcpListener>,
    commands: Sender<Command>,
    figures: Arc<Figures>,
    thread: Option<JoinHandle<()>>,
}

/// A check that a thread is alive.
/// The thread sends one message in its next iteration. If the thread has ended, the sender is
/// dropped without a message. The check never waits.
pub type Pinger = Arc<dyn Fn(mpsc::Sender<()>) + Send + Sync>;

/// Bytes that passed through a server's connections since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of replies.
    pub sent_bytes: u64,
    /// Connections that were dropped because their peers no longer answered.
    pub lost_connections: u64,
}

/// A request of the handle to the thread.
#[derive(Debug)]
enum Command {
    /// Remove all keys that start with none of these; report when it is done.
    Purge {
        keep: Vec<Vec<u8>>,
        done: mpsc::SyncSender<()>,
    },
    /// Answer, which shows that the thread is alive.
    /// An extension may record its state before.
    Ping(mpsc::Sender<()>),
    /// Stop accepting; end when all clients have left or after this time.
    Shutdown { linger: Duration },
}

impl TcpStoreServer {
    /// Binds, listens and starts the thread.
    /// The thread accepts connections from the moment this returns; before, the kernel queues them.
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
    /// With a single thread, the kernel need not guard the table of descriptors in every call.
    /// `ready` gets the address, and a pinger as [`TcpStoreServer::pinger`] returns it. When `end`
    /// becomes readable (a descriptor for signals, say), the server stops accepting, lets clients
    /// finish for up to `linger`, and returns.
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
    /// The kernel queues connections until a server accepts them. Several processes can serve on
    /// the same sockets, one after another. `host` and `port` are as in [`ServerOptions`].
    ///
    /// # Errors
    ///
    /// If the host has no address here, or the port is in use.
    pub fn listen(host: Option<&str>, port: u16) -> Result<Vec<TcpListener>, StoreError> {
        listen::listen(host, port)
    }

    /// Returns the bound address, with the actual port.
    /// Without a host and with two sockets, this is the IPv6 address.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the listening socket, to pass it to another process.
    /// Without a host and with two sockets, this is the IPv6 socket.
    pub fn listener(&self) -> &TcpListener {
        let listener = self.listener.as_ref();
        listener.expect("the server has not begun to end")
    }

    /// Returns the port that the server listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the figures as of the thread's last iteration.
    pub fn stats(&self) -> ServerStats {
        self.figures.lock().0
    }

    /// Returns the bytes of all connections, as of the thread's last iteration.
    pub fn traffic(&self) -> Traffic {
        self.figures.lock().1
    }

    /// Returns a check that the server's thread is alive.
    /// It can be used at any time and from any thread.
    pub fn pinger(&self) -> Pinger {
        pinger(self.commands.clone())
    }

    /// Removes every key and queue that starts with none of `keep`.
    ///
    /// The names are those on the wire, with the leading `/`. Returns when it is done. The server
    /// first executes all requests that clients had sent before this call. So no request that ended
    /// processes left in their connections appears afterwards.
    pub fn purge(&self, keep: &[&str]) {
        let keep = keep.iter().map(|prefix| prefix.as_bytes().to_vec());
        let (done, wait) = mpsc::sync_channel(1);
        self.commands.send(Command::Purge {
            keep: keep.collect(),
            done,
        });
        // An error means that the thread has ended, and the data with it.
        let _ = wait.recv();
    }

    /// Stops accepting and ends when the connected clients have left.
    /// The server ends after `linger` at the latest. Replies that were written are not lost.
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
    tracing::debug!(?listener, "store server listens");
    Ok((listener, commands, service))
}

fn refused(port: u16) -> impl Fn(io::Error) -> StoreError {
    move |source| StoreError::Listen {
        address: format!("port {port}"),
        source,
    }
}

/// The thread's figures for other threads. The lock is held only for a copy.
type Figures = Mutex<(ServerStats, Traffic)>;
