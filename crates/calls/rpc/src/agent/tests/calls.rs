//! Tests of calls that succeed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::transport::TransportKind;
use crate::{CallContext, CallOptions, Method, RpcErrorKind, RpcFuture, Tensor, blocking};

const ADD: Method<(i64, i64), i64> = Method::new("add");
const HALF: Method<i64, i64> = Method::new("half");
const TWICE: Method<Tensor, Tensor> = Method::new("twice");
const CHAIN: Method<u32, u32> = Method::new("chain");
const BLOCKING_CHAIN: Method<u32, u32> = Method::new("blocking_chain");

async fn chain(context: CallContext, steps: u32) -> Result<u32, crate::RpcError> {
    if steps == 0 {
        return Ok(0);
    }
    let agent = context.agent();
    let next = (agent.me().id.0 + 1) % u32::try_from(agent.workers().len()).unwrap();
    Ok(agent.call(next, CHAIN, &(steps - 1)).await? + 1)
}

fn blocking_chain(context: CallContext, steps: u32) -> Result<u32, crate::RpcError> {
    if steps == 0 {
        return Ok(0);
    }
    let agent = context.agent();
    let next = (agent.me().id.0 + 1) % u32::try_from(agent.workers().len()).unwrap();
    Ok(agent.call(next, BLOCKING_CHAIN, &(steps - 1)).wait()? + 1)
}

fn methods() -> Methods {
    Methods::new()
        .with(ADD, async |(a, b): (i64, i64)| Ok::<_, String>(a + b))
        .with(HALF, blocking(|number: i64| Ok::<_, String>(number / 2)))
        .with(TWICE, async |tensor: Tensor| {
            let doubled: Vec<f32> = tensor.as_slice::<f32>()?.iter().map(|x| x * 2.0).collect();
            Tensor::from_vec(doubled, tensor.shape().to_vec())
        })
        .with(CHAIN, chain)
        .with(BLOCKING_CHAIN, blocking(blocking_chain))
}

fn over(transports: &TransportOptions) -> Vec<RpcAgent> {
    let made = Made::over(transports.clone());
    super::made(2, &made, methods)
}

#[test]
fn calls_go_both_ways_and_to_oneself_over_every_transport() {
    for (transports, kind) in transports() {
        let agents = over(&transports);
        for (from, to) in [(0, 1), (1, 0), (0, 0)] {
            assert_eq!(agents[from].call(to, ADD, &(1, 2)).wait(), Ok(3));
            assert_eq!(agents[from].call(to, HALF, &10).wait(), Ok(5));
            for size in [0, 1, 1000, 100_000, 3_000_000] {
                let numbers: Vec<f32> = (0..size).map(|number| number as f32).collect();
                let tensor = Tensor::from_vec(numbers.clone(), [size]).unwrap();
                let twice = agents[from].call(to, TWICE, &tensor).wait().unwrap();
                let expected: Vec<f32> = numbers.iter().map(|number| number * 2.0).collect();
                assert_eq!(
                    twice.as_slice::<f32>().unwrap()[..],
                    expected[..],
                    "{size} over {kind}"
                );
            }
        }
        let peers = agents[0].traffic().peers;
        assert!(
            peers.iter().any(|peer| peer.transport == kind.to_string()),
            "{peers:?}"
        );
        let ends = agents.iter().flat_map(|agent| agent.core().poller.all());
        let watched = ends.filter(|end| end.link().next_look().is_some()).count();
        // Both ends of two connections; a connection of a worker to itself never counts.
        let other_hosts = if kind == TransportKind::Tcp { 4 } else { 0 };
        assert_eq!(watched, other_hosts, "{kind}");
    }
}

/// Checks that a reply arrives even if no thread waits for it.
/// A waiting thread leaves the driver armed, or disarms and rearms it. Without such a thread, the
/// driver reads the reply.
#[test]
fn a_reply_arrives_whether_a_thread_waits_for_it_or_not() {
    for (transports, kind) in transports() {
        let agents = over(&transports);
        within(LONGEST, "waited and awaited calls", move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.unwrap();
            for number in 0..300 {
                let waited = agents[0].call("w1", ADD, &(number, 1)).wait();
                assert_eq!(waited, Ok(number + 1), "{kind}");
                let awaited = runtime.block_on(agents[0].call("w1", ADD, &(number, 2)));
                assert_eq!(awaited, Ok(number + 2), "{kind}");
            }
        });
    }
}

#[test]
fn many_calls_may_be_on_their_way_and_each_gets_its_own_answer() {
    let agents = group(2, methods);
    let threads: Vec<_> = (0..4_i64)
        .map(|thread| {
            let agent = agents[0].clone();
            std::thread::spawn(move || {
                let calls: Vec<RpcFuture<i64>> = (0..500)
                    .map(|call| agent.call("w1", ADD, &(thread * 1000, call)))
                    .collect();
                for (call, future) in (0..500).zip(calls) {
                    assert_eq!(future.wait(), Ok(thread * 1000 + call));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(agents[0].traffic().in_flight, 0);
    assert_eq!(agents[1].traffic().served, 2000);
}

#[test]
fn functions_call_back_and_on_however_many_do() {
    let made = Made {
        worker_threads: 1,
        ..Made::default()
    };
    let agents = super::made(3, &made, methods);
    let chains: Vec<_> = (0..100).map(|_| agents[0].call("w1", CHAIN, &9)).collect();
    for chain in chains {
        assert_eq!(chain.wait(), Ok(9));
    }
    // One blocking thread each: a -> b -> c takes one of b and one of c. Answers need no thread.
    assert_eq!(agents[0].call("w1", BLOCKING_CHAIN, &1).wait(), Ok(1));
}

#[test]
fn a_line_keeps_its_order_and_other_calls_are_made_once() {
    const NOTE: Method<u64, ()> = Method::new("note");
    const COUNT: Method<(), ()> = Method::new("count");
    let noted = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::new(AtomicU64::new(0));
    let agents = group(2, || {
        let (noted, counted) = (Arc::clone(&noted), Arc::clone(&counted));
        Methods::new()
            .with(NOTE, move |number: u64| {
                let noted = Arc::clone(&noted);
                async move {
                    // Some of the calls have to wait, and the order must hold anyway.
                    if number.is_multiple_of(3) {
                        tokio::task::yield_now().await;
                    }
                    noted.lock().unwrap().push(number);
                    Ok::<_, String>(())
                }
            })
            .with(
                COUNT,
                blocking(move |()| {
                    counted.fetch_add(1, Ordering::Relaxed);
                    Ok::<_, String>(())
                }),
            )
    });
    let line = CallOptions::new().line(7);
    let mut calls = Vec::new();
    for number in 0..10_000 {
        calls.push(agents[0].call_with(line, "w1", NOTE, &number));
        if number % 10 == 0 {
            calls.push(agents[0].call("w1", COUNT, &()));
        }
    }
    for call in calls {
        call.wait().unwrap();
    }
    assert_eq!(*noted.lock().unwrap(), (0..10_000).collect::<Vec<_>>());
    assert_eq!(counted.load(Ordering::Relaxed), 1000);
}

#[test]
fn futures_go_on_and_are_collected() {
    let agents = group(2, methods);
    let agent = &agents[0];
    let doubled = agent.call("w1", ADD, &(20, 1)).then(|sum| Ok(sum? * 2));
    assert_eq!(doubled.wait(), Ok(42));
    let all = (0..5)
        .map(|number| agent.call("w1", ADD, &(number, 1)))
        .collect();
    let all = RpcFuture::collect(all).unwrap().wait().unwrap();
    assert_eq!(all, (1..6).map(Ok).collect::<Vec<_>>());
    let failed = agent
        .call("w1", ADD, &(1, 1))
        .then(|_| -> Result<(), _> { panic!("no further") })
        .wait()
        .unwrap_err();
    assert_eq!(failed.kind, RpcErrorKind::Internal);
    assert!(
        failed
            .message
            .starts_with("Got the following error when running the callback: panic: no further")
    );
    assert!(RpcFuture::<i64>::collect(Vec::new()).is_none());
}

#[test]
fn a_large_reply_is_read_although_all_functions_that_may_run_do() {
    const LARGE: Method<(), Tensor> = Method::new("large");
    const ASK: Method<(), usize> = Method::new("ask");
    let made = Made {
        worker_threads: 1,
        ..Made::default()
    };
    let agents = super::made(3, &made, || {
        Methods::new()
            .with(LARGE, async |()| {
                Tensor::from_vec(vec![1_u8; 4 << 20], [4 << 20])
            })
            .with(
                ASK,
                blocking(|context: CallContext, ()| {
                    let agent = context.agent();
                    // The first call makes the connection and finds out that memory can be read.
                    agent.call("w2", LARGE, &()).wait()?;
                    let reply = agent.call("w2", LARGE, &());
                    // The function keeps its thread and does not read the reply itself. A thread
                    // that waits while another one reads the connection behaves like this.
                    let deadline = Instant::now() + LONGEST;
                    while !reply.is_done() && Instant::now() < deadline {
                        std::thread::yield_now();
                    }
                    assert!(reply.is_done(), "no thread reads the reply");
                    Ok::<_, crate::RpcError>(reply.wait()?.shape()[0])
                }),
            )
    });
    let options = CallOptions::new().timeout(crate::Timeout::After(2 * LONGEST));
    let answer = agents[0].call_with(options, "w1", ASK, &()).wait();
    assert_eq!(answer, Ok(4 << 20));
    let peers = agents[1].traffic().peers;
    assert!(peers.iter().all(|peer| peer.reads_memory), "{peers:?}");
}

#[test]
fn calls_of_a_line_keep_their_order_while_parts_are_read() {
    const RECORD: Method<Tensor, ()> = Method::new("tests.record");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let agents = group(2, || {
        let seen = Arc::clone(&seen);
        let record = move |tensor: Tensor| {
            seen.lock().unwrap().push(tensor.shape()[0]);
            std::future::ready(Ok::<_, String>(()))
        };
        Methods::new().with(RECORD, record)
    });
    let zeros = |count: usize| Tensor::from_vec(vec![0_u8; count], [count]).unwrap();
    // The callee may read the large one from the caller's memory, on a separate thread.
    let sizes = [4 << 20, 1, 100_000, 2];
    let line = CallOptions::new().line(7);
    let call = |count: &usize| agents[0].call_with(line, "w1", RECORD, &zeros(*count));
    // A pong arrives before this reply and reports that the caller's memory can be read.
    call(&3).wait().unwrap();
    let calls: Vec<_> = [sizes; 8].iter().flatten().map(call).collect();
    for call in calls {
        call.wait().unwrap();
    }
    assert_eq!(seen.lock().unwrap()[1..], [sizes; 8].concat());
}
