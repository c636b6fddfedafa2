//! Tests of jobs with one endpoint, whose agents become voters automatically.

use rustix::process::Signal;

use super::group::await_events;
use super::voters::{CONF, job_of, kill_machine};
use super::{Gate, RendezvousPoint, await_each, expect_killed, first_agent, rounds, terminated};
use crate::harness::{Job, Running, kill};

/// Job whose workers print their round, and exit when the gate is open.
struct Group {
    point: RendezvousPoint,
    gate: Gate,
    nnodes: &'static str,
}

impl Group {
    fn new(nnodes: &'static str) -> Self {
        let (point, gate) = (first_agent(), Gate::new());
        Self {
            point,
            gate,
            nnodes,
        }
    }

    /// Returns a node with these settings and any number of agent restarts.
    fn job(&self, conf: &str) -> Job {
        let restarts = ["--max-restarts=1", "--agent-restarts=1000000"];
        let flags = ["--nnodes", self.nnodes, "--rdzv-conf", conf];
        job_of(&self.point, &self.gate, &[&flags[..], &restarts].concat())
    }

    /// Starts a node on the machine of the endpoint.
    fn node(&self) -> Running {
        self.job(CONF).start()
    }

    /// Returns a node on another machine.
    fn job_elsewhere(&self) -> Job {
        self.job(&format!("{CONF},is_host=false"))
    }

    fn node_elsewhere(&self) -> Running {
        self.job_elsewhere().start()
    }

    /// Starts more nodes after the host, as if each had a separate machine.
    ///
    /// Returns once all of them are in one round.
    fn complete(&self, host: Running, count: usize) -> Vec<Running> {
        host.stderr.await_text("hosts the TCP store", 1);
        let mut nodes = vec![host];
        nodes.extend((1..count).map(|_| self.node_elsewhere()));
        await_each(&nodes, &format!("/{count} at"), 1);
        nodes
    }

    /// Starts nodes, and waits until all three voters exist.
    fn nodes_of_voters(&self, count: usize) -> Vec<Running> {
        let nodes = self.complete(self.node(), count);
        nodes[0].stderr.await_text("3 voters: ", 1);
        nodes
    }
}

#[test]
fn a_job_outlives_the_machine_of_its_only_endpoint_which_finds_it_when_it_is_back() {
    let group = Group::new("2:3");
    let mut nodes = group.nodes_of_voters(3);
    kill_machine(nodes.remove(0));
    await_each(&nodes, "/2 at", 1);
    // The new agent first starts an empty coordinator at the endpoint, then follows the real one.
    let new = group.node();
    new.stderr
        .await_text("its own group, which had no round, and", 1);
    await_each(&nodes, "/3 at", 2);
    new.stdout.await_text("/3 at", 1);
    nodes.push(new);
    group.gate.finish_without_failures(nodes);
}

#[test]
fn a_new_node_on_another_machine_finds_a_job_that_goes_on_without_its_endpoint_at_a_known_voter() {
    let group = Group::new("2:3");
    let mut nodes = group.nodes_of_voters(3);
    let said = nodes[0].stderr.so_far();
    let (_, voters) = said.rsplit_once("3 voters: ").unwrap();
    let (voters, _) = voters.split_once(';').unwrap();
    let known_voters = voters.replace(' ', "");
    kill_machine(nodes.remove(0));
    await_each(&nodes, "/2 at", 1);
    let new = group.job_elsewhere();
    nodes.push(new.env("RDZV_CONTACT_POINTS", &known_voters).start());
    nodes[2].stdout.await_text("/3 at", 1);
    group.gate.finish_without_failures(nodes);
}

#[test]
fn the_fence_is_on_while_there_are_three_voters() {
    let group = Group::new("1:3");
    let events = group.gate.path("events");
    let host = group
        .job(CONF)
        .env("PET_EVENTS_FILE", events.to_str().unwrap());
    let mut nodes = group.complete(host.start(), 3);
    await_events(&events, "fence_on", 1);
    terminated(nodes.pop().unwrap());
    await_events(&events, "fence_off", 1);
    nodes[0].stdout.await_text("/2 at", 1);
    nodes.push(group.node_elsewhere());
    nodes[0].stdout.await_text("/3 at", 2);
    await_events(&events, "fence_on", 2);
    for said in ["the fence is off", "the fence is on"] {
        nodes[0].stderr.await_text(said, 1);
    }
    group.gate.finish_without_failures(nodes);
}

#[test]
fn of_two_nodes_the_one_with_the_coordinator_may_end_in_order() {
    let group = Group::new("1:2");
    let mut nodes = group.complete(group.node(), 2);
    nodes[0].stderr.await_text("if it exits normally, ", 1);
    terminated(nodes.remove(0));
    nodes[0].stdout.await_text("/1 at", 1);
    let said = "this process coordinates the rendezvous in place of";
    assert!(nodes[0].stderr.so_far().contains(said));
    nodes.push(group.node());
    nodes[0].stdout.await_text("/2 at", 2);
    nodes[1].stdout.await_text("/2 at", 1);
    group.gate.finish_without_failures(nodes);
}

#[test]
fn the_keeper_of_the_only_voter_may_be_killed() {
    let group = Group::new("1:2");
    let mut nodes = group.complete(group.node(), 2);
    nodes[0].stderr.await_text("if it exits normally, ", 1);
    let first = nodes.remove(0);
    first.signal(Signal::KILL);
    nodes[0].stdout.await_text("/1 at", 1);
    expect_killed(first);
    group.gate.finish_without_failures(nodes);
}

#[test]
fn all_agents_may_be_killed_at_once() {
    let group = Group::new("3");
    let nodes = group.nodes_of_voters(3);
    for node in &nodes {
        kill(node.agent_pid(), Signal::KILL);
    }
    await_each(&nodes, "/3 at", 2);
    let said = "this process continues from its record";
    let screens: Vec<String> = nodes.iter().map(|node| node.stderr.so_far()).collect();
    let goes_on = screens.iter().filter(|screen| screen.contains(said));
    assert_eq!(goes_on.count(), 1, "{screens:#?}");
    group.gate.finish_without_failures(nodes);
}

#[test]
fn an_agent_that_is_killed_votes_again_wherever_the_coordinator_is() {
    let group = Group::new("3");
    let nodes = group.nodes_of_voters(3);
    for round in 0..rounds() {
        kill(nodes[round % 3].agent_pid(), Signal::KILL);
        await_each(&nodes, "/3 at", round + 2);
    }
    group.gate.finish_without_failures(nodes);
}

/// Waits until the coordinator has three voters.
///
/// Another node may coordinate than at first: if two of three voters are killed before the group
/// replaces one of them, it continues from a record.
fn await_three_voters(nodes: &[Running]) {
    let term = |node: &&Running| {
        let said = node.stderr.so_far();
        let (_, said) = said.rsplit_once("this process coordinates the rendezvous")?;
        let (term, _) = said.split_once("(term ")?.1.split_once(')')?;
        term.parse::<u64>().ok()
    };
    let coordinator = nodes.iter().max_by_key(term).unwrap();
    let said = coordinator.stderr.so_far();
    let has_three =
        said.rfind("3 voters: ") > said.rfind("2 voters: ").max(said.rfind("1 voter: "));
    let times = said.matches("3 voters: ").count();
    (coordinator.stderr).await_text("3 voters: ", times + usize::from(!has_three));
}

#[test]
fn an_agent_that_was_asked_to_vote_and_killed_before_it_did_votes_later() {
    let group = Group::new("4");
    let nodes = group.nodes_of_voters(4);
    // One of these three is not a voter, at first and after each kill.
    for (round, node) in [1, 2, 3, 1, 2, 3].into_iter().enumerate() {
        kill(nodes[node].agent_pid(), Signal::KILL);
        await_each(&nodes, "/4 at", round + 2);
    }
    await_three_voters(&nodes);
    group.gate.finish_without_failures(nodes);
}

#[test]
fn a_new_node_finds_the_group_where_the_agent_at_the_endpoint_was_replaced_while_it_had_the_port() {
    let group = Group::new("2:3");
    let mut nodes = group.nodes_of_voters(3);
    let first = nodes.remove(0);
    first.signal(Signal::KILL);
    // The killed agent may hold the port a little longer.
    nodes.push(group.node());
    nodes[2].stdout.await_text("/3 at", 1);
    expect_killed(first);
    kill_machine(nodes.remove(0));
    await_each(&nodes, "/2 at", 1);
    nodes.push(group.node_elsewhere());
    nodes[2].stdout.await_text("/3 at", 1);
    group.gate.finish_without_failures(nodes);
}

#[test]
fn a_new_node_finds_the_group_by_an_agent_that_shares_the_machine_of_the_endpoint() {
    let group = Group::new("2:3");
    let mut nodes = group.complete(group.node(), 2);
    nodes.push(group.node());
    nodes[0].stderr.await_text("3 voters: ", 1);
    kill_machine(nodes.remove(0));
    nodes[1]
        .stderr
        .await_text("this node redirects new nodes from there", 1);
    nodes.push(group.node_elsewhere());
    nodes[2].stdout.await_text("/3 at", 1);
    group.gate.finish_without_failures(nodes);
}
