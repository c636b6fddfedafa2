//! Tests of a killed store that its keeper restarts.

use rdzv_testing::pids::{ends_within, kill};
use rustix::process::Signal;

use super::{Gate, RendezvousPoint, await_each, kill_node, rounds, store_with, terminated};
use crate::harness::{DEADLINE, Running, poll, poll_for};

/// Starts a store with this number of restarts.
fn restartable(restarts: &str) -> RendezvousPoint {
    store_with(&["--restarts", restarts])
}

/// Waits for the serving process, which is not `other`, and returns its id.
pub(super) fn service(store: &Running, other: i32) -> i32 {
    poll(|| {
        let processes = store.processes();
        let mut pids = processes.iter().map(|(pid, _)| *pid);
        let pid = pids.find(|pid| *pid != store.pid() && *pid != other);
        pid.ok_or(processes)
    })
}

/// Kills the serving process, and waits for the next one.
pub(super) fn kill_service(store: &Running) {
    let pid = service(store, 0);
    kill(pid, Signal::KILL);
    service(store, pid);
}

const FLAGS: [&str; 3] = ["--nnodes=2:3", "--log-dir=logs", "-t=1"];

/// Starts a node whose worker prints its round and waits for the gate.
fn start(point: &RendezvousPoint, flags: &[&str], gate: &Gate) -> Running {
    let begins = "echo round $RDZV_ROUND restarts $TORCHELASTIC_RESTART_COUNT pid $$$$";
    let steps = gate.while_closed("sleep 0.05");
    let script = format!("{begins}; {steps}; echo done $$$$");
    point.node(flags, &script).start()
}

#[test]
fn workers_notice_nothing_of_a_store_that_is_killed_again_and_again() {
    let point = restartable("1000000");
    let gate = Gate::new();
    let nodes = [1, 2, 3].map(|_| start(&point, &FLAGS, &gate));
    await_each(&nodes, "restarts 0", 1);
    let running = point.store.as_ref().unwrap();
    for _ in 0..rounds() {
        kill_service(running);
    }
    for ended in gate.finish(nodes) {
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("round 0 restarts 0 pid "), "{lines:?}");
        // Both lines come from the same process.
        let pid = |line: &str| line.rsplit(' ').next().unwrap().to_owned();
        assert_eq!(pid(lines[0]), pid(lines[1]), "{lines:?}");
    }
    let ended = terminated(point.store.unwrap()).expect(0);
    // Earlier processes may have been killed before they could log the line.
    let last = format!("the store was killed (SIGKILL); restarted ({} of", rounds());
    ended.assert_stderr(&last);
}

#[test]
fn a_node_that_dies_together_with_the_store_is_missed_by_the_others() {
    let point = restartable("100");
    let script = "echo world $WORLD_SIZE; test $WORLD_SIZE = 2 || sleep 1000";
    let nodes = [1, 2, 3].map(|_| point.node(&FLAGS, script).start());
    await_each(&nodes, "world 3", 1);
    let [first, second, third] = nodes;
    kill_service(point.store.as_ref().unwrap());
    kill_node(third);
    for node in [first, second] {
        node.wait().expect(0);
    }
    point.end();
}

/// Sends a signal to the agents of the nodes.
///
/// A stopped agent is silent, but its kernel keeps the connection open.
fn signal_agents(nodes: &[Running], signal: Signal) {
    for node in nodes {
        kill(node.agent_pid(), signal);
    }
}

#[test]
fn a_store_that_was_killed_waits_for_more_than_half_of_the_round() {
    let point = restartable("100");
    let gate = Gate::new();
    let nodes = [1, 2].map(|_| start(&point, &["--nnodes=2"], &gate));
    await_each(&nodes, "restarts 0", 1);
    signal_agents(&nodes[1..], Signal::STOP);
    let store = point.store.as_ref().unwrap();
    kill_service(store);
    store.stderr.await_text("recovering round 0", 1);
    signal_agents(&nodes[1..], Signal::CONT);
    for ended in gate.finish(nodes) {
        assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    }
    point.end();
}

#[test]
fn no_other_round_forms_while_a_whole_one_is_silent() {
    let point = restartable("100");
    let gate = Gate::new();
    let conf = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3";
    let node = || start(&point, &["--nnodes=1:2", conf], &gate);
    let nodes = [node(), node()];
    await_each(&nodes, "restarts 0", 1);
    let spare = node();
    super::await_state(&point.endpoint, |state| state.redundancy_list.len() == 1);
    signal_agents(&nodes, Signal::STOP);
    let store = point.store.as_ref().unwrap();
    store
        .stderr
        .await_text("no contact with any of the 2 nodes of round 0", 1);
    assert_eq!(spare.stdout.so_far(), "");
    signal_agents(&nodes, Signal::CONT);
    let [first, second] = nodes;
    let nodes = [first, second, spare];
    let started = |node: &Running| node.stdout.so_far().lines().count();
    // Any two nodes form the next round.
    poll_for("the next round", || {
        nodes.iter().map(started).sum::<usize>() >= 4
    });
    gate.finish(nodes);
    point.end();
}

#[test]
fn a_job_that_is_over_stays_over_when_the_store_is_killed() {
    let point = restartable("100");
    let nodes = [1, 2].map(|_| point.node(&["--nnodes=2"], "true").start());
    for node in nodes {
        node.wait().expect(0);
    }
    kill_service(point.store.as_ref().unwrap());
    let late = point.node(&["--nnodes=2"], "true").start().wait();
    assert_ne!(late.code(), 0, "{}", late.stderr);
    late.assert_stderr("closed");
    point.end();
}

#[test]
fn a_store_that_is_killed_too_often_ends() {
    let point = restartable("2");
    let running = point.store.as_ref().unwrap();
    kill_service(running);
    kill_service(running);
    kill(service(running, 0), Signal::KILL);
    point.store.unwrap().wait().expect(-9);
}

#[test]
fn a_store_without_restarts_is_one_process() {
    let point = restartable("0");
    let store = point.store.unwrap();
    assert_eq!(store.processes().len(), 1);
    store.signal(Signal::KILL);
    store.wait().expect(-9);
}

#[test]
fn the_service_ends_with_its_keeper() {
    let point = restartable("3");
    let store = point.store.unwrap();
    let service = service(&store, 0);
    store.signal(Signal::KILL);
    assert!(ends_within(service, DEADLINE));
    store.wait().expect(-9);
}
