//! Tests of timeouts and cancellation.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use super::*;
use crate::{CallContext, CallOptions, Cancellation, Method, RpcErrorKind, Timeout, blocking};

const WAIT: Method<(), bool> = Method::new("wait");
const NEVER: Method<(), ()> = Method::new("never");
const HOLD: Method<(), ()> = Method::new("hold");
const COUNT: Method<(), ()> = Method::new("count");

/// Observations of the functions.
#[derive(Default)]
struct Seen {
    cancelled: Mutex<Option<Cancellation>>,
    counted: AtomicU32,
    held: AtomicBool,
}

fn methods(seen: &Arc<Seen>) -> Methods {
    let (waits, counts) = (Arc::clone(seen), Arc::clone(seen));
    let (holds, never) = (Arc::clone(seen), Arc::clone(seen));
    Methods::new()
        .with(WAIT, move |context: CallContext, ()| {
            let seen = Arc::clone(&waits);
            async move {
                *seen.cancelled.lock().unwrap() = Some(context.cancellation().clone());
                context.cancellation().cancelled().await;
                Ok::<_, String>(context.deadline().is_some())
            }
        })
        .with(NEVER, move |context: CallContext, ()| {
            let seen = Arc::clone(&never);
            async move {
                *seen.cancelled.lock().unwrap() = Some(context.cancellation().clone());
                std::future::pending::<Result<(), String>>().await
            }
        })
        .with(
            HOLD,
            blocking(move |context: CallContext, ()| {
                holds.held.store(true, Ordering::Release);
                while !context.cancellation().is_cancelled() {
                    std::thread::yield_now();
                }
                Ok::<_, String>(())
            }),
        )
        .with(
            COUNT,
            blocking(move |()| {
                counts.counted.fetch_add(1, Ordering::Relaxed);
                Ok::<_, String>(())
            }),
        )
}

fn after(time: Duration) -> CallOptions {
    CallOptions::new().timeout(Timeout::After(time))
}

#[test]
fn a_call_can_be_waited_for_some_time_and_again_and_says_the_same_each_time() {
    const TWICE: Method<u64, u64> = Method::new("twice");
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let agents = group(2, || {
        let gate = Arc::clone(&gate);
        Methods::new().with(TWICE, move |number: u64| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire()
                    .await
                    .map_err(|error| error.to_string())?
                    .forget();
                match number {
                    0 => Err("nothing to double".to_owned()),
                    number => Ok(2 * number),
                }
            }
        })
    });
    let short = Duration::from_millis(20);
    for called in [0, 1] {
        let mut call = agents[0].call(called, TWICE, &4);
        let begun = Instant::now();
        for _ in 0..2 {
            let error = call.wait_for(short).unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::Deadline, "{error}");
            assert!(error.message.contains("the call continues"), "{error}");
        }
        assert!(begun.elapsed() >= 2 * short && !call.is_done());
        gate.add_permits(1);
        for _ in 0..3 {
            assert_eq!(call.wait_for(LONGEST), Ok(8));
            assert!(call.is_done());
        }
        assert_eq!(call.wait(), Ok(8));
        let mut failed = agents[0].call(called, TWICE, &0).then(|result| result);
        gate.add_permits(1);
        let error = failed.wait_for(LONGEST).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::Remote);
        assert_eq!(failed.wait_for(LONGEST), Err(error.clone()));
        assert_eq!(failed.wait(), Err(error));
    }
    // The timeout of the call itself expires first.
    let mut late = agents[0].call_with(after(short), 1, TWICE, &4);
    let error = late.wait_for(LONGEST).unwrap_err();
    assert!(
        error
            .message
            .starts_with("RPC ran for more than set timeout"),
        "{error}"
    );
    assert_eq!(late.wait(), Err(error));
}

#[test]
fn a_call_ends_at_its_deadline_and_the_function_is_notified() {
    let seen = Arc::new(Seen::default());
    let agents = group(2, || methods(&seen));
    for micros in [1, 1000, 50_000] {
        let time = Duration::from_micros(micros);
        let begun = Instant::now();
        let error = agents[0]
            .call_with(after(time), "w1", NEVER, &())
            .wait()
            .unwrap_err();
        assert!(begun.elapsed() >= time);
        assert_eq!(error.kind, RpcErrorKind::Deadline, "{error}");
        let shown = match micros {
            1 => "0.001",
            1000 => "1",
            _ => "50",
        };
        let start = format!("RPC ran for more than set timeout ({shown} ms) and will now be");
        // The callee may notice the timeout first.
        let over = "the timeout of the call expired before it started";
        assert!(
            error.message.starts_with(&start) || error.message == over,
            "{error}"
        );
        assert_eq!(error.worker.unwrap().name.as_str(), "w1");
    }
    // Async code is notified too, although no thread waits.
    let deadline = Instant::now() + LONGEST;
    let mut time = Duration::from_millis(20);
    let cancelled = loop {
        seen.cancelled.lock().unwrap().take();
        let call = agents[0].call_with(after(time), "w1", NEVER, &());
        let (said, heard) = mpsc::channel();
        let _going_on = call.then(move |result| {
            said.send(result.unwrap_err().kind).unwrap();
            Ok(())
        });
        assert_eq!(heard.recv_timeout(LONGEST), Ok(RpcErrorKind::Deadline));
        let begun = seen.cancelled.lock().unwrap().take();
        match begun {
            Some(cancelled) => break cancelled,
            // On a busy machine the timeout may expire before the function has begun.
            None => time *= 2,
        }
        assert!(Instant::now() < deadline, "the function never begins");
    };
    wait_for("it is cancelled", || cancelled.is_cancelled());
    wait_for("no call is left", || agents[0].traffic().in_flight == 0);
}

#[test]
fn zero_is_refused_and_never_is_no_deadline() {
    let seen = Arc::new(Seen::default());
    let agents = group(2, || methods(&seen));
    let error = agents[0]
        .call_with(after(Duration::ZERO), "w1", COUNT, &())
        .wait();
    assert_eq!(error.unwrap_err().kind, RpcErrorKind::InvalidArgument);
    let error = agents[0].set_timeout(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    agents[0].set_timeout(Duration::from_millis(30)).unwrap();
    let error = agents[0].call("w1", NEVER, &()).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Deadline);
    let never = CallOptions::new().timeout(Timeout::Never);
    let call = agents[0].call_with(never, "w1", WAIT, &());
    agents[0].set_timeout(Timeout::Never).unwrap();
    assert_eq!(agents[0].timeout(), Timeout::Never);
    agents[0].call("w1", COUNT, &()).wait().unwrap();
    assert!(!call.is_done());
    call.cancel();
    assert_eq!(call.wait().unwrap_err().kind, RpcErrorKind::Cancelled);
}

#[test]
fn a_request_whose_time_is_over_before_it_is_begun_is_not_worked_on() {
    let seen = Arc::new(Seen::default());
    let made = Made {
        worker_threads: 1,
        ..Made::default()
    };
    let agents = super::made(2, &made, || methods(&seen));
    let holding = agents[0].call("w1", HOLD, &());
    wait_for("the thread is busy", || seen.held.load(Ordering::Acquire));
    // The only thread is busy, so these calls wait until their timeout.
    let late = after(Duration::from_millis(10));
    let calls: Vec<_> = (0..5)
        .map(|_| agents[0].call_with(late, "w1", COUNT, &()))
        .collect();
    for call in calls {
        assert_eq!(call.wait().unwrap_err().kind, RpcErrorKind::Deadline);
    }
    holding.cancel();
    agents[0].call("w1", COUNT, &()).wait().unwrap();
    assert_eq!(
        seen.counted.load(Ordering::Relaxed),
        1,
        "only the last one was worked on"
    );
}

#[test]
fn cancelling_tells_the_function() {
    let seen = Arc::new(Seen::default());
    let agents = group(2, || methods(&seen));
    let call = agents[0].call("w1", WAIT, &());
    wait_for("the call arrives", || {
        seen.cancelled.lock().unwrap().is_some()
    });
    let cancellation = seen.cancelled.lock().unwrap().take().unwrap();
    assert!(!cancellation.is_cancelled());
    call.cancel();
    assert_eq!(call.wait().unwrap_err().kind, RpcErrorKind::Cancelled);
    wait_for("the function is cancelled", || cancellation.is_cancelled());
}

#[test]
fn a_call_that_is_cancelled_while_it_stands_in_line_is_not_begun() {
    let seen = Arc::new(Seen::default());
    let agents = group(2, || methods(&seen));
    let in_line = CallOptions::new().line(7);
    let first = agents[0].call_with(in_line, "w1", WAIT, &());
    let second = agents[0].call_with(in_line, "w1", COUNT, &());
    let third = agents[0].call_with(in_line, "w1", COUNT, &());
    second.cancel();
    first.cancel();
    third.wait().unwrap();
    assert_eq!(second.wait().unwrap_err().kind, RpcErrorKind::Cancelled);
    assert_eq!(seen.counted.load(Ordering::Relaxed), 1);
}
