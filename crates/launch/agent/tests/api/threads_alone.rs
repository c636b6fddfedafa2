//! Tests of a custom agent on one node: a supervisor that the library drives.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdzv_agent::AgentEvent;
use rdzv_agent::api::{
    ElasticAgent, MonitorResult, RunError, RunResult, SimpleElasticAgent, StartRequest,
    SupervisorError, WorkerEntrypoint, WorkerGroup, WorkerLocation, WorkerSpec, WorkerSpecBuilder,
    WorkerState, WorkerSupervisor,
};
use rdzv_agent::observe::{MetricPoint, MetricsRegistry, MetricsSink};
use rdzv_agent::outcome::Finality;
use rdzv_core::rank::{LocalRank, Rank};
use serde_json::json;

use crate::threads::ThreadWorkers;
use crate::{noted, second_attempt, wait_for_stop};

fn spec() -> WorkerSpecBuilder {
    WorkerSpec::builder(WorkerEntrypoint::command("a thread"))
        .local_world_size(2)
        .signals(Vec::new())
}

#[test]
fn threads_return_values_by_global_rank() {
    let work = ThreadWorkers::new(|request, _| Ok(json!(request.ranks.rank.0 * 10)));
    let mut agent = SimpleElasticAgent::new(spec().build().unwrap(), work);
    let result = agent.run("default").unwrap();
    assert_eq!(
        result.return_values,
        [(Rank(0), json!(0)), (Rank(1), json!(10))].into()
    );
    let group = agent.worker_group("default").unwrap();
    assert_eq!(group.state, WorkerState::Succeeded);
    assert_eq!(
        group.workers[1].id,
        Some(WorkerLocation::Remote("thread default/1".into()))
    );
}

#[test]
fn every_round_has_a_store_of_its_own() {
    let (spec, known) = noted(spec().max_restarts(1), |event| match event {
        AgentEvent::RanksAssigned { store, .. } => {
            let store = store.connect().unwrap();
            let ranks = store.check(&["torchelastic/assigned_ranks/0"]).unwrap();
            Some((ranks, store.add("attempts", 1).unwrap()))
        }
        _ => None,
    });
    let mut agent = SimpleElasticAgent::new(spec.build().unwrap(), second_attempt());
    assert!(!agent.run("default").unwrap().is_failed());
    assert_eq!(known.try_iter().collect::<Vec<_>>(), [(true, 1), (true, 1)]);
    let store = agent.worker_group("default").unwrap().store.unwrap();
    assert_eq!(store.connect().unwrap().add("attempts", 1).unwrap(), 2);
}

#[test]
fn a_failed_group_is_restarted_as_often_as_allowed_and_then_reported() {
    let (sender, attempts) = channel();
    let work = ThreadWorkers::new(move |request, stop| {
        if request.ranks.rank.0 == 1 {
            let _ = sender.send(request.restart_count);
            return Err("boom".to_owned());
        }
        wait_for_stop(stop)?;
        Ok(json!(null))
    });
    let mut agent = SimpleElasticAgent::new(spec().max_restarts(2).build().unwrap(), work);
    let result = agent.run("default").unwrap();
    drop(agent);
    assert_eq!(attempts.iter().collect::<Vec<_>>(), [0, 1, 2]);
    let first = result.first_failure().unwrap();
    assert_eq!(
        (first.rank, first.cause.to_string().as_str()),
        (Rank(1), "boom")
    );
    assert!(result.failures[&Rank(0)].stopped_by_agent);
    let used = Finality::BudgetUsed { max_restarts: 2 };
    assert_eq!(result.finality, Some(used));
    let error = result.into_values("work").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("work failed: exceeded max_restarts=2: rank 1 "),
        "{error}"
    );
}

#[test]
fn a_handle_stops_threads_too() {
    let (sender, running) = channel();
    let work = ThreadWorkers::new(move |_, stop| {
        let _ = sender.send(());
        wait_for_stop(stop)?;
        Ok(json!(null))
    });
    let mut agent = SimpleElasticAgent::new(spec().build().unwrap(), work);
    let stop = agent.stop_handle();
    let stopping = thread::spawn(move || {
        running.recv().unwrap();
        stop.stop(15);
    });
    let error = agent.run("default").unwrap_err();
    stopping.join().unwrap();
    assert!(
        matches!(error, RunError::Signalled { signal: 15, .. }),
        "{error}"
    );
}

/// Supervisor with scripted results, which records the calls.
struct Scripted {
    looks: Vec<RunResult>,
    calls: Vec<&'static str>,
    starts: bool,
}

impl Scripted {
    fn new(mut looks: Vec<RunResult>) -> Self {
        looks.reverse();
        Self {
            looks,
            calls: Vec::new(),
            starts: true,
        }
    }
}

impl WorkerSupervisor for Scripted {
    fn start_workers(
        &mut self,
        _group: &WorkerGroup,
        workers: &[StartRequest],
    ) -> Result<BTreeMap<LocalRank, WorkerLocation>, SupervisorError> {
        self.calls.push("start");
        if !self.starts {
            return Err(SupervisorError("no machine is free".to_owned()));
        }
        let id = |request: &StartRequest| {
            let local_rank = request.ranks.local_rank;
            (
                local_rank,
                WorkerLocation::Remote(format!("host-{local_rank}:1")),
            )
        };
        Ok(workers.iter().map(id).collect())
    }

    fn monitor_workers(
        &mut self,
        _group: &WorkerGroup,
        _within: Duration,
    ) -> Result<MonitorResult, SupervisorError> {
        self.looks
            .pop()
            .ok_or_else(|| SupervisorError("asked too often".to_owned()))
    }

    fn stop_workers(
        &mut self,
        _group: &WorkerGroup,
        _signal: i32,
        _shutdown_timeout: Duration,
    ) -> Result<(), SupervisorError> {
        self.calls.push("stop");
        Ok(())
    }

    fn shutdown(&mut self, _signal: i32, _shutdown_timeout: Duration) {
        self.calls.push("shutdown");
    }
}

#[test]
fn an_unhealthy_group_is_restarted_like_a_failed_one() {
    let looks = vec![
        RunResult::of_state(WorkerState::Healthy),
        RunResult::of_state(WorkerState::Unhealthy),
        RunResult::succeeded(BTreeMap::new()),
    ];
    let spec = spec().max_restarts(1).build().unwrap();
    let mut agent = SimpleElasticAgent::new(spec, Scripted::new(looks));
    assert_eq!(agent.run("default").unwrap().state, WorkerState::Succeeded);
    assert_eq!(
        agent.supervisor().calls,
        ["start", "stop", "start", "shutdown"]
    );
    assert_eq!(agent.worker_group("default").unwrap().restart_count, 1);
}

#[test]
fn an_unhealthy_group_without_restarts_has_failed() {
    let looks = vec![RunResult::of_state(WorkerState::Unhealthy)];
    let spec = spec().max_restarts(0).build().unwrap();
    let mut agent = SimpleElasticAgent::new(spec, Scripted::new(looks));
    assert!(agent.run("default").unwrap().is_failed());
}

#[test]
fn a_group_in_an_unknown_state_ends_its_agent() {
    let looks = vec![RunResult::of_state(WorkerState::Unknown)];
    let mut agent = SimpleElasticAgent::new(spec().build().unwrap(), Scripted::new(looks));
    let error = agent.run("default").unwrap_err().to_string();
    assert_eq!(error, "[default] Worker group in UNKNOWN state");
    assert_eq!(agent.supervisor().calls, ["start", "stop", "shutdown"]);
}

#[test]
fn workers_that_cannot_be_started_end_the_run_and_are_stopped() {
    let mut supervisor = Scripted::new(Vec::new());
    supervisor.starts = false;
    let mut agent = SimpleElasticAgent::new(spec().build().unwrap(), supervisor);
    let error = agent.run("default").unwrap_err().to_string();
    assert_eq!(error, "no machine is free");
    assert_eq!(agent.supervisor().calls, ["start", "stop", "shutdown"]);
}

/// Sink that records the points in order, except durations.
#[derive(Clone, Default)]
struct Points(Arc<Mutex<Vec<String>>>);

impl MetricsSink for Points {
    fn publish(&mut self, point: &MetricPoint<'_>) {
        let (group, name, value) = (point.group, point.name, point.value);
        let mut points = self.0.lock().unwrap();
        if !name.ends_with(".ms") {
            points.push(format!("{group}: {name}={value}"));
        }
    }
}

#[test]
fn a_run_is_measured_under_torchelastics_names() {
    let points = Points::default();
    let mut registry = MetricsRegistry::new();
    registry.configure(points.clone(), None);
    let spec = spec().role("trn").max_restarts(3).metrics(registry);
    let mut agent = SimpleElasticAgent::new(spec.build().unwrap(), second_attempt());
    assert!(!agent.run("trn").unwrap().is_failed());
    let points = points.0.lock().unwrap();
    for expected in [
        "SimpleElasticAgent._rendezvous.success=1",
        "SimpleElasticAgent._assign_worker_ranks.success=1",
        "SimpleElasticAgent._initialize_workers.success=1",
        "SimpleElasticAgent._restart_workers.success=1",
        "SimpleElasticAgent.run.success=1",
        "LocalElasticAgent._start_workers.success=1",
        "LocalElasticAgent._stop_workers.success=1",
        "workers.trn.healthy=1",
        "workers.trn.succeeded=1",
        "workers.trn.remaining_restarts=2",
        "workers.trn.run_success_with_retries=1",
        "workers.trn.flakiness=25",
    ] {
        let expected = format!("torchelastic: {expected}");
        assert!(points.contains(&expected), "no {expected} in {points:#?}");
    }
}
