//! The run as metrics for Prometheus (OpenMetrics text). What changes is counted as events come;
//! what is, is looked up when somebody asks.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use rdzv_agent::observe::{EventSink, NodeReport, RunFacts, event_name};
use rdzv_agent::{AgentEvent, Exit};
use rdzv_agent_proto::group::GroupState;

type Labels = [(&'static str, String); 1];

/// Counts events.
#[derive(Debug)]
pub(crate) struct Counters {
    events: Family<Labels, Counter>,
    exits: Family<Labels, Counter>,
    regroupings: Counter,
    rendezvous_failures: Counter,
    rendezvous: Histogram,
}

/// A registry with everything in it, and the sink that feeds it.
pub(crate) fn metrics(facts: &RunFacts, status: Arc<Mutex<NodeReport>>) -> (Registry, Counters) {
    let labels = [("run_id", &facts.run_id), ("role", &facts.role)];
    let labels = labels.map(|(name, value)| (name.into(), value.clone().into()));
    let mut registry = Registry::with_prefix_and_labels("rdzv", labels.into_iter());
    let counters = Counters {
        events: Family::default(),
        exits: Family::default(),
        regroupings: Counter::default(),
        rendezvous_failures: Counter::default(),
        // 1 ms to 17 min.
        rendezvous: Histogram::new(exponential_buckets(0.001, 4.0, 11)),
    };
    registry.register(
        "events",
        "Events of the run, by name",
        counters.events.clone(),
    );
    registry.register(
        "worker_exits",
        "Workers of this node that have ended, in all attempts, by cause",
        counters.exits.clone(),
    );
    registry.register(
        "regroupings",
        "Rounds given up because nodes came or went, which costs no restart",
        counters.regroupings.clone(),
    );
    registry.register(
        "rendezvous_failures",
        "Rendezvous that failed",
        counters.rendezvous_failures.clone(),
    );
    registry.register(
        "rendezvous_duration_seconds",
        "How long a rendezvous took",
        counters.rendezvous.clone(),
    );
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
            // Counted by name above; what they change is in the status.
            _ => {}
        }
    }
}

/// The kinds of causes that can be told from an exit alone.
fn cause(exit: Exit, stopped_by_agent: bool) -> &'static str {
    match exit {
        _ if exit.is_success() => "succeeded",
        _ if stopped_by_agent => "stopped_by_agent",
        Exit::Code(_) => "exit_code",
        Exit::Signal(_) => "signal",
    }
}

/// What is, at the time of the question.
struct Standing {
    status: Arc<Mutex<NodeReport>>,
    started: Instant,
}

impl fmt::Debug for Standing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Standing").finish_non_exhaustive()
    }
}

impl Collector for Standing {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.status.lock();
        let status = status.unwrap_or_else(PoisonError::into_inner).clone();
        let used = f64::from(status.restart_count);
        let gauges = [
            (
                "uptime_seconds",
                "How long the agent has been running.",
                Some(self.started.elapsed().as_secs_f64()),
            ),
            ("restarts_used", "Restarts that were used.", Some(used)),
            (
                "restarts_remaining",
                "Restarts that are left.",
                Some(f64::from(status.max_restarts) - used),
            ),
            (
                "group_world_size",
                "Agents in the current round.",
                status.group_world_size.map(f64::from),
            ),
            (
                "group_rank",
                "This agent's number.",
                status.group_rank.map(f64::from),
            ),
            (
                "round",
                "Number of the current round.",
                status.round.map(|round| round as f64),
            ),
        ];
        let mut plain = Plain(&mut encoder);
        for (name, help, value) in gauges {
            if let Some(value) = value {
                plain.gauge(name, help, value)?;
            }
        }
        plain.states(&status)?;
        plain.workers(&status)
    }
}

/// Writes gauges without making them.
struct Plain<'e, 'd>(&'e mut DescriptorEncoder<'d>);

impl Plain<'_, '_> {
    fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let gauge = ConstGauge::new(value);
        let kind = gauge.metric_type();
        gauge.encode(self.0.encode_descriptor(name, help, None, kind)?)
    }

    /// One line per label; nothing if there are none.
    fn family<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        lines: &[([(&str, String); N], f64)],
    ) -> fmt::Result {
        if lines.is_empty() {
            return Ok(());
        }
        let kind = ConstGauge::new(0.0).metric_type();
        let mut encoder = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in lines {
            let line = encoder.encode_family(labels)?;
            ConstGauge::new(*value).encode(line)?;
        }
        Ok(())
    }

    fn states(&mut self, status: &NodeReport) -> fmt::Result {
        let states = [
            GroupState::Unknown,
            GroupState::Init,
            GroupState::Healthy,
            GroupState::Unhealthy,
            GroupState::Stopped,
            GroupState::Succeeded,
            GroupState::Failed,
        ];
        let lines = states.map(|state| {
            let name = state.name();
            let holds = name == status.state;
            ([("state", name.to_lowercase())], f64::from(u8::from(holds)))
        });
        self.family("worker_group_state", "1 for the state that holds.", &lines)
    }

    fn workers(&mut self, status: &NodeReport) -> fmt::Result {
        let running: Vec<_> = status
            .workers
            .iter()
            .map(|worker| {
                let labels = [
                    ("local_rank", worker.identity.local_rank.to_string()),
                    ("rank", worker.identity.rank.to_string()),
                ];
                (labels, f64::from(u8::from(worker.running)))
            })
            .collect();
        self.family("worker_running", "1 while the worker runs.", &running)?;
        let mut sizes = Vec::new();
        for worker in &status.workers {
            for (stream, path) in [("stdout", &worker.stdout), ("stderr", &worker.stderr)] {
                let held = path.as_ref().and_then(|path| path.metadata().ok());
                if let Some(held) = held {
                    let labels = [
                        ("local_rank", worker.identity.local_rank.to_string()),
                        ("stream", stream.to_owned()),
                    ];
                    sizes.push((labels, held.len() as f64));
                }
            }
        }
        let help = "Size of a log file of the current attempt.";
        self.family("worker_log_bytes", help, &sizes)
    }
}
