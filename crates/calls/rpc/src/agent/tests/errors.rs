//! Tests of calls that fail, and of their errors.

use std::pin::pin;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::*;
use crate::{
    CallContext, Method, RemoteError, Responder, RpcError, RpcErrorKind, Tensor, deferred,
};

const FAIL: Method<u32, ()> = Method::new("tests.fail");
const WAIT: Method<(), ()> = Method::new("tests.wait");
const ZEROS: Method<usize, Tensor> = Method::new("tests.zeros");
const LENGTH: Method<Tensor, usize> = Method::new("tests.length");
const BLOCK: Method<(), String> = Method::new("tests.block");

const LATER: Method<u32, u32> = Method::new("tests.later");
const FRAGILE: Method<Fragile, Fragile> = Method::new("tests.fragile");

/// A number that cannot be decoded if it is 1, or encoded if it is 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fragile(u32);

impl Serialize for Fragile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert_ne!(self.0, 2, "not encoded");
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fragile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(deserializer)?;
        assert_ne!(number, 1, "not decoded");
        Ok(Self(number))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("Größe {size} ist zu groß\nzweite Zeile")]
struct TooLarge {
    size: u32,
    source: std::num::ParseIntError,
}

async fn fail(how: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    match how {
        0 => Err(TooLarge {
            size: 7,
            source: "x".parse::<u32>().unwrap_err(),
        }
        .into()),
        1 => Err("a text".into()),
        2 => panic!("a panic with {how}"),
        _ => Err(RemoteError {
            type_name: "own".to_owned(),
            message: "of my own".to_owned(),
            code: 17,
            details: vec![1, 2, 3],
            ..RemoteError::default()
        }
        .into()),
    }
}

fn methods() -> Methods {
    Methods::new()
        .with(FAIL, fail)
        .with(WAIT, async |context: CallContext, ()| {
            context.cancellation().cancelled().await;
            Ok::<_, String>(())
        })
        .with(
            LATER,
            deferred(|_, number: u32, responder: Responder<u32>| {
                assert_ne!(number, 1, "the function is not called with 1");
                responder.respond(Ok(number));
            }),
        )
        .with(FRAGILE, async |Fragile(number)| {
            Ok::<_, String>(Fragile(if number == 3 { 2 } else { number }))
        })
        .with(ZEROS, async |count: usize| {
            Tensor::from_vec(vec![0_u8; count], [count])
        })
        .with(LENGTH, async |tensor: Tensor| {
            Ok::<_, String>(tensor.shape()[0])
        })
        .with(BLOCK, async |context: CallContext, ()| {
            let blocked = context.agent().call(context.caller(), FAIL, &1).wait();
            blocked
                .map(|()| String::new())
                .or_else(|error| Ok::<_, String>(error.message))
        })
}

#[test]
fn a_message_over_the_limit_fails_its_call_in_both_directions_and_nothing_else() {
    const LIMIT: usize = 1 << 20;
    let made = Made {
        limits: FrameLimits {
            total: LIMIT as u64,
            ..FrameLimits::default()
        },
        ..Made::default()
    };
    let agents = super::made(2, &made, methods);
    let waits = agents[0].call("w1", WAIT, &());
    let much = Tensor::from_vec(vec![0_u8; LIMIT + 1], [LIMIT + 1]).unwrap();
    let there = agents[0].call("w1", LENGTH, &much).wait().unwrap_err();
    let back = agents[0]
        .call("w1", ZEROS, &(LIMIT + 1))
        .wait()
        .map(|_| ())
        .unwrap_err();
    for error in [there, back] {
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument, "{error}");
        assert_eq!(error.worker.as_ref().unwrap().name.as_str(), "w1");
        for word in ["exceeds the limit of 1048576", "raise `message_limit`"] {
            assert!(error.message.contains(word), "{error}");
        }
    }
    // A smaller message succeeds, over the same connection.
    let less = LIMIT - 1000;
    let zeros = agents[0].call("w1", ZEROS, &less).wait().unwrap();
    assert_eq!(agents[0].call("w1", LENGTH, &zeros).wait(), Ok(less));
    assert!(!waits.is_done());
    assert_eq!(agents[0].traffic().connections, 1);
}

#[test]
fn an_error_arrives_with_type_text_causes_and_worker() {
    let agents = group(2, methods);
    let error = agents[0].call("w1", FAIL, &0).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Remote);
    assert_eq!(error.worker.as_ref().unwrap().name.as_str(), "w1");
    assert_eq!(error.method.as_deref(), Some("tests.fail"));
    let remote = error.remote.as_deref().unwrap();
    assert_eq!(remote.message, "Größe 7 ist zu groß\nzweite Zeile");
    assert_eq!(remote.causes, ["invalid digit found in string"]);
    let text = error.to_string();
    assert!(
        text.starts_with("tests.fail on WorkerInfo(id=1, name=w1): "),
        "{text}"
    );
    assert!(text.contains("zu groß\nzweite Zeile"), "{text}");
    assert!(
        text.ends_with("caused by: invalid digit found in string"),
        "{text}"
    );

    let text = agents[0].call("w1", FAIL, &1).wait().unwrap_err();
    assert_eq!(text.remote.unwrap().message, "a text");
    let panic = agents[0]
        .call("w1", FAIL, &2)
        .wait()
        .unwrap_err()
        .remote
        .unwrap();
    assert_eq!(
        (panic.type_name.as_str(), panic.message.as_str()),
        ("panic", "a panic with 2")
    );
    let own = agents[0]
        .call("w1", FAIL, &3)
        .wait()
        .unwrap_err()
        .remote
        .unwrap();
    assert_eq!((own.code, own.details), (17, vec![1, 2, 3]));
    assert_eq!(
        agents[0].traffic().connections,
        1,
        "none of them cost the connection"
    );
}

#[test]
fn a_call_that_cannot_be_made_says_what_is_wrong() {
    const FALL: Method<u32, ()> = Method::new("fall");
    const FAIL_TEXT: Method<String, ()> = Method::new("tests.fail");
    let agents = group(2, methods);
    let error = agents[0].call("w1", FALL, &0).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::NoSuchMethod);
    assert!(
        error
            .message
            .contains("no method fall; it offers tests.fail, tests.block, tests.wait")
            || error.message.contains("tests.fail"),
        "{error}"
    );
    let text = "x".repeat(300);
    let error = agents[0].call("w1", FAIL_TEXT, &text).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Serialization, "{error}");
    let error = agents[0].call("w9", FAIL, &0).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::UnknownWorker);
    assert!(
        error
            .message
            .starts_with("name:w0,rank:0 could not find destination name w9"),
        "{error}"
    );
    let error = agents[0].call(9, FAIL, &0).wait().unwrap_err();
    assert!(
        error.message.contains("could not find destination id 9"),
        "{error}"
    );
    assert_eq!(agents[0].traffic().connections, 1);
}

/// The waker of faulty code. It reports that it was called.
struct Broken(SyncSender<()>);

impl Wake for Broken {
    fn wake(self: Arc<Self>) {
        let _ = self.0.try_send(());
        panic!("a waker of the test");
    }
}

#[test]
fn an_agent_whose_driver_has_failed_stops_and_says_so() {
    let agents = group(2, methods);
    let unanswered = agents[0].call("w1", WAIT, &());
    let mut answered = pin!(agents[0].call("w1", FAIL, &1));
    let (report, called) = sync_channel(1);
    let waker = Waker::from(Arc::new(Broken(report)));
    let begun = Instant::now();
    loop {
        match answered.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => break,
            // The call was answered before the test waited for it.
            Poll::Ready(_) => answered.set(agents[0].call("w1", FAIL, &1)),
        }
        assert!(begun.elapsed() < LONGEST);
    }
    // A thread that waits for a call reads replies too. The driver has to read this one.
    called.recv_timeout(LONGEST).unwrap();
    let error = within(LONGEST, "a call of an agent that has failed", move || {
        unanswered.wait().unwrap_err()
    });
    assert_eq!(error.kind, RpcErrorKind::Stopping, "{error}");
    assert!(error.message.contains("a waker of the test"), "{error}");
    let later = agents[0].call("w1", FAIL, &1).wait().unwrap_err();
    assert_eq!(later.kind, RpcErrorKind::Stopping, "{later}");
}

#[test]
fn an_async_function_that_would_block_is_notified() {
    let agents = group(2, methods);
    let said = agents[0].call("w1", BLOCK, &()).wait().unwrap();
    assert!(said.contains("an async function must not block"), "{said}");
}

#[test]
fn calls_to_a_worker_that_ends_fail_at_once_and_name_it() {
    let mut agents = group(2, methods);
    let calls: Vec<_> = (0..64).map(|_| agents[0].call("w1", WAIT, &())).collect();
    // All of them have arrived when one more has been answered.
    agents[0].call("w1", FAIL, &1).wait().unwrap_err();
    let ended = Instant::now();
    drop(agents.pop());
    for call in calls {
        let error = call.wait().unwrap_err();
        assert!(
            matches!(error.kind, RpcErrorKind::PeerLost | RpcErrorKind::Stopping),
            "{error}"
        );
        assert_eq!(error.worker.unwrap().name.as_str(), "w1");
    }
    assert!(ended.elapsed() < LONGEST / 2);
    let error = agents[0].call("w1", WAIT, &()).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
    assert!(error.is_retryable());
}

#[test]
fn a_worker_that_another_one_has_lost_is_no_reason_to_try_again() {
    const ASK: Method<(), ()> = Method::new("ask another one");
    let mut agents = group(3, || {
        methods().with(ASK, async |context: CallContext, ()| {
            context.agent().call("w2", WAIT, &()).await
        })
    });
    let call = agents[0].call("w1", ASK, &());
    drop(agents.pop());
    let error = call.wait().unwrap_err();
    // The function has failed: the called worker still exists, and may have done half of its work.
    assert_eq!(error.kind, RpcErrorKind::Remote, "{error}");
    assert!(!error.is_retryable());
    assert_eq!(error.worker.unwrap().name.as_str(), "w1");
    let remote = error.remote.unwrap();
    assert!(remote.type_name.ends_with("RpcError"), "{remote}");
    assert!(remote.message.contains("name=w2"), "{remote}");
}

#[test]
fn stopping_ends_what_is_on_its_way_on_both_sides() {
    let agents = group(2, methods);
    let calls: Vec<_> = (0..10).map(|_| agents[0].call("w1", WAIT, &())).collect();
    let entered = Arc::new(Barrier::new(2));
    let waiting = {
        let (agent, entered) = (agents[0].clone(), Arc::clone(&entered));
        std::thread::spawn(move || {
            entered.wait();
            agent.call("w1", WAIT, &()).wait()
        })
    };
    entered.wait();
    agents[0].stop();
    for call in calls {
        assert_eq!(call.wait().unwrap_err().kind, RpcErrorKind::Stopping);
    }
    assert_eq!(
        waiting.join().unwrap().unwrap_err().kind,
        RpcErrorKind::Stopping
    );
    let later = agents[0].call("w1", FAIL, &1).wait().unwrap_err();
    assert_eq!(later.kind, RpcErrorKind::Stopping);
    // A follow-up also ends with an error, although no thread is left to run it.
    let later = agents[0].call("w1", FAIL, &1).then(|result| result);
    let later = within(
        LONGEST,
        "a call that was to be followed by something",
        || later.wait(),
    );
    assert_eq!(later.unwrap_err().kind, RpcErrorKind::Stopping);
    // The agents have cancelled the functions, so none of them continues.
    wait_for("no function runs", || agents[1].traffic().running == 0);
}

#[test]
fn a_panic_fails_only_its_own_call() {
    let agents = group(2, methods);
    let panic = |error: RpcError| error.remote.expect("the function failed").message;
    let error = agents[0].call("w1", LATER, &1).wait().unwrap_err();
    assert_eq!(panic(error), "the function panicked before it answered");
    assert_eq!(agents[0].call("w1", LATER, &2).wait(), Ok(2));
    for (number, part) in [(1, "not decoded"), (3, "not encoded")] {
        let error = agents[0].call("w1", FRAGILE, &Fragile(number)).wait();
        let message = panic(error.unwrap_err());
        assert!(message.contains(part), "{message}");
    }
    let answer = agents[0].call("w1", FRAGILE, &Fragile(4)).wait();
    assert_eq!(answer, Ok(Fragile(4)));
}
