//! `c10d`: agents meet at a store that one of them hosts, or that somebody else has started.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the backend: connects at the first use, then passes everything on |
//! | `connect.rs` | hosting the store or finding it, and what kind of store it is |
//! | `elected.rs` | finding the coordinator that voters have elected |
//! | `lost_agent.rs` | an agent that was killed is taken out by its supervisor |
//! | `stored.rs` | the shared state under torchelastic's key of any store; its errors |
//! | `store_watch.rs` | noticing changes of it |
//!
//! | option | default | what |
//! |---|---|---|
//! | `store_type` | `tcp` | `tcp`, or `file`: the endpoint is then the path of a file that all nodes share, or empty for a new one |
//! | `read_timeout` | 60 s | how long to try to connect, and how long the store may take to answer; not read for a file |
//! | `is_host` | found out | whether this node hosts the store |
//! | `coordinator_timeout` | 60 s | how long agents wait for the store of this node if it is gone and may come back |
//! | `voters` | with a list of endpoints: 1, 3 or 5, as many as it has places; with one: up to 5 | how many of its places are voters, or how many agents at most |
//! | `node_timeout` | 3 s | how long a machine may be silent, as its kernel shows it; see [`rdzv_rendezvous_proto::silence`] |
//! | `fence`, `fence_kill` | auto, 60 s | `auto`: a node without a majority of three voters suspends its workers, or `off`; the time after which suspended workers are killed |
//! | `recover` | false | whether this node may take the place of a store that cannot be shown to have ended |
//!
//! A store server of ours runs the rendezvous itself ([`super::native`]), also for agents of
//! torchelastic; at any other, every agent changes the state under one key ([`super::driver`]).
//!
//! Several agents on the host of the endpoint race for its port; one gets it, the others are its
//! clients.

mod connect;
mod elected;
mod lost_agent;
mod store_watch;
mod stored;

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::RunId;
use rdzv_lock::Mutex;
use rdzv_store::{Pinger, TcpStoreServer};

pub use self::stored::C10dState;
pub(crate) use crate::dynamic::options::OPTIONS;
use crate::dynamic::options::{self, Medium, Options};
use crate::dynamic::voters::OwnVoter;
use crate::runtime::{beside, no_thread};
use crate::{
    Change, ExitBarrier, Interrupter, Member, NodeState, Observer, Onlookers, Recorder,
    RendezvousBackend, RendezvousError, RendezvousEvent, RendezvousInfo, RendezvousParameters,
};

/// How long the host of the store waits at the end until the other agents have left it.
const LINGER: Duration = Duration::from_secs(10);

/// How often a store is looked for again that was lost before there was a round.
const MOST_AGAIN: u32 = 3;

/// The backend `c10d`.
pub struct C10dRendezvous {
    options: Arc<Options>,
    observer: Option<Arc<Observer>>,
    recorder: Option<Recorder>,
    /// Whether this node has been in a round.
    formed: Arc<AtomicBool>,
    calls: Arc<Calls>,
    connected: RefCell<Option<Connection>>,
}

struct Connection {
    backend: Box<dyn RendezvousBackend>,
    /// The store, if this node hosts it.
    server: Option<Arc<TcpStoreServer>>,
    /// The server of a voter that is not at the endpoint, if this node has become one.
    voter: OwnVoter,
    is_observed: bool,
}

impl Connection {
    fn new(
        backend: Box<dyn RendezvousBackend>,
        server: Option<TcpStoreServer>,
        voter: OwnVoter,
    ) -> Self {
        Self {
            backend,
            server: server.map(Arc::new),
            voter,
            is_observed: false,
        }
    }
}

impl fmt::Debug for C10dRendezvous {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "C10dRendezvous({:?})", self.options)
    }
}

/// What an interrupter of this backend has to end.
#[derive(Default)]
struct Calls(Mutex<Under>);

#[derive(Default)]
struct Under {
    interrupted: bool,
    /// Whoever waits for a connection.
    connecting: Option<mpsc::Sender<Option<Attempt>>>,
    /// Ends a join of what was connected to.
    joining: Option<Interrupter>,
}

type Attempt = Result<Connection, RendezvousError>;

impl C10dRendezvous {
    /// The name of this backend.
    pub const NAME: &str = "c10d";

    /// Checks the parameters. The connection is made at the first use.
    pub fn from_parameters(parameters: &RendezvousParameters) -> Result<Self, RendezvousError> {
        Ok(Self {
            options: Arc::new(Options::from_parameters(parameters)?),
            observer: None,
            recorder: None,
            formed: Arc::default(),
            calls: Arc::default(),
            connected: RefCell::default(),
        })
    }

    /// The places at which the coordinator may be, as the endpoint lists them: one, or those of the voters.
    ///
    /// # Errors
    ///
    /// The endpoint is no list of them, or the option `voters` does not go with it.
    pub fn places(parameters: &RendezvousParameters) -> Result<Vec<Endpoint>, RendezvousError> {
        options::places(parameters)
    }

    fn onlookers(&self) -> Onlookers {
        Onlookers {
            recorder: self.recorder.clone(),
            group: self.options.group.clone(),
        }
    }

    /// Connects if that has not been done.
    fn connect(&self) -> Result<RefMut<'_, Connection>, RendezvousError> {
        let mut connected = self.connected.borrow_mut();
        if connected.is_none() {
            *connected = Some(connect(&self.options, self.onlookers(), &self.calls)?);
        }
        let mut connection = RefMut::map(connected, |connected| {
            connected.as_mut().expect("it has just been made")
        });
        if let Some(observer) = &self.observer
            && !std::mem::replace(&mut connection.is_observed, true)
        {
            let (observer, formed) = (Arc::clone(observer), Arc::clone(&self.formed));
            connection.backend.set_observer(Box::new(move |change| {
                // Before the first round, nothing is lost with the store.
                if formed.load(Ordering::Acquire) || !matches!(change, Change::Lost(_)) {
                    observer(change);
                }
            }));
        }
        Ok(connection)
    }
}

/// Connects beside the caller.
///
/// Neither a look-up of a name nor an attempt to connect can be ended from outside.
fn connect(options: &Arc<Options>, onlookers: Onlookers, calls: &Calls) -> Attempt {
    let (sender, attempts) = mpsc::channel();
    {
        let mut under = calls.0.lock();
        if under.interrupted {
            return Err(RendezvousError::Interrupted);
        }
        under.connecting = Some(sender.clone());
    }
    let theirs = Arc::clone(options);
    let call = beside(move || {
        // If nobody waits any more, the connection is closed again.
        let _ = sender.send(Some(reach(&theirs, &onlookers)));
    });
    if let Err(error) = call {
        let purpose = "to connect to the c10d store";
        return Err(no_thread(&error, purpose, options.place()));
    }
    let attempt = attempts.recv().ok().flatten();
    let mut under = calls.0.lock();
    under.connecting = None;
    let connection = attempt.ok_or(RendezvousError::Interrupted)??;
    if under.interrupted {
        return Err(RendezvousError::Interrupted);
    }
    under.joining = connection.backend.interrupter();
    Ok(connection)
}

/// Connects to the place of the state, hosting it if that is this node's part, and finds out how to use it.
fn reach(options: &Options, onlookers: &Onlookers) -> Attempt {
    match &options.medium {
        Medium::Tcp { endpoint, is_host } => {
            connect::at_tcp(endpoint, *is_host, options, onlookers)
        }
        Medium::Voters(places) => elected::at_one_of(places, options, onlookers),
        Medium::File(Some(path)) => connect::at_file(path, None, options),
        // Nobody else knows it, so it is removed with the last use here.
        Medium::File(None) => connect::at_file(&connect::new_file(options)?, Some(1), options),
    }
}

fn say_who_hosts(onlookers: &Onlookers) {
    let message = format!(
        "Process {} hosts the TCP store for the C10d rendezvous backend.",
        std::process::id()
    );
    tracing::info!("{message}");
    onlookers.record(RendezvousEvent::new(NodeState::Init, message));
}

impl Calls {
    fn interrupt(&self) {
        let joining = {
            let mut under = self.0.lock();
            under.interrupted = true;
            if let Some(connecting) = under.connecting.take() {
                // It has its connection if it does not listen any more.
                let _ = connecting.send(None);
            }
            under.joining.clone()
        };
        if let Some(joining) = joining {
            joining();
        }
    }
}

impl RendezvousBackend for C10dRendezvous {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn run_id(&self) -> &RunId {
        &self.options.run_id
    }

    fn join(&mut self, member: &Member) -> Result<RendezvousInfo, RendezvousError> {
        let mut again = 0;
        loop {
            let mut connection = self.connect()?;
            let is_host = connection.server.is_some();
            let joined = connection.backend.join(member);
            drop(connection);
            match joined {
                Ok(info) => {
                    self.formed.store(true, Ordering::Release);
                    return Ok(info);
                }
                // Whoever hosted the store has ended before there was a round; somebody else on
                // that host takes its place.
                Err(error @ RendezvousError::Unreachable { .. })
                    if !is_host && again < MOST_AGAIN && !self.formed.load(Ordering::Acquire) =>
                {
                    again += 1;
                    tracing::info!(%error, "lost the c10d store before the first round; looking for it again");
                    self.calls.0.lock().joining = None;
                    self.connected.take();
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn interrupter(&self) -> Option<Interrupter> {
        let calls = Arc::clone(&self.calls);
        Some(Arc::new(move || calls.interrupt()))
    }

    fn set_observer(&mut self, observer: Observer) {
        self.observer = Some(Arc::new(observer));
        if let Some(connection) = self.connected.get_mut() {
            connection.is_observed = false;
        }
    }

    fn set_recorder(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    fn threads(&self) -> Vec<(&'static str, Pinger)> {
        let Some(connection) = &*self.connected.borrow() else {
            return Vec::new();
        };
        let mut threads = connection.backend.threads();
        if let Some(server) = &connection.server {
            threads.push(("rendezvous store server", server.pinger()));
        }
        if let Some(server) = &*connection.voter.lock() {
            threads.push(("voter's store server", server.pinger()));
        }
        threads
    }

    fn exit_barrier(&self) -> Option<ExitBarrier> {
        self.connected.borrow().as_ref()?.backend.exit_barrier()
    }

    fn is_closed(&self) -> Result<bool, RendezvousError> {
        self.connect()?.backend.is_closed()
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        self.connect()?.backend.set_closed()
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        self.connect()?.backend.num_nodes_waiting()
    }

    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        let connection = self.connected.get_mut().as_mut();
        connection.map_or(Ok(()), |it| it.backend.report_failure(reason))
    }

    fn leave(&mut self) -> Result<(), RendezvousError> {
        let connection = self.connected.get_mut().as_mut();
        connection.map_or(Ok(()), |it| it.backend.leave())
    }

    fn leave_to_successor(&mut self) -> Result<(), RendezvousError> {
        let left = self.leave();
        let is_alone = matches!(self.options.medium, Medium::Tcp { .. });
        // Of several voters, another one coordinates at once; and one that learns, if this one
        // hands over.
        let connection = self.connected.get_mut().as_mut();
        let alone = connection.filter(|it| is_alone && !it.voter.has_others());
        if let Some(connection) = alone {
            // Its end in order would tell the others that nobody comes, so it lasts as long as the
            // process.
            let servers = (connection.server.take(), connection.voter.lock().take());
            Box::leak(Box::new(servers));
        }
        left
    }

    fn shutdown(&mut self) -> bool {
        let Some(mut connection) = self.connected.take() else {
            return true;
        };
        let closed = connection.backend.shutdown();
        drop(connection.backend);
        let hosted = connection.server.and_then(Arc::into_inner);
        let voter = connection.voter.lock().take();
        if let Some(server) = hosted.or(voter) {
            if let Some(kept) = &self.options.kept {
                kept.release_listeners();
            }
            server.shutdown(LINGER);
        }
        closed
    }
}
