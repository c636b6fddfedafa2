//! Agents that meet one another, and the store that their workers meet at.
#![allow(clippy::unwrap_used, reason = "this is all test code")]

use crate::harness;
use crate::harness::{Harness, start};
use rdzv_testing::free_port;
use rustix::process::Signal;

/// A worker that counts under a key and fails.
fn counting(options: &[&str]) -> String {
    let program = harness::program();
    let script = format!("{} count shared/key; exit 1", program.display());
    start(options, &script).end().stdout
}

/// An endpoint for nodes of this machine.
fn free_endpoint() -> String {
    format!("static=127.0.0.1:{}", free_port())
}

/// Node `node` of two.
fn one_of_two(endpoint: &str, node: u32, options: &[&str], script: &str) -> Harness {
    let node = format!("node={node}");
    let mut all = vec![endpoint, "nodes=2", &node];
    all.extend(options);
    start(&all, script)
}

#[test]
fn every_attempt_meets_at_an_empty_store() {
    assert_eq!(counting(&["restarts=3"]), "1\n1\n1\n1\n");
}

#[test]
fn every_attempt_of_a_single_static_node_meets_at_an_empty_store() {
    let endpoint = free_endpoint();
    assert_eq!(counting(&["restarts=2", &endpoint]), "1\n1\n1\n");
}

#[test]
fn two_nodes_with_different_roles_agree_on_ranks() {
    let endpoint = free_endpoint();
    let script = "echo $GROUP_RANK/$GROUP_WORLD_SIZE $RANK/$WORLD_SIZE \\
        $ROLE_NAME $ROLE_RANK/$ROLE_WORLD_SIZE $TORCHELASTIC_USE_AGENT_STORE";
    let learner = one_of_two(&endpoint, 1, &["role=learner", "workers=2"], script);
    let actor = one_of_two(&endpoint, 0, &["role=actor"], script).end();
    let learner = learner.end();
    assert_eq!((actor.code(), learner.code()), (Some(0), Some(0)));
    assert_eq!(actor.stdout, "0/2 0/3 actor 0/1 True\n");
    let mut lines: Vec<_> = learner.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        ["1/2 1/3 learner 0/2 True", "1/2 2/3 learner 1/2 True"]
    );
}

#[test]
fn a_static_node_restarts_alone_and_the_other_waits_for_it_at_the_end() {
    let endpoint = free_endpoint();
    let steady = one_of_two(&endpoint, 0, &[], "echo $TORCHELASTIC_RESTART_COUNT");
    let failing = one_of_two(
        &endpoint,
        1,
        &["restarts=1"],
        "echo $TORCHELASTIC_RESTART_COUNT; test $TORCHELASTIC_RESTART_COUNT = 1",
    )
    .end();
    let steady = steady.end();
    assert_eq!((steady.code(), failing.code()), (Some(0), Some(0)));
    assert_eq!((&*steady.stdout, &*failing.stdout), ("0\n", "0\n1\n"));
}

#[test]
fn a_signal_while_waiting_for_the_other_nodes_ends_the_wait() {
    let endpoint = free_endpoint();
    let waiting = one_of_two(&endpoint, 0, &["alone"], "exit 0");
    // It listens before it waits.
    let address = endpoint.strip_prefix("static=").unwrap();
    while std::net::TcpStream::connect(address).is_err() {
        std::thread::yield_now();
    }
    waiting.signal(waiting.keeper(), Signal::TERM);
    waiting
        .end()
        .assert_said("outcome signalled signal=15 workers_started=false");
}
