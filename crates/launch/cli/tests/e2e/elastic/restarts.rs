//! Tests of a killed store that its keeper restarts.

use rdzv_testing::pids::{ends_within, kill};
use rustix::process::Signal;

use super::{Gate, Place, await_each, kill_node, rounds, store_with, terminated};
use crate::harness::{DEADLINE, Running, poll, poll_until};

/// Starts a store with this number of restarts.
fn restartable(restarts: &str) -> Place {
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
fn start(place: &Place, flags: &[&str], gate: &Gate) -> Running {
    let begins = "echo round $RDZV_ROUND restarts $TORCHELASTIC_RESTART_COUNT pid $$$$";
    let steps = gate.until_open("sleep 0.05");
    let script = format!("{begins}; {steps}; echo done $$$$");
    place.node(flags, &script).start()
}

#[test]
fn workers_notice_nothing_of_a_store_that_is_killed_again_and_again() {
    let place = restartable("1000000");
    let gate = Gate::new();
    let nodes = [1, 2, 3].map(|_| start(&place, &FLAGS, &gate));
    await_each(&nodes, "restarts 0", 1);
    let running = place.store.as_ref().unwrap();
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
    let ended = terminated(place.store.unwrap()).expect(0);
    // Earlier processes may have been killed before they could log the line.
    let last = format!("the store was killed (SIGKILL); restarted ({} of", rounds());
    ended.assert_stderr(&last);
}

#[test]
fn a_node_that_dies_together_with_the_store_is_missed_by_the_others() {
    let place = restartable("100");
    let script = "echo world $WORLD_SIZE; test $WORLD_SIZE = 2 || sleep 1000";
    let nodes = [1, 2, 3].map(|_| place.node(&FLAGS, script).start());
    await_each(&nodes, "world 3", 1);
    let [first, second, third] = nodes;
    kill_service(place.store.as_ref().unwrap());
    kill_node(third);
    for node in [first, second] {
        node.wait().expect(0);
    }
    place.end();
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
    let place = restartable("100");
    let gate = Gate::new();
    let nodes = [1, 2].map(|_| start(&place, &["--nnodes=2"], &gate));
    await_each(&nodes, "restarts 0", 1);
    signal_agents(&nodes[1..], Signal::STOP);
    let store = place.store.as_ref().unwrap();
    kill_service(store);
    store.stderr.await_text("recovering round 0", 1);
    signal_agents(&nodes[1..], Signal::CONT);
    for ended in gate.finish(nodes) {
        assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    }
    place.end();
}

#[test]
fn no_other_round_forms_while_a_whole_one_is_silent() {
    let place = restartable("100");
    let gate = Gate::new();
    let conf = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3";
    let node = || start(&place, &["--nnodes=1:2", conf], &gate);
    let nodes = [node(), node()];
    await_each(&nodes, "restarts 0", 1);
    let spare = node();
    super::await_state(&place.endpoint, |state| state.redundancy_list.len() == 1);
    signal_agents(&nodes, Signal::STOP);
    let store = place.store.as_ref().unwrap();
    store
        .stderr
        .await_text("no contact with any of the 2 nodes of round 0", 1);
    assert_eq!(spare.stdout.so_far(), "");
    signal_agents(&nodes, Signal::CONT);
    let [first, second] = nodes;
    let nodes = [first, second, spare];
    let started = |node: &Running| node.stdout.so_far().lines().count();
    // Any two nodes form the next round.
    poll_until("the next round", || {
        nodes.iter().map(started).sum::<usize>() >= 4
    });
    gate.finish(nodes);
    place.end();
}

#[test]
fn a_job_that_is_over_stays_over_when_the_store_is_killed() {
    let place = restartable("100");
    let nodes = [1, 2].map(|_| place.node(&["--nnodes=2"], "true").start());
    for node in nodes {
        node.wait().expect(0);
    }
    kill_service(place.store.as_ref().unwrap());
    let late = place.node(&["--nnodes=2"], "true").start().wait();
    assert_ne!(late.code(), 0, "{}", late.stderr);
    late.assert_stderr("closed");
    place.end();
}

#[test]
fn a_store_that_is_killed_too_often_ends() {
    let place = restartable("2");
    let running = place.store.as_ref().unwrap();
    kill_service(running);
    kill_service(running);
    kill(service(running, 0), Signal::KILL);
    place.store.unwrap().wait().expect(-9);
}

#[test]
fn a_store_without_restarts_is_one_process() {
    let place = restartable("0");
    let store = place.store.unwrap();
    assert_eq!(store.processes().len(), 1);
    store.signal(Signal::KILL);
    store.wait().expect(-9);
}

#[test]
fn the_service_ends_with_its_keeper() {
    let place = restartable("3");
    let store = place.store.unwrap();
    let service = service(&store, 0);
    store.signal(Signal::KILL);
    assert!(ends_within(service, DEADLINE));
    store.wait().expect(-9);
}
