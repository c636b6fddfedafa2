//! Who hosts the TCP store that workers meet at.

use rdzv_core::endpoint::Endpoint;
use rdzv_core::env::{MASTER_ADDR, MASTER_PORT, TORCHELASTIC_USE_AGENT_STORE};
use rdzv_core::rank::Rank;
use rdzv_store::{TcpStore, TcpStoreOptions};

use super::UrlOptions;
use crate::bind::loopback;
use crate::{Environment, RendezvousError};

/// Connects a worker to the store at `endpoint`, hosting it if that is this worker's part.
///
/// If the agent hosts a store at this very address, all workers are its clients. Otherwise rank 0
/// hosts it, and waits until all have joined, if their number is given; several masters in one
/// process share one server.
pub(super) fn meet(
    endpoint: &Endpoint,
    rank: Rank,
    world_size: Option<u32>,
    options: &UrlOptions,
) -> Result<TcpStore, RendezvousError> {
    let environment = &options.environment;
    let by_agent = is_agents_store(endpoint, environment);
    Ok(TcpStore::connect(TcpStoreOptions {
        world_size,
        is_master: !by_agent && rank == Rank(0),
        multi_tenant: !by_agent,
        bind: loopback(&endpoint.host),
        timeout: options.timeout,
        agent_hosts: environment.is_true(TORCHELASTIC_USE_AGENT_STORE)
            && environment.get(MASTER_PORT) == Some(endpoint.port.to_string()),
        ..TcpStoreOptions::new(&endpoint.host, endpoint.port)
    })?)
}

fn is_agents_store(endpoint: &Endpoint, environment: &Environment) -> bool {
    let is = |name: &str, value: &str| environment.get(name).as_deref() == Some(value);
    is(TORCHELASTIC_USE_AGENT_STORE, "True")
        && is(MASTER_ADDR, &endpoint.host)
        && is(MASTER_PORT, &endpoint.port.to_string())
}
