//! Backend `c10d`: agents share a store that an agent or another process hosts.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the backend: connects at the first use, then forwards all calls |
//! | `connect.rs` | hosts or finds the store, and detects its kind |
//! | `elected.rs` | the search for the coordinator that voters have elected |
//! | `lost_agent.rs` | the removal of a killed agent by the keeper |
//! | `stored.rs` | the shared state under torchelastic's key of any store |
//! | `store_watch.rs` | detects changes of that state |
//!
//! Options of the backend, with their defaults:
//!
//! * `store_type` (`tcp`): `tcp` or `file`. With `file`, the endpoint is the path of a file that
//!   all nodes share, or empty for a new file.
//! * `read_timeout` (60 s): time limit to connect, for an answer of the store, and for rank 0 to
//!   send the endpoint of the workers' store. Ignored for a file.
//! * `is_host` (detected): `true` if this node hosts the store.
//! * `coordinator_timeout` (60 s): time for which agents wait for this node's store if it is lost
//!   and may return.
//! * `voters`: with a list of endpoints, the number of voters among them. Default: 1, 3 or 5, as
//!   many as the list allows. With one endpoint, the maximum number of voters among the agents.
//!   Default: 5 if a killed agent is restarted, otherwise 1. With port 0 or a single node, it is 1.
//! * `node_timeout` (3 s): time for which a machine may be silent, according to its kernel; see
//!   [`rdzv_rendezvous_proto::silence`].
//! * `fence` (`auto`): `auto` or `off`. With `auto`, a node suspends its workers while no majority
//!   of the voters confirms its lease. This requires `auto` on all nodes, three or more voters, and
//!   agents that are restarted when they are killed.
//! * `rank_order` (`sticky`, or `sorted` if [`RendezvousParameters::sorts_ranks`] is set): with
//!   `sticky`, nodes keep their ranks in the next round. With `sorted`, every round sorts its
//!   nodes, as with torchrun.
//! * `fence_kill` (60 s): time after which suspended workers are killed.
//! * `recover` (`false`): `true` confirms that the previous coordinator and all missing agents have
//!   exited.
//!
//! A store server of rdzv runs the rendezvous itself ([`super::native`]), also for agents of
//! torchelastic. In any other store, every agent changes the state under one key
//! ([`super::driver`]).
//!
//! If several agents run on the host of the endpoint, one gets its port and the others are its
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
use std::time::{Duration, Instant};

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
    Change, ExitBarrier, Interrupter, JoiningAgent, NodeState, Observer, Onlookers, Recorder,
    RendezvousBackend, RendezvousError, RendezvousEvent, RendezvousInfo, RendezvousParameters,
};

/// Maximum time that the host of the store waits at the end for other agents.
const LINGER: Duration = Duration::from_secs(10);

/// Maximum number of retries after a store was lost before the first round.
const MOST_AGAIN: u32 = 3;

/// Backend `c10d`.
pub struct C10dRendezvous {
    options: Arc<Options>,
    observer: Option<Arc<Observer>>,
    recorder: Option<Recorder>,
    /// `true` once this node has been in a round.
    formed: Arc<AtomicBool>,
    calls: Arc<Calls>,
    connected: RefCell<Option<Connection>>,
}

struct Connection {
    backend: Box<dyn RendezvousBackend>,
    /// Store server that this node hosts.
    server: Option<Arc<TcpStoreServer>>,
    /// Server of this node's voter, if it is another one than `server`.
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

/// Calls that an interrupter of this backend ends.
#[derive(Default)]
struct Calls(Mutex<Under>);

#[derive(Default)]
struct Under {
    interrupted: bool,
    /// Sender to the caller that waits for a connection.
    connecting: Option<mpsc::Sender<Option<Attempt>>>,
    /// Closure that ends a join of the connected backend.
    joining: Option<Interrupter>,
}

type Attempt = Result<Connection, RendezvousError>;

impl C10dRendezvous {
    /// Name of this backend.
    pub const NAME: &str = "c10d";

    /// Checks the parameters. The first use opens the connection.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] names the option or parameter that is invalid.
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

    /// Returns the possible endpoints of the coordinator: one, or all voters.
    ///
    /// # Errors
    ///
    /// Returns an error if the endpoint cannot be parsed, or the option `voters` does not fit it.
    pub fn endpoints(parameters: &RendezvousParameters) -> Result<Vec<Endpoint>, RendezvousError> {
        options::endpoints(parameters)
    }

    fn onlookers(&self) -> Onlookers {
        Onlookers {
            recorder: self.recorder.clone(),
            group: self.options.group.clone(),
        }
    }

    /// Connects unless a connection exists.
    ///
    /// A join that has taken `elapsed` until now has the rest of its time limit.
    fn connect(&self, elapsed: Duration) -> Result<RefMut<'_, Connection>, RendezvousError> {
        let mut connected = self.connected.borrow_mut();
        if connected.is_none() {
            let options = self.options.after(elapsed);
            *connected = Some(connect(&options, self.onlookers(), &self.calls)?);
        }
        let mut connection = RefMut::map(connected, |connected| {
            connected.as_mut().expect("it has just been made")
        });
        if let Some(observer) = &self.observer
            && !std::mem::replace(&mut connection.is_observed, true)
        {
            let (observer, formed) = (Arc::clone(observer), Arc::clone(&self.formed));
            connection.backend.set_observer(Box::new(move |change| {
                // Before the first round, the loss of the store loses nothing.
                if formed.load(Ordering::Acquire) || !matches!(change, Change::Lost(_)) {
                    observer(change);
                }
            }));
        }
        Ok(connection)
    }
}

/// Connects on a separate thread.
///
/// Neither a name resolution nor a connection attempt can be interrupted.
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
        // If the caller no longer waits, the connection is closed again.
        let _ = sender.send(Some(reach(&theirs, &onlookers)));
    });
    if let Err(error) = call {
        let purpose = "to connect to the c10d store";
        return Err(no_thread(&error, purpose, options.endpoint()));
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

/// Connects to the medium of the state, and hosts a store there if necessary.
fn reach(options: &Options, onlookers: &Onlookers) -> Attempt {
    match &options.medium {
        Medium::Tcp { endpoint, is_host } => {
            connect::at_tcp(endpoint, *is_host, options, onlookers)
        }
        Medium::Voters(endpoints) => elected::at_one_of(endpoints, options, onlookers),
        Medium::File(Some(path)) => connect::at_file(path, None, options),
        // No other process knows the file, so it is deleted after the last use here.
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
                // A closed channel means that the caller has its connection.
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

    fn join(&mut self, member: &JoiningAgent) -> Result<RendezvousInfo, RendezvousError> {
        let (started, mut again) = (Instant::now(), 0);
        loop {
            let elapsed = if again == 0 {
                Duration::ZERO
            } else {
                started.elapsed()
            };
            let mut connection = self.connect(elapsed)?;
            let is_host = connection.server.is_some();
            let joined = connection.backend.join(member);
            drop(connection);
            match joined {
                Ok(info) => {
                    self.formed.store(true, Ordering::Release);
                    return Ok(info);
                }
                // The host of the store has ended before the first round. Another agent on
                // that machine may replace it.
                Err(error @ RendezvousError::Unreachable { .. })
                    if !is_host
                        && again < MOST_AGAIN
                        && started.elapsed() < self.options.settings.join_timeout
                        && !self.formed.load(Ordering::Acquire) =>
                {
                    again += 1;
                    tracing::info!(
                        %error,
                        "lost the c10d store before the first round; searching again"
                    );
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
        self.connect(Duration::ZERO)?.backend.is_closed()
    }

    fn set_closed(&mut self) -> Result<(), RendezvousError> {
        self.connect(Duration::ZERO)?.backend.set_closed()
    }

    fn num_nodes_waiting(&self) -> Result<u32, RendezvousError> {
        self.connect(Duration::ZERO)?.backend.num_nodes_waiting()
    }

    fn report_failure(&mut self, reason: &str) -> Result<(), RendezvousError> {
        let connection = self.connected.get_mut().as_mut();
        connection.map_or(Ok(()), |it| it.backend.report_failure(reason))
    }

    fn report_success(&mut self) {
        if let Some(connection) = self.connected.get_mut() {
            connection.backend.report_success();
        }
    }

    fn leave(&mut self) -> Result<(), RendezvousError> {
        let connection = self.connected.get_mut().as_mut();
        connection.map_or(Ok(()), |it| it.backend.leave())
    }

    fn leave_to_successor(&mut self) -> Result<(), RendezvousError> {
        let left = self.leave();
        let is_alone = matches!(self.options.medium, Medium::Tcp { .. });
        // With several voters, another voter coordinates immediately. A learner also
        // becomes coordinator if this voter hands over.
        let connection = self.connected.get_mut().as_mut();
        let alone = connection.filter(|it| is_alone && !it.voter.has_others());
        if let Some(connection) = alone {
            // A clean end would report that there is no successor, so the servers live as
            // long as the process.
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
