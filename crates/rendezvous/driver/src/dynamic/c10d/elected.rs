//! Search for the coordinator that voters have elected, and the join there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_core::reminder::{self, Reminder};
use rdzv_rendezvous_proto::NodeDesc;
use rdzv_rendezvous_proto::group::{Case, Wait};
use rdzv_store::{Store as _, StoreError, StorePolicy, TcpStore, TcpStoreOptions};

use super::{Connection, say_who_hosts};
use crate::dynamic::native::{Met, Native, NativeOptions};
use crate::dynamic::node;
use crate::dynamic::options::Options;
use crate::dynamic::voters::open_group::{Left, Site, candidate};
use crate::dynamic::voters::{Located, OwnVoter, Search, VoterCandidate, listed};
use crate::error::without_help;
use crate::group_status::Waits;
use crate::{Onlookers, RendezvousError};

/// Time limit for the endpoint to answer, if contact points are asked as well.
const ATTEMPT: Duration = Duration::from_secs(1);

/// First pause between two searches for the coordinator.
///
/// No process notifies this one of an election on another machine.
const AGAIN: Duration = Duration::from_millis(10);
/// Longest pause between two searches.
const AGAIN_AT_MOST: Duration = Duration::from_millis(250);

/// Shortest time limit for an endpoint to answer.
const LEAST_ATTEMPT: Duration = Duration::from_millis(100);

/// Advice if voters cannot be reached.
const REMEDY: &str = "check that an agent or `rdzv store --join` with the same list of endpoints \
                      is running at each endpoint, or wait longer with --rdzv-conf \
                      join_timeout=SECONDS";

/// Advice if voters of an open group cannot be reached.
const REMEDY_OPEN: &str = "check that an agent of the job is running at the endpoint, or set \
                           RDZV_CONTACT_POINTS to the endpoints of its voters; --rdzv-conf \
                           join_timeout=SECONDS waits longer";

/// Joins the elected coordinator; votes if this process gets an endpoint.
pub(super) fn at_one_of(
    endpoints: &[Endpoint],
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Connection, RendezvousError> {
    let server = listed::serve(endpoints, options, onlookers)?;
    if server.is_some() {
        say_who_hosts(onlookers);
    }
    let search = Search::new(endpoints.to_vec());
    let native = await_coordinator(search, |_| None, options, onlookers)?;
    Ok(Connection::new(
        Box::new(native),
        server,
        OwnVoter::default(),
    ))
}

/// Continues in place of an agent of an open group that left a record.
///
/// This agent is a voter if the previous one was. It joins the coordinator, wherever that runs.
pub(super) fn return_to(
    site: Site<'_>,
    is_host: Option<bool>,
    left: Left,
) -> Result<Connection, RendezvousError> {
    let (endpoint, options, _) = site;
    let resumed = left.resume(site);
    let (voter, members) =
        resumed.map_err(|error| RendezvousError::of_c10d_store(error, &options.endpoint()))?;
    let search = Search::of_open_group(endpoint.clone(), &members);
    let timeout = options.read_timeout;
    let is_here = is_host.unwrap_or_else(|| node::is_this_machine(&endpoint.host, timeout));
    join_open_group(site, search, voter, is_here)
}

/// Joins the coordinator of an open group, as an agent that may become a voter.
fn join_open_group(
    site: Site<'_>,
    search: Search,
    voter: OwnVoter,
    is_here: bool,
) -> Result<Connection, RendezvousError> {
    let (_, options, onlookers) = site;
    let candidate = |own| Some(candidate(site, voter.clone(), Some(own), is_here));
    let native = await_coordinator(search, candidate, options, onlookers)?;
    Ok(Connection::new(Box::new(native), None, voter))
}

/// Joins a group through contact points, even if the endpoint is lost.
///
/// `None` if there are no contact points, if the endpoint is on this machine, or if agents cannot
/// become voters. Also `None` if no coordinator is found but a store answers at the endpoint.
pub(super) fn find_elsewhere(
    site: Site<'_>,
    is_host: Option<bool>,
) -> Result<Option<Connection>, RendezvousError> {
    let (endpoint, options, _) = site;
    let timeout = options.read_timeout;
    let is_here = || is_host.unwrap_or_else(|| node::is_this_machine(&endpoint.host, timeout));
    if options.known_voters.is_empty() || options.most_voters == 1 || is_here() {
        return Ok(None);
    }
    let endpoints = options.known_voters.iter().map(Endpoint::to_string);
    let mut search = Search::of_open_group(endpoint.clone(), &endpoints.collect::<Vec<_>>());
    let (started, mut reminder) = (Instant::now(), Reminder::default());
    while let Err(why) = search.find(&options.policy.credentials, ATTEMPT) {
        match call(endpoint, endpoint.port, ATTEMPT, &options.policy) {
            Ok(_) => return Ok(None),
            Err(error) if started.elapsed() >= timeout => {
                return Err(RendezvousError::of_c10d_store(error, &options.endpoint()));
            }
            Err(_) if reminder.is_due(started.elapsed()) => tracing::warn!(
                target: reminder::TARGET,
                "no coordinator was found through the endpoint and the contact points ({why}); {} \
                 s left; check that RDZV_CONTACT_POINTS names running voters",
                timeout.saturating_sub(started.elapsed()).as_secs()
            ),
            Err(_) => {}
        }
    }
    join_open_group(site, search, OwnVoter::default(), false).map(Some)
}

/// Joins the coordinator once the voters have elected one.
///
/// `candidate` gets the address of this agent. A search that needs the endpoint fails when no
/// process listens there.
pub(super) fn await_coordinator(
    mut search: Search,
    candidate: impl Fn(String) -> Option<VoterCandidate>,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Native, RendezvousError> {
    let started = Instant::now();
    // The other voters are nodes of the job, so the time limit for nodes applies.
    let timeout = options.settings.join_timeout.max(options.read_timeout);
    let timeout = timeout.min(options.search_within);
    let (mut reminder, mut again) = (Reminder::default(), AGAIN);
    let remedy = if search.is_open() {
        REMEDY_OPEN
    } else {
        REMEDY
    };
    loop {
        // A slow voter must not delay the reminder.
        let until_reminder = reminder.next().saturating_sub(started.elapsed());
        let longest = (until_reminder + AGAIN).max(LEAST_ATTEMPT);
        let found = search.find(&options.policy.credentials, longest);
        let what = match found {
            Ok(located) => match meet(&search, &located, &candidate, options, onlookers) {
                Ok(native) => {
                    onlookers.wait_for(None);
                    return Ok(native);
                }
                Err(error) => without_help(&error),
            },
            Err(why) => why,
        };
        let elapsed = started.elapsed();
        if let Some(refusals) = search.refusals() {
            return Err(RendezvousError::Unreachable {
                what: format!("cannot authenticate with more than half of the voters ({refusals})"),
                endpoint: options.endpoint(),
                elapsed: Some(elapsed),
                remedy: "start this agent with the same --token-file and --tls-* files as the \
                         other agents",
            });
        }
        if elapsed >= timeout || search.has_lost_endpoint() {
            onlookers.wait_for(None);
            return Err(RendezvousError::Unreachable {
                what,
                endpoint: options.endpoint(),
                elapsed: Some(elapsed),
                remedy,
            });
        }
        onlookers.wait_for(Some(waits(&search, &what, started, timeout)));
        if reminder.is_due(elapsed) {
            let left = timeout.saturating_sub(elapsed).as_secs();
            tracing::warn!(
                target: reminder::TARGET,
                left,
                "waiting for the voters to join and elect a coordinator ({what}); {left} s left"
            );
        }
        let until_reminder = reminder.next().saturating_sub(started.elapsed());
        std::thread::sleep(again.min(until_reminder + AGAIN));
        again = (again * 2).min(AGAIN_AT_MOST);
    }
}

/// Returns the wait of an agent that has not found the coordinator.
fn waits(search: &Search, what: &str, started: Instant, timeout: Duration) -> Waits {
    let (missing, what) = (search.endpoints(), what.to_owned());
    Arc::new(move || Wait {
        case: Case::W5,
        sentence: format!(
            "waiting for the voters to join and elect a coordinator ({what}); {} s left",
            timeout.saturating_sub(started.elapsed()).as_secs()
        ),
        missing: missing.clone(),
    })
}

fn meet(
    search: &Search,
    located: &Located,
    candidate: impl Fn(String) -> Option<VoterCandidate>,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Native, RendezvousError> {
    let explain = |error| RendezvousError::of_c10d_store(error, &options.endpoint());
    let (timeout, port) = (options.read_timeout, located.address.port());
    let reached = Endpoint {
        host: located.address.ip().to_string(),
        port,
    };
    let store = call(&reached, port, timeout, &options.policy).map_err(explain)?;
    store.set_timeout(timeout);
    let store = Arc::new(store);
    let host = search
        .endpoint(located.index)
        .map(|endpoint| endpoint.host.as_str());
    let own = node::advertised(options.local_addr.as_deref(), host, store.local_address());
    let search = Some(search.beginning_at(located.index));
    let candidate = candidate(own.clone());
    let site = (options, onlookers);
    let agent = agent(store, node::describe(own), search, candidate, site);
    let met = Native::connect(agent, timeout)?;
    let unfit = |what: &str| RendezvousError::Unreachable {
        what: what.to_owned(),
        endpoint: options.endpoint(),
        elapsed: None,
        remedy: REMEDY,
    };
    match met {
        Met::Coordinator(native) => Ok(*native),
        Met::Voter => Err(unfit("a voter that is not the coordinator answered")),
        Met::Store => Err(unfit("a store that is not a voter answered")),
    }
}

/// Returns the options of an agent that joins at this store.
pub(super) fn agent(
    store: Arc<TcpStore>,
    node: NodeDesc,
    voters: Option<Search>,
    candidate: Option<VoterCandidate>,
    (options, onlookers): (&Options, &Onlookers),
) -> NativeOptions {
    NativeOptions {
        store,
        run_id: options.run_id.clone(),
        settings: options.settings,
        node,
        policy: options.policy.clone(),
        program: options.program.clone(),
        kept: options.kept.clone(),
        ends_workers: options.ends_workers,
        voters,
        candidate,
        onlookers: onlookers.clone(),
    }
}

/// Connects to the store at this port of the endpoint's host.
pub(super) fn call(
    endpoint: &Endpoint,
    port: u16,
    timeout: Duration,
    policy: &StorePolicy,
) -> Result<TcpStore, StoreError> {
    TcpStore::connect(TcpStoreOptions {
        timeout,
        ..policy.client(&endpoint.host, port)
    })
}
