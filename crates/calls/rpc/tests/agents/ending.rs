//! Tests of the end of static groups, with and without failures.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rdzv_rpc::{
    CallContext, CallOptions, Method, Methods, RpcAgent, RpcErrorKind, RpcOptions, Timeout,
    blocking,
};

use super::{LONG, TWICE, methods, shut_down, store, wait_for};

/// Ends when the test opens the gate.
const GATE: Method<(), u32> = Method::new("gate");

/// Ends when it is cancelled.
const HANG: Method<(), ()> = Method::new("hang");

/// Forms a static group of workers `w0`, `w1` and so on, with extra methods.
fn formed(
    world_size: u32,
    timeout: Duration,
    more: impl Fn(Methods) -> Methods + Sync,
) -> Vec<RpcAgent> {
    let store = store();
    let start = |rank: u32| {
        let methods = more(methods()).with(HANG, async |context: CallContext, ()| {
            context.cancellation().cancelled().await;
            Ok::<_, String>(())
        });
        let options = RpcOptions {
            timeout: Timeout::After(timeout),
            ..RpcOptions::default()
        };
        let builder = RpcAgent::builder(format!("w{rank}")).rank(rank);
        let builder = builder.world_size(world_size).store(Arc::clone(&store));
        builder.methods(methods).options(options).connect().unwrap()
    };
    std::thread::scope(|scope| {
        let start = &start;
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| scope.spawn(move || start(rank)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_shutdown_waits_for_a_call_that_is_longer_than_the_timeout() {
    let (open, gate) = mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let agents = formed(3, Duration::from_millis(300), |methods| {
        let gate = Arc::clone(&gate);
        methods.with(
            GATE,
            blocking(move |()| {
                let opened = gate.lock().unwrap().recv_timeout(LONG);
                opened.map(|()| 7).map_err(|error| error.to_string())
            }),
        )
    });
    let never = CallOptions::new().timeout(Timeout::Never);
    let call = agents[0].call_with(never, "w1", GATE, &());
    std::thread::scope(|scope| {
        let ending = [0, 1].map(|at| {
            let agent = &agents[at];
            scope.spawn(move || agent.shutdown(LONG))
        });
        // A worker that is shutting down refuses to make calls.
        for agent in &agents[..2] {
            wait_for("it shuts down", || {
                let refused = agent.call("w2", TWICE, &1).wait().err();
                refused.is_some_and(|error| error.kind == RpcErrorKind::Stopping)
            });
        }
        // The timeout passes. The worker that the others wait for still serves calls.
        let error = agents[2].call("w1", HANG, &()).wait().unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::Deadline);
        assert!(ending.iter().all(|ending| !ending.is_finished()));
        open.send(()).unwrap();
        assert_eq!(call.wait().unwrap(), 7);
        agents[2].shutdown(LONG).unwrap();
        for ending in ending {
            ending.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_peer_that_hangs_is_named_when_the_deadline_is_over() {
    let agents = formed(3, LONG, |methods| methods);
    // The third worker hangs in a call to the second, and does not shut down.
    let hanging = agents[2].call("w1", HANG, &());
    let deadline = Duration::from_secs(2);
    let errors = std::thread::scope(|scope| {
        let ending = [0, 1].map(|at| {
            let agent = &agents[at];
            scope.spawn(move || {
                let begun = Instant::now();
                let error = agent.shutdown(deadline).unwrap_err();
                (begun.elapsed(), error)
            })
        });
        ending.map(|ending| ending.join().unwrap())
    });
    for (elapsed, error) in errors {
        assert_eq!(error.kind, RpcErrorKind::Deadline);
        assert!(error.message.contains("w2 (rank 2)"), "{error}");
        assert!(elapsed > deadline / 2 && elapsed < LONG / 2, "{elapsed:?}");
    }
    // The worker that it called has ended.
    assert!(hanging.wait().is_err());
}

#[test]
fn whoever_only_waits_for_one_that_hangs_is_not_blamed() {
    let agents = formed(3, LONG, |methods| methods);
    // The second worker cannot shut down before the third has answered, which never happens.
    let hanging = agents[1].call("w2", HANG, &());
    wait_for("it hangs", || agents[2].traffic().running == 1);
    let deadline = Duration::from_secs(2);
    let errors = std::thread::scope(|scope| {
        let ending = [0, 1].map(|at| {
            let agent = &agents[at];
            scope.spawn(move || agent.shutdown(deadline).unwrap_err())
        });
        ending.map(|ending| ending.join().unwrap())
    });
    for error in errors {
        assert_eq!(error.kind, RpcErrorKind::Deadline);
        assert!(error.message.contains("w2 (rank 2)"), "{error}");
        assert!(!error.message.contains("w1"), "{error}");
        assert_eq!(error.worker.unwrap().name.as_str(), "w2");
    }
    assert!(hanging.wait().is_err());
}

#[test]
fn a_second_shutdown_returns_at_once() {
    let agents = formed(2, LONG, |methods| methods);
    let reference = agents[0].remote("w1", TWICE, &2).unwrap();
    assert_eq!(*reference.to_here(Timeout::Default).unwrap(), 4);
    shut_down(&agents);
    let begun = Instant::now();
    for agent in &agents {
        agent.shutdown(LONG).unwrap();
    }
    assert!(begun.elapsed() < LONG / 10, "{:?}", begun.elapsed());
}

#[test]
fn a_shutdown_beside_another_one_waits_for_it() {
    let agents = formed(2, LONG, |methods| methods);
    std::thread::scope(|scope| {
        let first = [(); 2].map(|()| scope.spawn(|| agents[0].shutdown(LONG)));
        agents[1].shutdown(LONG).unwrap();
        for one in first {
            one.join().unwrap().unwrap();
        }
    });
}

#[test]
fn a_group_without_calls_ends_at_once() {
    let agents = formed(2, LONG, |methods| methods);
    assert_eq!(agents[1].call("w0", TWICE, &2).wait().unwrap(), 4);
    shut_down(&agents);
}
