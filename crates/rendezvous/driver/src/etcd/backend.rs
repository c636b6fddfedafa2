//! The backends `etcd` and `etcd-v2`: the machine of a dynamic rendezvous over a state in etcd.

use rdzv_core::ident::RunId;

use super::options::EtcdOptions;
use super::state::EtcdState;
#[cfg(feature = "etcd-v2")]
use super::v2::EtcdV2State;
use crate::dynamic::{Driver, DriverOptions, SharedState, node};
use crate::{RendezvousBackend, RendezvousError, RendezvousParameters};

/// The options that are not those of every dynamic rendezvous.
pub(crate) const OPTIONS: [&str; 10] = [
    "protocol",
    "cert",
    "key",
    "cacert",
    "ssl_cert",
    "ssl_cert_key",
    "ca_cert",
    "read_timeout",
    "etcd_prefix",
    "lease_ttl",
];

/// One node's rendezvous over etcd. The server is first asked when the node joins.
pub(crate) fn from_parameters(
    parameters: &RendezvousParameters,
) -> Result<Box<dyn RendezvousBackend>, RendezvousError> {
    over(parameters, |options, run_id| {
        Ok(Box::new(EtcdState::open(options, run_id)?))
    })
}

/// The same over the v2 API.
#[cfg(feature = "etcd-v2")]
pub(crate) fn v2_from_parameters(
    parameters: &RendezvousParameters,
) -> Result<Box<dyn RendezvousBackend>, RendezvousError> {
    over(parameters, |options, run_id| {
        Ok(Box::new(EtcdV2State::open(options, run_id)?))
    })
}

fn over(
    parameters: &RendezvousParameters,
    open: impl FnOnce(&EtcdOptions, &RunId) -> Result<Box<dyn SharedState>, RendezvousError>,
) -> Result<Box<dyn RendezvousBackend>, RendezvousError> {
    let config = &parameters.config;
    if parameters.run_id.is_empty() {
        let text = "The run id must be a non-empty string.";
        return Err(RendezvousError::Argument(text.to_owned()));
    }
    let settings = config.settings(parameters.min_nodes, parameters.max_nodes)?;
    let mut options = EtcdOptions::from_parameters(parameters)?;
    if config.get("lease_ttl").is_none() {
        // Who asks for quick heartbeats does not want to wait for the lease.
        options.shorten_lease(settings.lost_after());
    }
    let run_id = RunId::new(&parameters.run_id);
    let state = open(&options, &run_id)?;
    let me = node::describe(node::advertised(
        parameters.local_addr.as_deref(),
        Some(&options.endpoint.host),
        state.local_address(),
    ));
    let driver = Driver::start(
        state,
        DriverOptions {
            run_id,
            settings,
            me,
            timeout: options.read_timeout,
            policy: parameters.store_policy()?,
        },
    )?;
    Ok(Box::new(driver))
}
