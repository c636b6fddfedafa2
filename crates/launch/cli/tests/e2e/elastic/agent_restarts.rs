//! Tests of killed agents that their guards restart.

use std::time::{Duration, Instant};

use rdzv_testing::pids::{self, kill};
use rustix::process::Signal;

use super::{
    Gate, PRINT_ROUND, RendezvousPoint, await_each, await_participants, expect_killed, first_agent,
    kill_node, printed, rounds, serving, store, terminated,
};
use crate::harness::{Running, free_port, poll_for, rdzv};

const FLAGS: [&str; 2] = ["--nnodes=2", "--max-restarts=1"];

/// Waits until the nodes have printed this round's index.
fn await_round<'n>(nodes: impl IntoIterator<Item = &'n Running>, round: u64) {
    await_each(nodes, &format!("round {round}\n"), 1);
}

/// Kills the agent of a node, and waits for the next agent.
fn kill_agent(node: &Running) {
    let agent = node.agent_pid();
    kill(agent, Signal::KILL);
    let next = || pids::agent(node.pid()).is_some_and(|pid| pid != agent);
    poll_for("another agent", next);
}

#[test]
fn a_job_outlives_each_of_its_agents() {
    let flags = [&FLAGS[..], &["--agent-restarts=1000000"]].concat();
    for point in [first_agent(), store()] {
        let gate = Gate::new();
        let nodes = point.two_nodes(&flags, &gate.script());
        let mut round = 0;
        for killed in nodes.iter().cycle().take(rounds()) {
            await_round(&nodes, round);
            kill_agent(killed);
            round += 1;
            let said = "the agent was killed (SIGKILL); restarted (";
            killed.stderr.await_text(said, 1);
        }
        await_round(&nodes, round);
        gate.finish_without_failures(nodes);
        point.end();
    }
}

#[test]
fn an_agent_knows_how_many_restarts_of_its_workers_one_before_it_has_used() {
    let point = store();
    let gate = Gate::new();
    let fails = format!(
        "{PRINT_ROUND}; test $RDZV_ROUND -ge 1 || exit 7; {}",
        gate.while_closed("sleep 0.05")
    );
    let first = point.node(&FLAGS, &fails).start();
    let second = point.node(&FLAGS, &gate.script()).start();
    await_round([&first], 1);
    kill_agent(&first);
    await_round([&first], 2);
    let ended = &gate.finish([first, second])[0];
    assert_eq!(printed(&ended.stdout, "restarts"), "1", "{}", ended.stdout);
    point.end();
}

#[test]
fn an_agent_that_is_killed_too_often_ends() {
    let point = store();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=1"];
    let once = [&flags[..], &["--agent-restarts=1"]].concat();
    let node = point
        .node(&once, "echo here $RDZV_ROUND; sleep 1000")
        .start();
    node.stdout.await_text("here 0", 1);
    kill_agent(&node);
    node.stdout.await_text("here 1", 1);
    kill(node.agent_pid(), Signal::KILL);
    let ended = node.wait().expect(-9);
    ended.assert_stderr("rdzv: the agent was killed by SIGKILL");
    point.end();
}

#[test]
fn an_agent_that_was_asked_to_end_is_not_started_again() {
    let point = store();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=0"];
    let ignores = "trap '' TERM; echo here; while :; do sleep 0.05; done";
    let node = point.node(&flags, ignores).start();
    node.stdout.await_text("here", 1);
    node.signal(Signal::TERM);
    node.stderr.await_text("SIGTERM", 1);
    kill(node.agent_pid(), Signal::KILL);
    node.wait().expect(-9);
    point.end();
}

/// Starts two agents without restarts, at the first of several endpoints.
///
/// Only one of them is a voter.
fn without_restarts(port: u16) -> (RendezvousPoint, [Running; 2]) {
    let point = RendezvousPoint {
        endpoint: format!("127.0.0.1:{port},127.0.0.2,127.0.0.3"),
        store: None,
    };
    let flags = [
        "--nnodes=1:2",
        "--agent-restarts=0",
        "--rdzv-conf=voters=1,last_call_timeout=20",
    ];
    let script = format!("{PRINT_ROUND}; exec sleep 1000");
    let host = point.node(&flags, &script).start();
    await_participants(&format!("127.0.0.1:{port}"), 1, |_| true);
    let other = point.node(&flags, &script).start();
    await_each([&host, &other], "node", 1);
    (point, [host, other])
}

/// Asserts that a node fails with this text after 5 s without a coordinator.
fn expect_end_after_five_seconds(node: Running, before: Instant, said: &str) {
    let ended = node.wait().expect(1);
    let elapsed = before.elapsed();
    assert!(
        (5..20).contains(&elapsed.as_secs()),
        "{elapsed:?}, {}",
        ended.stderr
    );
    ended.assert_stderr(said);
}

#[test]
fn without_restarts_and_with_one_voter_a_host_whose_agent_is_killed_ends_the_job_after_five_seconds()
 {
    let port = free_port();
    let (_, [host, other]) = without_restarts(port);
    let before = Instant::now();
    kill(host.agent_pid(), Signal::KILL);
    host.wait().expect(-9);
    // The host of the rendezvous is lost, and will not restart. The other node waits 5 s for it.
    let said = format!("refused (os error 111) at the rdzv store at 127.0.0.1:{port} after 5.");
    expect_end_after_five_seconds(other, before, &said);
}

#[test]
fn without_restarts_and_with_one_voter_another_agent_that_is_killed_is_lost_at_once() {
    type Kill = fn(&Running);
    let kills: [(Kill, &str); 2] = [
        (
            |node| kill(node.agent_pid(), Signal::KILL),
            " is lost: its connection closed",
        ),
        (|node| node.signal(Signal::KILL), " has left"),
    ];
    for (kill, said) in kills {
        let (_, [host, other]) = without_restarts(free_port());
        let before = Instant::now();
        kill(&other);
        host.stderr.await_text(said, 1);
        host.stdout.await_text("node 0/1", 1);
        // The next round waits neither for the last call nor for a reconnection.
        let elapsed = before.elapsed();
        assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
        expect_killed(other);
        kill_node(host);
    }
}

#[test]
fn without_restarts_and_with_one_voter_a_host_whose_keeper_is_killed_leaves_and_ends_the_job() {
    let port = free_port();
    let (_, [host, other]) = without_restarts(port);
    let before = Instant::now();
    host.signal(Signal::KILL);
    other.stderr.await_text(" has left", 1);
    expect_killed(host);
    let said = format!("at the rdzv store at 127.0.0.1:{port} after 5.");
    expect_end_after_five_seconds(other, before, &said);
}

#[test]
fn nobody_waits_for_a_host_that_has_ended_in_order() {
    let point = first_agent();
    // With more voters, another node would be the host.
    let flags = ["--nnodes=2", "--rdzv-conf=voters=1"];
    let nodes = point.two_nodes(&flags, "echo here; sleep 1000");
    await_each(&nodes, "here", 1);
    let [host, other] = nodes;
    let before = Instant::now();
    terminated(host).expect(1);
    other.wait().expect(1);
    // The default wait for a coordinator is 60 s.
    assert!(before.elapsed() < Duration::from_secs(30));
}

/// Starts a store at this port, which a test can kill together with its keeper.
fn store_at(port: &str) -> RendezvousPoint {
    let store = rdzv(["store", "--host", "127.0.0.1", "--port", port]);
    serving(store.env("LOGLEVEL", "INFO"))
}

#[test]
fn a_store_that_somebody_starts_again_finds_the_round_as_it_was() {
    let port = free_port().to_string();
    let point = store_at(&port);
    let gate = Gate::new();
    let nodes = point.two_nodes(&FLAGS, &gate.script());
    await_round(&nodes, 0);
    kill_node(point.store.unwrap());
    let point = store_at(&port);
    let running = point.store.as_ref().unwrap();
    running.stderr.await_text("recovered round 0 of 2 nodes", 1);
    for ended in gate.finish(nodes) {
        assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    }
    point.end();
}

#[test]
fn a_host_that_somebody_starts_again_finds_the_others() {
    let point = first_agent();
    let gate = Gate::new();
    let nodes = point.two_nodes(&FLAGS, &gate.script());
    await_round(&nodes, 0);
    let [host, other] = nodes;
    // All processes of the node are killed, but the agent may have time to leave the group first.
    drop(host);
    let host = point.node(&FLAGS, &gate.script()).start();
    host.stdout.await_text(" at ", 1);
    other.stdout.await_text(" at ", 2);
    gate.finish([host, other]);
}

#[test]
fn the_others_wait_for_a_host_whose_keeper_was_killed() {
    let point = first_agent();
    let gate = Gate::new();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=1"];
    let node = || point.node(&flags, &gate.script()).start();
    let host = node();
    host.stdout.await_text("/1 at", 1);
    let other = node();
    await_each([&host, &other], "/2 at", 1);
    kill_node(host);
    let host = node();
    host.stdout.await_text("/2 at", 1);
    other.stdout.await_text("/2 at", 2);
    gate.finish([host, other]);
}

#[test]
fn a_host_that_is_stopped_is_named_and_waited_for() {
    let point = first_agent();
    let gate = Gate::new();
    let nodes = point.two_nodes(&FLAGS, &gate.script());
    await_round(&nodes, 0);
    let [host, other] = &nodes;
    let agent = host.agent_pid();
    kill(agent, Signal::STOP);
    let stopped = Instant::now();
    // The kernel of the stopped agent answers, so the connection stays open.
    let text = "for 3 s (it is connected but sends nothing); the workers continue";
    other.stderr.await_text(text, 1);
    assert!(stopped.elapsed() < Duration::from_secs(10));
    kill(agent, Signal::CONT);
    for ended in gate.finish(nodes) {
        assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    }
}
