//! Tests of a worker that is slower than its callers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use super::*;
use crate::tensor::DataType;
use crate::{CallContext, CallOptions, Method, RpcErrorKind, Tensor, blocking};

const SWALLOW: Method<Tensor, ()> = Method::new("swallow");
const NOTHING: Method<(), ()> = Method::new("nothing");

/// Size of a tensor; eight calls with it stay just within the limit.
const PIECE: usize = (8 << 20) - 4096;

#[test]
fn what_is_on_its_way_stays_within_the_limits_and_others_are_not_held_up() {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let agents = group(3, || {
        let gate = Arc::clone(&gate);
        Methods::new()
            .with(
                SWALLOW,
                blocking(move |_: Tensor| {
                    let opened = gate.0.lock().unwrap();
                    drop(gate.1.wait_while(opened, |opened| !*opened).unwrap());
                    Ok::<_, String>(())
                }),
            )
            .with(NOTHING, async |()| Ok::<_, String>(()))
    });
    let tensor = Tensor::from_vec(vec![1_u8; PIECE], [PIECE]).unwrap();
    let begun = Arc::new(AtomicU64::new(0));
    // The test offers 1 GiB to a worker that accepts nothing.
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
    wait_for("calls begin below the limit", || {
        begun.load(Ordering::Acquire) >= 8
    });
    let refuse = CallOptions::new().refuse_excess();
    let error = agents[0]
        .call_with(refuse, "w1", SWALLOW, &tensor)
        .wait()
        .unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Overloaded, "{error}");
    assert!(error.message.contains("the limit is reached"), "{error}");
    for _ in 0..100 {
        agents[0].call("w2", NOTHING, &()).wait().unwrap();
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

#[test]
fn calls_of_functions_beyond_all_bounds_are_refused_and_leave_nothing_behind() {
    /// More calls than a callee admits.
    const CALLS: usize = 16_384 + 10;
    const STALL: Method<Tensor, ()> = Method::new("stall");
    const FLOOD: Method<(), usize> = Method::new("flood");
    let arena = crate::Arena::new(1 << 20).unwrap();
    let agents = group(2, || {
        let arena = arena.clone();
        Methods::new()
            .with(STALL, async |context: CallContext, tensor: Tensor| {
                context.cancellation().cancelled().await;
                drop(tensor);
                Ok::<_, String>(())
            })
            .with(FLOOD, move |context: CallContext, ()| {
                let block = arena.allocate(64 << 10).unwrap();
                let registered = Tensor::from_bytes(DataType::U8, [64 << 10], block).unwrap();
                flood(context, registered)
            })
            .with(NOTHING, async |()| Ok::<_, String>(()))
    });
    async fn flood(context: CallContext, registered: Tensor) -> Result<usize, String> {
        let agent = context.agent();
        let mut calls: Vec<_> = (0..CALLS)
            .map(|_| agent.call("w1", STALL, &registered))
            .collect();
        let last = calls.pop().ok_or("no calls")?;
        let error = last.await.err().ok_or("it was answered")?;
        let refused = calls.iter().filter(|call| call.is_done()).count();
        calls.iter().for_each(crate::RpcFuture::cancel);
        match error.kind {
            RpcErrorKind::Overloaded => Ok(refused + 1),
            _ => Err(error.to_string()),
        }
    }
    let refused = agents[0].call("w0", FLOOD, &()).wait().unwrap();
    assert_eq!(refused, 10, "the others are open");
    agents[0].call("w1", NOTHING, &()).wait().unwrap();
    wait_for("nothing is lent", || {
        arena.free() == arena.capacity() && agents[1].traffic().running == 0
    });
    assert_eq!(
        agents[0].traffic().connections,
        2,
        "the connection to w1 and to itself"
    );
}
