//! The choice of the rendezvous and of the run id.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use rdzv_agent::config::RendezvousPlan;
use rdzv_core::endpoint::{Endpoint, bare_host};
use rdzv_core::env;
use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::dynamic::C10dRendezvous;
use rdzv_rendezvous::{BackendRegistry, RendezvousConfig, RendezvousError, RendezvousParameters};

use super::context::Context;
use super::worker_count::Nodes;
use crate::exit::{Raised, Refusal};
use crate::number;
use crate::suggestion::did_you_mean;

/// Port of static rendezvous if `--master-port` is not given.
const MASTER_PORT: i64 = 29500;

/// Port of a c10d endpoint without a port.
pub(super) const C10D_PORT: u16 = 29400;

/// All backends; some may not be built in.
const BACKENDS: [&str; 4] = ["static", "c10d", "etcd", "etcd-v2"];

/// Default number of seconds that static rendezvous waits for the other nodes.
const STATIC_TIMEOUT: i64 = 900;

/// Flags for the rendezvous of the nodes.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct RendezvousArgs {
    /// Rendezvous backend: static, c10d, etcd-v2 or etcd.
    ///
    /// One node with `static` needs no rendezvous if neither --rdzv-endpoint nor --master-port is
    /// set.
    #[arg(long, value_name = "BACKEND", default_value = "static")]
    rdzv_backend: String,

    /// Endpoint of the rendezvous: a host, and usually a port.
    ///
    /// `static` requires the port; without an endpoint, it uses --master-addr and --master-port.
    /// The default port is 29400 for c10d and 2379 for etcd. The agent on the endpoint's host hosts
    /// c10d, unless a store (such as `rdzv store`) already runs there. If an agent hosts c10d for
    /// three nodes or more, agents become voters automatically: c10d continues if any one machine
    /// is lost, or any two of five. While an agent of torchrun participates, agents do not become
    /// voters. With a list of three or more endpoints, such as `a:29400,b,c`, the agents at the
    /// first three or five are the voters. With a single endpoint, RDZV_CONTACT_POINTS can list
    /// endpoints of voters, separated by commas. A new node on a machine other than the endpoint's
    /// also tries these voters, so that it can join while the machine of the endpoint is down.
    #[arg(long, value_name = "HOST[:PORT]", default_value = "")]
    rdzv_endpoint: String,

    /// Name of the job, the same on all its nodes.
    ///
    /// Workers see it as TORCHELASTIC_RUN_ID. The names of log directories begin with it. With
    /// --standalone, or on one node with the static backend and neither --rdzv-endpoint nor
    /// --master-port, the default is a random UUID. In these cases, torchrun replaces even a
    /// specified name. Otherwise, the default is `none`, or comes from Slurm (--scheduler).
    #[arg(long, value_name = "ID")]
    pub(crate) rdzv_id: Option<String>,

    /// More rendezvous settings, as `key=value,key=value`
    ///
    /// Times are in seconds. `rdzv run` merges the settings of PET_RDZV_CONF and of all
    /// occurrences of this flag; the last value of a key applies.
    ///
    /// Static rendezvous:
    ///   timeout=900               limit for the wait for all nodes
    ///   store_max_memory=4GiB     memory limit of the store that this agent hosts
    /// Dynamic rendezvous:
    ///   join_timeout=600          limit for a join
    ///   last_call_timeout=30      wait for more nodes once MIN have joined
    ///   close_timeout=30          limit for closing the run
    ///   heartbeat_timeout=5       checked, but not used
    ///   keep_alive_interval=5     longest time between heartbeats
    ///   keep_alive_max_attempt=3  missed heartbeats after which a node is lost
    ///   store_max_memory=4GiB     memory limit of each store that this agent hosts
    ///   cas_backoff_max_seconds=0 longest pause after a lost write; 0: chosen automatically
    /// c10d:
    ///   is_host                   `true` if this node hosts the endpoint; by default,
    ///                             its addresses decide
    ///   store_type=tcp            `tcp` or `file`
    ///   read_timeout=60           limit for connecting to the store, for its answers, and for
    ///                             the endpoint of the workers, which rank 0 sends
    ///   coordinator_timeout=60    limit for the wait for a lost coordinator
    ///   voters                    maximum voters: 1, 3 or 5; by default 5 (1 with
    ///                             --agent-restarts 0), but no more than a list of endpoints has
    ///   node_timeout=3            silence after which a machine is lost
    ///   fence=auto                `auto`: with three or more voters, a node that is cut
    ///                             off suspends its workers; or `off`
    ///   fence_kill=60             kill suspended workers after this time
    ///   rank_order=sticky         nodes keep their ranks in the next round; `sorted`: every
    ///                             round sorts its nodes, as under the link `torchrun`
    ///   recover=false             `true` confirms that the previous host and all
    ///                             missing agents have exited
    /// etcd:
    ///   read_timeout=60           time for which the server may be unavailable
    ///   protocol=http             `http` or `https`
    ///   cert, key, cacert         files for `https`
    ///   etcd_prefix               prefix of the keys
    ///   lease_ttl=5               time after which a silent node is lost
    #[arg(long, value_name = "K=V,...", default_value = "", verbatim_doc_comment)]
    rdzv_conf: String,

    /// Run on this node alone, on a free port.
    ///
    /// Overrides --rdzv-backend, --rdzv-endpoint and --master-port.
    #[arg(long)]
    standalone: bool,
}

/// Addresses of static rendezvous.
#[derive(Debug, Clone, Args, PartialEq)]
pub(crate) struct StaticArgs {
    /// This node's rank; static rendezvous only.
    #[arg(long, value_name = "N", default_value = "0", value_parser = number::int)]
    node_rank: i64,

    /// Address of node 0; static rendezvous only.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    master_addr: String,

    /// Port on node 0; static rendezvous only (default 29500)
    ///
    /// On a single node, this flag makes the node use static rendezvous at this port.
    #[arg(long, value_name = "PORT", value_parser = number::int)]
    master_port: Option<i64>,

    /// Address at which other nodes reach this node.
    #[arg(long, value_name = "HOST")]
    local_addr: Option<String>,
}

impl RendezvousArgs {
    pub(super) fn settings(&self) -> Result<RendezvousConfig, Raised> {
        RendezvousConfig::parse(&self.rdzv_conf).map_err(|error| value_error("--rdzv-conf", &error))
    }
}

impl StaticArgs {
    /// Returns `--local-addr`; `None` if it is not specified or empty.
    pub(super) fn local_addr(&self) -> Option<String> {
        let address = bare_host(self.local_addr.as_deref()?);
        (!address.is_empty()).then(|| address.to_owned())
    }
}

/// Reasons for a choice; a reason is empty if the flag itself is enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RendezvousReasons {
    /// Reason for the backend, if it is not the one of the flag.
    pub(super) backend: &'static str,
    /// Reason for the endpoint, if it is not the one of the flag.
    pub(super) endpoint: &'static str,
    /// Reason for a run id that the user did not specify.
    pub(super) run_id: &'static str,
    /// Reason for the number of agent restarts, if it is not the flag's.
    pub(super) agent_restarts: &'static str,
}

/// Flags on which a choice depends.
pub(super) struct RendezvousChoice<'a> {
    pub(super) arguments: &'a RendezvousArgs,
    pub(super) fixed: &'a StaticArgs,
    pub(super) nodes: &'a Nodes,
    pub(super) spares: u32,
}

impl RendezvousChoice<'_> {
    /// Refuses spare nodes without a dynamic rendezvous.
    /// With `is_strict`, also refuses `--standalone` if the job needs several nodes.
    ///
    /// Warns about flags whose effect with this backend may surprise the user.
    pub(super) fn check(&self, is_strict: bool, context: &mut Context<'_>) -> Result<(), Refusal> {
        if is_strict && self.arguments.standalone && self.nodes.least > 1 {
            let problem = format!(
                "starts a job with one node, but --nnodes is {}: omit one of the two flags",
                self.nodes.text
            );
            return Err(Refusal::parser(
                "--standalone",
                &problem,
                &format!(" {problem}"),
            ));
        }
        if self.spares > 0 && self.has_fixed_nodes() {
            let problem = "spare nodes need a dynamic rendezvous, such as --rdzv-backend c10d, \
                           without --standalone";
            return Err(Refusal::argument("--spares", problem));
        }
        let (backend, nodes) = (&self.arguments.rdzv_backend, self.nodes);
        let is_static = backend == "static";
        if self.alone() {
            return Ok(());
        }
        if !is_static && self.arguments.rdzv_endpoint.is_empty() {
            context.warn(
                "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not \
                 specified.",
            );
        }
        if !is_static && self.fixed.node_rank != 0 {
            context.warn(format!(
                "node_rank is only used for static rdzv_backend. It will be ignored for \
                 rdzv_backend={backend}."
            ));
        }
        if is_static && nodes.least < nodes.most {
            context.warn(format!(
                "--nnodes {} with static rendezvous means exactly {} nodes: only a dynamic \
                 rendezvous (--rdzv-backend c10d) can start with fewer.",
                nodes.text, nodes.most
            ));
        }
        Ok(())
    }

    /// Refuses options of `--rdzv-conf` that the backend does not know.
    ///
    /// Without `is_strict`, it only warns about them.
    pub(super) fn check_options(
        &self,
        settings: &RendezvousConfig,
        backends: &BackendRegistry,
        is_strict: bool,
        context: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let backend = if self.alone() {
            "c10d"
        } else {
            &self.arguments.rdzv_backend
        };
        let Some(known) = backends.options(backend) else {
            return Ok(());
        };
        // Programs that start the launcher, such as Accelerate, always set `timeout`.
        let is_typed = is_strict && context.environment.filled(env::RDZV_CALLER).is_none();
        if is_typed && self.arguments.rdzv_backend != "static" && settings.get("timeout").is_some()
        {
            context.warn(format!(
                "--rdzv-conf: timeout has no effect with {backend}: join_timeout limits the wait for nodes"
            ));
        }
        for option in settings.unknown(&known) {
            let meant = did_you_mean(option, known.iter().copied());
            let sentence = format!(
                "--rdzv-conf: the rendezvous backend '{backend}' has no option '{option}'{meant}"
            );
            if is_strict {
                return Err(Refusal::Usage(sentence));
            } else {
                context.warn(format!("{sentence}; it has no effect"));
            }
        }
        Ok(())
    }

    /// Refuses endpoints and options with which the run would fail at its join.
    ///
    /// PyTorch checks these values only at the join.
    pub(super) fn check_values(&self, plan: &RendezvousPlan) -> Result<(), Raised> {
        match plan {
            RendezvousPlan::Static {
                endpoint, nodes, ..
            } if endpoint.port == 0 && *nodes > 1 => Err(random_port(&endpoint.host)),
            RendezvousPlan::Dynamic { parameters }
                if parameters.backend == C10dRendezvous::NAME =>
            {
                let backend = C10dRendezvous::from_parameters(parameters);
                backend.map_err(misplaced)?;
                let endpoints = C10dRendezvous::endpoints(parameters).unwrap_or_default();
                match endpoints.iter().find(|endpoint| endpoint.port == 0) {
                    Some(endpoint) if self.nodes.least > 1 => Err(random_port(&endpoint.host)),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn choose(
        &self,
        settings: &RendezvousConfig,
        backends: &BackendRegistry,
        context: &mut Context<'_>,
    ) -> Result<(RendezvousPlan, RunId, RendezvousReasons), Refusal> {
        let given = self.arguments.rdzv_id.as_deref();
        if given == Some("") {
            context.warn("the run id is empty, so rdzv uses a random run id");
        }
        if self.alone() {
            let id = given.filter(|id| !id.is_empty());
            let run_id = id.map_or_else(|| context.machine.random_id(), str::to_owned);
            let plan = self.local(&run_id, settings, context)?;
            let reason = if self.arguments.standalone {
                "--standalone: this node alone"
            } else {
                "one node, and neither --rdzv-endpoint nor --master-port: no other node can join"
            };
            let reasons = RendezvousReasons {
                backend: reason,
                endpoint: reason,
                run_id: id.map_or("a new UUID for each run", |_| ""),
                agent_restarts: "",
            };
            return Ok((plan, RunId::new(run_id), reasons));
        }
        let random = || context.machine.random_id();
        let (run_id, id_reason) = match given {
            None => ("none".to_owned(), "the same for all jobs without a run id"),
            Some("") => (random(), "the run id is empty: a new UUID for each run"),
            Some(id) => (id.to_owned(), ""),
        };
        let backend = &self.arguments.rdzv_backend;
        let no_endpoint = self.arguments.rdzv_endpoint.is_empty();
        let plan = match &**backend {
            "" => {
                let text = "The rendezvous backend name must be a non-empty string.";
                let raised = Raised::value_error(text);
                return Err(raised.plainly(unknown_backend("", backends)).into());
            }
            "static" => self.fixed(settings)?,
            name if !backends.contains(name) => {
                return Err(Raised::value_error(format!(
                    "The rendezvous backend '{name}' is not registered. Did you forget to call \
                     `register`?"
                ))
                .plainly(unknown_backend(name, backends))
                .into());
            }
            name => self.dynamic(name, &run_id, settings, backends)?,
        };
        let endpoint = match &plan {
            RendezvousPlan::Static { .. } if no_endpoint => {
                "static rendezvous without --rdzv-endpoint: --master-addr and --master-port \
                 (default 29500)"
            }
            RendezvousPlan::Local => {
                "one node, and an endpoint that only this node can use: no other node can join"
            }
            RendezvousPlan::Dynamic { .. } if no_endpoint => {
                "no --rdzv-endpoint: the default endpoint of this backend"
            }
            _ => "",
        };
        let reasons = RendezvousReasons {
            backend: "",
            endpoint,
            run_id: id_reason,
            agent_restarts: "",
        };
        Ok((plan, RunId::new(run_id), reasons))
    }

    /// `true` if other hosts may reach the stores of the run.
    pub(super) fn is_reachable(&self, plan: &RendezvousPlan) -> bool {
        let is_local = |host: &str| {
            let address: Result<IpAddr, _> = host.parse();
            host == "localhost" || address.is_ok_and(|address| address.is_loopback())
        };
        let own = self.fixed.local_addr();
        let own_is_local = own.as_deref().is_none_or(is_local);
        match plan {
            RendezvousPlan::Local => !own_is_local,
            RendezvousPlan::Static { endpoint, .. } => !is_local(&endpoint.host),
            RendezvousPlan::Dynamic { parameters } => {
                let mut endpoints = parameters.endpoint.split(',');
                let is_far = |text: &str| {
                    let endpoint = Endpoint::parse(text, C10D_PORT);
                    endpoint.is_ok_and(|endpoint| !is_local(&endpoint.host))
                };
                !own_is_local || endpoints.any(is_far)
            }
        }
    }

    /// `true` if flags fix the rank of each node, or the node is alone.
    fn has_fixed_nodes(&self) -> bool {
        self.alone() || self.arguments.rdzv_backend == "static"
    }

    /// `true` if no other node can join this node.
    ///
    /// The reason is `--standalone`, or that no flag names other nodes.
    fn alone(&self) -> bool {
        self.arguments.standalone
            || (self.arguments.rdzv_backend == "static"
                && self.arguments.rdzv_endpoint.is_empty()
                && self.fixed.master_port.is_none()
                && self.nodes.most == 1)
    }

    /// Returns the rendezvous of a node that no other node can join.
    fn local(
        &self,
        run_id: &str,
        settings: &RendezvousConfig,
        context: &mut Context<'_>,
    ) -> Result<RendezvousPlan, Raised> {
        if self.arguments.standalone {
            let stars = "*".repeat(38);
            context.info(format!(
                "\n{stars}\nRendezvous info:\n--rdzv-backend=c10d --rdzv-endpoint=localhost:0 \
                 --rdzv-id={run_id}\n{stars}\n"
            ));
        }
        if self.nodes.most == 1 {
            return Ok(RendezvousPlan::Local);
        }
        // Other nodes cannot find this endpoint, as the user requested.
        let parameters = self.parameters("c10d", "localhost:0", run_id, settings)?;
        Ok(RendezvousPlan::Dynamic { parameters })
    }

    fn dynamic(
        &self,
        backend: &str,
        run_id: &str,
        settings: &RendezvousConfig,
        backends: &BackendRegistry,
    ) -> Result<RendezvousPlan, Raised> {
        let endpoint = self.arguments.rdzv_endpoint.as_str();
        let parameters = self.parameters(backend, endpoint, run_id, settings)?;
        if backend == "c10d" && self.nodes.most == 1 && is_private(endpoint) {
            // The backend is not needed, so only its options are checked.
            backends.create(&parameters).map_err(misplaced)?;
            return Ok(RendezvousPlan::Local);
        }
        // PyTorch has no lists of endpoints, and checks an endpoint only when it connects.
        if backend == "c10d" && (endpoint.contains(',') || settings.get("voters").is_some()) {
            C10dRendezvous::endpoints(&parameters).map_err(misplaced)?;
        }
        Ok(RendezvousPlan::Dynamic { parameters })
    }

    fn parameters(
        &self,
        backend: &str,
        endpoint: &str,
        run_id: &str,
        settings: &RendezvousConfig,
    ) -> Result<RendezvousParameters, Raised> {
        let (least, most) = (self.nodes.least, self.nodes.most);
        let mut parameters =
            RendezvousParameters::new(backend, endpoint, run_id, least, most, settings.clone())
                .map_err(misplaced)?;
        parameters.local_addr = self.fixed.local_addr();
        Ok(parameters)
    }

    fn fixed(&self, settings: &RendezvousConfig) -> Result<RendezvousPlan, Raised> {
        let (flag, text) = if self.arguments.rdzv_endpoint.is_empty() {
            let port = self.fixed.master_port.unwrap_or(MASTER_PORT);
            let text = match bare_host(&self.fixed.master_addr) {
                six if six.contains(':') => format!("[{six}]:{port}"),
                host => format!("{host}:{port}"),
            };
            ("--master-addr and --master-port", text)
        } else {
            let endpoint = self.arguments.rdzv_endpoint.trim();
            ("--rdzv-endpoint", endpoint.to_owned())
        };
        if text.is_empty() {
            return Err(Raised::value_error(
                "Endpoint is missing in endpoint. Try to add --master-addr and --master-port",
            )
            .plainly("--rdzv-endpoint is blank, but must be HOST:PORT with static rendezvous"));
        }
        let parsed = |default_port| {
            Endpoint::parse(&text, default_port)
                .map_err(|error| Raised::value_error(error.to_string()).about(flag))
        };
        let endpoint = parsed(0)?;
        // A port that depends on the default is missing.
        if endpoint.port != parsed(1)?.port {
            return Err(Raised::value_error(format!(
                "port is missing in endpoint: {text}. Try to specify --master-port"
            ))
            .plainly(format!(
                "--rdzv-endpoint is '{text}', but must be HOST:PORT with static rendezvous, such \
                 as {text}:{MASTER_PORT}"
            )));
        }
        let timeout = match settings.get("timeout") {
            Some(text) => number::int_or_raise(text).map_err(|raised| {
                raised.plainly(format!(
                    "--rdzv-conf: timeout is '{text}', but must be a whole number of seconds"
                ))
            })?,
            None => STATIC_TIMEOUT,
        };
        let (rank, nodes) = (self.fixed.node_rank, self.nodes);
        let node_rank = u32::try_from(rank).ok().filter(|rank| *rank < nodes.most);
        let node_rank = node_rank.ok_or_else(|| {
            Raised::value_error(format!(
                "--node-rank {rank} is not in 0..{} (--nnodes {}): nodes are numbered from 0",
                nodes.most, nodes.text
            ))
            .plainly(format!(
                "--node-rank is {rank}, but must be from 0 to {} with --nnodes {}",
                nodes.most - 1,
                nodes.text
            ))
        })?;
        Ok(RendezvousPlan::Static {
            endpoint,
            node_rank: GroupRank(node_rank),
            nodes: nodes.most,
            timeout: Duration::from_secs(u64::try_from(timeout).unwrap_or(0)),
        })
    }
}

/// Returns the endpoints in RDZV_CONTACT_POINTS.
///
/// A voter may listen at any port, so each endpoint needs a port.
pub(super) fn known_voters(text: &str) -> Result<Vec<Endpoint>, Refusal> {
    let endpoints = text.split(',').map(str::trim).filter(|it| !it.is_empty());
    let parsed = endpoints.map(|endpoint| match Endpoint::parse(endpoint, 0) {
        Ok(endpoint) if endpoint.port != 0 => Ok(endpoint),
        _ => Err(Refusal::Usage(format!(
            "{} contains '{endpoint}', which is not HOST:PORT; specify the endpoints of voters, \
             separated by commas, as `/status` and the log with LOGLEVEL=INFO show them",
            env::RDZV_CONTACT_POINTS
        ))),
    });
    parsed.collect()
}

/// Returns warnings about settings of voters that have no effect.
pub(super) fn without_effect(
    parameters: &RendezvousParameters,
    agent_restarts: u32,
) -> Vec<&'static str> {
    let is_c10d = parameters.backend == C10dRendezvous::NAME;
    let endpoints = C10dRendezvous::endpoints(parameters).unwrap_or_default();
    let is_list = endpoints.len() > 1;
    let asks_for_fence = parameters.config.get("fence") == Some("auto");
    // A list may name machines without an agent.
    let is_small = !is_list && parameters.max_nodes < 3;
    let is_alone = !is_list && parameters.config.get("voters") == Some("1");
    let is_hidden = endpoints.iter().any(|endpoint| endpoint.port == 0);
    let mut warnings = Vec::new();
    if is_c10d && asks_for_fence && (is_small || is_alone || is_hidden || agent_restarts == 0) {
        warnings.push(
            "--rdzv-conf: fence=auto has no effect: it needs at least three voters (from three \
             nodes, or a list of endpoints), an endpoint with a port other than 0, and \
             --agent-restarts of at least 1",
        );
    }
    if is_c10d && is_list && !parameters.known_voters.is_empty() {
        warnings.push(
            "RDZV_CONTACT_POINTS has no effect with a list of endpoints, because the list names \
             the voters",
        );
    }
    warnings
}

pub(super) fn value_error(flag: &str, error: &RendezvousError) -> Raised {
    Raised::value_error(error.to_string()).about(flag)
}

#[expect(clippy::needless_pass_by_value, reason = "as map_err passes it")]
fn misplaced(error: RendezvousError) -> Raised {
    value_error("--rdzv-endpoint, --rdzv-conf", &error)
}

fn unknown_backend(name: &str, backends: &BackendRegistry) -> String {
    let known = |name: &&str| *name == "static" || backends.contains(name);
    let names: Vec<&str> = BACKENDS.into_iter().filter(known).collect();
    let meant = did_you_mean(name, names.iter().copied());
    let names = names.join(", ");
    format!("--rdzv-backend is '{name}', but must be one of {names}{meant}")
}

/// Returns the error for port 0 and several nodes.
fn random_port(host: &str) -> Raised {
    let port = if host.is_empty() { "HOST" } else { host };
    Raised::value_error("the port of the rendezvous endpoint is 0").plainly(format!(
        "port 0 of the endpoint is a random port, which the other nodes cannot know: specify a \
         port, as in {port}:{C10D_PORT}"
    ))
}

/// `true` for a c10d endpoint that no other node can use.
fn is_private(endpoint: &str) -> bool {
    endpoint.trim().is_empty()
        || Endpoint::parse(endpoint, C10D_PORT).is_ok_and(|endpoint| {
            endpoint.port == 0 && ["localhost", "127.0.0.1", "::1"].contains(&&*endpoint.host)
        })
}
