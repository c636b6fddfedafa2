//! The server's handle: starting, asking, purging and ending it from other threads.
//!
//! The server itself is one thread that owns the machine of [`rdzv_store_proto::server`]; the
//! handle sends it commands through a mailbox.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the handle |
//! | `service.rs` | the thread: waiting, commands, purge, end |
//! | `sockets.rs` | the table of connections and what the kernel shall report of each |
//! | `service/traffic.rs` | accepting, reading, writing |
//! | `service/descriptors.rs` | how many descriptors the process has, and who may use them |
//! | `admission.rs` | who may use the server, if its job has a token or certificates |
//! | `keep_alive.rs` | finding out that a silent peer is gone |
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

/// Where a server listens and how much it accepts.
#[derive(Debug, Default)]
pub struct ServerOptions {
    /// Name or address to bind; `None` is every address of this host, IPv6 and IPv4.
    pub host: Option<String>,
    /// Port; 0 is one that is free.
    pub port: u16,
    /// Sockets that are bound already, instead of `host`. `port` must then be 0 or theirs.
    pub listeners: Vec<TcpListener>,
    /// Bounds; exceeding one closes the connection that does.
    pub limits: Limits,
    /// The rule for clients. Default: everybody who reaches it is admitted.
    pub admission: Admission,
    /// Answers requests that a store does not know.
    pub extension: Option<Box<dyn Extension>>,
    /// When connections are dropped whose peers are silent and do not answer. Those of agents are
    /// dropped after 15 s.
    pub keep_alive: KeepAlive,
}

/// A running c10d store server. Dropping it ends it at once and quietly; its data is gone then.
#[derive(Debug)]
pub struct TcpStoreServer {
    address: SocketAddr,
    /// None once the server is to end: nobody is to be queued who will not be served.
    listener: Option<TcpListener>,
    commands: Sender<Command>,
    figures: Arc<Figures>,
    thread: Option<JoinHandle<()>>,
}

/// Checks that a thread is alive: the thread sends one message in its next iteration; the sender is
/// dropped without one if the thread has ended. Never waits.
pub type Pinger = Arc<dyn Fn(mpsc::Sender<()>) + Send + Sync>;

/// Bytes that went through a server's connections since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes of requests.
    pub received_bytes: u64,
    /// Bytes of replies.
    pub sent_bytes: u64,
    /// Connections that were dropped because their peers did not answer any more.
    pub lost_connections: u64,
}

/// A request of the handle to the thread.
#[derive(Debug)]
enum Command {
    /// Remove all keys that start with none of these; say when it is done.
    Purge {
        keep: Vec<Vec<u8>>,
        done: mpsc::SyncSender<()>,
    },
    /// Answer, which shows that the thread is alive. An extension may write down how things stand before.
    Ping(mpsc::Sender<()>),
    /// Accept nobody any more, and end when all are gone or after this time.
    Shutdown { linger: Duration },
}

impl TcpStoreServer {
    /// Binds, listens and starts the thread. Connections are accepted from the moment this
    /// returns, and queued by the kernel before.
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

    /// Serves on the calling thread, for a process that does nothing else: with a single thread, the
    /// kernel need not guard the table of descriptors against others, on every call.
    ///
    /// `ready` gets the address, and what [`TcpStoreServer::pinger`] returns of other servers. When
    /// `end` can be read from (a descriptor for signals, say), it stops accepting, lets clients
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

    /// Binds and listens without serving, for [`ServerOptions::listeners`]. Connections are queued by the kernel
    /// until a server accepts them, also while one process after another serves on the same sockets.
    ///
    /// `host` and `port` are as in [`ServerOptions`].
    ///
    /// # Errors
    ///
    /// If the host has no address here, or the port is taken.
    pub fn listen(host: Option<&str>, port: u16) -> Result<Vec<TcpListener>, StoreError> {
        listen::listen(host, port)
    }

    /// The address it is bound to, with the actual port. Without a host that is the IPv6 one of the
    /// two, where there are two.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Its listening socket (without a host, the IPv6 one of the two), to pass on to another process.
    pub fn listener(&self) -> &TcpListener {
        let listener = self.listener.as_ref();
        listener.expect("the server has not been told to end")
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Figures as of the thread's last iteration.
    pub fn stats(&self) -> ServerStats {
        self.figures.lock().0
    }

    /// Bytes that have gone through its connections so far, as of the thread's last iteration.
    pub fn traffic(&self) -> Traffic {
        self.figures.lock().1
    }

    /// Checks, at any time and from any thread, whether the server's thread is alive.
    pub fn pinger(&self) -> Pinger {
        pinger(self.commands.clone())
    }

    /// Removes every key and queue whose name on the wire (with the leading `/`) starts with none
    /// of `keep`. Returns when it is done.
    ///
    /// Whatever clients had sent when this was called is executed first, so that nothing that
    /// ended processes left in their connections appears afterwards.
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

    /// Stops accepting, lets the clients that are connected finish and leave, and ends when they
    /// are gone or after `linger`. Replies that were written are not lost.
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
    // Without a thread the sender is dropped, which the asking side sees.
    Arc::new(move |alive| commands.send(Command::Ping(alive)))
}

fn set_up(
    options: ServerOptions,
    figures: Arc<Figures>,
) -> Result<(TcpListener, Sender<Command>, Service), StoreError> {
    let refused = refused(options.port);
    let (commands, mailbox) = mailbox().map_err(&refused)?;
    let listeners = match options.listeners.is_empty() {
        true => listen::listen(options.host.as_deref(), options.port)?,
        false => {
            let adopted = options.listeners.into_iter();
            let adopted = adopted.map(|listener| listen::adopt(listener, options.port));
            adopted.collect::<Result<_, _>>()?
        }
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

/// The thread's figures, for others to read. It is held for a copy only.
type Figures = Mutex<(ServerStats, Traffic)>;
