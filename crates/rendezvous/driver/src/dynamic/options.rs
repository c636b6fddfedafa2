//! Parameters and options of `c10d`, checked with torchelastic's texts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::RunId;
use rdzv_rendezvous_proto::{FencePolicy, Settings, silence};
use rdzv_store::StorePolicy;

use crate::{GroupStatus, Kept, Program, RendezvousConfig, RendezvousError, RendezvousParameters};

/// Default port of an endpoint.
const DEFAULT_PORT: u16 = 29400;

/// Options in addition to those of every dynamic rendezvous.
pub(crate) const OPTIONS: [&str; 10] = [
    "store_type",
    "voters",
    "read_timeout",
    "is_host",
    "coordinator_timeout",
    "recover",
    "fence",
    "fence_kill",
    "node_timeout",
    "rank_order",
];

/// Default time limit to connect, in seconds.
const READ_TIMEOUT: i64 = 60;

/// Default time for which agents wait for a killed coordinator, in seconds.
const COORDINATOR_TIMEOUT: i64 = 60;

/// Default maximum number of voters of a job with one endpoint.
const MOST_VOTERS: usize = 5;

/// Longest time for which a machine may be silent.
const MOST_NODE_TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) run_id: RunId,
    pub(super) medium: Medium,
    pub(super) settings: Settings,
    pub(super) local_addr: Option<String>,
    pub(super) program: Option<Program>,
    pub(super) read_timeout: Duration,
    /// Limit of a search for the coordinator, if shorter than other limits.
    pub(super) search_within: Duration,
    /// Policy of the stores that this node hosts or connects to.
    pub(super) policy: StorePolicy,
    /// Time for which agents wait for the next coordinator if this node's is lost.
    pub(super) coordinator_timeout: Duration,
    /// `true` if the user confirms that all earlier coordinators have exited.
    ///
    /// The user also confirms this of all missing agents.
    pub(super) recover: bool,
    /// Maximum number of voters of a group that agents may join; 1 if they may not.
    pub(super) most_voters: usize,
    /// Further processes to ask for the coordinator.
    pub(super) known_voters: Vec<Endpoint>,
    pub(super) kept: Option<Kept>,
    pub(super) group: Option<GroupStatus>,
    /// `true` if the workers of this node end with its agent.
    pub(super) ends_workers: bool,
}

/// Medium of the state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Medium {
    /// TCP store.
    Tcp {
        endpoint: Endpoint,
        /// `true` if this node hosts it; `None`: if the endpoint is on this machine.
        is_host: Option<bool>,
    },
    /// One of several TCP stores at these endpoints, whose servers are voters.
    Voters(Vec<Endpoint>),
    /// File; `None` is a new file, which only this node knows.
    File(Option<PathBuf>),
}

impl Options {
    /// Returns the options for a new connection, `elapsed` after the join began.
    ///
    /// The search for a coordinator has the rest of its time limit, but at least 1 s.
    pub(super) fn after(self: &Arc<Self>, elapsed: Duration) -> Arc<Self> {
        if elapsed.is_zero() {
            return Arc::clone(self);
        }
        let left = self.settings.join_timeout.saturating_sub(elapsed);
        let left = left.max(Duration::from_secs(1));
        Arc::new(Self {
            read_timeout: self.read_timeout.min(left),
            search_within: left,
            ..Self::clone(self)
        })
    }

    pub(super) fn from_parameters(
        parameters: &RendezvousParameters,
    ) -> Result<Self, RendezvousError> {
        let wrong = |what: &str| Err(RendezvousError::Argument(what.to_owned()));
        let config = &parameters.config;
        let mut read_timeout = READ_TIMEOUT;
        let medium = match parameters.store_type().as_str() {
            "tcp" => {
                let is_host = config.get_as_bool("is_host")?;
                read_timeout = config.get_as_int("read_timeout")?.unwrap_or(READ_TIMEOUT);
                if read_timeout <= 0 {
                    return wrong("The read timeout must be a positive integer.");
                }
                let mut endpoints = endpoints(parameters)?;
                match endpoints.len() {
                    1 => Medium::Tcp {
                        endpoint: endpoints.swap_remove(0),
                        is_host,
                    },
                    _ if is_host.is_some() => {
                        return wrong(
                            "is_host cannot be used with several voters, because each voter \
                             listens on its own endpoint",
                        );
                    }
                    _ => Medium::Voters(endpoints),
                }
            }
            // A file needs no time to answer, so the option is ignored, as in torchelastic.
            "file" => {
                let path = &parameters.endpoint;
                Medium::File((!path.is_empty()).then(|| PathBuf::from(path)))
            }
            _ => {
                return wrong("Invalid store type given. Currently only supports file and tcp.");
            }
        };
        let coordinator_timeout = config.get_as_int("coordinator_timeout")?;
        let coordinator_timeout = coordinator_timeout.unwrap_or(COORDINATOR_TIMEOUT);
        if coordinator_timeout <= 0 {
            return wrong("The coordinator timeout must be a positive integer.");
        }
        let mut settings = config.settings(parameters.min_nodes, parameters.max_nodes)?;
        let read_timeout = Duration::from_secs(read_timeout.unsigned_abs());
        settings.master_timeout = read_timeout;
        settings.node_timeout = node_timeout(config.get("node_timeout"))?;
        settings.sorts_ranks = match config.get("rank_order") {
            None => parameters.sorts_ranks,
            Some("sticky") => false,
            Some("sorted") => true,
            Some(other) => {
                return wrong(&format!(
                    "rank_order is {other}, but must be sticky or sorted"
                ));
            }
        };
        settings.fence = match fence(config)? {
            // A fence needs a guard, which suspends the workers of a stopped agent.
            FencePolicy::Auto if parameters.kept.is_none() => FencePolicy::Unsaid,
            _ if matches!(medium, Medium::File(_)) => FencePolicy::Unsaid,
            policy => policy,
        };
        if parameters.run_id.is_empty() {
            return wrong("The run id must be a non-empty string.");
        }
        let most_voters = match &medium {
            Medium::Tcp { endpoint, .. } if endpoint.port != 0 && parameters.max_nodes > 1 => {
                open_voters(parameters)?
            }
            _ => 1,
        };
        Ok(Self {
            run_id: RunId::new(&parameters.run_id),
            most_voters,
            medium,
            settings,
            local_addr: parameters.local_addr.clone(),
            program: parameters.program.clone(),
            read_timeout,
            search_within: Duration::MAX,
            policy: parameters.store_policy()?,
            coordinator_timeout: Duration::from_secs(coordinator_timeout.unsigned_abs()),
            recover: config.get_as_bool("recover")?.unwrap_or(false),
            known_voters: parameters.known_voters.clone(),
            kept: parameters.kept.clone(),
            group: parameters.group.clone(),
            ends_workers: parameters.ends_workers,
        })
    }

    /// Returns the name of the medium in errors before there is a connection.
    pub(super) fn endpoint(&self) -> String {
        match &self.medium {
            Medium::Tcp { endpoint, .. } => format!("the c10d endpoint {endpoint}"),
            Medium::Voters(endpoints) => {
                let endpoints: Vec<String> = endpoints.iter().map(Endpoint::to_string).collect();
                format!("the voters {}", endpoints.join(", "))
            }
            Medium::File(Some(path)) => format!("the c10d file {}", path.display()),
            Medium::File(None) => "a new c10d file".to_owned(),
        }
    }
}

/// Parses the time for which a machine may be silent.
pub(super) fn node_timeout(text: Option<&str>) -> Result<Duration, RendezvousError> {
    let Some(text) = text else {
        return Ok(silence::NODE_TIMEOUT);
    };
    match text.trim().parse().map(Duration::try_from_secs_f64) {
        Ok(Ok(time)) if silence::LEAST <= time && time <= MOST_NODE_TIMEOUT => Ok(time),
        _ => Err(RendezvousError::Argument(format!(
            "node_timeout is {text}, but must be from 0.5 to 3600 seconds"
        ))),
    }
}

fn fence(config: &RendezvousConfig) -> Result<FencePolicy, RendezvousError> {
    let wrong = |what: String| Err(RendezvousError::Argument(what));
    if let Some(kill) = config.get_as_int("fence_kill")?
        && kill <= 0
    {
        return wrong(format!(
            "fence_kill is {kill}, but must be a positive number of seconds"
        ));
    }
    match config.get("fence") {
        None | Some("auto") => Ok(FencePolicy::Auto),
        Some("off") => Ok(FencePolicy::Off),
        Some(other) => wrong(format!("fence is {other}, but must be off or auto")),
    }
}

/// Returns the maximum number of voters of a job with one endpoint.
///
/// By default, an agent that no process restarts founds no group.
fn open_voters(parameters: &RendezvousParameters) -> Result<usize, RendezvousError> {
    let given = parameters.config.get_as_int("voters")?;
    let given = given.and_then(|given| usize::try_from(given).ok());
    Ok(match (given, &parameters.kept) {
        (Some(given), _) => given,
        (None, Some(_)) => MOST_VOTERS,
        (None, None) => 1,
    })
}

/// Parses the endpoint, or list of endpoints, at which the coordinator may be.
pub(super) fn endpoints(
    parameters: &RendezvousParameters,
) -> Result<Vec<Endpoint>, RendezvousError> {
    let wrong = |what: String| RendezvousError::Argument(what);
    let mut endpoints = listed(&parameters.endpoint)?;
    let (listed, most) = (endpoints.len(), most_voters(endpoints.len()));
    let count = match parameters.config.get_as_int("voters")? {
        None => most,
        Some(given) => match usize::try_from(given) {
            Ok(count @ (1 | 3 | 5)) if count <= listed => count,
            // Agents become voters, at separate endpoints.
            Ok(3 | 5) if listed == 1 => 1,
            Ok(count @ (3 | 5)) => {
                return Err(wrong(format!(
                    "{count} voters need {count} endpoints, but {listed} are listed; list them as \
                     a:29400,b,c"
                )));
            }
            _ => return Err(wrong(format!("voters is {given}, but must be 1, 3 or 5"))),
        },
    };
    endpoints.truncate(count);
    if let Some(endpoint) = endpoints
        .iter()
        .find(|endpoint| endpoint.port == 0 && count > 1)
    {
        return Err(wrong(format!(
            "the voter endpoint {endpoint} has no port that the other nodes know; specify a port \
             other than 0"
        )));
    }
    Ok(endpoints)
}

/// Parses an endpoint that may be a list.
pub(super) fn listed(endpoint: &str) -> Result<Vec<Endpoint>, RendezvousError> {
    let wrong = |what: String| RendezvousError::Argument(what);
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for text in endpoint.split(',') {
        // A single endpoint may be empty, as in PyTorch: it names this host.
        if text.trim().is_empty() && endpoint.contains(',') {
            return Err(wrong(format!(
                "the list of endpoints '{endpoint}' has an empty entry; list them as a:29400,b,c"
            )));
        }
        // An endpoint without a port uses the port of the first one.
        let port = endpoints.first().map_or(DEFAULT_PORT, |first| first.port);
        let endpoint = Endpoint::parse(text, port).map_err(|error| wrong(error.to_string()))?;
        if endpoints.contains(&endpoint) {
            return Err(wrong(format!("the endpoint {endpoint} is listed twice")));
        }
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

/// Returns the default number of voters among `listed` endpoints.
pub(super) fn most_voters(listed: usize) -> usize {
    match listed {
        5.. => 5,
        3.. => 3,
        _ => 1,
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
        assert_eq!(options.endpoint(), "the c10d endpoint node-a:29400");
    }

    #[test]
    fn a_list_of_three_or_five_endpoints_is_that_of_the_voters() {
        let endpoint = |list: &str, config: &str| read(list, "run", config).unwrap().endpoint();
        let three = "the voters a:1, b:1, c:2";
        assert_eq!(endpoint("a:1,b,c:2", ""), three);
        assert_eq!(endpoint(" a:1 , b , c:2 , d", ""), three);
        assert_eq!(endpoint("a:1,b,c:2,d,e", "voters=3"), three);
        assert_eq!(endpoint("a,b,c,d,e,f", "").matches(":29400").count(), 5);
        for (list, config) in [("a:1", ""), ("a:1,b:1", ""), ("a:1,b,c", "voters=1")] {
            assert_eq!(endpoint(list, config), "the c10d endpoint a:1");
        }
    }

    #[test]
    fn a_fence_needs_a_guard_and_is_there_unless_it_is_switched_off() {
        let fence = |list: &str, config: &str| read(list, "run", config).unwrap().settings.fence;
        for (config, guarded) in [
            ("", FencePolicy::Auto),
            ("fence=auto", FencePolicy::Auto),
            ("fence=off", FencePolicy::Off),
        ] {
            let config = RendezvousConfig::parse(config).unwrap();
            let choice = super::fence(&config).unwrap();
            assert_eq!(choice, guarded);
        }
        assert_eq!(fence("a,b,c", "fence=auto"), FencePolicy::Unsaid);
        assert_eq!(fence("a", "fence=off"), FencePolicy::Off);
        for (config, text) in [
            ("fence=yes", "fence is yes, but must be off or auto"),
            (
                "node_timeout=0.1",
                "node_timeout is 0.1, but must be from 0.5 to 3600 seconds",
            ),
            (
                "node_timeout=x",
                "node_timeout is x, but must be from 0.5 to 3600 seconds",
            ),
            (
                "fence_kill=0",
                "fence_kill is 0, but must be a positive number of seconds",
            ),
        ] {
            assert_eq!(read("a,b,c", "run", config).unwrap_err(), text);
        }
    }

    #[test]
    fn ranks_are_kept_unless_they_are_to_be_sorted() {
        let sorts = |config: &str| Ok(read("a", "run", config)?.settings.sorts_ranks);
        assert_eq!(sorts(""), Ok(false));
        assert_eq!(sorts("rank_order=sticky"), Ok(false));
        assert_eq!(sorts("rank_order=sorted"), Ok(true));
        let text: Result<bool, String> = sorts("rank_order=random");
        assert_eq!(
            text.unwrap_err(),
            "rank_order is random, but must be sticky or sorted"
        );
    }

    #[test]
    fn voters_that_cannot_be_are_refused() {
        for (list, config, text) in [
            (
                "a,b",
                "voters=3",
                "3 voters need 3 endpoints, but 2 are listed; list them as a:29400,b,c",
            ),
            ("a,b,c", "voters=2", "voters is 2, but must be 1, 3 or 5"),
            ("a,b,c", "voters=-1", "voters is -1, but must be 1, 3 or 5"),
            ("a,b,a:29400", "", "the endpoint a:29400 is listed twice"),
            (
                "a,,c",
                "",
                "the list of endpoints 'a,,c' has an empty entry; list them as a:29400,b,c",
            ),
            (
                "a,b:0,c",
                "",
                "the voter endpoint b:0 has no port that the other nodes know; specify a port \
                 other than 0",
            ),
            (
                "a,b,c",
                "is_host=1",
                "is_host cannot be used with several voters, because each voter listens on its own \
                 endpoint",
            ),
        ] {
            assert_eq!(read(list, "run", config).unwrap_err(), text);
        }
    }

    #[test]
    fn every_option_is_read() {
        let given = "store_type= TCP,read_timeout=5,is_host=no,store_max_memory=64MiB";
        let options = read("h:1", "run", given).unwrap();
        assert_eq!(options.policy.limits.max_memory_bytes, 64 << 20);
        assert!(matches!(
            options.medium,
            Medium::Tcp {
                is_host: Some(false),
                ..
            }
        ));
        assert_eq!(options.read_timeout, Duration::from_secs(5));
        assert_eq!(options.settings.master_timeout, options.read_timeout);
        let options = read("/tmp/a b", "run", "store_type=File").unwrap();
        assert_eq!(
            options.medium,
            Medium::File(Some(PathBuf::from("/tmp/a b")))
        );
    }

    #[test]
    fn a_file_does_not_read_the_timeout() {
        for given in ["", ",read_timeout=0", ",read_timeout=-1", ",read_timeout=x"] {
            let options = read("", "run", &format!("store_type=file{given}")).unwrap();
            assert_eq!(options.medium, Medium::File(None));
            assert_eq!(options.read_timeout, Duration::from_secs(60));
        }
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
                "read_timeout=x",
                "The rendezvous configuration option 'read_timeout' does not represent a valid \
                 integer value.",
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
