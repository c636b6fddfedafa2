//! Tests of agents that are voters, with a coordinator that dies.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rdzv_testing::pids;
use rustix::process::{Pid, Signal, kill_process};

use super::restarts::kill_service;
use super::secret::{token_file, with_tls};
use super::{Gate, PRINT_ROUND, RendezvousPoint, await_each, expect_killed, rounds, terminated};
use crate::harness::{DEADLINE, Job, Running, free_port, poll, poll_for, rdzv};

/// Settings with a short last call, because no test waits for a last node.
pub(super) const CONF: &str = "last_call_timeout=1,join_timeout=60";

/// Returns `count` addresses of this machine with the same port.
pub(super) fn voter_endpoints(count: usize) -> RendezvousPoint {
    let port = free_port();
    let points = (1..=count).map(|point| format!("127.0.0.{point}:{port}"));
    RendezvousPoint {
        endpoint: points.collect::<Vec<_>>().join(","),
        store: None,
    }
}

/// Starts a node whose worker prints its round and waits for the gate.
fn node(point: &RendezvousPoint, gate: &Gate) -> Running {
    node_with(point, gate, &[])
}

/// Starts such a node with more flags.
fn node_with(point: &RendezvousPoint, gate: &Gate, more: &[&str]) -> Running {
    let flags = ["--nnodes=2:3", "--rdzv-conf", CONF, "--max-restarts=1"];
    start(point, gate, &[&flags, more].concat())
}

pub(super) fn start(point: &RendezvousPoint, gate: &Gate, flags: &[&str]) -> Running {
    job_of(point, gate, flags).start()
}

/// Returns the job of such a node.
pub(super) fn job_of(point: &RendezvousPoint, gate: &Gate, flags: &[&str]) -> Job {
    point.node(flags, &gate.script()).env("LOGLEVEL", "INFO")
}

/// Starts three nodes in one round, which are all voters.
fn three_voters(more: &[&str]) -> (RendezvousPoint, Gate, Vec<Running>) {
    let (point, gate) = (voter_endpoints(3), Gate::new());
    let nodes = [1, 2, 3].map(|_| node_with(&point, &gate, more));
    await_each(&nodes, "/3 at", 1);
    (point, gate, nodes.into())
}

/// Returns the term in which an agent last became the coordinator, if it did.
fn coordinates_in(node: &Running) -> Option<u64> {
    let said = node.stderr.so_far();
    let line = said
        .lines()
        .rfind(|line| line.contains("this process coordinates the rendezvous"))?;
    let (_, term) = line.split_once("(term ")?;
    term.split(')').next()?.parse().ok()
}

/// Waits for a coordinator, and returns the node with the highest term.
pub(super) fn coordinator(nodes: &[Running]) -> usize {
    poll(|| {
        let terms = nodes.iter().map(coordinates_in).enumerate();
        match terms.max_by_key(|(_, term)| *term) {
            Some((node, Some(_))) => Ok(node),
            _ => Err("no coordinator yet"),
        }
    })
}

/// Kills all processes of a node at the same time.
pub(super) fn kill_machine(node: Running) {
    let processes = node.processes();
    // No process may notice the exit of another process, so the test stops all processes first.
    for signal in [Signal::STOP, Signal::KILL] {
        for (pid, _) in &processes {
            let _ = kill_process(Pid::from_raw(*pid).unwrap(), signal);
        }
    }
    expect_killed(node);
}

/// Kills a node's keeper and agent, its keeper, or its guard.
///
/// The other processes of the node then exit.
fn kill_some(node: Running, which: usize) {
    let keeper = node.pid();
    let killed = match which % 3 {
        0 => vec![keeper, node.agent_pid()],
        1 => vec![keeper],
        _ => vec![pids::guard(keeper).unwrap()],
    };
    for pid in killed {
        // The process may have exited together with the previous process.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
    assert!(node.all_gone_within(Duration::from_secs(20)));
    node.wait();
}

#[test]
fn a_job_outlives_the_machine_of_its_coordinator() {
    let (_, gate, mut nodes) = three_voters(&[]);
    kill_machine(nodes.remove(coordinator(&nodes)));
    await_each(&nodes, "/2 at", 1);
    for ended in gate.finish_without_failures(nodes) {
        ended.assert_stdout("round 1");
    }
}

#[test]
fn a_machine_that_comes_back_votes_again() {
    let (point, gate, mut nodes) = three_voters(&[]);
    // The test loses more machines than there were voters at the beginning.
    for lost in 0..=rounds() {
        await_each(&nodes, "/3 at", 1);
        let dead = nodes.remove(coordinator(&nodes));
        match lost % 4 {
            0 => kill_machine(dead),
            which => kill_some(dead, which),
        }
        let since = nodes.iter().map(|node| node.stderr.so_far().len());
        let since: Vec<usize> = since.collect();
        nodes.push(node(&point, &gate));
        let votes = |(node, since): (&Running, &usize)| {
            node.stderr.so_far()[*since..].contains("replaces the voter that exited")
        };
        let what = format!("machine {lost} votes again");
        poll_for(&what, || nodes.iter().zip(&since).all(votes));
        nodes[2].stdout.await_text("/3 at", 1);
    }
    gate.finish(nodes);
}

#[test]
fn a_voter_without_a_majority_waits_for_the_others_and_goes_on_with_them() {
    let (point, gate, mut nodes) = three_voters(&[]);
    for dead in nodes.drain(..2) {
        kill_some(dead, 0);
    }
    nodes[0].stderr.await_text("no coordinator at", 1);
    nodes.extend([1, 2].map(|_| node(&point, &gate)));
    for (node, rounds) in nodes.iter().zip([2, 1, 1]) {
        node.stdout.await_text("/3 at", rounds);
    }
    gate.finish(nodes);
}

#[test]
fn a_node_that_is_started_again_at_once_votes_again() {
    let (point, gate, mut nodes) = three_voters(&[]);
    let dead = nodes.remove(coordinator(&nodes));
    dead.signal(Signal::KILL);
    // The old agent exits soon, and holds its port until its exit.
    nodes.push(node(&point, &gate));
    for node in &nodes[..2] {
        let text = "replaces the voter that exited";
        node.stderr.await_text(text, 1);
    }
    expect_killed(dead);
    gate.finish(nodes);
}

#[test]
fn a_coordinator_that_ends_in_order_hands_over() {
    let (_, gate, mut nodes) = three_voters(&[]);
    terminated(nodes.remove(coordinator(&nodes)));
    await_each(&nodes, "/2 at", 1);
    for ended in gate.finish(nodes) {
        // The new coordinator knows that the node has left, and does not wait for the node.
        let known = "has left; will join the next round";
        ended.assert_stderr(known);
    }
}

#[test]
fn the_last_of_three_voters_goes_on_after_the_others_have_ended_in_order() {
    // The last of two equal flags counts.
    let (_, gate, mut nodes) = three_voters(&["--nnodes=1:3"]);
    terminated(nodes.remove((coordinator(&nodes) + 1) % 3));
    // The coordinator leaves immediately after it.
    terminated(nodes.remove(coordinator(&nodes)));
    nodes[0].stdout.await_text("0/1 at", 1);
    gate.finish(nodes);
}

#[test]
fn a_job_does_not_begin_before_every_voter_is_there() {
    let (point, gate) = (voter_endpoints(3), Gate::new());
    gate.open();
    let first = [1, 2].map(|_| node(&point, &gate));
    for node in &first {
        node.stderr.await_text("waiting for the voters to join", 1);
        assert_eq!(node.stdout.so_far(), "");
    }
    let last = node(&point, &gate);
    gate.finish(first.into_iter().chain([last]));
}

#[test]
fn voters_with_a_token_and_tls_outlive_their_coordinator_too() {
    with_tls("the token of this job, which is long", |flags| {
        let (_, gate, mut nodes) = three_voters(flags);
        kill_machine(nodes.remove(coordinator(&nodes)));
        await_each(&nodes, "/2 at", 1);
        gate.finish(nodes);
    });
}

#[test]
fn an_agent_with_another_token_ends_at_once_and_every_voter_names_the_other() {
    let point = voter_endpoints(3);
    let (_ours, right) = token_file("the token of this job, which is long");
    let (_theirs, wrong) = token_file("the token of another job, not this");
    let gate = Gate::new();
    let with = |token: &Path| {
        let flags = ["--token-file", token.to_str().unwrap()];
        node_with(&point, &gate, &flags)
    };
    let others = [with(&right), with(&right)];
    for node in &others {
        node.stderr.await_text("waiting for the voters to join", 1);
    }
    let began = Instant::now();
    let ended = with(&wrong).wait().expect(1);
    // The agent would wait 60 s for voters.
    let took = began.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    let endpoints: Vec<&str> = point.endpoint.split(',').collect();
    for endpoint in &endpoints[..2] {
        let why = format!("{endpoint}: it has a different job token");
        ended.assert_stderr(&why);
    }
    ended.assert_stderr("--token-file");
    let named = format!("cannot authenticate with the voter at {}", endpoints[2]);
    for node in &others {
        node.stderr.await_text(&named, 1);
    }
    // With the right token, the job starts.
    gate.finish([with(&right)].into_iter().chain(others));
}

#[test]
fn two_of_five_voters_may_die() {
    let (point, gate) = (voter_endpoints(5), Gate::new());
    let flags = ["--nnodes=3:5", "--rdzv-conf", CONF, "--max-restarts=1"];
    let mut nodes = Vec::from([1, 2, 3, 4, 5].map(|_| start(&point, &gate, &flags)));
    for (all, left) in [("/5 at", "/4 at"), ("/4 at", "/3 at")] {
        await_each(&nodes, all, 1);
        kill_machine(nodes.remove(coordinator(&nodes)));
        await_each(&nodes, left, 1);
    }
    gate.finish(nodes);
}

#[test]
fn a_coordinator_that_is_stopped_is_replaced_and_is_a_node_again_when_it_goes_on() {
    // The kernel keeps the connection open, so only missing heartbeats show the stop.
    let conf = "last_call_timeout=1,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3";
    let (_, gate, nodes) = three_voters(&["--rdzv-conf", conf]);
    let stopped = coordinator(&nodes);
    let agent = nodes[stopped].agent_pid();
    pids::kill(agent, Signal::STOP);
    pids::wait_for_state(agent, 'T');
    let others = [1, 2].map(|next| &nodes[(stopped + next) % 3]);
    await_each(others, "/2 at", 1);
    assert!(others.iter().any(|node| coordinates_in(node).is_some()));
    pids::kill(agent, Signal::CONT);
    await_each(&nodes, "/3 at", 2);
    gate.finish(nodes);
}

/// Returns the times at which a worker has written, in nanoseconds.
fn stamps(file: &Path) -> Vec<u128> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Waits until a worker has written after this time.
fn await_stamp_after(file: &Path, time: u128) {
    let is_after = || stamps(file).last().is_some_and(|last| *last > time);
    poll_for("something is written", is_after);
}

/// Waits until a worker has written nothing for 0.5 s.
fn await_rest(file: &Path) {
    let deadline = Instant::now() + DEADLINE;
    let (mut last, mut since) = (stamps(file).len(), Instant::now());
    while since.elapsed() < Duration::from_millis(500) {
        assert!(Instant::now() < deadline, "it is never at rest");
        std::thread::park_timeout(Duration::from_millis(5));
        let now = stamps(file).len();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

#[test]
fn workers_of_a_stopped_agent_stand_still_at_the_end_of_their_lease() {
    let (point, gate) = (voter_endpoints(3), Gate::new());
    let conf = "last_call_timeout=1,join_timeout=60,node_timeout=0.8";
    let flags = ["--nnodes=2:3", "--rdzv-conf", conf];
    let file = |node: usize, who: &str| gate.path(&format!("{who}{node}"));
    let nodes = [0, 1, 2].map(|number| {
        let [helper, worker] = ["helper", "worker"].map(|who| {
            let file = file(number, who);
            gate.while_closed(&format!("date +%s%N >> {}; sleep 0.02", file.display()))
        });
        // The helper has a separate session, and its parent has exited.
        let script = format!("{PRINT_ROUND}; setsid -f sh -c \"{helper}\"; {worker}");
        point.node(&flags, &script).env("LOGLEVEL", "INFO").start()
    });
    await_each(&nodes, "/3 at", 1);
    let stopped = (coordinator(&nodes) + 1) % 3;
    for who in ["worker", "helper"] {
        await_stamp_after(&file(stopped, who), 0);
    }
    let agent = nodes[stopped].agent_pid();
    pids::kill(agent, Signal::STOP);
    pids::wait_for_state(agent, 'T');
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for who in ["worker", "helper"] {
        await_rest(&file(stopped, who));
    }
    for who in ["worker", "helper"] {
        let last = stamps(&file(stopped, who)).last().copied().unwrap();
        let ran = Duration::from_nanos(last.saturating_sub(now.as_nanos()) as u64);
        // The limit is 1.05 times 0.8 s plus 0.25 s, with some reserve for a busy machine.
        assert!(ran < Duration::from_millis(1_600), "{who}: {ran:?}");
    }
    // The agent is not lost yet, so the round stays and all workers continue.
    pids::kill(agent, Signal::CONT);
    let continued = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for who in ["worker", "helper"] {
        await_stamp_after(&file(stopped, who), continued.as_nanos());
    }
    for ended in gate.finish(nodes) {
        assert_eq!(ended.stdout.matches(" at ").count(), 1, "{}", ended.stdout);
    }
}

/// Starts a store that is a voter at these endpoints.
fn store_voter(point: &RendezvousPoint) -> Running {
    let store = rdzv(["store", "--restarts=1000000", "--join", &point.endpoint])
        .env("LOGLEVEL", "INFO")
        .start();
    store.stdout.await_text("listening on ", 1);
    store
}

#[test]
fn a_store_is_the_third_voter_of_a_job_on_two_machines() {
    let (point, gate) = (voter_endpoints(3), Gate::new());
    let store = store_voter(&point);
    let flags = ["--nnodes=1:2", "--rdzv-conf", CONF];
    let mut nodes = Vec::from([1, 2].map(|_| start(&point, &gate, &flags)));
    await_each(&nodes, "/2 at", 1);
    // A restarted store votes and coordinates again, because it has no workers. The workers of the
    // agents continue.
    let coordinates = "this process coordinates the rendezvous";
    for round in 1..=rounds() {
        store.stderr.await_text(coordinates, round);
        kill_service(&store);
        nodes[0].stderr.await_text("replaces the voter", round);
    }
    store.stderr.await_text(coordinates, rounds() + 1);
    for node in &nodes {
        assert_eq!(node.stdout.so_far().matches(" at ").count(), 1);
    }
    kill_machine(nodes.remove(0));
    nodes[0].stdout.await_text("/1 at", 1);
    nodes.push(start(&point, &gate, &flags));
    for (node, times) in nodes.iter().zip([2, 1]) {
        node.stdout.await_text("/2 at", times);
    }
    gate.finish(nodes);
    terminated(store).expect(0);
}

#[test]
fn a_store_that_cannot_be_a_voter_says_why() {
    for (list, text) in [
        ("127.0.0.1:29400", "names 1 voter, but must list at least 3"),
        ("127.0.0.1,127.0.0.2,127.0.0.1", "is listed twice"),
        ("203.0.113.1,203.0.113.2,203.0.113.3", "is on this machine"),
    ] {
        let ended = rdzv(["store", "--join", list]).expect(2);
        ended.assert_stderr(text);
        ended.assert_stderr("rdzv store: --join: ");
    }
    let point = voter_endpoints(3);
    let store = store_voter(&point);
    let others = [store_voter(&point), store_voter(&point)];
    let ended = rdzv(["store", "--join", &point.endpoint]).expect(1);
    ended.assert_stderr("may use the port");
    for store in others.into_iter().chain([store]) {
        terminated(store).expect(0);
    }
}
