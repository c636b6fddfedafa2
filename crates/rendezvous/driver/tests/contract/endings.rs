//! End of a rendezvous, for all nodes or for one node.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rendezvous::{Change, RendezvousError};

use crate::backends::RunBackend;
use crate::behaviours;
use crate::nodes::{LONG, Node, form, nodes};

behaviours!(
    a_closed_rendezvous_admits_nobody,
    closing_is_announced_to_those_in_the_round,
    closing_ends_the_wait_of_those_who_came_too_early,
    a_surplus_node_ends_quietly_with_the_job,
    an_interrupted_node_does_not_count,
    an_interruption_lasts,
    everybody_can_shut_down,
);

fn a_closed_rendezvous_admits_nobody(backend: &dyn RunBackend) {
    let mut first = Node::new(backend, (1, 1), "");
    form([&mut first]);
    first.backend.set_closed().unwrap();
    assert!(first.backend.is_closed().unwrap());
    let mut late = Node::new(backend, (1, 1), "");
    let error = late.join().unwrap_err();
    assert!(matches!(error, RendezvousError::Closed { .. }), "{error}");
    let text = error.to_string();
    for part in ["run 'run", "closed", "--rdzv-id"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    assert!(late.backend.is_closed().unwrap());
}

fn closing_is_announced_to_those_in_the_round(backend: &dyn RunBackend) {
    let mut two = nodes(backend, 2, (2, 2), "");
    form(&mut two);
    two[1].backend.set_closed().unwrap();
    two[0].hears(|change| matches!(change, Change::Closed).then_some(()));
}

fn closing_ends_the_wait_of_those_who_came_too_early(backend: &dyn RunBackend) {
    let mut early = Node::new(backend, (2, 2), "");
    let mut other = Node::new(backend, (2, 2), "");
    other.backend.is_closed().unwrap();
    thread::scope(|scope| {
        let early = scope.spawn(|| early.join().unwrap_err());
        other.backend.set_closed().unwrap();
        let error = early.join().unwrap();
        assert!(matches!(error, RendezvousError::Closed { .. }), "{error}");
    });
}

fn a_surplus_node_ends_quietly_with_the_job(backend: &dyn RunBackend) {
    let mut first = Node::new(backend, (1, 1), "");
    form([&mut first]);
    let mut surplus = Node::new(backend, (1, 1), "join_timeout=4");
    thread::scope(|scope| {
        let surplus = scope.spawn(|| surplus.join().unwrap_err());
        // Longer than the node would wait if the round needed it.
        let heard = first.hears_within(Duration::from_secs(6));
        assert!(heard.is_none(), "it disturbs no other node: {heard:?}");
        assert!(!surplus.is_finished());
        assert_eq!(first.backend.num_nodes_waiting().unwrap(), 0);
        first.backend.set_closed().unwrap();
        let error = surplus.join().unwrap();
        assert!(
            matches!(error, RendezvousError::NotNeeded { .. }),
            "{error}"
        );
    });
}

fn an_interrupted_node_does_not_count(backend: &dyn RunBackend) {
    let mut first = Node::new(backend, (2, 2), "");
    let interrupt = first.interrupter();
    let (sender, joining) = channel();
    thread::scope(|scope| {
        let join = scope.spawn(|| {
            sender.send(()).unwrap();
            first.join().unwrap_err()
        });
        joining.recv().unwrap();
        let started = Instant::now();
        interrupt();
        let error = join.join().unwrap();
        assert!(matches!(error, RendezvousError::Interrupted), "{error}");
        assert!(started.elapsed() < LONG / 3);
    });
    form(&mut nodes(backend, 2, (2, 2), ""));
}

fn an_interruption_lasts(backend: &dyn RunBackend) {
    let mut node = Node::new(backend, (1, 1), "");
    let interrupt = node.interrupter();
    interrupt();
    interrupt();
    for _ in 0..2 {
        let error = node.join().unwrap_err();
        assert!(matches!(error, RendezvousError::Interrupted), "{error}");
    }
}

fn everybody_can_shut_down(backend: &dyn RunBackend) {
    let mut two = nodes(backend, 2, (2, 2), "");
    form(&mut two);
    thread::scope(|scope| {
        for node in &mut two {
            scope.spawn(|| assert!(node.backend.shutdown()));
        }
    });
}
