//! Removal of a killed agent from the shared state.
//!
//! The keeper does this, so that the other nodes need not wait for missing heartbeats.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rdzv_store::FileStore;

use super::C10dRendezvous;
use super::elected::call;
use super::stored::{C10dState, StateMedium};
use crate::dynamic::node;
use crate::dynamic::options::{Medium, Options};
use crate::{RendezvousError, RendezvousParameters};

/// Time limit to connect to the store. An answer may take longer.
const TIMEOUT: Duration = Duration::from_secs(3);

impl C10dRendezvous {
    /// Removes the agent with this process id, on this machine, from the run.
    ///
    /// Returns `true` if it has removed the agent. This function hosts no store, because a store
    /// that has ended with the agent no longer matters.
    ///
    /// # Errors
    ///
    /// Returns an error if the parameters are unusable, or the store does not answer in time.
    pub fn remove_agent(
        parameters: &RendezvousParameters,
        pid: u32,
    ) -> Result<bool, RendezvousError> {
        let options = Options::from_parameters(parameters)?;
        let explain = |error| RendezvousError::of_c10d_store(error, &options.endpoint());
        let (medium, host, from) = match &options.medium {
            Medium::Tcp { endpoint, .. } => {
                // A store that has ended refuses immediately, whereas a store client would retry.
                if TcpStream::connect((endpoint.host.as_str(), endpoint.port)).is_err() {
                    return Ok(false);
                }
                let store =
                    call(endpoint, endpoint.port, TIMEOUT, &options.policy).map_err(explain)?;
                let from = store.local_address();
                (
                    StateMedium::Tcp(Arc::new(store)),
                    Some(&*endpoint.host),
                    from,
                )
            }
            // The coordinator notices the closed connection. No other node knows a new file.
            Medium::Voters(_) | Medium::File(None) => return Ok(false),
            Medium::File(Some(path)) if !path.exists() => return Ok(false),
            Medium::File(Some(path)) => {
                let store = FileStore::open(path, None).map_err(explain)?;
                (StateMedium::File(Arc::new(store)), None, None)
            }
        };
        let me = node::describe(node::advertised(options.local_addr.as_deref(), host, from));
        let mut stored = C10dState::at(medium, &options.run_id)?;
        stored.remove_agent(&me, &options.settings, pid)
    }
}
