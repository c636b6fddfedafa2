//! Tests of two nodes in this process, each with a separate agent.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdzv_agent::AgentEvent;
use rdzv_agent::api::{
    ElasticAgent, LocalElasticAgent, MonitorResult, RunError, RunResult, SimpleElasticAgent,
    StartRequest, SupervisorError, WorkerEntrypoint, WorkerGroup, WorkerLocation, WorkerSpec,
    WorkerSupervisor,
};
use rdzv_agent::config::{MasterPort, RendezvousPlan};
use rdzv_agent::event::NodeState;
use rdzv_core::rank::{LocalRank, Rank};
use rdzv_rendezvous::RendezvousParameters;
use rdzv_store::StoreError;
use rdzv_testing::free_port;
use serde_json::{Value, json};

use crate::threads::ThreadWorkers;
use crate::{in_turn, lines, noted, second_attempt, shell, wait_for_stop};

/// Returns an endpoint for two nodes of this machine.
fn endpoint() -> String {
    format!("127.0.0.1:{}", free_port())
}

fn rendezvous_at(endpoint: &str) -> RendezvousPlan {
    let parameters =
        RendezvousParameters::new("c10d", endpoint, "two", 2, 2, BTreeMap::new()).unwrap();
    RendezvousPlan::Dynamic { parameters }
}

fn node(endpoint: &str, role: &str, size: u32) -> rdzv_agent::api::WorkerSpecBuilder {
    WorkerSpec::builder(WorkerEntrypoint::command("a thread"))
        .role(role)
        .run_id("two")
        .local_world_size(size)
        .local_addr("127.0.0.1")
        .max_restarts(0)
        .signals(Vec::new())
        .rendezvous(rendezvous_at(endpoint))
}

type Ran = (Result<RunResult, RunError>, WorkerGroup);

fn start(spec: WorkerSpec, work: ThreadWorkers) -> JoinHandle<Ran> {
    thread::spawn(move || {
        let role = spec.role().to_owned();
        let mut agent = SimpleElasticAgent::new(spec, work);
        let result = agent.run(&role);
        let group = agent.worker_group(&role).unwrap();
        (result, group)
    })
}

fn ranks() -> ThreadWorkers {
    ThreadWorkers::new(|request, _| {
        let ranks = request.ranks;
        let size = (ranks.role_rank.0, ranks.role_world_size);
        Ok(json!([ranks.rank.0, ranks.world_size, size.0, size.1]))
    })
}

#[test]
fn roles_of_different_sizes_share_one_store_and_one_order() {
    let endpoint = endpoint();
    let learner = start(node(&endpoint, "learner", 2).build().unwrap(), ranks());
    let actor = start(node(&endpoint, "actor", 1).build().unwrap(), ranks());
    let ((learner, learners), (actor, actors)) = (learner.join().unwrap(), actor.join().unwrap());
    let mut values = learner.unwrap().return_values;
    assert_eq!(values.len(), 2);
    values.extend(actor.unwrap().return_values);
    let first = if learners.group_rank_or_unset() == 0 {
        [[0, 3, 0, 2], [1, 3, 1, 2], [2, 3, 0, 1]]
    } else {
        [[0, 3, 0, 1], [1, 3, 0, 2], [2, 3, 1, 2]]
    };
    let expected: BTreeMap<Rank, Value> = (0..)
        .map(Rank)
        .zip(first.map(|ranks| json!(ranks)))
        .collect();
    assert_eq!(values, expected);
    assert_eq!(learners.master, actors.master, "all meet at the same place");
    assert_eq!(actors.group_world_size, Some(2));
}

/// Threads that start after the agents have exchanged greetings.
/// The greetings go through the store of the round.
struct Greeting {
    workers: ThreadWorkers,
    heard: Vec<String>,
}

impl Greeting {
    fn new() -> Self {
        Self {
            workers: ranks(),
            heard: Vec::new(),
        }
    }
}

impl WorkerSupervisor for Greeting {
    fn start_workers(
        &mut self,
        group: &WorkerGroup,
        workers: &[StartRequest],
    ) -> Result<BTreeMap<LocalRank, WorkerLocation>, SupervisorError> {
        let failed = |error: StoreError| SupervisorError(error.to_string());
        let store = group.store.as_ref().unwrap().connect().map_err(failed)?;
        store.set_timeout(Duration::from_secs(20));
        let rank = group.group_rank_or_unset();
        let greeting = format!("from {rank}");
        store
            .set(&format!("greeting/{rank}"), greeting.as_bytes())
            .map_err(failed)?;
        let other = store.get(&format!("greeting/{}", 1 - rank));
        let other = other.map_err(failed)?;
        self.heard
            .push(String::from_utf8_lossy(&other).into_owned());
        self.workers.start_workers(group, workers)
    }

    fn monitor_workers(
        &mut self,
        group: &WorkerGroup,
        within: Duration,
    ) -> Result<MonitorResult, SupervisorError> {
        self.workers.monitor_workers(group, within)
    }

    fn stop_workers(
        &mut self,
        group: &WorkerGroup,
        signal: i32,
        shutdown_timeout: Duration,
    ) -> Result<(), SupervisorError> {
        self.workers.stop_workers(group, signal, shutdown_timeout)
    }

    fn shutdown(&mut self, signal: i32, shutdown_timeout: Duration) {
        self.workers.shutdown(signal, shutdown_timeout);
    }
}

#[test]
fn supervisors_of_a_round_reach_its_store() {
    let endpoint = endpoint();
    let began = Instant::now();
    let nodes = [0, 1].map(|_| {
        let spec = node(&endpoint, "default", 1).build().unwrap();
        thread::spawn(move || {
            let mut agent = SimpleElasticAgent::new(spec, Greeting::new());
            assert!(!agent.run("default").unwrap().is_failed());
            let group = agent.worker_group("default").unwrap();
            // The round's store no longer serves requests.
            let store = group.store.as_ref().unwrap().connect().unwrap();
            assert!(store.check(&["greeting/0"]).is_err());
            (
                group.group_rank_or_unset(),
                agent.supervisor().heard.clone(),
            )
        })
    });
    let mut heard = nodes.map(|node| node.join().unwrap());
    heard.sort();
    let from = |rank: i64| vec![format!("from {rank}")];
    assert_eq!(heard, [(0, from(1)), (1, from(0))]);
    // A server waits 10 s for clients that are still connected.
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[test]
fn who_has_finished_does_not_wait_for_a_node_that_has_failed() {
    let endpoint = endpoint();
    let (finished, others_finished) = channel();
    let others_finished = std::sync::Mutex::new(others_finished);
    let good = ThreadWorkers::new(move |_, _| {
        let _ = finished.send(());
        Ok(json!(null))
    });
    let bad = ThreadWorkers::new(move |_, _| {
        let _ = others_finished.lock().unwrap().recv();
        Err("boom".to_owned())
    });
    let began = Instant::now();
    let good = start(node(&endpoint, "default", 1).build().unwrap(), good);
    let bad = start(node(&endpoint, "default", 1).build().unwrap(), bad);
    let (failed, _) = bad.join().unwrap();
    assert!(failed.unwrap().is_failed());
    let (waited, _) = good.join().unwrap();
    let error = waited.unwrap_err().to_string();
    assert!(
        error.ends_with("boom"),
        "a sentence, without the record: {error}"
    );
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "the barrier is one of 300 s"
    );
}

#[test]
fn another_nodes_failure_restarts_the_group_without_costing_a_restart() {
    let endpoint = endpoint();
    let steady = ThreadWorkers::new(|request, stop| {
        if request
            .environment
            .contains(&("RDZV_ROUND", "0".to_owned()))
        {
            wait_for_stop(stop)?;
        }
        Ok(json!(request.restart_count))
    });
    let steady = start(node(&endpoint, "default", 1).build().unwrap(), steady);
    let spec = node(&endpoint, "default", 1).max_restarts(1);
    let failing = start(spec.build().unwrap(), second_attempt());
    let (steady, group) = steady.join().unwrap();
    let values: Vec<Value> = steady.unwrap().return_values.into_values().collect();
    assert_eq!(values, [json!(0)], "the steady node has no restart to give");
    assert_eq!(group.restart_count, 0);
    let values = failing.join().unwrap().0.unwrap().return_values;
    assert_eq!(values.into_values().collect::<Vec<_>>(), [json!(1)]);
}

#[test]
fn the_workers_of_several_nodes_meet_at_the_port_that_was_fixed() {
    let endpoint = endpoint();
    let port = free_port();
    let spec = || node(&endpoint, "default", 1).master_port(MasterPort::Fixed(port));
    let other = start(spec().build().unwrap(), ranks());
    let (result, group) = start(spec().build().unwrap(), ranks()).join().unwrap();
    assert!(!result.unwrap().is_failed());
    assert_eq!(group.master_port(), Some(port));
    assert_eq!(other.join().unwrap().1.master_port(), Some(port));
}

#[test]
fn ranks_follow_from_the_group_rank_alone_where_all_nodes_are_alike() {
    let endpoint = endpoint();
    let work = || ThreadWorkers::new(|request, _| Ok(json!(request.ranks.local_rank.0)));
    let spec = || node(&endpoint, "default", 2).identical_workers(true);
    let nodes = [0, 1].map(|_| start(spec().build().unwrap(), work()));
    for node in nodes {
        let (result, group) = node.join().unwrap();
        let base = group.group_rank.unwrap().0 * 2;
        let expected = [(Rank(base), json!(0)), (Rank(base + 1), json!(1))];
        assert_eq!(result.unwrap().return_values, expected.into());
    }
}

#[test]
fn an_agent_with_processes_and_one_of_ones_own_share_a_job() {
    let (_turn, directory) = in_turn();
    let endpoint = endpoint();
    let threads = start(node(&endpoint, "threads", 1).build().unwrap(), ranks());
    let spec = shell(
        "echo $ROLE_RANK/$ROLE_WORLD_SIZE/$WORLD_SIZE >> $DIR/said",
        &directory,
    )
    .role("processes")
    .run_id("two")
    .local_world_size(2)
    .local_addr("127.0.0.1")
    .rendezvous(rendezvous_at(&endpoint));
    let mut processes = LocalElasticAgent::new(spec.build().unwrap());
    assert!(!processes.run("processes").unwrap().is_failed());
    assert_eq!(lines(&directory, "said"), ["0/2/3", "1/2/3"]);
    let values = threads.join().unwrap().0.unwrap().return_values;
    let ranks = values.into_values().next().unwrap();
    assert_eq!((&ranks[1], &ranks[3]), (&json!(3), &json!(1)));
}

#[test]
fn a_failure_among_threads_is_the_cause_for_an_agent_with_processes() {
    let (_turn, directory) = in_turn();
    let endpoint = endpoint();
    let spec = shell("exec sleep 1000", &directory)
        .run_id("two")
        .local_addr("127.0.0.1")
        .rendezvous(rendezvous_at(&endpoint));
    let (spec, running) = noted(spec, |event| {
        matches!(event, AgentEvent::WorkerStarted { .. }).then_some(())
    });
    let (spec, verdicts) = noted(spec, |event| match event {
        AgentEvent::Verdict { verdict, .. } => verdict.first().cloned(),
        _ => None,
    });
    let running = std::sync::Mutex::new(running);
    let bad = ThreadWorkers::new(move |_, _| {
        let _ = running.lock().unwrap().recv();
        Err("boom".to_owned())
    });
    let bad = start(node(&endpoint, "threads", 1).build().unwrap(), bad);
    let error = LocalElasticAgent::new(spec.build().unwrap()).run("default");
    assert!(error.unwrap_err().to_string().ends_with("boom"));
    assert!(bad.join().unwrap().0.unwrap().is_failed());
    let verdicts: Vec<_> = verdicts.try_iter().collect();
    let [first] = &verdicts[..] else {
        panic!("{verdicts:?}");
    };
    assert_eq!(
        (first.evidence.role.as_str(), first.cause.to_string()),
        ("threads", "boom".to_owned())
    );
}

#[test]
fn the_events_of_the_rendezvous_come_to_agents_of_ones_own() {
    let endpoint = endpoint();
    let (first, recorded) = noted(node(&endpoint, "default", 1), |event| match event {
        AgentEvent::RendezvousNotice { state, message, .. } => Some((*state, message.clone())),
        _ => None,
    });
    let first = start(first.build().unwrap(), ranks());
    let second = start(node(&endpoint, "default", 1).build().unwrap(), ranks());
    for node in [first, second] {
        assert!(!node.join().unwrap().0.unwrap().is_failed());
    }
    let mut recorded: Vec<_> = recorded.try_iter().collect();
    // One of the two hosts the store and reports it; either one may be the last to see the end.
    recorded.retain(|(_, message)| {
        !message.starts_with("Process ") && !message.ends_with(" was closed.")
    });
    let states: Vec<NodeState> = recorded.iter().map(|(state, _)| *state).collect();
    assert_eq!(
        states,
        [NodeState::Init, NodeState::Running, NodeState::Succeeded],
        "{recorded:?}"
    );
}

#[test]
fn a_node_that_never_joined_does_not_leave() {
    let options = [("is_host", "0"), ("read_timeout", "1")];
    let options: BTreeMap<String, String> = options
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let parameters = RendezvousParameters::new("c10d", endpoint(), "two", 2, 2, options).unwrap();
    let alone = node("", "default", 1).rendezvous(RendezvousPlan::Dynamic { parameters });
    let (alone, recorded) = noted(alone, |event| match event {
        AgentEvent::RendezvousNotice { state, .. } => Some(*state),
        _ => None,
    });
    let (failed, _) = start(alone.build().unwrap(), ranks()).join().unwrap();
    assert!(failed.is_err());
    assert_eq!(
        recorded.try_iter().collect::<Vec<_>>(),
        [NodeState::Init, NodeState::Failed]
    );
}
