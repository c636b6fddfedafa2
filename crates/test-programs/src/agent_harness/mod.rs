//! The smallest program around the agent: what its tests start, and how to use the crate.
//!
//! ```text
//! agent_harness [workers=N] [restarts=N] [grace=MS] [signals=15,2] [logs=DIR] [redirect=0..3]
//!               [tee=0..3] [console=0,1] [filter=TEXT] [prefix=TEMPLATE] [role=TEXT] [collapse]
//!               [static=HOST:PORT] [nodes=N] [node=N] [scripted=SOCKET] [launcher-error=PATH]
//!               [processors=0-3;4-7] [alone] -- PROGRAM ARGUMENT…
//! agent_harness count KEY      (as a worker: adds 1 to a key of the workers' store, prints the sum)
//! ```
//!
//! Runs the program under a keeper (without one if `alone` is given). Events and log lines go to
//! stderr as `event …` and `log …`, the outcome as `outcome …`; the exit code is 0 or 1.

mod scripted;

use std::collections::BTreeMap;
use std::env;
use std::fmt::{Debug, Write as _};
use std::path::PathBuf;
use std::process::{Command, exit};
use std::time::Duration;

use rdzv_agent::{
    AgentConfig, AgentEvent, Entrypoint, Exit, Failure, LogBase, LogPlan, Outcome, RankSelection,
    RendezvousPlan, StreamSelection, end_like, is_kept, keep, run, write_launcher_error_file,
};
use rdzv_agent_proto::topology::CpuList;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{BackendRegistry, RendezvousParameters};
use rdzv_store::{Store, TcpStore, TcpStoreOptions};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A line of stderr, in one piece: workers write there too.
macro_rules! say {
    ($($text:tt)*) => {
        rdzv_agent::write_own_lines(format!("{}\n", format_args!($($text)*)).as_bytes());
    };
}

pub(crate) fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [count, key] = &arguments[..]
        && count == "count"
    {
        return count_in_store(key);
    }
    let split = arguments
        .iter()
        .position(|argument| argument == "--")
        .unwrap_or(arguments.len());
    let options: BTreeMap<&str, &str> = arguments[..split]
        .iter()
        .map(|option| option.split_once('=').unwrap_or((option, "")))
        .collect();
    if !options.contains_key("alone") && !is_kept() {
        let mut agent = Command::new(env::current_exe().expect("a program knows its path"));
        agent.args(&arguments);
        match keep(agent) {
            Ok(end) => end_like(end.status),
            Err(error) => {
                say!("keeper: {error}");
                exit(1);
            }
        }
    }
    tracing::subscriber::set_global_default(LogLines).expect("nobody else has set one");
    let command = arguments.get(split + 1..).unwrap_or_default();
    let outcome = run(plan(&options, command), &mut |event| show(event));
    if let Some(path) = options.get("launcher-error") {
        write_launcher_error_file(path.as_ref(), &outcome).expect("the path can be written");
    }
    match &outcome {
        Outcome::Succeeded => {
            say!("outcome succeeded");
        }
        Outcome::Failed {
            failures,
            root_cause,
            ..
        } => {
            for Failure { evidence, .. } in failures {
                say!(
                    "failure local_rank={} exit={} stopped={} file={}",
                    evidence.local_rank.unwrap_or_default(),
                    evidence.exit.map_or(0, Exit::as_number),
                    evidence.stopped_by_agent,
                    match &evidence.error_file {
                        None => "none".to_owned(),
                        Some(file) => match &file.content {
                            Ok(content) => content.to_string(),
                            Err(reason) => format!("unusable ({reason})"),
                        },
                    }
                );
            }
            let root = failures[*root_cause].evidence.local_rank;
            say!("outcome failed root={}", root.unwrap_or_default());
        }
        Outcome::Signalled {
            signal,
            workers_started,
        } => {
            say!("outcome signalled signal={signal} workers_started={workers_started}");
        }
        Outcome::Preempted {
            signal, in_order, ..
        } => {
            say!("outcome preempted signal={signal} in_order={in_order}");
        }
        Outcome::Error(error) => {
            say!("outcome error {error}");
        }
    }
    exit(i32::from(!matches!(outcome, Outcome::Succeeded)));
}

fn count_in_store(key: &str) {
    let variable = |name: &str| env::var(name).expect("workers are told where the store is");
    let port = variable("MASTER_PORT").parse().expect("a port");
    let store = TcpStore::connect(TcpStoreOptions::new(variable("MASTER_ADDR"), port))
        .expect("the agent hosts the store");
    println!("{}", store.add(key, 1).expect("the store answers"));
}

fn plan(options: &BTreeMap<&str, &str>, command: &[String]) -> AgentConfig {
    let number = |name: &str, default: u32| {
        options
            .get(name)
            .map_or(default, |text| text.parse().expect("a number"))
    };
    let list = |name: &str| -> Vec<String> {
        options.get(name).map_or_else(Vec::new, |text| {
            text.split(',').map(str::to_owned).collect()
        })
    };
    let streams = |name: &str| {
        let value = number(name, 0);
        RankSelection::All(StreamSelection {
            stdout: value & 1 != 0,
            stderr: value & 2 != 0,
        })
    };
    let mut backends = BackendRegistry::default();
    backends
        .register("scripted", scripted::constructor())
        .expect("the registry was empty");
    let entrypoint = Entrypoint {
        program: command.first().expect("a program").into(),
        arguments: command[1..].iter().map(Into::into).collect(),
        name: command[0].clone(),
    };
    AgentConfig {
        role: options.get("role").unwrap_or(&"default").to_string(),
        local_world_size: number("workers", 1),
        rendezvous: match (options.get("static"), options.get("scripted")) {
            (None, None) => RendezvousPlan::Local,
            (None, Some(socket)) => RendezvousPlan::Dynamic {
                parameters: RendezvousParameters::new(
                    "scripted",
                    *socket,
                    "none",
                    1,
                    number("nodes", 1),
                    BTreeMap::new(),
                )
                .expect("numbers of nodes in order"),
            },
            (Some(endpoint), _) => RendezvousPlan::Static {
                endpoint: Endpoint::parse(endpoint, 29_500).expect("an endpoint"),
                node_rank: GroupRank(number("node", 0)),
                nodes: number("nodes", 1),
                timeout: Duration::from_secs(20),
            },
        },
        backends,
        max_restarts: number("restarts", 0),
        shutdown_timeout: Duration::from_millis(number("grace", 30_000).into()),
        signals: if options.contains_key("signals") {
            list("signals")
                .iter()
                .map(|text| text.parse().expect("a number"))
                .collect()
        } else {
            vec![15, 2, 1, 3]
        },
        logs: LogPlan {
            base: match options.get("logs") {
                Some(&"none") => LogBase::Discard,
                Some(path) => LogBase::Directory(PathBuf::from(path)),
                None => LogBase::Temporary(env::temp_dir()),
            },
            redirects: streams("redirect"),
            tee: streams("tee"),
            console_ranks: options.contains_key("console").then(|| {
                list("console")
                    .iter()
                    .map(|text| text.parse().expect("a number"))
                    .collect()
            }),
            stdout_filters: list("filter"),
            stderr_filters: Vec::new(),
            prefix_template: options
                .get("prefix")
                .unwrap_or(&"[${role_name}${local_rank}]:")
                .to_string(),
            collapse: options.contains_key("collapse"),
        },
        environment: env::vars_os().collect(),
        rendezvous_backend: "static".to_owned(),
        processors: options.get("processors").map_or_else(Vec::new, |lists| {
            lists
                .split(';')
                .map(|list| CpuList::parse(list).expect("a list of processors"))
                .collect()
        }),
        ..AgentConfig::builder(entrypoint).build()
    }
}

/// One word per event, and what tests look at.
fn show(event: &AgentEvent) {
    match event {
        AgentEvent::Rendezvous { .. } => {
            say!("event rendezvous");
        }
        AgentEvent::RanksAssigned { workers, .. } => {
            say!("event assigned workers={}", workers.len());
        }
        AgentEvent::WorkerStarted {
            worker,
            restart_count,
            ..
        } => {
            say!(
                "event started local_rank={} pid={} attempt={restart_count}",
                worker.local_rank,
                worker.pid
            );
        }
        AgentEvent::WorkerExited { worker, exit, .. } => {
            say!(
                "event exited local_rank={} exit={}",
                worker.local_rank,
                exit.as_number()
            );
        }
        AgentEvent::WorkerSignalled {
            pid,
            signal,
            forced,
            ..
        } => {
            say!("event signalled pid={pid} signal={signal} forced={forced}");
        }
        AgentEvent::Restarting { remaining, .. } => {
            say!("event restarting remaining={remaining}");
        }
        AgentEvent::AgentRestarted { reason, .. } => {
            say!("event agent restarted {reason}");
        }
        AgentEvent::Regrouping { reason, .. } => {
            say!("event regrouping {reason}");
        }
        AgentEvent::Watchdog { action, timer, .. } => {
            let scope = timer.as_ref().map_or("-", |timer| &timer.scope);
            say!("watchdog {} {scope}", action.name());
        }
        AgentEvent::Hang { report, .. } => {
            say!("hang {}", report.found.len());
        }
        AgentEvent::HangOver { .. } => {
            say!("hang over");
        }
        AgentEvent::SignalReceived { signal, .. } => {
            say!("event received signal={signal}");
        }
        AgentEvent::Preempted { signal, .. } => {
            say!("event preempted signal={signal}");
        }
        AgentEvent::WorkerFinal { worker, state, .. } => {
            say!("event final local_rank={} {state}", worker.local_rank);
        }
        AgentEvent::AgentFinal { state, .. } => {
            say!("event agent {state}");
        }
        // No test looks at the others here.
        _ => {}
    }
}

/// Writes each log line of warnings and errors to stderr.
struct LogLines;

impl Subscriber for LogLines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_ours = target.starts_with("rdzv") || target == rdzv_agent::TORCHELASTIC;
        is_ours && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        say!("log {}{}", event.metadata().level(), line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {value:?}");
    }
}
