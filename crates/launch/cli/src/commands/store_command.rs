//! `rdzv store`: runs a separate key/value store until a signal ends it.

use std::io::{self, Write};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rdzv_agent::health::Liveness;
use rdzv_agent::launcher::Service;
use rdzv_core::endpoint::Endpoint;
use rdzv_rendezvous::dynamic::StoreVoter;
use rdzv_rendezvous::dynamic::native::{self, NoteFile, Origin};
use rdzv_rendezvous::{GroupStatus, Onlookers, RendezvousError};
use rdzv_store::{Admission, Limits, ServerOptions, StoreError, TcpStoreServer, Token, parse_size};

use crate::exit::Exit;
use crate::launch::{host_name, status_address};
use crate::observe::group_metrics;
use crate::observe::status_server::{self, Listener, Sources};
use crate::terminal::{FINAL_FLUSH, complain, finish_lines, start_lines};
use crate::trust::{self, NO_TOKEN, Trust, TrustArgs};

/// Flags of `rdzv store`.
#[derive(Debug, Clone, Args, PartialEq, Eq)]
pub(crate) struct StoreArgs {
    /// Name or address to listen on (default: all addresses of this host)
    #[arg(long, value_name = "HOST")]
    host: Option<String>,

    /// Port to listen on; 0 selects a free port.
    ///
    /// The first line on stdout reports the address in use.
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    port: u16,

    /// Maximum length of a key.
    #[arg(long, value_name = "SIZE", default_value = "8KiB", value_parser = parse_size)]
    max_key_size: usize,

    /// Maximum length of the value in one request.
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = parse_size)]
    max_value_size: usize,

    /// Maximum number of keys and queues in the store.
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    max_keys: usize,

    /// Maximum number of connections at a time.
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    max_connections: usize,

    /// Maximum memory for keys, values and the buffers of all connections.
    ///
    /// The connection of a client other than an agent can use at most an eighth of this memory. All
    /// connections from one address together can use at most a quarter, unless an agent has joined
    /// from there. Once three quarters are in use, only agents can store more. The store closes the
    /// connection of a peer that exceeds its share; other peers are not affected.
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = parse_size)]
    max_memory: usize,

    /// Restart a killed store up to N times in a row (0 disables restarts)
    ///
    /// Only a store that dies within 10 s of its start counts. A restarted store uses the same
    /// sockets. Its keys are lost, and clients have to connect again. However, rdzv agents that use
    /// the store for their rendezvous keep their round, and their workers are not affected.
    #[arg(long, value_name = "N", default_value_t = 3)]
    restarts: u32,

    /// Seconds that agents wait for this store if it is lost.
    ///
    /// With --restarts 0, agents do not wait, except for a store with --join.
    #[arg(long, value_name = "SECONDS", default_value_t = AWAITED)]
    coordinator_timeout: u64,

    /// Confirm that the previous store and all missing agents have exited.
    ///
    /// A store can start at the address of an earlier store that has exited. If agents of the
    /// earlier store reach the new one, the new store waits for all agents of their round. With
    /// this flag, the new store continues after 3 s without the missing agents. A store with
    /// --restarts 0 has no record of agents, so it refuses the flag.
    #[arg(long)]
    recover: bool,

    /// Run as a voter of a job; ENDPOINTS is the list that its agents use.
    ///
    /// A job on two machines can have its third voter on a third machine: `rdzv run --rdzv-backend
    /// c10d --rdzv-endpoint a:29400,b,c` on a and b, and `rdzv store --join a:29400,b,c` on c. The
    /// store listens at the endpoint that belongs to its machine. Two of three voters are enough,
    /// so the rendezvous continues after the loss of any one machine. A new job waits until all
    /// voters run. A lost voter can be restarted at any time.
    #[arg(long, value_name = "ENDPOINTS", conflicts_with_all = ["host", "port", "recover"])]
    join: Option<String>,

    /// Seconds of silence after which a machine is lost (default: 3)
    ///
    /// Use the `node_timeout` of the agents (--rdzv-conf).
    #[arg(long, value_name = "SECONDS", requires = "join")]
    node_timeout: Option<String>,

    /// Serve health, metrics and status over HTTP at this address.
    ///
    /// `/` returns 200 while the store makes progress, and 503 otherwise. `/metrics` is for
    /// Prometheus. `/status` shows the coordinator's group of voters as JSON. A port without a host
    /// is served on 127.0.0.1. Port 0 selects a free port; with LOGLEVEL=INFO, the store logs it.
    #[arg(long, value_name = "[HOST:]PORT")]
    status_addr: Option<String>,

    #[command(flatten, next_help_heading = "Job token and TLS")]
    trust: TrustArgs,
}

impl StoreArgs {
    /// Returns the limits of these flags; the others are the server's defaults.
    fn limits(&self) -> Limits {
        Limits {
            max_key_bytes: self.max_key_size,
            max_value_bytes: self.max_value_size,
            max_keys: self.max_keys,
            max_connections: self.max_connections,
            max_memory_bytes: self.max_memory,
            ..Limits::default()
        }
    }
}

/// Time that clients have to disconnect once the server stops.
const LINGER: Duration = Duration::from_millis(200);

/// The same time for a voter, which first hands over to another voter.
const HAND_OVER: Duration = Duration::from_millis(500);

/// Default of `--coordinator-timeout`, in seconds.
const AWAITED: u64 = 60;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Misuse(String);

/// Serves until SIGTERM, SIGINT or SIGHUP.
pub(crate) fn run(arguments: &StoreArgs) -> ExitCode {
    let directory = std::env::current_dir().unwrap_or_default();
    let trust = arguments
        .trust
        .resolve(|name| std::env::var_os(name), &directory);
    // The token has been read, so the copy is not needed any more.
    trust::remove_copy();
    let trust = match trust {
        Ok(trust) => trust,
        Err(refusal) => {
            complain(&format!("rdzv store: {}", refusal.plain()));
            return Exit::Usage.into();
        }
    };
    let code = match serve(arguments, trust) {
        Ok(None) => Exit::Success,
        // The process that served has reported everything.
        Ok(Some(ended)) => rdzv_agent::launcher::end_like(ended),
        Err(error) => {
            complain(&format!("rdzv store: {error:#}"));
            if error.is::<Misuse>() {
                Exit::Usage
            } else {
                Exit::Failure
            }
        }
    };
    finish_lines(Some(FINAL_FLUSH));
    code.into()
}

/// Serves, or keeps the process that serves.
///
/// Returns the exit status of the serving process to its keeper, and `None` to that process.
fn serve(arguments: &StoreArgs, trust: Trust) -> anyhow::Result<Option<ExitStatus>> {
    if arguments.recover && arguments.restarts == 0 {
        let problem = "--recover has no effect with --restarts 0\nhelp: omit one of the two flags";
        return Err(Misuse(problem.to_owned()).into());
    }
    rdzv_agent::launcher::host::raise_open_files_limit();
    // Signals are blocked before the address is known, so that none can arrive too early.
    let ends = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    ends.thread_block().context("cannot handle signals")?;
    let mut options = ServerOptions {
        host: arguments.host.clone(),
        port: arguments.port,
        limits: arguments.limits(),
        ..ServerOptions::default()
    };
    options.admission = Admission {
        credentials: trust.credentials,
        torch_clients: trust.torch_clients,
        agent_prefix: None,
    };
    let is_open = options.admission.credentials.is_empty();
    // All restarted processes use the same socket, so it is bound before the first one starts.
    let status = StatusPage::bind(arguments.status_addr.as_deref())?;
    let group = status.as_ref().map(|status| status.group.clone());
    let onlookers = Onlookers {
        recorder: None,
        group: group.clone(),
    };
    let timeout = Duration::from_secs(arguments.coordinator_timeout);
    let (mut restart, mut linger) = (None, LINGER);
    if let Some(list) = &arguments.join {
        let misuse = |error: RendezvousError| Misuse(format!("--join: {error}"));
        let endpoints = StoreVoter::endpoints(list).map_err(misuse)?;
        let node_timeout = StoreVoter::node_timeout(arguments.node_timeout.as_deref());
        let node_timeout =
            node_timeout.map_err(|error| Misuse(format!("--node-timeout: {error}")))?;
        let Some(voter) = StoreVoter::listen(endpoints).map_err(misuse)? else {
            return Err(anyhow!(
                "cannot listen on any endpoint of this machine in {list}; an agent that is already \
                 the voter may use the port"
            ));
        };
        if arguments.restarts > 0 {
            match rdzv_agent::launcher::keep_service(arguments.restarts)? {
                Service::Serves(why) => restart = why,
                Service::Ended(ended) => return Ok(Some(ended)),
            }
        }
        // The voter has threads, so the serving process creates it, after the fork.
        let serves = voter.serve_with(&mut options, timeout, node_timeout, onlookers);
        serves.with_context(|| format!("cannot become a voter at {}", voter.endpoint()))?;
        linger = HAND_OVER;
    } else if arguments.restarts == 0 {
        let listeners = TcpStoreServer::listen(options.host.as_deref(), options.port);
        options.listeners = listeners.map_err(failed)?;
        options.extension = Some(native::observed(own_endpoint(&options), onlookers));
    } else {
        let listeners = TcpStoreServer::listen(options.host.as_deref(), options.port);
        options.listeners = listeners.map_err(failed)?;
        let mut note = NoteFile::new(timeout).context("cannot allocate memory for the record")?;
        match rdzv_agent::launcher::keep_service(arguments.restarts)? {
            Service::Serves(why) => restart = why,
            Service::Ended(ended) => return Ok(Some(ended)),
        }
        note.reopen()
            .context("cannot read the record of the previous store")?;
        let origin = Origin {
            agent: None,
            addresses: native::addresses(&options.listeners),
            recover: arguments.recover,
            ..Origin::default()
        };
        let own = own_endpoint(&options);
        options.extension = Some(native::restartable(note, origin, own, onlookers));
    }
    // This thread starts after the signals were blocked, so that it does not receive them.
    start_lines();
    let ends =
        SignalFd::with_flags(&ends, SfdFlags::SFD_CLOEXEC).context("cannot handle signals")?;
    if let Some(restart) = &restart {
        tracing::warn!("the store {restart}");
    } else {
        for warning in &trust.warnings {
            tracing::warn!("{warning}");
        }
    }
    let (token, mut watched) = (options.admission.credentials.token.clone(), None);
    let liveness = Liveness::new();
    if let Some(status) = status {
        status.start(&liveness, token)?;
    }
    let served = TcpStoreServer::serve(options, ends.into(), linger, |address, pinger| {
        watched = Some(liveness.watch("store server", Arc::clone(&pinger)));
        if let Some(group) = &group {
            group.ask(pinger);
        }
        if restart.is_some() {
            return;
        }
        if is_open && !address.ip().is_loopback() {
            tracing::warn!("{NO_TOKEN}");
        }
        let mut stdout = io::stdout().lock();
        // If the reader of stdout has exited, clients may still need the store.
        let _ = writeln!(stdout, "listening on {address}");
        let _ = stdout.flush();
    });
    served.map_err(failed)?;
    Ok(None)
}

struct StatusPage {
    listener: Listener,
    group: GroupStatus,
}

impl StatusPage {
    fn bind(address: Option<&str>) -> anyhow::Result<Option<Self>> {
        let Some(address) = address else {
            return Ok(None);
        };
        let address = status_address(address).map_err(|error| Misuse(error.plain().to_owned()))?;
        let listener = Listener::bind(&address.host, address.port, false);
        let listener = listener.map_err(|error| anyhow!("--status-addr {address}: {error}"))?;
        let group = GroupStatus::default();
        Ok(Some(Self { listener, group }))
    }

    fn start(self, liveness: &Liveness, token: Option<Token>) -> anyhow::Result<()> {
        let sources = Sources {
            liveness: liveness.clone(),
            metrics: group_metrics::of_store(self.group.clone()),
            job: None,
            group: Some(self.group),
            token,
            worker_sockets: None,
        };
        status_server::start(vec![self.listener], None, sources)
            .context("cannot serve the status page")
    }
}

/// Returns the endpoint at which agents probably reach this store.
fn own_endpoint(options: &ServerOptions) -> String {
    let listener = options.listeners.first();
    let port = listener.and_then(|listener| listener.local_addr().ok());
    let host = options.host.clone().unwrap_or_else(host_name);
    let port = port.map_or(options.port, |address| address.port());
    Endpoint { host, port }.to_string()
}

/// Converts an error to its complete text.
///
/// As a cause, the text would appear twice.
#[expect(clippy::needless_pass_by_value, reason = "as map_err passes it")]
fn failed(error: StoreError) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        store: StoreArgs,
    }

    #[test]
    fn the_defaults_are_the_servers() {
        let line = Line::try_parse_from(["store"]).unwrap();
        assert_eq!(line.store.limits(), Limits::default());
    }
}
