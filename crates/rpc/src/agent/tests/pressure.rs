//! A worker that is slower than those who call it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use super::*;
use crate::{CallContext, CallOptions, Method, RpcErrorKind, Tensor};

const SWALLOW: Method<Tensor, ()> = Method::new("swallow");
const NOTHING: Method<(), ()> = Method::new("nothing");

/// Eight of them are just within the limit, with what comes along.
const PIECE: usize = (8 << 20) - 4096;

#[test]
fn what_is_on_its_way_stays_within_the_limits_and_others_are_not_held_up() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let agents = group(3, || {
        let gate = Arc::clone(&gate);
        Methods::new()
            .with_blocking(SWALLOW, move |_: CallContext, _: Tensor| {
                let opened = gate.0.lock().unwrap();
                drop(gate.1.wait_while(opened, |opened| !*opened).unwrap());
                Ok::<_, String>(())
            })
            .with(NOTHING, async |_: CallContext, ()| Ok::<_, String>(()))
    });
    let tensor = Tensor::from_vec(vec![1_u8; PIECE], [PIECE]).unwrap();
    let begun = Arc::new(AtomicU64::new(0));
    // A GiB is offered to a worker that takes nothing.
    let offering = {
        let (agent, begun, tensor) = (agents[0].clone(), Arc::clone(&begun), tensor.clone());
        std::thread::spawn(move || {
            let calls: Vec<_> = (0..128)
                .map(|_| {
                    let call = agent.call("w1", SWALLOW, &tensor);
                    begun.fetch_add(1, Ordering::AcqRel);
                    call
                })
                .collect();
            for call in calls {
                call.wait().unwrap();
            }
        })
    };
    let until = Instant::now() + LONGEST;
    while begun.load(Ordering::Acquire) < 8 {
        assert!(Instant::now() < until, "calls are held up below the limit");
        std::thread::yield_now();
    }
    let refuse = CallOptions::new().refuse_excess();
    let error = agents[0]
        .call_with(refuse, "w1", SWALLOW, &tensor)
        .wait()
        .unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Overloaded, "{error}");
    assert!(error.message.contains("which is the limit"), "{error}");
    for _ in 0..100 {
        agents[0].call_sync("w2", NOTHING, &()).unwrap();
    }
    assert_eq!(
        begun.load(Ordering::Acquire),
        8,
        "eight pieces are the limit"
    );
    let bytes = agents[0]
        .traffic()
        .peers
        .iter()
        .map(|peer| peer.bytes_in_flight)
        .max();
    assert!(bytes.unwrap() <= 64 << 20, "{bytes:?}");
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    offering.join().unwrap();
}
