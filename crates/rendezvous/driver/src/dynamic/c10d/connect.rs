//! Connection to the c10d store, which this node hosts or finds.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_core::reminder::{self, Reminder};
use rdzv_rendezvous_proto::NodeDesc;
use rdzv_store::{FileStore, Store, StoreError, StorePolicy, TcpStore, TcpStoreServer};

use super::elected::{agent, await_coordinator, call, find_elsewhere, return_to};
use super::stored::{C10dState, StateMedium};
use super::{Connection, MOST_AGAIN, say_who_hosts};
use crate::bind::loopback;
use crate::dynamic::driver::{Driver, DriverOptions};
use crate::dynamic::native::{self, Met, Native, NoteFile};
use crate::dynamic::node;
use crate::dynamic::options::Options;
use crate::dynamic::voters::open_group::{self, Left};
use crate::dynamic::voters::{OwnVoter, Search};
use crate::error::without_help;
use crate::{Kept, Onlookers, RendezvousBackend, RendezvousError};

/// Time limit of one attempt to connect, before the next attempt to listen.
const ONE_CALL: Duration = Duration::from_secs(2);

/// Key under which the agent that hosts a store writes its run.
const HOSTED_FOR: &str = "rdzv.hosted_for";

/// Connects to a TCP endpoint, and retries if the store's host exits.
///
/// Another agent may replace that host.
pub(super) fn at_tcp(
    endpoint: &Endpoint,
    is_host: Option<bool>,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Connection, RendezvousError> {
    let left = Left::by_member(endpoint, options)
        .map_err(|error| RendezvousError::of_c10d_store(error, &options.endpoint()))?;
    let site = (endpoint, options, onlookers);
    if let Some(left) = left {
        return return_to(site, is_host, left);
    }
    if let Some(connection) = find_elsewhere(site, is_host)? {
        return Ok(connection);
    }
    let mut again = 0;
    loop {
        let reached = reach(endpoint, is_host, options, onlookers)?;
        if reached.server.is_some() {
            say_who_hosts(onlookers);
        }
        match meet(reached, endpoint, options, onlookers) {
            Err(error) if again < MOST_AGAIN => {
                tracing::debug!(%error, "lost the c10d store after connecting; searching again");
                again += 1;
            }
            ended => return ended,
        }
    }
}

/// Warns if an agent of another run hosts the store.
///
/// The store ends with that run.
fn warn_of_another_run(
    store: &TcpStore,
    endpoint: &Endpoint,
    options: &Options,
) -> Result<(), StoreError> {
    if !store.check(&[HOSTED_FOR])? {
        return Ok(());
    }
    let hosted_for = store.get(HOSTED_FOR)?;
    if *hosted_for != *options.run_id.as_str().as_bytes() {
        tracing::warn!(
            "the store at {endpoint} is hosted by an agent of run '{}' and stops soon after that \
             run ends; use a different port for run '{}'",
            String::from_utf8_lossy(&hosted_for),
            options.run_id
        );
    }
    Ok(())
}

/// Chooses the backend for the store at the endpoint.
///
/// A store server of rdzv runs the rendezvous itself. Any other store holds the shared state under
/// a key.
fn meet(
    reached: Reached,
    endpoint: &Endpoint,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Connection, RendezvousError> {
    let Reached {
        server,
        store,
        is_here,
    } = reached;
    let store = Arc::new(store);
    let me = node::describe(node::advertised(
        options.local_addr.as_deref(),
        Some(&endpoint.host),
        store.local_address(),
    ));
    let voter = OwnVoter::default();
    let candidate = (options.most_voters > 1).then(|| {
        let address = server.is_none().then(|| me.addr.clone());
        let site = (endpoint, options, onlookers);
        open_group::candidate(site, voter.clone(), address, is_here)
    });
    let site = (options, onlookers);
    let agent = agent(Arc::clone(&store), me.clone(), None, candidate, site);
    let met = Native::connect(agent, options.read_timeout)?;
    let native = match met {
        Met::Coordinator(native) => Some(native),
        Met::Store => None,
        // The voter knows the endpoint of the coordinator.
        Met::Voter => {
            let mut search = Search::of_open_group(endpoint.clone(), &[]);
            if is_here && server.is_none() {
                search = search.needing_endpoint();
            }
            let site = (endpoint, options, onlookers);
            // The server here is a voter already.
            let candidate = |own| {
                let address = server.is_none().then_some(own);
                let voter = voter.clone();
                Some(open_group::candidate(site, voter, address, is_here))
            };
            let native = await_coordinator(search, candidate, options, onlookers)?;
            return Ok(Connection::new(Box::new(native), server, voter));
        }
    };
    tracing::debug!(
        peer = %store.peer(),
        node = %me,
        hosted = server.is_some(),
        native = native.is_some(),
        "connected to the c10d store"
    );
    if native.is_some() && is_here {
        // Only agents on the machine of the endpoint report this.
        let met = if server.is_some() {
            store.set(HOSTED_FOR, options.run_id.as_str().as_bytes())
        } else {
            warn_of_another_run(&store, endpoint, options)
        };
        met.map_err(|error| RendezvousError::of_c10d_store(error, &options.endpoint()))?;
    }
    let backend = match native {
        Some(native) => native,
        None => drive(StateMedium::Tcp(store), me, options)?,
    };
    Ok(Connection::new(backend, server, voter))
}

/// Connects to a file store; `world_size` is as for [`FileStore::open`].
pub(super) fn at_file(
    path: &Path,
    world_size: Option<u32>,
    options: &Options,
) -> Result<Connection, RendezvousError> {
    let store = FileStore::open(path, world_size)
        .map_err(|error| RendezvousError::of_c10d_store(error, &options.endpoint()))?;
    store.set_timeout(options.read_timeout);
    let me = node::describe(node::advertised(options.local_addr.as_deref(), None, None));
    let backend = drive(StateMedium::File(Arc::new(store)), me, options)?;
    Ok(Connection::new(backend, None, OwnVoter::default()))
}

/// Creates an empty file in the folder for temporary files.
///
/// Only this user can read and write it. A file or link that already exists under the name is not
/// used.
pub(super) fn new_file(options: &Options) -> Result<PathBuf, RendezvousError> {
    let folder = std::env::temp_dir();
    loop {
        let path = folder.join(format!("rdzv-{:016x}", fastrand::u64(..)));
        let mut new = OpenOptions::new();
        match new.write(true).create_new(true).mode(0o600).open(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => {
                let path = path.display().to_string();
                let operation = "make";
                let error = StoreError::File {
                    path,
                    operation,
                    source,
                };
                return Err(RendezvousError::of_c10d_store(error, &options.endpoint()));
            }
        }
    }
}

/// Starts a rendezvous over a state in a store.
fn drive(
    medium: StateMedium,
    me: NodeDesc,
    options: &Options,
) -> Result<Box<dyn RendezvousBackend>, RendezvousError> {
    let mut state = C10dState::at(medium, &options.run_id)?;
    let died = options
        .kept
        .as_ref()
        .and_then(|kept| kept.note().last_death);
    if let Some(death) = died {
        // In this store, the others notice the death of the agent only by missing heartbeats.
        state.remove_agent(&me, &options.settings, death.pid)?;
    }
    let driver = Driver::start(
        Box::new(state),
        DriverOptions {
            run_id: options.run_id.clone(),
            settings: options.settings,
            me,
            timeout: options.read_timeout,
            policy: options.policy.clone(),
        },
    )?;
    Ok(Box::new(driver))
}

struct Reached {
    /// Server of the store, if it is in this process.
    server: Option<TcpStoreServer>,
    store: TcpStore,
    /// The option `is_host`; without it, `true` if the endpoint is on this machine.
    is_here: bool,
}

fn reach(
    endpoint: &Endpoint,
    is_host: Option<bool>,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Reached, RendezvousError> {
    let explain = |error| RendezvousError::of_c10d_store(error, &options.endpoint());
    let timeout = options.read_timeout;
    let is_here = match is_host {
        Some(is_host) => is_host,
        None => node::is_this_machine(&endpoint.host, timeout),
    };
    let (server, store) = match is_host {
        Some(true) => {
            let server = serve(endpoint, options, onlookers).map_err(explain)?;
            let store = call(endpoint, server.port(), timeout, &options.policy).map_err(explain)?;
            (Some(server), store)
        }
        None if is_here => {
            let serve = || serve(endpoint, options, onlookers);
            serve_or_call(endpoint, timeout, serve, &options.policy).map_err(explain)?
        }
        _ => (
            None,
            call(endpoint, endpoint.port, timeout, &options.policy).map_err(explain)?,
        ),
    };
    store.set_timeout(timeout);
    Ok(Reached {
        server,
        store,
        is_here,
    })
}

fn serve(
    endpoint: &Endpoint,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<TcpStoreServer, StoreError> {
    let own = endpoint.to_string();
    let mut server = options
        .policy
        .server(loopback(&endpoint.host), endpoint.port);
    server.extension = Some(native::observed(own.clone(), onlookers.clone()));
    let explain = |source| StoreError::Listen {
        address: endpoint.to_string(),
        source,
    };
    let kept = options.kept.as_ref();
    if kept.is_some() || options.most_voters > 1 {
        let mut listeners = kept.map_or_else(|| Ok(Vec::new()), Kept::listeners);
        if listeners.as_ref().is_ok_and(Vec::is_empty) {
            let new = TcpStoreServer::listen(server.host.as_deref(), server.port)?;
            // Keep the sockets for the next agent before the server accepts any client.
            let keeps = kept.map_or(Ok(()), |kept| kept.keep_listeners(&new));
            listeners = keeps.map(|()| new);
        }
        let listeners = listeners.map_err(explain)?;
        let origin = open_group::origin(&listeners, options);
        if options.most_voters > 1 {
            let site = (endpoint, options, onlookers);
            open_group::found(&mut server, site, listeners, origin).map_err(explain)?;
        } else if let Some(kept) = kept {
            let slots = kept.coordinator_slots().map_err(explain)?;
            let mut note = NoteFile::over(slots, options.coordinator_timeout);
            note.reopen().map_err(explain)?;
            server.extension = Some(native::restartable(note, origin, own, onlookers.clone()));
            server.listeners = listeners;
        }
    }
    let server = TcpStoreServer::start(server)?;
    if let Some(group) = &onlookers.group {
        group.ask(server.pinger());
    }
    Ok(server)
}

/// Hosts the store at the endpoint, or connects to it as a client.
///
/// If several agents run on the host of the endpoint, one gets the port, and the others are its
/// clients. If that agent exits before they have connected, the next one gets the port. A node that
/// cannot listen there for another reason becomes a client too, because the user has not declared
/// it to be the host.
fn serve_or_call(
    endpoint: &Endpoint,
    timeout: Duration,
    serve: impl Fn() -> Result<TcpStoreServer, StoreError>,
    policy: &StorePolicy,
) -> Result<(Option<TcpStoreServer>, TcpStore), StoreError> {
    let started = Instant::now();
    let mut tried = 0;
    let mut is_said = false;
    let mut reminder = Reminder::default();
    loop {
        let (is_taken, hindrance) = match serve() {
            Ok(server) => {
                let store = call(endpoint, server.port(), timeout, policy)?;
                return Ok((Some(server), store));
            }
            Err(StoreError::Listen { source, .. }) => (
                source.kind() == io::ErrorKind::AddrInUse,
                source.to_string(),
            ),
            Err(error) => (false, without_help(&error)),
        };
        if !std::mem::replace(&mut is_said, true) {
            if is_taken {
                tracing::info!(
                    "another process uses the port of {endpoint}; this process connects to its \
                     store"
                );
            } else {
                tracing::warn!(
                    "this node cannot host the c10d store at {endpoint} ({hindrance}); it tries to \
                     connect to a store there"
                );
            }
        }
        let left = timeout.saturating_sub(started.elapsed());
        match call(endpoint, endpoint.port, left.min(ONE_CALL), policy) {
            Ok(store) => return Ok((None, store)),
            Err(StoreError::Connect {
                peer,
                attempts,
                reason,
                ..
            }) => {
                tried += attempts;
                let reason = format!("{reason}; this node cannot host a store: {hindrance}");
                if reminder.is_due(started.elapsed()) {
                    tracing::warn!(
                        target: reminder::TARGET,
                        left = left.as_secs(),
                        "no store has answered at {peer} ({reason}); {} s left; check that this is \
                         the address and port of the job's store",
                        left.as_secs()
                    );
                }
                if left <= ONE_CALL {
                    return Err(StoreError::Connect {
                        peer,
                        attempts: tried,
                        reason,
                        elapsed: started.elapsed(),
                    });
                }
            }
            // A process listens there, but it may be too busy to answer.
            Err(StoreError::Silent { .. }) if left > ONE_CALL => {
                let store = call(endpoint, endpoint.port, left - ONE_CALL, policy)?;
                return Ok((None, store));
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;
    use std::thread;

    use super::*;
    use crate::dynamic::voters::Redirect;
    use crate::{RendezvousConfig, RendezvousParameters};

    fn options(endpoint: &str, config: &str) -> Options {
        let config = RendezvousConfig::parse(config).unwrap();
        let parameters = RendezvousParameters::new("c10d", endpoint, "run", 1, 1, config).unwrap();
        Options::from_parameters(&parameters).unwrap()
    }

    #[test]
    fn a_new_file_is_private() {
        let options = options("", "store_type=file");
        let path = new_file(&options).unwrap();
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(path.metadata().unwrap().len(), 0);
        std::fs::remove_file(&path).unwrap();
    }

    fn cannot_listen(kind: io::ErrorKind) -> impl Fn() -> Result<TcpStoreServer, StoreError> {
        move || {
            Err(StoreError::Listen {
                address: "localhost:1".to_owned(),
                source: kind.into(),
            })
        }
    }

    #[test]
    fn a_node_that_may_not_listen_is_a_client_of_the_store_that_is_there() {
        let free = Endpoint::parse("localhost:0", 0).unwrap();
        let server = serve(&free, &options("localhost:0", ""), &Onlookers::default()).unwrap();
        let endpoint = Endpoint {
            port: server.port(),
            ..free
        };
        let timeout = Duration::from_secs(30);
        let denied = cannot_listen(io::ErrorKind::PermissionDenied);
        let (hosted, store) =
            serve_or_call(&endpoint, timeout, denied, &StorePolicy::default()).unwrap();
        assert!(hosted.is_none());
        assert_eq!(store.peer().port(), server.port());
    }

    #[test]
    fn an_agent_sent_to_a_coordinator_which_ends_takes_the_endpoint() {
        let elsewhere = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let coordinator = elsewhere.local_addr().unwrap().to_string();
        let endpoint = Endpoint {
            host: "127.0.0.1".to_owned(),
            port: rdzv_testing::free_port(),
        };
        let options = options(&endpoint.to_string(), "");
        let mut redirect = Redirect::new(endpoint.clone(), options.policy.clone());
        redirect.members_changed(&[coordinator]);
        let timeout = Duration::from_secs(30);
        // The redirect answers from here on.
        call(&endpoint, endpoint.port, timeout, &options.policy).unwrap();
        let agent = thread::spawn(move || {
            at_tcp(&endpoint, None, &options, &Onlookers::default()).map(|it| it.server.is_some())
        });
        // The agent connects to the endpoint that the redirect has sent.
        let asked = elsewhere.accept().unwrap();
        drop((asked, elsewhere, redirect));
        assert!(agent.join().unwrap().unwrap());
    }

    #[test]
    fn without_voters_of_an_open_group_the_error_says_how_to_name_some() {
        let endpoint = format!("127.0.0.1:{}", rdzv_testing::free_port());
        let options = options(&endpoint, "");
        let search = Search::of_open_group(Endpoint::parse(&endpoint, 0).unwrap(), &[]);
        let found = await_coordinator(
            search.needing_endpoint(),
            |_| None,
            &options,
            &Onlookers::default(),
        );
        let error = found.map(|_| ()).unwrap_err().to_string();
        for part in [&endpoint[..], "refused", "RDZV_CONTACT_POINTS"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_node_that_may_not_listen_says_so_if_no_store_is_there() {
        let endpoint = format!("127.0.0.1:{}", rdzv_testing::free_port());
        let endpoint = Endpoint::parse(&endpoint, 0).unwrap();
        let timeout = Duration::from_millis(300);
        for (kind, why) in [
            (io::ErrorKind::PermissionDenied, "permission denied"),
            // An outgoing connection can use the port, at which nothing listens then.
            (io::ErrorKind::AddrInUse, "address in use"),
        ] {
            let serve = cannot_listen(kind);
            let error =
                serve_or_call(&endpoint, timeout, serve, &StorePolicy::default()).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains(&format!("cannot host a store: {why}")),
                "{error}"
            );
            assert!(error.contains("refused"), "{error}");
        }
    }
}
