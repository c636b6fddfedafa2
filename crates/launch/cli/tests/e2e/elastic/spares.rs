//! Tests of spare nodes, and of ranks that nodes keep.

use rustix::process::Signal;

use super::{
    Gate, PRINT_ROUND, RendezvousPoint, await_each, await_state, expect_killed, printed, store,
    terminated,
};
use crate::harness::Running;

/// Starts a node of a job on four nodes, with one spare node.
fn node(point: &RendezvousPoint, gate: &Gate, more: &[&str]) -> Running {
    let flags = [&["--nnodes=4", "--spares=1", "--agent-restarts=0"], more].concat();
    let wait = gate.while_closed("sleep 0.05");
    let script = format!("{PRINT_ROUND} replaced .$RDZV_REPLACED; {wait}");
    point.node(&flags, &script).start()
}

/// Starts the four nodes of a job; returns them in the order of their ranks.
fn four_nodes(point: &RendezvousPoint, gate: &Gate, more: &[&str]) -> Vec<Running> {
    let mut nodes: Vec<_> = (0..4).map(|_| node(point, gate, more)).collect();
    await_each(&nodes, "round 0 replaced .\n", 1);
    nodes.sort_by_key(|node| printed(&node.stdout.so_far(), "rank"));
    nodes
}

fn await_spare(point: &RendezvousPoint) {
    await_state(&point.endpoint, |state| state.redundancy_list.len() == 1);
}

/// `RDZV_KILLS=20` sets the number of kills.
#[test]
fn a_spare_node_gets_the_rank_of_a_killed_one_and_the_others_keep_theirs() {
    let kills = std::env::var("RDZV_KILLS").map_or(5, |text| text.parse().unwrap());
    let (point, gate) = (store(), Gate::new());
    let mut nodes = four_nodes(&point, &gate, &[]);
    let mut spare = node(&point, &gate, &[]);
    for round in 1..=kills {
        await_spare(&point);
        let lost = round * 3 % 4;
        let killed = std::mem::replace(&mut nodes[lost], spare);
        // The keeper's guard and agent die with it.
        killed.signal(Signal::KILL);
        expect_killed(killed);
        await_each(&nodes, &format!("round {round} replaced .{lost}\n"), 1);
        for (rank, node) in nodes.iter().enumerate() {
            let is = printed(&node.stdout.so_far(), "rank");
            assert_eq!(is, format!("{rank}/4"), "round {round}");
        }
        // A new node is the next spare node.
        spare = node(&point, &gate, &[]);
    }
    await_spare(&point);
    gate.finish_without_failures(nodes);
    let ended = spare.wait().expect(0);
    ended.assert_stderr("has ended without needing this node");
    terminated(point.store.unwrap()).expect(0);
}

#[test]
fn ranks_are_sorted_if_one_node_asks_for_it() {
    let (point, gate) = (store(), Gate::new());
    let sorted = ["--rdzv-conf=rank_order=sorted"];
    let mut nodes = four_nodes(&point, &gate, &sorted);
    // If ranks were not sorted, the other nodes would keep their ranks 0, 2 and 3.
    let spare = node(&point, &gate, &[]);
    await_spare(&point);
    let killed = nodes.remove(1);
    killed.signal(Signal::KILL);
    expect_killed(killed);
    nodes.push(spare);
    await_each(&nodes, "round 1 replaced .", 1);
    let mut order: Vec<_> = nodes.iter().map(|node| (node.agent_pid(), node)).collect();
    order.sort_by_key(|(pid, _)| *pid);
    for (rank, (_, node)) in order.iter().enumerate() {
        let is = printed(&node.stdout.so_far(), "rank");
        assert_eq!(is, format!("{rank}/4"));
    }
    gate.finish_without_failures(nodes);
    point.end();
}
