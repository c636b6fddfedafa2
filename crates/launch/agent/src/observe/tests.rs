//! Tests of the sinks with the events of a run.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use rdzv_agent_proto::group::GroupState;
use rdzv_core::rank::{GroupRank, LocalRank, Rank, RoleRank};
use rdzv_core::time::Wall;
use rdzv_store::HashStore;
use serde_json::{Value, json};

use super::*;
use crate::AgentEvent;
use crate::hang::{WatchdogAction, WatchdogTimer};
use crate::host::HostName;
use crate::round_store::RoundStore;
use crate::worker::{WorkerFiles, WorkerIdentity};
use rdzv_agent_proto::group::Exit;
use rdzv_rendezvous::GroupEvent;

pub(super) fn facts() -> RunFacts {
    RunFacts {
        run_id: "job".to_owned(),
        role: "trainer".to_owned(),
        host: HostName::Given("node".to_owned()),
        backend: "c10d".to_owned(),
        entry_point: "python".to_owned(),
        max_restarts: 3,
        local_world_size: 1,
    }
}

fn at(millis: i64) -> Wall {
    Wall::from_unix_micros(1_700_000_000_000_000 + millis * 1000)
}

fn worker(pid: u32) -> WorkerIdentity {
    WorkerIdentity {
        local_rank: LocalRank(0),
        rank: Rank(0),
        world_size: 1,
        role_rank: RoleRank(0),
        role_world_size: 1,
        pid,
    }
}

fn state(millis: i64, state: GroupState, restart_count: u32) -> AgentEvent {
    AgentEvent::StateChanged {
        at: at(millis),
        state,
        restart_count,
    }
}

fn agent_final(millis: i64, state: &'static str, workers_succeeded: bool) -> AgentEvent {
    AgentEvent::AgentFinal {
        at: at(millis),
        state,
        took: Duration::from_millis(millis.unsigned_abs()),
        workers_succeeded,
        raw_error: None,
    }
}

/// Events of an attempt that begins this many milliseconds after the start.
/// Its workers start 60 ms later.
fn attempt(begin: i64, restart_count: u32) -> Vec<AgentEvent> {
    vec![
        AgentEvent::RendezvousBegan {
            at: at(begin),
            restart_count,
            job_restarts: restart_count,
        },
        AgentEvent::Rendezvous {
            at: at(begin + 40),
            took: Duration::from_millis(40),
            result: Ok((GroupRank(0), 1)),
            restart_count,
        },
        AgentEvent::RanksAssigned {
            at: at(begin + 50),
            took: Duration::from_millis(10),
            round: u64::from(restart_count),
            group_rank: GroupRank(0),
            group_world_size: 1,
            workers: vec![worker(0)],
            master_addr: "127.0.0.1".to_owned(),
            master_port: 29500,
            store: RoundStore::new(Arc::new(HashStore::new())),
            restart_count,
        },
        AgentEvent::WorkerStarted {
            at: at(begin + 60),
            worker: worker(40 + restart_count),
            files: WorkerFiles::default(),
            restart_count,
        },
        state(begin + 60, GroupState::Healthy, restart_count),
    ]
}

/// Events of one restart, then success.
fn run() -> Vec<AgentEvent> {
    let exited = |millis, pid, exit| AgentEvent::WorkerExited {
        at: at(millis),
        worker: worker(pid),
        exit,
        stopped_by_agent: false,
    };
    let mut events = attempt(0, 0);
    events.push(exited(100, 40, Exit::Signal(11)));
    events.push(state(100, GroupState::Stopped, 0));
    events.push(AgentEvent::Restarting {
        at: at(104),
        state: GroupState::Failed,
        remaining: 2,
        most: 3,
        failure: None,
    });
    events.push(state(105, GroupState::Init, 1));
    events.extend(attempt(110, 1));
    events.push(exited(200, 41, Exit::Code(0)));
    events.push(state(200, GroupState::Succeeded, 1));
    events.push(agent_final(201, "SUCCEEDED", true));
    events
}

struct Collected(Sender<String>);

impl MetricsSink for Collected {
    fn publish(&mut self, point: &MetricPoint<'_>) {
        assert_eq!(point.group, DEFAULT_GROUP);
        self.0
            .send(format!("{}={}", point.name, point.value))
            .unwrap();
    }
}

/// Returns the points that the events produce, as `name=value`.
fn published(events: &[AgentEvent]) -> Vec<String> {
    let (sender, points) = channel();
    let mut registry = MetricsRegistry::new();
    registry.configure(Collected(sender), None);
    let mut metrics = AgentMetrics::new(&facts(), registry);
    events.iter().for_each(|event| metrics.record(event));
    drop(metrics);
    points.iter().collect()
}

#[test]
fn a_hang_is_published_once_and_a_failed_rendezvous_as_a_failed_restart() {
    let events = [
        state(100, GroupState::Unhealthy, 0),
        AgentEvent::Restarting {
            at: at(104),
            state: GroupState::Unhealthy,
            remaining: 2,
            most: 3,
            failure: None,
        },
        state(105, GroupState::Init, 1),
        AgentEvent::RendezvousBegan {
            at: at(105),
            restart_count: 1,
            job_restarts: 2,
        },
        AgentEvent::Rendezvous {
            at: at(125),
            took: Duration::from_millis(20),
            result: Err("no node came".to_owned()),
            restart_count: 1,
        },
        state(125, GroupState::Failed, 1),
        agent_final(127, "FAILED", false),
    ];
    let expected = [
        "workers.trainer.remaining_restarts=3",
        "workers.trainer.unhealthy=1",
        "LocalElasticAgent._stop_workers.success=1",
        "LocalElasticAgent._stop_workers.duration.ms=5",
        "SimpleElasticAgent._rendezvous.failure=1",
        "SimpleElasticAgent._rendezvous.duration.ms=20",
        "SimpleElasticAgent._initialize_workers.failure=1",
        "SimpleElasticAgent._initialize_workers.duration.ms=20",
        "SimpleElasticAgent._restart_workers.failure=1",
        "SimpleElasticAgent._restart_workers.duration.ms=25",
        "SimpleElasticAgent.run.failure=1",
        "SimpleElasticAgent.run.duration.ms=127",
    ];
    assert_eq!(published(&events), expected);
}

#[test]
fn the_failure_that_ends_a_run_is_published_as_one_that_is_restarted() {
    let events = [
        state(100, GroupState::Stopped, 0),
        state(105, GroupState::Failed, 0),
        agent_final(110, "SUCCEEDED", false),
    ];
    let points = published(&events);
    let expected = [
        "workers.trainer.remaining_restarts=3",
        "workers.trainer.failed=1",
        "LocalElasticAgent._stop_workers.success=1",
        "LocalElasticAgent._stop_workers.duration.ms=5",
        "SimpleElasticAgent.run.success=1",
        "SimpleElasticAgent.run.duration.ms=110",
        "workers.trainer.flakiness=100",
        "workers.trainer.run_total=1",
    ];
    assert_eq!(points[..expected.len()], expected);
}

#[test]
fn the_references_metrics_come_out_of_a_run() {
    let points = published(&run());
    let started = [
        "SimpleElasticAgent._rendezvous.success=1",
        "SimpleElasticAgent._rendezvous.duration.ms=40",
        "SimpleElasticAgent._assign_worker_ranks.success=1",
        "SimpleElasticAgent._assign_worker_ranks.duration.ms=10",
        "LocalElasticAgent._start_workers.success=1",
        "LocalElasticAgent._start_workers.duration.ms=10",
        "SimpleElasticAgent._initialize_workers.success=1",
        "SimpleElasticAgent._initialize_workers.duration.ms=60",
    ];
    let expected = [
        &started[..],
        &[
            "workers.trainer.remaining_restarts=3",
            "workers.trainer.healthy=1",
            "workers.trainer.remaining_restarts=3",
            "workers.trainer.failed=1",
            "LocalElasticAgent._stop_workers.success=1",
            "LocalElasticAgent._stop_workers.duration.ms=5",
        ],
        &started,
        &[
            "SimpleElasticAgent._restart_workers.success=1",
            "SimpleElasticAgent._restart_workers.duration.ms=70",
            "workers.trainer.remaining_restarts=2",
            "workers.trainer.healthy=1",
            "workers.trainer.remaining_restarts=2",
            "workers.trainer.succeeded=1",
            "SimpleElasticAgent.run.success=1",
            "SimpleElasticAgent.run.duration.ms=201",
            // One of four possible attempts was used: 100 - 100 * 3 / 4.
            "workers.trainer.flakiness=25",
            "workers.trainer.run_total=1",
            "workers.trainer.run_success_with_retries=1",
            "workers.trainer.run_success_no_retries=0",
            "workers.trainer.run_failed_with_retries=0",
            "workers.trainer.run_failed_no_retries=0",
        ],
    ]
    .concat();
    assert_eq!(points, expected);
}

#[test]
fn the_life_of_a_group_is_logged_line_by_line() {
    let mut lines = InfoLines::new(&facts(), "null");
    let logged: Vec<String> = run().iter().flat_map(|event| lines.lines(event)).collect();
    let first_lines: Vec<&str> = logged
        .iter()
        .filter_map(|entry| entry.lines().next())
        .collect();
    let attempt = [
        "Rendezvous'ing worker group",
        "Rendezvous complete for workers. Result:",
        "Starting worker group",
    ];
    let expected = [
        &["starting workers for entrypoint: python"],
        &attempt[..],
        &["Stopping worker group"],
        &attempt,
        &["All workers successfully finished."],
    ]
    .concat();
    assert_eq!(first_lines, expected);
    assert!(
        logged[2].contains("\n  global_ranks=[0]\n"),
        "{}",
        logged[2]
    );
}

#[test]
fn the_status_is_what_the_events_add_up_to() {
    let mut status = NodeReport::new(&facts());
    assert_eq!((&*status.state, status.round), ("INIT", None));
    let events = run();
    for event in &events[..7] {
        status.apply(event);
    }
    assert_eq!(status.workers[0].exit_code, Some(-11));
    for event in &events[7..] {
        status.apply(event);
    }
    assert_eq!((&*status.state, status.round), ("SUCCEEDED", Some(1)));
    assert_eq!((status.restart_count, status.workers.len()), (1, 1));
    let worker = &status.workers[0];
    assert_eq!((worker.identity.pid, worker.running), (41, false));
    assert_eq!(worker.ended.as_deref(), Some("2023-11-14T22:13:20.200000Z"));
}

#[test]
fn a_record_has_its_five_keys_in_order() {
    let event = AgentEvent::WorkerExited {
        at: at(0),
        worker: worker(7),
        exit: Exit::Signal(9),
        stopped_by_agent: true,
    };
    let line = record(&facts(), &event);
    let start = r#"{"name":"worker_exited","time":"2023-11-14T22:13:20.000000Z","run_id":"job","node":"node","fields":{"#;
    assert!(line.starts_with(start), "{line}");
    let parsed: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        parsed["fields"],
        json!({
            "local_rank": 0,
            "rank": 0,
            "role_rank": 0,
            "pid": 7,
            "exit_code": -9,
            "stopped_by_agent": true,
        })
    );
}

#[test]
fn events_about_the_coordinator_have_a_name_each_and_their_fields() {
    let took = Duration::from_millis(1500);
    let coordinator = "node-b:29400".to_owned();
    let events = [
        (
            GroupEvent::CoordinatorChanged {
                coordinator: coordinator.clone(),
                before: Some("node-a:29400".to_owned()),
                epoch: 4,
            },
            r#"coordinator_changed {"before":"node-a:29400","coordinator":"node-b:29400","epoch":4,"message":"so"}"#,
        ),
        (
            GroupEvent::VotersChanged {
                voters: vec![coordinator.clone()],
            },
            r#"voters_changed {"message":"so","voters":["node-b:29400"]}"#,
        ),
        (
            GroupEvent::Reattached { coordinator, took },
            r#"reattached {"coordinator":"node-b:29400","message":"so","seconds":1.5}"#,
        ),
        (
            GroupEvent::Recovered {
                run: "job".to_owned(),
                round: 7,
                nodes: 4,
                took,
            },
            r#"recovered {"message":"so","nodes":4,"round":7,"run":"job","seconds":1.5}"#,
        ),
        (
            GroupEvent::Fence { acts: true },
            r#"fence_on {"message":"so"}"#,
        ),
        (GroupEvent::Fenced, r#"fenced {"message":"so"}"#),
        (
            GroupEvent::Unfenced {
                stood: took,
                killed: true,
            },
            r#"unfenced {"killed":true,"message":"so","seconds":1.5}"#,
        ),
    ];
    for (event, expected) in events {
        let event = AgentEvent::Group {
            at: at(0),
            message: "so".to_owned(),
            event,
        };
        let line: Value = serde_json::from_str(&record(&facts(), &event)).unwrap();
        let name = line["name"].as_str().unwrap();
        assert_eq!(format!("{name} {}", line["fields"]), expected);
    }
}

#[test]
fn watchdog_events_are_those_of_the_reference() {
    let mut reference = TorchelasticEvents::new(facts());
    let event = AgentEvent::Watchdog {
        at: at(5),
        action: WatchdogAction::TimerExpired,
        timer: Some(WatchdogTimer {
            pid: 42,
            scope: "train.py#17".to_owned(),
            expiration: 1_790_000_123.0,
            signal: 9,
        }),
    };
    let line: Value = serde_json::from_str(&reference.line(&event).unwrap()).unwrap();
    assert_eq!(line["name"], "timer expired");
    assert_eq!(line["source"], "AGENT");
    assert_eq!(line["timestamp"], 1_700_000_000_005_i64);
    let metadata = &line["metadata"];
    assert_eq!(metadata["state"], "RUNNING");
    assert!(metadata.get("duration_ms").is_none());
    let details: Value = serde_json::from_str(metadata["metadata"].as_str().unwrap()).unwrap();
    assert_eq!(
        details,
        json!({
            "watchdog_event": "timer expired",
            "worker_pid": "42",
            "scope_id": "train.py#17",
            "expiration_time": "1790000123.0",
            "signal": "9",
        })
    );
}

#[test]
fn sinks_are_found_by_name_and_all_of_a_set_hear_everything() {
    let (sender, heard) = channel();
    let mut registry = EventRegistry::with_defaults();
    let names: Vec<&str> = registry.names().collect();
    assert_eq!(names, ["console", "dynamic_rendezvous", "null"]);
    assert!(registry.create("mine", &facts()).is_none());
    registry.register("mine", move |facts| {
        let (sender, run_id) = (sender.clone(), facts.run_id.clone());
        Box::new(move |event: &AgentEvent| {
            sender
                .send(format!("{run_id} {}", event_name(event)))
                .unwrap();
        })
    });
    let mut sinks = EventSinks::new();
    for name in ["mine", "null", "mine"] {
        sinks.add_boxed(registry.create(name, &facts()).unwrap());
    }
    sinks.record(&attempt(0, 0)[0]);
    let heard: Vec<String> = heard.try_iter().collect();
    assert_eq!(heard, ["job rendezvous_began", "job rendezvous_began"]);
}
