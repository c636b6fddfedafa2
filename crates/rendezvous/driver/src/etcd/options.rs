//! What `--rdzv-endpoint` and `--rdzv-conf` say about an etcd server.

use std::path::PathBuf;
use std::time::Duration;

use rdzv_core::endpoint::{Endpoint, EndpointError};

use crate::{RendezvousConfig, RendezvousError, RendezvousParameters};

/// Where etcd listens for clients unless told otherwise.
const DEFAULT_PORT: u16 = 2379;

/// How long the server may be away, if nothing is configured.
const DEFAULT_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Under which keys the runs are, if nothing is configured; the same as in torchelastic, whose
/// keys are in the key space of the v2 API.
const DEFAULT_PREFIX: &str = "/torchelastic/p2p";

/// Short enough for the others to go on soon after a node was killed, long enough for a node that
/// is only busy, or whose machine stalls for a moment.
const LEASE_TIME_TO_LIVE: Duration = Duration::from_secs(5);

/// etcd grants no shorter ones.
const SHORTEST_LEASE: Duration = Duration::from_secs(2);

/// Where an etcd server is and how to talk to it.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `protocol` | `http` | or `https` |
/// | `cert`, `key` (`ssl_cert`, `ssl_cert_key`) | none | PEM files by which the server knows us |
/// | `cacert` (`ca_cert`) | the usual authorities | PEM file by which we know the server |
/// | `read_timeout` | 60 s | how long the server may be away before an operation fails |
/// | `etcd_prefix` | `/torchelastic/p2p` | under which keys the runs are |
/// | `lease_ttl` | 5 s, or as long as the heartbeats allow if that is less | how long after its last sign of life a node counts as gone; at least 2 s |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// Host and port.
    pub endpoint: Endpoint,
    /// How the connection is protected; `None`: not at all.
    pub tls: Option<TlsFiles>,
    /// How long the server may be away before an operation fails.
    pub read_timeout: Duration,
    /// Under which keys the runs are.
    pub prefix: String,
    /// How long after its last sign of life a node counts as gone. It gives one four times as
    /// often, from a thread that does nothing else; etcd looks twice a second whose time has come,
    /// and grants at least 2 s. While etcd is away, nobody's time runs.
    pub lease_time_to_live: Duration,
}

/// The PEM files of a protected connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsFiles {
    /// Our certificate and its private key, if the server wants to know us.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The authority that the server's certificate is signed by; `None`: one of the usual ones.
    pub authority: Option<PathBuf>,
}

impl EtcdOptions {
    /// A server without protection, and default times.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            tls: None,
            read_timeout: DEFAULT_READ_TIMEOUT,
            prefix: DEFAULT_PREFIX.to_owned(),
            lease_time_to_live: LEASE_TIME_TO_LIVE,
        }
    }

    /// Reads endpoint and options. The names of either of torchelastic's etcd backends will do.
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
    /// Has the lease live no longer than `most`, as far as etcd grants that.
    pub(crate) fn shorten_lease(&mut self, most: Duration) {
        let life = self.lease_time_to_live.min(most);
        self.lease_time_to_live = life.max(SHORTEST_LEASE);
    }
}

/// A number of seconds that must not be zero.
pub(crate) fn positive_seconds(name: &str, seconds: i64) -> Result<Duration, RendezvousError> {
    match u64::try_from(seconds) {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(RendezvousError::Argument(format!(
            "The rendezvous configuration option '{name}' must be a positive number of seconds, \
             not {seconds}."
        ))),
    }
}

fn tls_files(config: &RendezvousConfig) -> Result<Option<TlsFiles>, RendezvousError> {
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
                "Certificates were given for etcd, but protocol is http: add protocol=https.",
            );
        }
        _ => return wrong("The protocol must be HTTP or HTTPS."),
    }
    let identity = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return wrong("A certificate for etcd needs its key, and a key its certificate."),
    };
    Ok(Some(TlsFiles {
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
