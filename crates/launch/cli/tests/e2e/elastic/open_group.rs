//! A job with one endpoint, whose agents become voters by themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::group::await_events;
use super::voters::{CONF, job_of, kill_machine, start};
use super::{Place, first_agent, printed, rounds};
use crate::harness::{Job, Running, kill};

/// Flags of a node, whose agent is started again as often as it is killed here.
fn flags<'a>(nnodes: &'a str, conf: &'a str) -> [&'a str; 6] {
    let restarts = ["--max-restarts=1", "--agent-restarts=1000000"];
    [
        "--nnodes",
        nnodes,
        "--rdzv-conf",
        conf,
        restarts[0],
        restarts[1],
    ]
}

/// A node on the machine of the endpoint, whose worker says where it is, and ends when it is told to.
fn node(place: &Place, go: &Path, nnodes: &str) -> Running {
    start(place, go, &flags(nnodes, CONF))
}

/// The same on another machine.
fn node_elsewhere(place: &Place, go: &Path, nnodes: &str) -> Running {
    job_elsewhere(place, go, nnodes).start()
}

fn job_elsewhere(place: &Place, go: &Path, nnodes: &str) -> Job {
    let conf = format!("{CONF},is_host=false");
    job_of(place, go, &flags(nnodes, &conf))
}

/// Nodes in one round, the first of them with the coordinator, each on a machine of its own.
fn nodes(place: &Place, go: &Path, nnodes: &str, count: usize) -> Vec<Running> {
    let mut nodes = vec![node(place, go, nnodes)];
    nodes[0].stderr.await_text("hosts the TCP store", 1);
    nodes.extend((1..count).map(|_| node_elsewhere(place, go, nnodes)));
    for node in &nodes {
        node.stdout.await_text(&format!("/{count} at"), 1);
    }
    nodes
}

/// A job of so many nodes in one round, whose workers end when a file is there. The folder of that is the last.
fn job(nnodes: &str, count: usize) -> (Place, Vec<Running>, PathBuf, TempDir) {
    let (place, folder) = (first_agent(), tempfile::tempdir().unwrap());
    let go = folder.path().join("go");
    let nodes = nodes(&place, &go, nnodes, count);
    (place, nodes, go, folder)
}

/// Waits until the nodes end well, with no failure of a worker.
fn expect_success(nodes: Vec<Running>, go: &Path) {
    fs::write(go, "").unwrap();
    for node in nodes {
        let ended = node.wait().expect(0);
        assert_eq!(printed(&ended.stdout, "restarts"), "0", "{}", ended.stdout);
    }
}

#[test]
fn a_job_outlives_the_machine_of_its_only_endpoint_which_finds_it_when_it_is_back() {
    let (place, mut nodes, go, _folder) = job("2:3", 3);
    nodes[0].stderr.await_text("3 voters: ", 1);
    kill_machine(nodes.remove(0));
    for node in &nodes {
        node.stdout.await_text("/2 at", 1);
    }
    // It begins anew at the endpoint, and gives that up.
    let new = node(&place, &go, "2:3");
    new.stderr.await_text("its own, which had no round, up", 1);
    nodes.push(new);
    for node in &nodes[..2] {
        node.stdout.await_text("/3 at", 2);
    }
    nodes[2].stdout.await_text("/3 at", 1);
    expect_success(nodes, &go);
}

#[test]
fn a_new_node_on_another_machine_finds_a_job_that_goes_on_without_its_endpoint_at_a_known_voter() {
    let (place, mut nodes, go, _folder) = job("2:3", 3);
    nodes[0].stderr.await_text("3 voters: ", 1);
    let said = nodes[0].stderr.so_far();
    let voters = said
        .lines()
        .rev()
        .find_map(|line| line.split_once("3 voters: "));
    let (_, voters) = voters.unwrap();
    let (voters, _) = voters.split_once(';').unwrap();
    let known_voters = voters.replace(' ', "");
    kill_machine(nodes.remove(0));
    for node in &nodes {
        node.stdout.await_text("/2 at", 1);
    }
    let new = job_elsewhere(&place, &go, "2:3").env("RDZV_CONTACT_POINTS", &known_voters);
    nodes.push(new.start());
    nodes[2].stdout.await_text("/3 at", 1);
    expect_success(nodes, &go);
}

#[test]
fn the_fence_is_on_while_there_are_three_voters() {
    let (place, folder) = (first_agent(), tempfile::tempdir().unwrap());
    let (go, events) = (folder.path().join("go"), folder.path().join("events"));
    let file = format!("--events-file={}", events.display());
    let own = [&flags("1:3", CONF)[..], &[&file]].concat();
    let mut nodes = vec![start(&place, &go, &own)];
    nodes[0].stderr.await_text("hosts the TCP store", 1);
    nodes.extend((1..3).map(|_| node_elsewhere(&place, &go, "1:3")));
    nodes[0].stdout.await_text("/3 at", 1);
    await_events(&events, "fence_on", 1);
    let last = nodes.pop().unwrap();
    last.signal(Signal::TERM);
    last.wait();
    await_events(&events, "fence_off", 1);
    nodes[0].stdout.await_text("/2 at", 1);
    nodes.push(node_elsewhere(&place, &go, "1:3"));
    nodes[0].stdout.await_text("/3 at", 2);
    await_events(&events, "fence_on", 2);
    for said in ["the fence is off", "the fence is on"] {
        nodes[0].stderr.await_text(said, 1);
    }
    expect_success(nodes, &go);
}

#[test]
fn of_two_nodes_the_one_with_the_coordinator_may_end_in_order() {
    let (place, mut nodes, go, _folder) = job("1:2", 2);
    nodes[0].stderr.await_text("if it ends in order, ", 1);
    let first = nodes.remove(0);
    first.signal(Signal::TERM);
    first.wait();
    nodes[0].stdout.await_text("/1 at", 1);
    let said = "this process coordinates the rendezvous in place of";
    assert!(nodes[0].stderr.so_far().contains(said));
    nodes.push(node(&place, &go, "1:2"));
    nodes[0].stdout.await_text("/2 at", 2);
    nodes[1].stdout.await_text("/2 at", 1);
    expect_success(nodes, &go);
}

#[test]
fn the_keeper_of_the_only_voter_may_be_killed() {
    let (_, mut nodes, go, _folder) = job("1:2", 2);
    nodes[0].stderr.await_text("if it ends in order, ", 1);
    let first = nodes.remove(0);
    first.signal(Signal::KILL);
    nodes[0].stdout.await_text("/1 at", 1);
    assert!(first.all_gone_within(Duration::from_secs(20)));
    first.wait().expect(-9);
    expect_success(nodes, &go);
}

#[test]
fn all_agents_may_be_killed_at_once() {
    let (_, nodes, go, _folder) = job("3", 3);
    nodes[0].stderr.await_text("3 voters: ", 1);
    for node in &nodes {
        kill(node.agent_pid(), Signal::KILL);
    }
    for node in &nodes {
        node.stdout.await_text("/3 at", 2);
    }
    let said = "this process goes on from its note";
    let screens: Vec<String> = nodes.iter().map(|node| node.stderr.so_far()).collect();
    let goes_on = screens.iter().filter(|screen| screen.contains(said));
    assert_eq!(goes_on.count(), 1, "{screens:#?}");
    expect_success(nodes, &go);
}

#[test]
fn an_agent_that_is_killed_votes_again_wherever_the_coordinator_is() {
    let (_, nodes, go, _folder) = job("3", 3);
    nodes[0].stderr.await_text("3 voters: ", 1);
    for round in 0..rounds() {
        kill(nodes[round % 3].agent_pid(), Signal::KILL);
        for node in &nodes {
            node.stdout.await_text("/3 at", round + 2);
        }
    }
    expect_success(nodes, &go);
}

#[test]
fn an_agent_that_was_asked_to_vote_and_killed_before_it_did_votes_later() {
    let (_, nodes, go, _folder) = job("4", 4);
    nodes[0].stderr.await_text("3 voters: ", 1);
    // One of these three does not vote, at first and after each death.
    for (round, node) in [1, 2, 3, 1, 2, 3].into_iter().enumerate() {
        kill(nodes[node].agent_pid(), Signal::KILL);
        for node in &nodes {
            node.stdout.await_text("/4 at", round + 2);
        }
    }
    nodes[0].stderr.await_text("3 voters: ", 5);
    expect_success(nodes, &go);
}

#[test]
fn a_new_node_finds_the_group_where_the_agent_at_the_endpoint_was_replaced_while_it_had_the_port() {
    let (place, mut nodes, go, _folder) = job("2:3", 3);
    nodes[0].stderr.await_text("3 voters: ", 1);
    let first = nodes.remove(0);
    first.signal(Signal::KILL);
    // Its agent has the port for a moment longer.
    nodes.push(node(&place, &go, "2:3"));
    nodes[2].stdout.await_text("/3 at", 1);
    assert!(first.all_gone_within(Duration::from_secs(20)));
    first.wait().expect(-9);
    kill_machine(nodes.remove(0));
    for node in &nodes {
        node.stdout.await_text("/2 at", 1);
    }
    nodes.push(node_elsewhere(&place, &go, "2:3"));
    nodes[2].stdout.await_text("/3 at", 1);
    expect_success(nodes, &go);
}

#[test]
fn a_new_node_finds_the_group_by_an_agent_that_shares_the_machine_of_the_endpoint() {
    let (place, folder) = (first_agent(), tempfile::tempdir().unwrap());
    let go = folder.path().join("go");
    let mut nodes = nodes(&place, &go, "2:3", 2);
    nodes.push(node(&place, &go, "2:3"));
    nodes[0].stderr.await_text("3 voters: ", 1);
    kill_machine(nodes.remove(0));
    nodes[1]
        .stderr
        .await_text("this node tells new ones there", 1);
    nodes.push(node_elsewhere(&place, &go, "2:3"));
    nodes[2].stdout.await_text("/3 at", 1);
    expect_success(nodes, &go);
}
