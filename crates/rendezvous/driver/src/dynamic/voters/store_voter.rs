//! Voter outside of an agent: a store at one of the voters' endpoints.

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::quantity;
use rdzv_core::rules::Rules;
use rdzv_store::ServerOptions;
use rdzv_voters::Settings;

use super::listed::{become_voter, bind_endpoint};
use super::voter::VoterOptions;
use crate::bind::loopback;
use crate::dynamic::node::is_this_machine;
use crate::dynamic::options::{listed, most_voters, node_timeout};
use crate::{Onlookers, RendezvousError};

/// Time limit to resolve the host of an endpoint.
const RESOLVE_WITHIN: Duration = Duration::from_secs(5);

/// Store at one of the endpoints of a job's voters, with its sockets.
#[derive(Debug)]
pub struct StoreVoter {
    endpoints: Vec<Endpoint>,
    own: usize,
    listeners: Vec<TcpListener>,
}

impl StoreVoter {
    /// Parses the agents' list of endpoints, which are those of the voters.
    ///
    /// # Errors
    ///
    /// Returns an error with a one-sentence message if the text is not a valid list.
    pub fn endpoints(list: &str) -> Result<Vec<Endpoint>, RendezvousError> {
        let wrong = |what: String| Err(RendezvousError::Argument(what));
        let mut endpoints = listed(list)?;
        let count = most_voters(endpoints.len());
        if count < 3 {
            return wrong(format!(
                "'{list}' names {}, but must list at least 3, as in the agents' --rdzv-endpoint: \
                 a:29400,b,c",
                quantity::count(endpoints.len(), "voter")
            ));
        }
        endpoints.truncate(count);
        if let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.port == 0) {
            return wrong(format!(
                "the voter endpoint {endpoint} has no port that the other nodes know; specify a \
                 port other than 0"
            ));
        }
        Ok(endpoints)
    }

    /// Parses the time for which a machine may be silent.
    ///
    /// # Errors
    ///
    /// Returns an error of one sentence if the text is not a valid timeout.
    pub fn node_timeout(text: Option<&str>) -> Result<Duration, RendezvousError> {
        node_timeout(text)
    }

    /// Listens on the first endpoint in `endpoints` that is local and not in use.
    ///
    /// Returns `None` if this process can listen on none of the local endpoints.
    ///
    /// # Errors
    ///
    /// Returns an error if no endpoint is on this machine.
    pub fn listen(endpoints: Vec<Endpoint>) -> Result<Option<Self>, RendezvousError> {
        let mut hosts = endpoints.iter().map(|endpoint| &endpoint.host);
        if !hosts.any(|host| is_this_machine(host, RESOLVE_WITHIN)) {
            let list: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
            return Err(RendezvousError::Argument(format!(
                "none of the voters {} is on this machine; run this command on the machine of a \
                 voter",
                list.join(", ")
            )));
        }
        let taken = bind_endpoint(&endpoints, RESOLVE_WITHIN);
        Ok(taken.map(|(own, listeners)| Self {
            endpoints,
            own,
            listeners,
        }))
    }

    /// Returns the endpoint of this store.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoints[self.own]
    }

    /// Adds the voter to the options of a server.
    ///
    /// Agents wait for the next coordinator for `timeout`. A machine may be silent for
    /// `node_timeout`.
    ///
    /// # Errors
    ///
    /// Returns an error if a thread cannot start, or a socket cannot be shared.
    pub fn serve_with(
        &self,
        server: &mut ServerOptions,
        timeout: Duration,
        node_timeout: Duration,
        onlookers: Onlookers,
    ) -> io::Result<()> {
        let listeners = self.listeners.iter().map(TcpListener::try_clone);
        let voter = VoterOptions {
            settings: Settings {
                endpoints: self.endpoints.iter().map(Endpoint::to_string).collect(),
                open: None,
                own: self.own,
                is_store: true,
                agent: None,
                seed: fastrand::u64(..),
                timeout,
                node_timeout,
                rules: Rules::default(),
            },
            note: None,
            credentials: server.admission.credentials.clone(),
            onlookers,
        };
        let endpoint = self.endpoint();
        (server.host, server.port) = (loopback(&endpoint.host), endpoint.port);
        become_voter(server, listeners.collect::<io::Result<_>>()?, voter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(list: &str) -> Result<usize, String> {
        let endpoints = StoreVoter::endpoints(list).map(|endpoints| endpoints.len());
        endpoints.map_err(|error| error.to_string())
    }

    #[test]
    fn the_list_is_that_of_all_voters() {
        assert_eq!(endpoints("a:29400,b,c"), Ok(3));
        assert_eq!(endpoints("a,b,c,d"), Ok(3));
        assert_eq!(endpoints("a,b,c,d,e,f"), Ok(5));
        for (list, text) in [
            ("a:29400", "names 1 voter,"),
            ("a,b", "names 2 voters"),
            ("a,b,a", "is listed twice"),
            ("a,,c", "has an empty entry"),
            ("a:0,b,c", "has no port"),
            ("a:x,b,c", "must be an integer"),
        ] {
            let error = endpoints(list).unwrap_err();
            assert!(error.contains(text), "{list}: {error}");
        }
    }
}
