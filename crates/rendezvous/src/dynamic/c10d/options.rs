//! The parameters and options of `c10d`, checked with torchelastic's texts.

use std::path::PathBuf;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::RunId;
use rdzv_rendezvous_proto::Settings;
use rdzv_store::Limits;

use crate::{Program, RendezvousError, RendezvousParameters};

/// The port of an endpoint that names none.
const DEFAULT_PORT: u16 = 29400;

/// How long to try to connect if nothing is configured, in seconds.
const READ_TIMEOUT: i64 = 60;

/// What `c10d` is configured with.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) run_id: RunId,
    pub(super) medium: Medium,
    pub(super) settings: Settings,
    pub(super) local_addr: Option<String>,
    pub(super) program: Option<Program>,
    pub(super) read_timeout: Duration,
    /// The bounds of the stores that are hosted here.
    pub(super) limits: Limits,
}

/// Where the state is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Medium {
    /// In a TCP store.
    Tcp {
        endpoint: Endpoint,
        /// Whether this node hosts it; `None`: if it is at the endpoint.
        is_host: Option<bool>,
    },
    /// In a file.
    File(PathBuf),
}

impl Options {
    pub(super) fn from_parameters(
        parameters: &RendezvousParameters,
    ) -> Result<Self, RendezvousError> {
        let wrong = |what: &str| Err(RendezvousError::Argument(what.to_owned()));
        let config = &parameters.config;
        config.note_unknown(
            &parameters.backend,
            &["store_type", "read_timeout", "is_host"],
        );
        let store_type = config.get("store_type").unwrap_or("tcp");
        let medium = match store_type.trim().to_lowercase().as_str() {
            "tcp" => Medium::Tcp {
                endpoint: Endpoint::parse(&parameters.endpoint, DEFAULT_PORT)
                    .map_err(|error| RendezvousError::Argument(error.to_string()))?,
                is_host: config.get_as_bool("is_host")?,
            },
            "file" => Medium::File(match parameters.endpoint.as_str() {
                "" => std::env::temp_dir().join(format!("rdzv-{:016x}", fastrand::u64(..))),
                path => PathBuf::from(path),
            }),
            _ => {
                return wrong("Invalid store type given. Currently only supports file and tcp.");
            }
        };
        let read_timeout = match config.get_as_int("read_timeout")? {
            Some(..=0) => return wrong("The read timeout must be a positive integer."),
            given => given.unwrap_or(READ_TIMEOUT).unsigned_abs(),
        };
        if parameters.run_id.is_empty() {
            return wrong("The run id must be a non-empty string.");
        }
        Ok(Self {
            run_id: RunId::new(&parameters.run_id),
            medium,
            settings: config.settings(parameters.min_nodes, parameters.max_nodes)?,
            local_addr: parameters.local_addr.clone(),
            program: parameters.program.clone(),
            read_timeout: Duration::from_secs(read_timeout),
            limits: config.store_limits()?,
        })
    }

    /// What errors call the place as long as there is no connection.
    pub(super) fn place(&self) -> String {
        match &self.medium {
            Medium::Tcp { endpoint, .. } => format!("the c10d endpoint {endpoint}"),
            Medium::File(path) => format!("the c10d file {}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RendezvousConfig;

    fn read(endpoint: &str, run_id: &str, config: &str) -> Result<Options, String> {
        let config = RendezvousConfig::parse(config).unwrap();
        let parameters = RendezvousParameters::new("c10d", endpoint, run_id, 1, 1, config).unwrap();
        Options::from_parameters(&parameters).map_err(|error| error.to_string())
    }

    #[test]
    fn a_tcp_store_is_the_default() {
        let options = read("node-a", "run", "").unwrap();
        let endpoint = Endpoint {
            host: "node-a".to_owned(),
            port: 29400,
        };
        assert_eq!(
            options.medium,
            Medium::Tcp {
                endpoint,
                is_host: None
            }
        );
        assert_eq!(options.read_timeout, Duration::from_secs(60));
        assert_eq!(options.place(), "the c10d endpoint node-a:29400");
    }

    #[test]
    fn every_option_is_read() {
        let given = "store_type= TCP,read_timeout=5,is_host=no,store_max_memory=64MiB";
        let options = read("h:1", "run", given).unwrap();
        assert_eq!(options.limits.max_memory_bytes, 64 << 20);
        assert!(matches!(
            options.medium,
            Medium::Tcp {
                is_host: Some(false),
                ..
            }
        ));
        assert_eq!(options.read_timeout, Duration::from_secs(5));
        let options = read("/tmp/a b", "run", "store_type=File").unwrap();
        assert_eq!(options.medium, Medium::File(PathBuf::from("/tmp/a b")));
        assert!(matches!(
            read("", "run", "store_type=file").unwrap().medium,
            Medium::File(path) if path.is_absolute()
        ));
    }

    #[test]
    fn impossible_values_are_refused_with_the_texts_of_the_reference() {
        for (endpoint, run_id, config, text) in [
            ("h", "", "", "The run id must be a non-empty string."),
            (
                "h",
                "run",
                "store_type=zeus",
                "Invalid store type given. Currently only supports file and tcp.",
            ),
            (
                "h",
                "run",
                "read_timeout=0",
                "The read timeout must be a positive integer.",
            ),
            (
                "h",
                "run",
                "is_host=maybe",
                "The rendezvous configuration option 'is_host' does not represent a valid boolean \
                 value.",
            ),
            (
                "h:x",
                "run",
                "",
                "The port number of the rendezvous endpoint 'h:x' must be an integer between 0 and \
                 65536.",
            ),
        ] {
            assert_eq!(read(endpoint, run_id, config).unwrap_err(), text);
        }
    }
}
