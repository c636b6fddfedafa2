//! Tests of the results of calls (SCN-S17, SCN-S18, SCN-S21).

use rdzv_rpc::RpcErrorKind;
use serde_json::{Value, json};

use super::worker::{Scenario, shut_down};

/// Size that is too large for a message body.
const TOO_LONG: usize = (64 << 20) + 1;

#[test]
fn calls_that_cannot_be_made_are_notified_apart_and_cost_no_connection() {
    let scenario = Scenario::new();
    let workers = scenario.formed(["a", "b"], &json!({}));
    let [a, b] = &workers;
    assert_eq!(a.calls("b", "double", json!(21)), Ok(json!(42)));
    assert_eq!(a.calls("b", "halve", json!(42)), Ok(json!(21)));
    let refused = |method: &str, argument: Value| a.calls("b", method, argument).unwrap_err();

    let error = refused("triple", json!(1));
    assert_eq!(error.kind, RpcErrorKind::NoSuchMethod);
    assert!(
        error
            .message
            .contains("no method scenario.triple; it offers"),
        "{error:?}"
    );
    let error = refused("double text", json!("x".repeat(300)));
    assert_eq!(error.kind, RpcErrorKind::Serialization, "{error:?}");
    assert_eq!(error.worker.as_deref(), Some("b"));
    for (method, worker) in [("measure", None), ("repeat", Some("b"))] {
        let error = refused(method, json!(TOO_LONG));
        assert_eq!(error.kind, RpcErrorKind::Serialization, "{error:?}");
        assert!(
            error.message.ends_with("send large data as a tensor"),
            "{error:?}"
        );
        assert!(
            worker.is_none() || error.worker.as_deref() == worker,
            "{error:?}"
        );
    }
    let error = a.calls("c", "double", json!(1)).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::UnknownWorker);
    assert!(
        error.message.contains("could not find destination name c"),
        "{error:?}"
    );

    // An argument just below the limit arrives.
    let most = TOO_LONG - 1024;
    assert_eq!(a.calls("b", "measure", json!(most)), Ok(json!(most)));
    let traffic = a.does(&json!({ "do": "traffic" }));
    assert_eq!(traffic["connections"], 1, "{traffic}");
    assert_eq!(traffic["in_flight"], 0, "{traffic}");
    assert_eq!(b.does(&json!({ "do": "traffic" }))["running"], 0);
    shut_down(&workers);
}

#[test]
fn ten_errors_of_a_function_arrive_as_they_were() {
    let scenario = Scenario::new();
    let [a, _b] = scenario.formed(["a", "b"], &json!({}));
    let errors = (0..10).map(|how| a.calls("b", "fail", json!(how)).unwrap_err());
    let errors: Vec<_> = errors.collect();
    let mut seen = Vec::new();
    for error in &errors {
        assert_eq!(error.kind, RpcErrorKind::Remote);
        assert_eq!(error.worker.as_deref(), Some("b"));
        let begins = "scenario.fail on WorkerInfo(id=1, name=b): ";
        assert!(error.text.starts_with(begins), "{}", error.text);
        let remote = error.remote.clone().unwrap();
        assert!(error.text.contains(&remote.message), "{}", error.text);
        seen.push((remote.type_name, remote.message));
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 10, "{seen:?}");

    let remote = |how: usize| errors[how].remote.as_ref().unwrap();
    let all = remote(0);
    assert_eq!(all.message, "Größe 7 ist zu groß\nzweite Zeile: 次の行");
    let causes = ["das läßt sich nicht lesen", "invalid digit found in string"];
    assert_eq!(all.causes, causes);
    let ends = "caused by: das läßt sich nicht lesen\n  caused by: invalid digit found in string";
    assert!(errors[0].text.ends_with(ends), "{}", errors[0].text);
    assert_eq!(remote(8).type_name, "panic");
    assert_eq!(
        (remote(9).code, &remote(9).details[..]),
        (17, &[1, 2, 3][..])
    );
}

#[test]
fn ten_thousand_calls_of_a_line_stay_in_order_between_processes() {
    const CALLS: u64 = 10_000;
    let scenario = Scenario::new();
    let [a, b] = scenario.formed(["a", "b"], &json!({}));
    a.does(&json!({ "do": "lines", "to": "b", "calls": CALLS }));
    let noted = a.calls("b", "noted", Value::Null).unwrap();
    let noted: Vec<u64> = serde_json::from_value(noted).unwrap();
    assert!(noted.into_iter().eq(0..CALLS));
    let counted = b.does(&json!({ "do": "happened", "what": "counted", "times": 0 }));
    assert_eq!(counted, CALLS / 10);
}
