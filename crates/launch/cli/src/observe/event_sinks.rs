//! The sinks of a run's events, and other resources that the run needs.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rdzv_agent::config::RendezvousPlan;
use rdzv_agent::launcher::LiveView;
use rdzv_agent::observe::{
    AgentMetrics, EventFile, EventRegistry, EventSink, EventSinks, InfoLines, MetricPoint,
    MetricsRegistry, MetricsSink, NodeReport, RunFacts, SharedReport, TorchelasticEvents,
};
use rdzv_agent::{AgentConfig, AgentEvent};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env;
use rdzv_rendezvous::GroupStatus;
use tempfile::{Builder, TempDir};

use super::hooks::OnRestart;
use super::prometheus;
use super::status_row::StatusRow;
use super::status_server::{self, Listener, Sources};
use crate::exit::Raised;
use crate::launch::{Hook, Observers, folder_of};
use crate::terminal::{complain, print_line};
use crate::views;
use crate::views::server::JobServer;
use crate::views::socket::AgentSocket;

/// All observers of a run, and other resources that exist until the run ends.
#[derive(Debug)]
pub(crate) struct Watchers {
    sinks: EventSinks,
    /// State of the run for `/status`, the metrics and the failure report.
    report: Arc<Mutex<NodeReport>>,
    /// Server of views.
    job: Option<JobServer>,
    /// Socket at which this user's views reach the agent.
    socket: Option<AgentSocket>,
    /// Directory of the workers' sockets.
    sockets: Option<TempDir>,
    /// Directory for the file with the notice of preemption.
    notice: Option<TempDir>,
}

impl Watchers {
    pub(crate) fn record(&mut self, event: &AgentEvent) {
        self.sinks.record(event);
    }

    /// Runs a command at each restart.
    pub(crate) fn on_restart(&mut self, hook: Hook, title: String) {
        self.sinks.add(OnRestart {
            hook,
            title,
            report: Arc::clone(&self.report),
            running: Vec::new(),
            is_stopped: false,
        });
    }

    /// Ends the observers after the run, and returns the report of the run.
    pub(crate) fn finish(&mut self) -> NodeReport {
        self.sinks.finish();
        if let Some(job) = &self.job {
            job.finish();
        }
        // The program may end without dropping this value, so the directories are removed now.
        self.socket = None;
        self.sockets = None;
        self.notice = None;
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        report.clone()
    }
}

/// Opens the observers of a run, and the resources that the run needs.
///
/// `shown` is `false` if the log level hides events.
pub(crate) fn open(
    plan: &mut AgentConfig,
    observers: &Observers,
    view: Option<&LiveView>,
    shown: bool,
) -> Result<Watchers, Raised> {
    let sockets = observers.worker_sockets_in.as_deref();
    let sockets = sockets
        .map(socket_directory)
        .transpose()
        .map_err(|error| refused("--worker-server: cannot create a directory", &error))?;
    plan.observe.worker_sockets = sockets.as_ref().map(|made| made.path().to_owned());
    let notice = notice_directory(plan)
        .map_err(|error| refused("--preempt-signal: cannot create a directory", &error))?;
    let facts = RunFacts::new(plan);
    let mut sinks = EventSinks::new();
    sinks.add(InfoLines::new(&facts, &observers.handler));
    if shown && let Some(sink) = registry().create(&observers.handler, &facts) {
        sinks.add_boxed(sink);
    }
    if observers.metrics_shown {
        let mut registry = MetricsRegistry::new();
        registry.configure(ShownMetrics, None);
        sinks.add(AgentMetrics::new(&facts, registry));
    }
    if let Some(path) = &observers.events_file {
        let file = EventFile::open(path, facts.clone());
        sinks.add(
            file.map_err(|error| refused(&format!("--events-file {}", path.display()), &error))?,
        );
    }
    #[cfg(feature = "otlp")]
    if let Some(url) = &observers.otlp {
        let spans = super::otlp::OtlpSpans::start(url, &facts);
        sinks.add(spans.map_err(|error| refused(&format!("--otlp {url}"), &error))?);
    }
    if let Some(view) = view {
        sinks.add(StatusRow::new(view.clone(), plan));
    }
    let report = Arc::new(Mutex::new(NodeReport::new(&facts)));
    sinks.add(SharedReport(Arc::clone(&report)));
    let listeners = listeners(observers)?;
    let (socket, user_listener) = views::socket::bind().unzip();
    let mut job = None;
    if !listeners.is_empty() || user_listener.is_some() {
        let group = GroupStatus::default();
        let mut has_peers = false;
        if let RendezvousPlan::Dynamic { parameters } = &mut plan.rendezvous.plan {
            parameters.group = Some(group.clone());
            has_peers = true;
        }
        let tool = plan.hang.stack_tool.clone();
        let server = JobServer::new(Arc::clone(&report), group.clone(), has_peers, tool);
        job = Some(server.clone());
        let beats = plan.observe.beats.clone();
        let (metrics, counters) =
            prometheus::metrics(&facts, Arc::clone(&report), beats, group.clone());
        sinks.add(counters);
        let sources = Sources {
            token: plan.rendezvous.store_policy.credentials.token.clone(),
            liveness: plan.observe.liveness.clone(),
            metrics,
            job: Some(server),
            group: Some(group),
            worker_sockets: plan.observe.worker_sockets.clone(),
        };
        status_server::start(listeners, user_listener, sources)
            .map_err(|error| refused("cannot serve the status page", &error))?;
    }
    Ok(Watchers {
        sinks,
        report,
        job,
        socket,
        sockets,
        notice,
    })
}

/// Creates the private directory for the file with the notice of preemption.
///
/// Workers get the path of the file in a variable.
fn notice_directory(plan: &mut AgentConfig) -> io::Result<Option<TempDir>> {
    let Some(preemption) = &mut plan.preemption else {
        return Ok(None);
    };
    let Some(folder) = folder_of(preemption) else {
        return Ok(None);
    };
    let directory = socket_directory(&folder)?;
    let file = directory.path().join("preempted");
    plan.environment
        .insert(env::RDZV_PREEMPT.into(), file.clone().into());
    preemption.file = Some(file);
    Ok(Some(directory))
}

/// Binds the listeners before the run begins, for early requests.
fn listeners(observers: &Observers) -> Result<Vec<Listener>, Raised> {
    let mut listeners = Vec::new();
    if let Some(Endpoint { host, port }) = &observers.status {
        let bound = Listener::bind(host, *port, false);
        let what = format!("--status-addr {host}:{port}");
        listeners.push(bound.map_err(|error| refused(&what, &error))?);
    }
    if let Some(port) = observers.health_port {
        let what = format!("{}={port}", env::TORCHELASTIC_HEALTH_CHECK_PORT);
        let bound = Listener::health(port);
        listeners.push(bound.map_err(|error| refused(&what, &error))?);
    }
    Ok(listeners)
}

/// Returns the default handlers, but with a console that never blocks.
fn registry() -> EventRegistry {
    let mut registry = EventRegistry::with_defaults();
    registry.register("console", |facts| {
        let mut events = TorchelasticEvents::new(facts.clone());
        Box::new(move |event: &AgentEvent| {
            if let Some(line) = events.line(event) {
                complain(&line);
            }
        })
    });
    registry
}

/// Console of metrics that never blocks.
#[derive(Debug)]
struct ShownMetrics;

impl MetricsSink for ShownMetrics {
    fn publish(&mut self, point: &MetricPoint<'_>) {
        print_line(&point.to_string());
    }
}

fn refused(what: &str, error: &io::Error) -> Raised {
    Raised::new("OSError", format!("{what}: {error}"))
}

/// Maximum length of a socket directory.
///
/// The path of a socket has at most 107 bytes, including the name of the socket.
const LONGEST_DIRECTORY: usize = 100;

/// Length that a directory adds to its parent: slash, prefix, six letters.
const NAME: usize = 1 + PREFIX.len() + 6;

const PREFIX: &str = "rdzv-";

/// Creates a private directory, for this user only.
///
/// It is in `temporary` if the paths of sockets fit there, and in `/tmp` otherwise. The directory
/// is removed when the returned value is dropped.
fn socket_directory(temporary: &Path) -> io::Result<TempDir> {
    let fits = OsStr::len(temporary.as_os_str()) + NAME <= LONGEST_DIRECTORY;
    let parent = if fits { temporary } else { Path::new("/tmp") };
    Builder::new()
        .prefix(PREFIX)
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_can_be_bound_wherever_temporary_files_are() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("x".repeat(100));
        std::fs::create_dir(&deep).unwrap();
        for temporary in [base.path(), &deep] {
            let directory = socket_directory(temporary).unwrap();
            let path = directory.path().to_owned();
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
            UnixListener::bind(path.join("127")).unwrap();
            drop(directory);
            assert!(!path.exists());
        }
    }
}
