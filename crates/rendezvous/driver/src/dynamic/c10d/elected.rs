//! Finding the coordinator that voters have elected, and taking part there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_core::reminder::{self, Reminder};
use rdzv_rendezvous_proto::group::{Case, Wait};
use rdzv_store::{Store as _, StoreError, StorePolicy, TcpStore, TcpStoreOptions};

use super::options::Options;
use crate::dynamic::native::{Candidate, Located, Met, Native, NativeOptions, Search};
use crate::dynamic::node;
use crate::group_status::Waits;
use crate::{Onlookers, RendezvousError};

/// Time between two searches for the coordinator, at first and at most. Nobody tells when another machine has one.
const AGAIN: Duration = Duration::from_millis(10);
const AGAIN_AT_MOST: Duration = Duration::from_millis(250);

/// A place has at least this time to answer.
const LEAST_ATTEMPT: Duration = Duration::from_millis(100);

/// Advice where voters are not there.
const REMEDY: &str = "check that an agent with the same list of endpoints runs at each of them";

/// The same where agents by themselves are the voters.
const REMEDY_OPEN: &str = "check that an agent of the job runs at the endpoint, or name addresses of its voters in RDZV_CONTACT_POINTS";

/// Takes part at the coordinator, once the voters have elected one, as the candidate that is made of this agent's address. A search
/// that needs the endpoint fails when nobody is there any more.
pub(super) fn await_coordinator(
    mut search: Search,
    candidate: impl Fn(String) -> Option<Candidate>,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Native, RendezvousError> {
    let started = Instant::now();
    // The other voters are nodes of the job, and are waited for like those.
    let timeout = options.settings.join_timeout.max(options.read_timeout);
    let (mut reminder, mut again) = (Reminder::default(), AGAIN);
    let remedy = match search.is_of_open_group() {
        true => REMEDY_OPEN,
        false => REMEDY,
    };
    loop {
        // People are told in time, though a voter takes its time to answer.
        let until_reminder = reminder.next().saturating_sub(started.elapsed());
        let longest = (until_reminder + AGAIN).max(LEAST_ATTEMPT);
        let found = search.find(&options.policy.credentials, longest);
        let what = match found {
            Ok(located) => match meet(&search, &located, &candidate, options, onlookers) {
                Ok(native) => {
                    onlookers.wait_for(None);
                    return Ok(native);
                }
                Err(error) => error.to_string(),
            },
            Err(why) => why,
        };
        let elapsed = started.elapsed();
        if let Some(refusals) = search.refusals() {
            return Err(RendezvousError::Unreachable {
                what: format!("more than half of the voters cannot be talked to ({refusals})"),
                place: options.place(),
                elapsed: Some(elapsed),
                remedy: "give this agent the --token-file and the --tls-* files that the others have",
            });
        }
        if elapsed >= timeout || search.has_lost_endpoint() {
            onlookers.wait_for(None);
            return Err(RendezvousError::Unreachable {
                what,
                place: options.place(),
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
                "waiting until all voters are there and have elected a coordinator ({what}); {left} s left"
            );
        }
        let until_reminder = reminder.next().saturating_sub(started.elapsed());
        std::thread::sleep(again.min(until_reminder + AGAIN));
        again = (again * 2).min(AGAIN_AT_MOST);
    }
}

/// The wait of an agent whose job has not begun.
fn waits(search: &Search, what: &str, started: Instant, timeout: Duration) -> Waits {
    let (missing, what) = (search.places(), what.to_owned());
    Arc::new(move || Wait {
        case: Case::W5,
        sentence: format!(
            "waiting until all voters are there and have elected a coordinator ({what}); {} s left",
            timeout.saturating_sub(started.elapsed()).as_secs()
        ),
        missing: missing.clone(),
    })
}

/// Takes part at the coordinator.
fn meet(
    search: &Search,
    located: &Located,
    candidate: impl Fn(String) -> Option<Candidate>,
    options: &Options,
    onlookers: &Onlookers,
) -> Result<Native, RendezvousError> {
    let explain = |error| RendezvousError::of_c10d_store(error, &options.place());
    let (timeout, port) = (options.read_timeout, located.address.port());
    let reached = Endpoint {
        host: located.address.ip().to_string(),
        port,
    };
    let store = call(&reached, port, timeout, &options.policy).map_err(explain)?;
    store.set_timeout(timeout);
    let store = Arc::new(store);
    let host = search.place(located.place).map(|place| place.host.as_str());
    let own = node::advertised(options.local_addr.as_deref(), host, store.local_address());
    let met = Native::connect(
        NativeOptions {
            store: Arc::clone(&store),
            run_id: options.run_id.clone(),
            settings: options.settings,
            node: node::describe(own.clone()),
            policy: options.policy.clone(),
            program: options.program.clone(),
            kept: options.kept.clone(),
            ends_workers: options.ends_workers,
            voters: Some(search.beginning_at(located.place)),
            candidate: candidate(own),
            onlookers: onlookers.clone(),
        },
        timeout,
    )?;
    let unfit = |what: &str| RendezvousError::Unreachable {
        what: what.to_owned(),
        place: options.place(),
        elapsed: None,
        remedy: REMEDY,
    };
    match met {
        Met::Coordinator(native) => Ok(*native),
        Met::Voter => Err(unfit("it is a voter that is not the coordinator")),
        Met::Store => Err(unfit("there is a store that is no voter")),
    }
}

/// A connection to the store at a port of the endpoint's host.
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
