//! The store that agents meet at is killed, and started again by its keeper.

use std::time::{Duration, Instant};

use rdzv_testing::pids::{ends_within, kill};
use rustix::process::Signal;

use super::{Place, kill_node, rounds};
use crate::harness::{DEADLINE, Running, rdzv};

/// A store that is started again as often as it is killed here.
pub(super) fn restartable(restarts: &str) -> Place {
    restartable_with(&["--restarts", restarts])
}

pub(super) fn restartable_with(flags: &[&str]) -> Place {
    let running = rdzv(["store", "--host", "127.0.0.1", "--port", "0"])
        .args(flags)
        .start();
    running.stdout.await_text("\n", 1);
    let line = running.stdout.so_far();
    Place {
        endpoint: line.trim_start_matches("listening on ").trim().to_owned(),
        store: Some(running),
    }
}

/// The process that serves, other than this one.
pub(super) fn service(store: &Running, other: i32) -> i32 {
    let until = Instant::now() + DEADLINE;
    loop {
        let processes = store.processes();
        let mut pids = processes.iter().map(|(pid, _)| *pid);
        if let Some(pid) = pids.find(|pid| *pid != store.pid() && *pid != other) {
            return pid;
        }
        assert!(Instant::now() < until, "{processes:?}");
        // Nobody tells when it has been forked.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Kills the process that serves, and waits for the next one.
pub(super) fn kill_service(store: &Running) {
    let pid = service(store, 0);
    kill(pid, Signal::KILL);
    service(store, pid);
}

const FLAGS: [&str; 3] = ["--nnodes=2:3", "--log-dir=logs", "-t=1"];

/// Says where it is, takes steps, and ends when it is told to.
const WORKER: &str = "echo round $RDZV_ROUND restarts $TORCHELASTIC_RESTART_COUNT pid $$$$; \
    until test -e \"$GO\"; do sleep 0.05; done; echo done $$$$";

#[test]
fn workers_notice_nothing_of_a_store_that_is_killed_again_and_again() {
    let place = restartable("1000000");
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let node = || {
        let job = place.node(&FLAGS, WORKER);
        job.env("GO", &go.display().to_string()).start()
    };
    let nodes = [node(), node(), node()];
    for node in &nodes {
        node.stdout.await_text("restarts 0", 1);
    }
    let running = place.store.as_ref().unwrap();
    for _ in 0..rounds() {
        kill_service(running);
    }
    std::fs::write(&go, "").unwrap();
    for node in nodes {
        let ended = node.wait().expect(0);
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].contains("round 0 restarts 0 pid "), "{lines:?}");
        // The same process.
        let pid = |line: &str| line.rsplit(' ').next().unwrap().to_owned();
        assert_eq!(pid(lines[0]), pid(lines[1]), "{lines:?}");
    }
    let store = place.store.unwrap();
    store.signal(Signal::TERM);
    let ended = store.wait().expect(0);
    // Those before may have been killed before they could say it.
    let last = format!(
        "the store was killed (SIGKILL); started again ({} of",
        rounds()
    );
    ended.assert_stderr(&last);
}

#[test]
fn a_node_that_dies_together_with_the_store_is_missed_by_the_others() {
    let place = restartable("100");
    let script = "echo world $WORLD_SIZE; test $WORLD_SIZE = 2 || sleep 1000";
    let start = || place.node(&FLAGS, script).start();
    let nodes = [start(), start(), start()];
    for node in &nodes {
        node.stdout.await_text("world 3", 1);
    }
    let [first, second, third] = nodes;
    kill_service(place.store.as_ref().unwrap());
    kill_node(third);
    for node in [first, second] {
        node.wait().expect(0);
    }
    place.end();
}

/// Two agents of a round, stopped and continued: their kernels answer for them, but nothing comes from the agents.
fn signal_agents(nodes: &[Running], signal: Signal) {
    for node in nodes {
        kill(node.agent_pid(), signal);
    }
}

#[test]
fn a_store_that_was_killed_waits_for_more_than_half_of_the_round() {
    let place = restartable("100");
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let node = || {
        let job = place.node(&["--nnodes=2"], WORKER);
        job.env("GO", &go.display().to_string()).start()
    };
    let nodes = [node(), node()];
    for node in &nodes {
        node.stdout.await_text("restarts 0", 1);
    }
    signal_agents(&nodes[1..], Signal::STOP);
    let store = place.store.as_ref().unwrap();
    kill_service(store);
    store.stderr.await_text("recovering round 0", 1);
    signal_agents(&nodes[1..], Signal::CONT);
    std::fs::write(&go, "").unwrap();
    for node in nodes {
        let ended = node.wait().expect(0);
        assert_eq!(ended.stdout.lines().count(), 2, "{}", ended.stdout);
    }
    place.end();
}

#[test]
fn no_other_round_forms_while_a_whole_one_is_silent() {
    let place = restartable("100");
    let directory = tempfile::tempdir().unwrap();
    let go = directory.path().join("go");
    let conf = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3";
    let node = || {
        let job = place.node(&["--nnodes=1:2", conf], WORKER);
        job.env("GO", &go.display().to_string()).start()
    };
    let nodes = [node(), node()];
    for node in &nodes {
        node.stdout.await_text("restarts 0", 1);
    }
    let spare = node();
    super::await_state(&place.endpoint, |state| state.redundancy_list.len() == 1);
    signal_agents(&nodes, Signal::STOP);
    let store = place.store.as_ref().unwrap();
    store.stderr.await_text("nothing is heard of round 0", 1);
    assert_eq!(spare.stdout.so_far(), "");
    signal_agents(&nodes, Signal::CONT);
    let [first, second] = nodes;
    let nodes = [first, second, spare];
    let until = Instant::now() + DEADLINE;
    let started = |node: &Running| node.stdout.so_far().lines().count();
    // Any two of them are in the next round.
    while nodes.iter().map(started).sum::<usize>() < 4 {
        assert!(Instant::now() < until, "{}", store.stderr.so_far());
        std::thread::park_timeout(Duration::from_millis(5));
    }
    std::fs::write(&go, "").unwrap();
    for node in nodes {
        node.wait().expect(0);
    }
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
