//! Tests of timeouts between processes (SCN-S19).

use std::time::{Duration, Instant};

use rdzv_rpc::RpcErrorKind;
use serde_json::{Value, json};

use super::worker::{Scenario, Worker};

fn call(method: &str, more: &[(&str, Value)]) -> Value {
    let mut call = json!({ "do": "call", "to": "b", "method": method });
    for (key, value) in more {
        call[key] = value.clone();
    }
    call
}

/// Waits until something has happened a number of times at a worker.
fn happened(worker: &Worker, what: &str, times: u64) -> Value {
    worker.does(&json!({ "do": "happened", "what": what, "times": times }))
}

#[test]
fn a_call_ends_at_its_time_and_the_other_process_is_notified() {
    let scenario = Scenario::new();
    let [a, b] = scenario.formed(["a", "b"], &json!({ "timeout": 0.2 }));
    // The connection exists before the timeouts are short.
    assert_eq!(a.calls("b", "double", json!(1)), Ok(json!(2)));
    for (micros, shown) in [(1, "0.001"), (1000, "1"), (500_000, "500")] {
        let begun = Instant::now();
        let error = a.refuses(&call("wait", &[("micros", json!(micros))]));
        assert!(begun.elapsed() >= Duration::from_micros(micros));
        assert_eq!(error.kind, RpcErrorKind::Deadline, "{error:?}");
        let begins = format!("RPC ran for more than set timeout ({shown} ms) and will now be");
        // The callee may notice the timeout first.
        let over = "the timeout of the call expired before it started";
        let said = error.message.starts_with(&begins) || error.message == over;
        assert!(said, "{error:?}");
        assert_eq!(error.worker.as_deref(), Some("b"));
    }
    // A call without a timeout uses the one that the worker was started with.
    let error = a.refuses(&call("wait", &[]));
    assert!(error.message.contains("(200 ms)"), "{error:?}");
    // The functions that began were cancelled; at least the last two did begin.
    let waiting = happened(&b, "waiting", 2).as_u64().unwrap();
    assert_eq!(happened(&b, "cancelled", waiting), waiting);

    let error = a.refuses(&call("count", &[("micros", json!(0))]));
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    for never in [true, false] {
        // These calls have no timeout: they continue when a call with the default timeout ends.
        let forever = json!({ "to": "b", "method": "hold", "never": true });
        let name = format!("holds {never}");
        a.does(&json!({ "do": "begin", "name": name, "call": forever }));
    }
    happened(&b, "holding", 2);
    let error = a.refuses(&call("wait", &[]));
    assert_eq!(error.kind, RpcErrorKind::Deadline);
    for name in ["holds true", "holds false"] {
        assert_eq!(a.does(&json!({ "do": "done", "name": name })), false);
    }
    a.does(&call("open", &[]));
    for name in ["holds true", "holds false"] {
        assert_eq!(a.does(&json!({ "do": "end", "name": name })), 7);
    }
    // Nothing is left of calls that timed out.
    let waiting = happened(&b, "waiting", 3).as_u64().unwrap();
    happened(&b, "cancelled", waiting);
    let traffic = a.does(&json!({ "do": "traffic" }));
    assert_eq!(traffic["in_flight"], 0, "{traffic}");
}

#[test]
fn what_is_over_before_a_thread_is_free_is_not_worked_on_and_cancelling_tells() {
    let scenario = Scenario::new();
    let options = json!({ "options": { "num_worker_threads": 1 } });
    let [a, b] = scenario.formed(["a", "b"], &options);
    let hold = json!({ "to": "b", "method": "hold" });
    a.does(&json!({ "do": "begin", "name": "hold", "call": hold }));
    happened(&b, "holding", 1);
    // The only thread is busy, so these calls wait until their timeout.
    for _ in 0..5 {
        let error = a.refuses(&call("count", &[("micros", json!(20_000))]));
        assert_eq!(error.kind, RpcErrorKind::Deadline);
    }
    let wait = json!({ "to": "b", "method": "wait" });
    a.does(&json!({ "do": "begin", "name": "wait", "call": wait }));
    happened(&b, "waiting", 1);
    a.does(&json!({ "do": "cancel", "name": "wait" }));
    let error = a.refuses(&json!({ "do": "end", "name": "wait" }));
    assert_eq!(error.kind, RpcErrorKind::Cancelled);
    assert_eq!(happened(&b, "cancelled", 1), 1);

    a.does(&call("open", &[]));
    assert_eq!(a.does(&json!({ "do": "end", "name": "hold" })), 7);
    a.does(&call("count", &[]));
    assert_eq!(happened(&b, "counted", 1), 1, "only the last one was begun");
}
