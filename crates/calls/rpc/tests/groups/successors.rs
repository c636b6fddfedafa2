//! Static groups that follow one another in a store, however far the one before has been cleared away.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdzv_rpc::group::Group;
use rdzv_store::Store;

use super::support::{connection, names, shut_down, tcp_store, worker};
use super::watched::Watched;

/// How long any of it may take.
const LONG: Duration = Duration::from_secs(10);

/// Requests of the worker that is back until it waits for the other one, at the most.
const COMING: usize = 8;

/// Requests of the one that clears, at the most.
const CLEARING: usize = 11;

/// A place to be held up at, until the other end is dropped.
type Gate = Mutex<Receiver<()>>;

fn gate() -> (Sender<()>, Gate) {
    let (open, gate) = mpsc::channel();
    (open, Mutex::new(gate))
}

fn wait_at(gate: &Gate) {
    // It is never sent anything.
    let _ = gate.lock().unwrap().recv();
}

/// The store of a worker that is held up when it has read the verdict of its group, and again so many
/// requests later, of which it tells.
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
            // If nobody wants to know, that is over.
            let _ = said.send(());
            wait_at(&gates[1]);
        }
        true
    })
}

/// The store of a worker that does something before the call with this number, and something else before
/// the next one; both at the latest before it waits for the first worker.
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

/// One worker is back while the other clears their former group away. Between any two requests of the
/// one, the other makes any number of its own.
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
                    // For each of those who may wait for it.
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
