//! Changes to a round after its completion.

use std::thread;
use std::time::Duration;

use rdzv_rendezvous::{Change, RendezvousInfo};

use crate::backends::RunBackend;
use crate::behaviours;
use crate::nodes::{Node, agree, form, join_all, nodes};

behaviours!(
    a_late_node_is_let_in,
    a_node_that_leaves_is_missed,
    a_lost_node_is_missed,
    a_node_that_joins_again_takes_the_others_along,
    a_surplus_node_replaces_one_that_left,
    a_node_that_leaves_after_its_success_ends_no_round,
    a_failure_for_good_is_announced_to_the_others,
    a_failure_is_heard_before_the_closing_that_follows_it,
);

/// Options that detect a lost node after 6 s, and end the last call early.
const QUICK: &str = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=6";

fn a_late_node_is_let_in(backend: &dyn RunBackend) {
    let mut two = nodes(backend, 2, (2, 3), QUICK);
    let first = form(&mut two);
    let mut late = Node::new(backend, (2, 3), QUICK);
    thread::scope(|scope| {
        let late = scope.spawn(|| late.join().unwrap());
        for node in &two {
            let reason = node.hears_end_of(first[0].round);
            assert!(reason.contains("wait"), "{reason}");
        }
        let mut infos = form_with(&mut two, 3);
        infos.push(late.join().unwrap());
        agree(&infos);
        assert!(infos[0].round > first[0].round);
    });
}

/// Joins all nodes like [`form`], as a part of a larger round.
fn form_with(nodes: &mut [Node], world_size: u32) -> Vec<RendezvousInfo> {
    let infos = join_all(nodes);
    let infos: Vec<_> = infos.into_iter().map(Result::unwrap).collect();
    assert!(
        infos.iter().all(|info| info.world_size == world_size),
        "{infos:?}"
    );
    infos
}

fn a_node_that_leaves_is_missed(backend: &dyn RunBackend) {
    let mut three = nodes(backend, 3, (2, 3), QUICK);
    let first = form(&mut three);
    let mut leaver = three.remove(0);
    leaver.backend.leave().unwrap();
    for node in &three {
        node.hears_end_of(first[0].round);
    }
    form(&mut three);
}

fn a_lost_node_is_missed(backend: &dyn RunBackend) {
    // The first node may host the store, so another node is lost.
    let mut three = nodes(backend, 3, (2, 3), QUICK);
    three[0].backend.is_closed().unwrap();
    let first = form(&mut three);
    drop(three.pop());
    for node in &three {
        let reason = node.hears_end_of(first[0].round);
        assert!(reason.starts_with("node "), "{reason}");
    }
    form(&mut three);
}

fn a_node_that_joins_again_takes_the_others_along(backend: &dyn RunBackend) {
    let mut two = nodes(backend, 2, (2, 2), "");
    let first = form(&mut two);
    let mut other = two.pop().unwrap();
    thread::scope(|scope| {
        let again = scope.spawn(|| other.join().unwrap());
        two[0].hears_end_of(first[0].round);
        let infos = [two[0].join().unwrap(), again.join().unwrap()];
        agree(&infos);
        assert!(infos[0].round > first[0].round);
    });
}

fn a_surplus_node_replaces_one_that_left(backend: &dyn RunBackend) {
    let mut two = nodes(backend, 2, (2, 2), QUICK);
    let first = form(&mut two);
    let mut surplus = Node::new(backend, (2, 2), QUICK);
    thread::scope(|scope| {
        let surplus = scope.spawn(|| surplus.join().unwrap());
        let mut leaver = two.remove(1);
        leaver.backend.leave().unwrap();
        two[0].hears_end_of(first[0].round);
        let infos = [two[0].join().unwrap(), surplus.join().unwrap()];
        agree(&infos);
    });
}

fn a_node_that_leaves_after_its_success_ends_no_round(backend: &dyn RunBackend) {
    let mut two = nodes(backend, 2, (2, 2), QUICK);
    form(&mut two);
    two[1].backend.report_success();
    two[1].backend.leave().unwrap();
    let change = two[0].hears_within(Duration::from_secs(2));
    assert!(change.is_none(), "{change:?}");
}

fn a_failure_for_good_is_announced_to_the_others(backend: &dyn RunBackend) {
    let mut three = nodes(backend, 3, (3, 3), "");
    form(&mut three);
    three[1]
        .backend
        .report_failure("worker 3 exited with code 7")
        .unwrap();
    for other in [0, 2] {
        let (node, reason) = three[other].hears(|change| match change {
            Change::PeerFailed { node, reason } => Some((node, reason)),
            _ => None,
        });
        assert!(node.contains(&std::process::id().to_string()), "{node}");
        assert_eq!(reason, "worker 3 exited with code 7");
    }
    assert!(three[1].heard().is_empty());
}

/// A node that receives the closing first would end without knowing the reason.
fn a_failure_is_heard_before_the_closing_that_follows_it(backend: &dyn RunBackend) {
    let mut three = nodes(backend, 3, (3, 3), "");
    form(&mut three);
    three[1].backend.report_failure("no data").unwrap();
    three[1].backend.set_closed().unwrap();
    for other in [0, 2] {
        let mut failures = 0;
        three[other].hears(|change| match change {
            Change::PeerFailed { .. } => {
                failures += 1;
                None
            }
            Change::Closed => Some(()),
            other => panic!("{other:?}"),
        });
        assert_eq!(failures, 1);
    }
}
