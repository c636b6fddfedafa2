//! Backends `etcd` and `etcd-v2`: a dynamic rendezvous whose state is in etcd.
//!
//! Both use the v3 API. `etcd-v2` has the name of torchrun's backend, and warns that agents of
//! torchrun cannot join.

use rdzv_core::escape::escape;
use rdzv_core::ident::RunId;

use super::options::EtcdOptions;
use super::state::EtcdState;
use crate::dynamic::{Driver, DriverOptions, SharedState as _, node};
use crate::{RendezvousBackend, RendezvousError, RendezvousParameters};

/// Options in addition to those of every dynamic rendezvous.
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

/// Creates one node's rendezvous over etcd.
///
/// The thread of the watch sends the first request to the server.
pub(crate) fn from_parameters(
    parameters: &RendezvousParameters,
) -> Result<Box<dyn RendezvousBackend>, RendezvousError> {
    let config = &parameters.config;
    if parameters.run_id.is_empty() {
        let text = "The run id must be a non-empty string.";
        return Err(RendezvousError::argument(text));
    }
    let settings = config.settings(parameters.min_nodes, parameters.max_nodes)?;
    let mut options = EtcdOptions::from_parameters(parameters)?;
    if config.get("lease_ttl").is_none() {
        // A user who sets short heartbeats does not want to wait longer for the lease.
        options.shorten_lease(settings.lost_after());
    }
    let run_id = RunId::new(&parameters.run_id);
    let mut state = EtcdState::open(&options, &run_id)?;
    if parameters.backend == EtcdState::V2_NAME {
        tracing::warn!(
            "--rdzv-backend etcd-v2 uses etcd's v3 API: agents of torchrun cannot join run '{}'",
            escape(run_id.as_str())
        );
        state = state.for_v2(&run_id);
    }
    let me = node::describe(node::advertised(
        parameters.local_addr.as_deref(),
        Some(&options.endpoint.host),
        state.local_address(),
    ));
    let driver = Driver::start(
        Box::new(state),
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
