//! Metrics of the run for Prometheus (OpenMetrics text).
//!
//! Most counters follow the events. The others, and all gauges, are computed for each request.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use rdzv_agent::AgentEvent;
use rdzv_agent::event::GroupEvent;
use rdzv_agent::observe::{
    Beats, EventSink, NodeReport, RunFacts, WorkerStatus, event_name, last_output, usage,
};
use rdzv_agent::outcome::Exit;
use rdzv_agent_proto::group::GroupState;
use rdzv_rendezvous::GroupStatus;

use super::group_metrics::GroupMetrics;

type Labels = [(&'static str, String); 1];

#[derive(Debug)]
pub(crate) struct Counters {
    events: Family<Labels, Counter>,
    exits: Family<Labels, Counter>,
    exit_codes: Family<Labels, Counter>,
    restart_seconds: Family<Labels, Counter<f64, AtomicU64>>,
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
    beats: Beats,
    group: GroupStatus,
) -> (Registry, Counters) {
    let (run_id, role) = (facts.run_id.clone(), facts.role.clone());
    let labels = [
        ("run_id", run_id),
        ("role", role),
        ("node", facts.host.to_string()),
    ];
    let labels = labels.map(|(name, value)| (name.into(), value.into()));
    let mut registry = Registry::with_prefix_and_labels("rdzv", labels.into_iter());
    let counters = Counters {
        events: Family::default(),
        exits: Family::default(),
        exit_codes: Family::default(),
        restart_seconds: Family::default(),
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
    let help = "Exited workers of this node in all attempts, by exit code or negated signal";
    registry.register("worker_exit_codes", help, counters.exit_codes.clone());
    let help = "Seconds of the restarts of this node, by span";
    registry.register("restart_seconds", help, counters.restart_seconds.clone());
    let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("build", "Version of rdzv", build);
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
        beats,
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
                let code = exit.as_number().to_string();
                self.exit_codes.get_or_create(&[("exit_code", code)]).inc();
            }
            AgentEvent::Restarted { restart, .. } => {
                for (span, took) in restart.spans() {
                    let labels = [("span", span.to_owned())];
                    let seconds = self.restart_seconds.get_or_create(&labels);
                    seconds.inc_by(took.as_secs_f64());
                }
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

/// Returns the kind of the cause of an exit.
fn cause(exit: Exit, stopped_by_agent: bool) -> &'static str {
    match exit {
        _ if exit.is_success() => "succeeded",
        _ if stopped_by_agent => "stopped_by_agent",
        Exit::Code(_) => "exit_code",
        Exit::Signal(_) => "signal",
    }
}

/// Collector of the state at the time of a request.
#[derive(Debug)]
struct Standing {
    status: Arc<Mutex<NodeReport>>,
    beats: Beats,
    started: Instant,
}

impl Collector for Standing {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = self.status.lock();
        let status = status.unwrap_or_else(PoisonError::into_inner).clone();
        let mut used = Vec::new();
        for worker in status.workers.iter().filter(|worker| worker.running) {
            used.extend(usage(worker.identity.pid).map(|usage| (of_worker(worker), usage)));
        }
        let kind = ConstGauge::new(0.0).metric_type();
        let memory = used.iter();
        let memory = memory.map(|(labels, usage)| (labels.clone(), usage.memory as f64));
        let help = "Resident memory of the process of a worker.";
        let memory = ("worker_resident_memory_bytes", help, memory.collect());
        for (name, help, lines) in self.gauges(&status).into_iter().chain([memory]) {
            if lines.is_empty() {
                continue;
            }
            let mut gauge = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in lines {
                ConstGauge::new(value).encode(gauge.encode_family(&labels)?)?;
            }
        }
        if !used.is_empty() {
            let kind = ConstCounter::new(0.0).metric_type();
            let help = "Processor time of the process of a worker.";
            let mut counter = encoder.encode_descriptor("worker_cpu_seconds", help, None, kind)?;
            for (labels, usage) in used {
                let seconds = ConstCounter::new(usage.processor.as_secs_f64());
                seconds.encode(counter.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

type WorkerLabels = Vec<(&'static str, String)>;

/// Lines of a gauge: labels and value of each.
type Lines = Vec<(WorkerLabels, f64)>;

fn of_worker(worker: &WorkerStatus) -> WorkerLabels {
    let identity = &worker.identity;
    let local_rank = ("local_rank", identity.local_rank.to_string());
    vec![local_rank, ("rank", identity.rank.to_string())]
}

impl Standing {
    /// Returns name, help and lines of each gauge.
    ///
    /// A gauge that does not apply now has no lines.
    fn gauges(&self, status: &NodeReport) -> [(&'static str, &'static str, Lines); 13] {
        let plain = |value: Option<f64>| Vec::from_iter(value.map(|value| (Vec::new(), value)));
        let flag = |holds: bool| f64::from(u8::from(holds));
        let restarts = status.restart_count;
        let help = "Seconds since the agent started.";
        let uptime = self.started.elapsed().as_secs_f64();
        let uptime = ("uptime_seconds", help, plain(Some(uptime)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0.0, |now| now.as_secs_f64());
        let share = plain(status.goodput.share(now));
        let times = status.goodput.at(now).into_iter();
        let times =
            times.map(|(class, seconds)| (vec![("class", class.name().to_owned())], seconds));
        let used = plain(Some(restarts.into()));
        let remaining = status.max_restarts.saturating_sub(status.job_restarts);
        let remaining = plain(Some(remaining.into()));
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
        let (mut ages, mut steps) = (Vec::new(), Vec::new());
        for worker in &status.workers {
            let local_rank = ("local_rank", worker.identity.local_rank.to_string());
            running.push((of_worker(worker), flag(worker.running)));
            if worker.running {
                let beat = self.beats.of(worker.identity.local_rank);
                let output = last_output(worker).map(|at| at as f64);
                let beaten = beat.map(|beat| beat.at.unix_seconds_f64());
                let latest = output.into_iter().chain(beaten).reduce(f64::max);
                ages.extend(latest.map(|at| (of_worker(worker), (now - at).max(0.0))));
                let step = beat.and_then(|beat| beat.step);
                steps.extend(step.map(|step| (of_worker(worker), step as f64)));
            }
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
            (
                "restarts_used",
                "Number of restarts that this node has used.",
                used,
            ),
            (
                "restarts_remaining",
                "Number of restarts that the job has left.",
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
            (
                "worker_progress_age_seconds",
                "Seconds since the last heartbeat of the worker, or its last output to a file.",
                ages,
            ),
            (
                "worker_step",
                "Last step in a heartbeat of the worker.",
                steps,
            ),
            (
                "wall_time_seconds",
                "Wall time of this node by class; the classes sum to the wall time.",
                times.collect(),
            ),
            (
                "goodput_ratio",
                "Share of the wall time of this node in which workers ran and repeated nothing.",
                share,
            ),
        ]
    }
}

#[cfg(test)]
mod tests;
