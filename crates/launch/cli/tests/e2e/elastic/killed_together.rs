//! Tests of agents that are killed together with guard and keeper.
//!
//! No process remains to restart the agent.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use rdzv_testing::pids;
use rdzv_testing::pids::{kill, wait_for_state};
use rustix::process::Signal;

use super::secret::with_tls;
use super::{Gate, RendezvousPoint, await_each, store, store_with};
use crate::harness::{DEADLINE, Running};

/// Time limit for the next round; a wait for a silent agent takes minutes.
const SOON: Duration = Duration::from_secs(20);

/// Kills the agent of a node with its guard and keeper, before they can react.
fn kill_together(node: &Running) {
    let keeper = node.pid();
    let (guard, agent) = (pids::guard(keeper).unwrap(), node.agent_pid());
    for pid in [keeper, guard] {
        kill(pid, Signal::STOP);
        wait_for_state(pid, 'T');
    }
    for pid in [agent, guard, keeper] {
        kill(pid, Signal::KILL);
    }
}

fn all_are_killed_and_start_again(point: &RendezvousPoint, flags: &[&str]) {
    let flags = [&["--nnodes=2"], flags].concat();
    let gate = Gate::new();
    let nodes = point.two_nodes(&flags, &gate.script());
    await_each(&nodes, "round 0\n", 1);
    for node in &nodes {
        kill_together(node);
    }
    let killed = Instant::now();
    for node in nodes {
        assert!(node.all_gone_within(DEADLINE));
        node.wait().expect(-9);
    }
    let nodes = point.two_nodes(&flags, &gate.script());
    await_each(&nodes, "round 1\n", 1);
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    gate.finish_without_failures(nodes);
    let said = point.store.as_ref().unwrap().stderr.so_far();
    assert!(!said.contains("no contact with any of"), "{said}");
}

#[test]
fn a_job_whose_agents_were_all_killed_is_started_again_at_its_store() {
    let point = store();
    all_are_killed_and_start_again(&point, &[]);
    point.end();
}

#[test]
fn the_same_over_tls() {
    with_tls("the token of this job, which is long", |flags| {
        let point = store_with(flags);
        all_are_killed_and_start_again(&point, flags);
        point.end();
    });
}

#[test]
fn the_others_hear_of_it_as_of_the_end_of_a_process() {
    let point = store();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=2"];
    let nodes = point.two_nodes(&flags, &Gate::new().script());
    await_each(&nodes, "/2 at", 1);
    let [killed, other] = nodes;
    kill_together(&killed);
    other
        .stderr
        .await_text("is lost: its process has exited", 1);
    other.stdout.await_text("/1 at", 1);
    assert!(killed.all_gone_within(DEADLINE));
    killed.wait().expect(-9);
    super::kill_node(other);
    point.end();
}

/// Returns the inode numbers of a process's open sockets.
fn sockets(pid: i32) -> BTreeSet<String> {
    // The process may have exited.
    let open = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    let targets = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let names = targets.filter_map(|target| target.to_str().map(str::to_owned));
    names
        .filter_map(|name| Some(name.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect()
}

/// Returns the inode numbers of local sockets that are connected to a port.
fn connected_to(port: &str) -> BTreeSet<String> {
    let port: u16 = port.parse().unwrap();
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let connected = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (remote, state) = (fields.get(2)?, fields.get(3)?);
        let is_it = remote.ends_with(&format!(":{port:04X}")) && *state == "01";
        is_it.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    });
    connected.collect()
}

#[test]
fn no_other_process_has_the_connection_of_an_agent() {
    let point = store();
    let flags = ["--nnodes=1:2", "--rdzv-conf=last_call_timeout=0"];
    let node = point.node(&flags, &Gate::new().script()).start();
    node.stdout.await_text("/1 at", 1);
    let (_, port) = point.endpoint.rsplit_once(':').unwrap();
    let connected = connected_to(port);
    let agent = node.agent_pid();
    assert!(!sockets(agent).is_disjoint(&connected), "{connected:?}");
    for (pid, command) in node.processes() {
        let others = pid != agent;
        assert!(!others || sockets(pid).is_disjoint(&connected), "{command}");
    }
    super::kill_node(node);
    point.end();
}
