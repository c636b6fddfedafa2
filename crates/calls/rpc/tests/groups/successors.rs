//! Tests of static groups that follow one another in a store.
//!
//! The worker of the next group may arrive at any point of the cleanup of the earlier group.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdzv_rpc::group::Group;
use rdzv_store::Store;

use super::support::{connection, names, shut_down, tcp_store, worker};
use super::watched::Watched;

/// Time limit of every operation.
const LONG: Duration = Duration::from_secs(10);

/// Maximum number of requests of the returning worker before it waits.
const COMING: usize = 8;

/// Exclusive limit of the request before which the worker that cleans up waits.
const CLEARING: usize = 15;

/// A gate at which a worker waits until the other end is dropped.
type Gate = Mutex<Receiver<()>>;

fn gate() -> (Sender<()>, Gate) {
    let (open, gate) = mpsc::channel();
    (open, Mutex::new(gate))
}

fn wait_at(gate: &Gate) {
    // No value is ever sent: the wait ends when the sender is dropped.
    let _ = gate.lock().unwrap().recv();
}

/// Store of a worker that waits at two gates.
/// The first gate follows the verdict of its group, the second comes `later` requests after that.
/// The worker sends on `said` when it reaches the second gate.
fn slow(store: &Arc<dyn Store>, later: usize, gates: [Gate; 2], said: Sender<()>) -> Arc<Watched> {
    let calls = AtomicUsize::new(0);
    Watched::new(store, move |key| {
        let begun = calls.load(Ordering::SeqCst) > 0 || key.ends_with("/departed");
        let call = if begun {
            calls.fetch_add(1, Ordering::SeqCst)
        } else {
            usize::MAX
        };
        if call == 0 {
            wait_at(&gates[0]);
        } else if call == later {
            // Without a receiver, the test no longer needs the message.
            let _ = said.send(());
            wait_at(&gates[1]);
        }
        true
    })
}

/// Store of a worker that runs one step before call `at`, and one after it.
/// Both steps run before the worker waits for the first worker.
fn quick(store: &Arc<dyn Store>, at: usize, steps: [Box<dyn FnOnce() + Send>; 2]) -> Arc<Watched> {
    let (calls, steps) = (AtomicUsize::new(0), Mutex::new(steps.into_iter()));
    Watched::new(store, move |key| {
        let is_time = calls.fetch_add(1, Ordering::SeqCst) >= at;
        let waits = key.ends_with("/member/0");
        for _ in 0..if waits { 2 } else { usize::from(is_time) } {
            if let Some(step) = steps.lock().unwrap().next() {
                step();
            }
        }
        true
    })
}

/// Tests a worker that returns while the other cleans up their earlier group.
/// Between any two requests of one worker, the other makes any number of requests.
#[test]
fn a_worker_is_back_while_its_former_group_is_cleared_away() {
    for at in 0..COMING {
        for later in 1..CLEARING {
            let store = tcp_store();
            let ([begin, go_on], gates) = {
                let [one, two] = [gate(), gate()];
                ([one.0, two.0], [one.1, two.1])
            };
            let (said, held_or_over) = mpsc::channel();
            let over = said.clone();
            let first = slow(&store, later, gates, said);
            let (slow, former) = thread::scope(|scope| {
                let slow = scope.spawn(|| Group::form(first, worker("slow", 0), 2, LONG));
                let quick = Group::form(connection(&store), worker("quick", 1), 2, LONG);
                (slow.join().unwrap().unwrap(), quick.unwrap())
            });
            let groups = thread::scope(|scope| {
                let slow = scope.spawn(|| {
                    slow.shutdown_barrier(LONG).unwrap();
                    // One message for each step that may wait for it.
                    for _ in 0..2 {
                        let _ = over.send(());
                    }
                    Group::form(connection(&store), worker("slow", 0), 2, LONG)
                });
                former.shutdown_barrier(LONG).unwrap();
                let held_or_over = Arc::new(Mutex::new(held_or_over));
                let steps = [begin, go_on].map(|open| {
                    let held_or_over = Arc::clone(&held_or_over);
                    let step = move || {
                        drop(open);
                        held_or_over.lock().unwrap().recv_timeout(LONG).unwrap();
                    };
                    Box::new(step) as Box<dyn FnOnce() + Send>
                });
                let store = quick(&store, at, steps);
                let quick = Group::form(store, worker("quick", 1), 2, LONG);
                [slow.join().unwrap(), quick]
            });
            let groups = groups.map(|group| {
                group.unwrap_or_else(|error| panic!("calls {at} and {later}: {error}"))
            });
            assert_eq!(names(&groups[0].view()), ["slow", "quick"]);
            shut_down(&groups);
            let keys = store.list_keys().unwrap();
            assert_eq!(keys, ["rdzv/rpc/round"], "calls {at} and {later}");
        }
    }
}
