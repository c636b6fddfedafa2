//! Metrics of the run for Prometheus (OpenMetrics text).
//!
//! Counters follow the events. Gauges are computed for each request.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use rdzv_agent::AgentEvent;
use rdzv_agent::event::GroupEvent;
use rdzv_agent::observe::{EventSink, NodeReport, RunFacts, event_name};
use rdzv_agent::outcome::Exit;
use rdzv_agent_proto::group::GroupState;
use rdzv_rendezvous::GroupStatus;

use super::group_metrics::GroupMetrics;

type Labels = [(&'static str, String); 1];

#[derive(Debug)]
pub(crate) struct Counters {
    events: Family<Labels, Counter>,
    exits: Family<Labels, Counter>,
    regroupings: Counter,
    agent_restarts: Counter,
    rendezvous_failures: Counter,
    rendezvous: Histogram,
    reattach: Histogram,
    fenced_seconds: Counter<f64, AtomicU64>,
}

/// Returns a registry with all metrics, and the sink that updates the counters.
pub(crate) fn metrics(
    facts: &RunFacts,
    status: Arc<Mutex<NodeReport>>,
    group: GroupStatus,
) -> (Registry, Counters) {
    let labels = [("run_id", &facts.run_id), ("role", &facts.role)];
    let labels = labels.map(|(name, value)| (name.into(), value.clone().into()));
    let mut registry = Registry::with_prefix_and_labels("rdzv", labels.into_iter());
    let counters = Counters {
        events: Family::default(),
        exits: Family::default(),
        regroupings: Counter::default(),
        agent_restarts: Counter::default(),
        rendezvous_failures: Counter::default(),
        // 1 ms to 17 min.
        rendezvous: Histogram::new(exponential_buckets(0.001, 4.0, 11)),
        reattach: Histogram::new(exponential_buckets(0.001, 4.0, 11)),
        fenced_seconds: Counter::default(),
    };
    let help = "Events of the run, by name";
    registry.register("events", help, counters.events.clone());
    let help = "Exited workers of this node in all attempts, by cause";
    registry.register("worker_exits", help, counters.exits.clone());
    let help = "Rounds that ended because the membership changed";
    registry.register("regroupings", help, counters.regroupings.clone());
    let help = "Agents of this node that were killed and restarted";
    registry.register("agent_restarts", help, counters.agent_restarts.clone());
    let (help, failures) = ("Failed rendezvous", &counters.rendezvous_failures);
    registry.register("rendezvous_failures", help, failures.clone());
    let (help, rendezvous) = ("Duration of a rendezvous in seconds", &counters.rendezvous);
    registry.register("rendezvous_duration_seconds", help, rendezvous.clone());
    let help = "Duration of a lost connection to the coordinator in seconds";
    registry.register("reattach_seconds", help, counters.reattach.clone());
    let help = "Seconds for which workers were suspended, added when they resume or are killed";
    registry.register("fenced_seconds", help, counters.fenced_seconds.clone());
    registry.register_collector(Box::new(GroupMetrics(group)));
    registry.register_collector(Box::new(Standing {
        status,
        started: Instant::now(),
    }));
    (registry, counters)
}

impl EventSink for Counters {
    fn record(&mut self, event: &AgentEvent) {
        let name = event_name(event).to_owned();
        self.events.get_or_create(&[("event", name)]).inc();
        match event {
            AgentEvent::Rendezvous { took, result, .. } => {
                self.rendezvous.observe(took.as_secs_f64());
                if result.is_err() {
                    self.rendezvous_failures.inc();
                }
            }
            AgentEvent::WorkerExited {
                exit,
                stopped_by_agent,
                ..
            } => {
                let cause = cause(*exit, *stopped_by_agent).to_owned();
                self.exits.get_or_create(&[("cause", cause)]).inc();
            }
            AgentEvent::Regrouping { .. } => {
                self.regroupings.inc();
            }
            AgentEvent::AgentRestarted { restarts, .. } => {
                self.agent_restarts.inc_by(u64::from(*restarts));
            }
            AgentEvent::Group { event, .. } => match event {
                GroupEvent::Reattached { took, .. } => self.reattach.observe(took.as_secs_f64()),
                GroupEvent::Unfenced { stood, .. } => {
                    self.fenced_seconds.inc_by(stood.as_secs_f64());
                }
                _ => {}
            },
            // Other events are counted by name above, and the gauges show their effects.
            _ => {}
        }
    }
}

/// Returns the kind of cause that an exit alone shows.
fn cause(exit: Exit, stopped_by_agent: bool) -> &'static str {
    match exit {
        _ if exit.is_success() => "succeeded",
        _ if stopped_by_agent => "stopped_by_agent",
        Exit::Code(_) => "exit_code",
        Exit::Signal(_) => "signal",
    }
}

/// Collector of the gauges: the state at the time of a request.
#[derive(Debug)]
struct Standing {
    status: Arc<Mutex<NodeReport>>,
    started: Instant,
}

impl Collector for Standing {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.status.lock();
        let status = status.unwrap_or_else(PoisonError::into_inner).clone();
        let kind = ConstGauge::new(0.0).metric_type();
        for (name, help, lines) in gauges(&status, self.started.elapsed()) {
            if lines.is_empty() {
                continue;
            }
            let mut gauge = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in lines {
                ConstGauge::new(value).encode(gauge.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Lines of a gauge: labels and value of each.
type Lines = Vec<(Vec<(&'static str, String)>, f64)>;

/// Returns name, help and lines of each gauge.
///
/// A gauge that does not apply now has no lines.
fn gauges(status: &NodeReport, uptime: Duration) -> [(&'static str, &'static str, Lines); 9] {
    let plain = |value: Option<f64>| Vec::from_iter(value.map(|value| (Vec::new(), value)));
    let flag = |holds: bool| f64::from(u8::from(holds));
    let restarts = status.restart_count;
    let help = "Seconds since the agent started.";
    let uptime = ("uptime_seconds", help, plain(Some(uptime.as_secs_f64())));
    let used = plain(Some(restarts.into()));
    let remaining = plain(Some(f64::from(status.max_restarts) - f64::from(restarts)));
    let agents = plain(status.group_world_size.map(f64::from));
    let own_rank = plain(status.group_rank.map(f64::from));
    let round = plain(status.round.map(|round| round as f64));
    let states = [
        GroupState::Unknown,
        GroupState::Init,
        GroupState::Healthy,
        GroupState::Unhealthy,
        GroupState::Stopped,
        GroupState::Succeeded,
        GroupState::Failed,
    ];
    let states = states.map(GroupState::name).map(|name| {
        let labels = vec![("state", name.to_lowercase())];
        (labels, flag(name == status.state))
    });
    let (mut running, mut sizes) = (Vec::new(), Vec::new());
    for worker in &status.workers {
        let local_rank = ("local_rank", worker.identity.local_rank.to_string());
        let rank = ("rank", worker.identity.rank.to_string());
        running.push((vec![local_rank.clone(), rank], flag(worker.running)));
        for (stream, path) in [("stdout", &worker.stdout), ("stderr", &worker.stderr)] {
            if let Some(file) = path.as_ref().and_then(|path| path.metadata().ok()) {
                let labels = vec![local_rank.clone(), ("stream", stream.to_owned())];
                sizes.push((labels, file.len() as f64));
            }
        }
    }
    let size = "Size in bytes of a log file of the current attempt.";
    [
        uptime,
        ("restarts_used", "Number of used restarts.", used),
        (
            "restarts_remaining",
            "Number of remaining restarts.",
            remaining,
        ),
        (
            "group_world_size",
            "Number of agents in the current round.",
            agents,
        ),
        (
            "group_rank",
            "Rank of this agent among the agents.",
            own_rank,
        ),
        ("round", "Number of the current round.", round),
        (
            "worker_group_state",
            "1 for the current state, 0 for other states.",
            states.into(),
        ),
        (
            "worker_running",
            "1 while the worker is running, otherwise 0.",
            running,
        ),
        ("worker_log_bytes", size, sizes),
    ]
}
