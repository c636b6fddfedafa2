//! Options for an etcd server in `--rdzv-endpoint` and `--rdzv-conf`.

use std::path::PathBuf;
use std::time::Duration;

use rdzv_core::endpoint::{Endpoint, EndpointError};

use crate::{RendezvousConfig, RendezvousError, RendezvousParameters};

/// Default client port of etcd.
const DEFAULT_PORT: u16 = 2379;

/// Default time for which requests are retried while the server is unavailable.
const DEFAULT_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Default prefix for the keys of all runs.
///
/// torchelastic uses the same prefix, but its keys are in the key space of the v2 API.
const DEFAULT_PREFIX: &str = "/torchelastic/p2p";

/// Default time to live of a node's lease.
///
/// It is short, so that the other nodes continue soon after a node was killed. It is long enough
/// for a node that is merely busy, or whose machine stalls briefly.
const LEASE_TIME_TO_LIVE: Duration = Duration::from_secs(5);

/// Minimum time to live that etcd grants with its default settings.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// Endpoint of an etcd server, and how to connect to it.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `protocol` | `http` | `http` or `https` |
/// | `cert`, `key` (`ssl_cert`, `ssl_cert_key`) | none | PEM files that identify this client |
/// | `cacert` (`ca_cert`) | the usual authorities | PEM file to verify the server |
/// | `read_timeout` | 60 s | time that the server may be unavailable before an operation fails |
/// | `etcd_prefix` | `/torchelastic/p2p` | prefix of the keys of all runs |
/// | `lease_ttl` | 5 s, or the heartbeat limit if shorter | time without a renewal until a node is lost; at least 2 s |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// Host and port.
    pub endpoint: Endpoint,
    /// Certificates for a TLS connection; `None` uses plain HTTP.
    pub tls: Option<EtcdTlsFiles>,
    /// Time that the server may be unavailable before an operation fails.
    pub read_timeout: Duration,
    /// Prefix of the keys of all runs.
    pub prefix: String,
    /// Time without a renewal of its lease after which a node counts as lost.
    ///
    /// The node renews its lease four times within this time, from a separate thread. etcd checks
    /// for expired leases twice a second, and grants at least 2 s. No lease expires while etcd is
    /// unavailable.
    pub lease_time_to_live: Duration,
}

/// PEM files for a TLS connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EtcdTlsFiles {
    /// Certificate and private key of this client, if the server requires them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Authority that signed the server's certificate; `None` uses the usual ones.
    pub authority: Option<PathBuf>,
}

impl EtcdOptions {
    /// Creates options for a server without TLS, with the default times.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            tls: None,
            read_timeout: DEFAULT_READ_TIMEOUT,
            prefix: DEFAULT_PREFIX.to_owned(),
            lease_time_to_live: LEASE_TIME_TO_LIVE,
        }
    }

    /// Reads the endpoint and the options of either etcd backend of torchelastic.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] names the option or parameter that is invalid.
    pub fn from_parameters(parameters: &RendezvousParameters) -> Result<Self, RendezvousError> {
        let endpoint = Endpoint::parse(&parameters.endpoint, DEFAULT_PORT)
            .map_err(|error: EndpointError| RendezvousError::Argument(error.to_string()))?;
        let config = &parameters.config;
        let mut options = Self::new(endpoint);
        if let Some(seconds) = config.get_as_int("read_timeout")? {
            options.read_timeout = positive_seconds("read_timeout", seconds)?;
        }
        if let Some(prefix) = config.get("etcd_prefix") {
            options.prefix = prefix.to_owned();
        }
        if let Some(seconds) = config.get_as_int("lease_ttl")? {
            options.lease_time_to_live =
                positive_seconds("lease_ttl", seconds)?.max(SHORTEST_LEASE);
        }
        options.tls = tls_files(config)?;
        Ok(options)
    }
}

impl EtcdOptions {
    /// Limits the time to live to `most`, but not below the minimum of etcd.
    pub(crate) fn shorten_lease(&mut self, most: Duration) {
        let life = self.lease_time_to_live.min(most);
        self.lease_time_to_live = life.max(SHORTEST_LEASE);
    }
}

/// Converts a positive number of seconds; any other number is an error.
pub(crate) fn positive_seconds(name: &str, seconds: i64) -> Result<Duration, RendezvousError> {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(RendezvousError::Argument(format!(
            "The rendezvous configuration option '{name}' must be a positive number of seconds, \
             not {seconds}."
        ))),
    }
}

fn tls_files(config: &RendezvousConfig) -> Result<Option<EtcdTlsFiles>, RendezvousError> {
    let file = |names: [&str; 2]| {
        let given = names.iter().find_map(|name| config.get(name));
        given.map(PathBuf::from)
    };
    let certificate = file(["cert", "ssl_cert"]);
    let key = file(["key", "ssl_cert_key"]);
    let authority = file(["cacert", "ca_cert"]);
    let wrong = |text: &str| Err(RendezvousError::argument(text));
    match config.get("protocol").unwrap_or("http") {
        "https" => {}
        "http" if certificate.is_none() && key.is_none() && authority.is_none() => return Ok(None),
        "http" => {
            return wrong(
                "Certificates were specified for etcd, but protocol is http: add protocol=https.",
            );
        }
        _ => return wrong("The protocol must be HTTP or HTTPS."),
    }
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return wrong("A certificate for etcd needs its key, and a key needs its certificate.");
        }
    };
    Ok(Some(EtcdTlsFiles {
        identity,
        authority,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(endpoint: &str, config: &str) -> Result<EtcdOptions, RendezvousError> {
        let config = RendezvousConfig::parse(config).unwrap();
        let parameters = RendezvousParameters::new("etcd", endpoint, "run", 1, 2, config).unwrap();
        EtcdOptions::from_parameters(&parameters)
    }

    #[test]
    fn the_port_of_etcd_is_the_default() {
        let options = options("node-a", "").unwrap();
        assert_eq!(options.endpoint.to_string(), "node-a:2379");
        assert_eq!(options.read_timeout, Duration::from_secs(60));
        assert_eq!(options.tls, None);
    }

    #[test]
    fn certificates_have_the_names_of_both_backends() {
        let one = options("h", "protocol=https,cert=a,key=b,cacert=c").unwrap();
        let other = options("h", "protocol=https,ssl_cert=a,ssl_cert_key=b,ca_cert=c").unwrap();
        assert_eq!(one, other);
        let files = one.tls.unwrap();
        assert_eq!(files.identity, Some(("a".into(), "b".into())));
        assert_eq!(files.authority, Some("c".into()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let text = |config: &str| options("h", config).unwrap_err().to_string();
        assert_eq!(text("protocol=ftp"), "The protocol must be HTTP or HTTPS.");
        assert!(text("cert=a,key=b").contains("protocol=https"));
        assert!(text("protocol=https,cert=a").contains("needs its key"));
        for seconds in ["0", "-1"] {
            let config = format!("read_timeout={seconds}");
            assert!(text(&config).contains("read_timeout"), "{seconds}");
        }
    }
}
