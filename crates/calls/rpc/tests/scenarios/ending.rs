//! Tests of processes that stop being workers (SCN-S26, SCN-S27).

use std::time::{Duration, Instant};

use rdzv_rpc::RpcErrorKind;
use rustix::process::Signal;
use serde_json::json;

use super::worker::{Failure, Scenario, Worker};

/// Time within which a process ends that waits for no other.
const SOON: Duration = Duration::from_secs(20);

/// Number of calls in flight when a process stops.
const CALLS: u64 = 10;

#[test]
fn a_shutdown_waits_for_a_call_that_is_longer_than_the_timeout() {
    let scenario = Scenario::new();
    let [a, b, c] = scenario.formed(["a", "b", "c"], &json!({ "timeout": 0.3 }));
    let hold = json!({ "to": "b", "method": "hold", "never": true });
    a.does(&json!({ "do": "begin", "name": "hold", "call": hold }));
    b.does(&json!({ "do": "happened", "what": "holding", "times": 1 }));
    for worker in [&a, &b] {
        worker.tell(&json!({ "do": "shutdown", "seconds": 20 }));
    }
    // The timeout passes. The worker that the others wait for still serves calls.
    let error = c.calls("b", "wait", json!(null)).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Deadline);
    assert!(a.is_silent() && b.is_silent());
    c.calls("b", "open", json!(null)).unwrap();
    c.does(&json!({ "do": "shutdown", "seconds": 20 }));
    a.succeeds();
    b.succeeds();
    assert_eq!(a.does(&json!({ "do": "end", "name": "hold" })), 7);
}

/// Returns the error of a shutdown with a deadline of 2 s.
/// This checks the time in its message and removes it.
fn verdict(worker: &Worker) -> Failure {
    let mut failure = worker.answer().unwrap_err();
    let (message, seconds) = failure.message.rsplit_once(" after ").unwrap();
    let seconds: f64 = seconds.strip_suffix(" s").unwrap().parse().unwrap();
    // The workers do not begin at exactly the same time.
    assert!((1.8..2.8).contains(&seconds), "{}", failure.message);
    failure.message = message.to_owned();
    failure.text = String::new();
    failure
}

#[test]
fn a_process_that_hangs_is_named_by_all_others_in_the_same_words() {
    let scenario = Scenario::new();
    let [a, hung, c, d] = scenario.formed(["a", "hung", "c", "d"], &json!({}));
    for worker in [&a, &c, &d] {
        worker.calls("hung", "double", json!(1)).unwrap();
    }
    hung.signal(Signal::STOP);
    for worker in [&a, &c, &d] {
        worker.tell(&json!({ "do": "shutdown", "seconds": 2 }));
    }
    let verdicts = [&a, &c, &d].map(verdict);
    assert_eq!(verdicts[0].kind, RpcErrorKind::Deadline);
    assert!(
        verdicts[0].message.contains("hung (rank 1)"),
        "{verdicts:?}"
    );
    assert!(
        verdicts.iter().all(|other| *other == verdicts[0]),
        "{verdicts:?}"
    );
    // The workers have ended anyway.
    let error = a.calls("c", "double", json!(1)).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::NotInitialized);
    // A worker that was stopped gets the same error after it continues.
    hung.signal(Signal::CONT);
    let error = hung.refuses(&json!({ "do": "shutdown", "seconds": 2 }));
    assert!(error.message.starts_with(&verdicts[0].message), "{error:?}");
}

#[test]
fn a_process_that_stops_ends_its_calls_on_both_sides_and_is_gone_at_once() {
    let scenario = Scenario::new();
    let [a, b] = scenario.formed(["a", "b"], &json!({}));
    let begin = |worker: &Worker, to: &str| {
        for number in 0..CALLS {
            let wait = json!({ "to": to, "method": "wait" });
            let name = number.to_string();
            worker.does(&json!({ "do": "begin", "name": name, "call": wait }));
        }
    };
    begin(&a, "b");
    begin(&b, "a");
    let happened = |what: &str| json!({ "do": "happened", "what": what, "times": CALLS });
    assert_eq!(a.does(&happened("waiting")), CALLS);
    assert_eq!(b.does(&happened("waiting")), CALLS);
    a.does(&json!({ "do": "stop" }));
    // The functions of its callers are cancelled, and those that the worker has called.
    assert_eq!(a.does(&happened("cancelled")), CALLS);
    assert_eq!(b.does(&happened("cancelled")), CALLS);
    for number in 0..CALLS {
        let end = json!({ "do": "end", "name": number.to_string() });
        assert_eq!(a.refuses(&end).kind, RpcErrorKind::Stopping);
        let error = b.refuses(&end);
        let kinds = [RpcErrorKind::PeerLost, RpcErrorKind::Stopping];
        assert!(kinds.contains(&error.kind), "{error:?}");
        assert_eq!(error.worker.as_deref(), Some("a"));
    }
    a.tell(&json!({ "do": "exit" }));
    let took = a.ended();
    assert!(took < SOON, "{took:?}");
}

#[test]
fn a_process_that_just_exits_is_gone_at_once_and_missed_by_its_callers() {
    let scenario = Scenario::new();
    let [a, b] = scenario.formed(["a", "b"], &json!({}));
    for (worker, to) in [(&a, "b"), (&b, "a")] {
        let wait = json!({ "to": to, "method": "wait" });
        worker.does(&json!({ "do": "begin", "name": "wait", "call": wait }));
    }
    for worker in [&a, &b] {
        worker.does(&json!({ "do": "happened", "what": "waiting", "times": 1 }));
    }
    let exits = Instant::now();
    a.tell(&json!({ "do": "exit" }));
    a.ended();
    let error = b.refuses(&json!({ "do": "end", "name": "wait" }));
    assert!(exits.elapsed() < SOON, "{:?}", exits.elapsed());
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error:?}");
    assert_eq!(error.worker.as_deref(), Some("a"));
    let cancelled = json!({ "do": "happened", "what": "cancelled", "times": 1 });
    assert_eq!(b.does(&cancelled), 1);
}
