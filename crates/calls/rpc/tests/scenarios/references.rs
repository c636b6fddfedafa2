//! Tests of remote references between processes (SCN-S22).

use serde_json::{Value, json};

use super::worker::{Scenario, shut_down};

#[test]
fn references_go_through_all_processes_and_nothing_is_left_of_them() {
    let scenario = Scenario::new();
    let workers = scenario.formed(["a", "b", "c"], &json!({}));
    // From owner to user to user and back, and to the same worker.
    let along = ["a", "c", "c", "b", "a", "c"];
    for from in &workers {
        for to in ["a", "b", "c"] {
            let used = from.does(&json!({ "do": "references", "to": to, "along": along }));
            let values: Vec<u64> = serde_json::from_value(used["values"].clone()).unwrap();
            let of = |value: u64| vec![value; along.len() + 1];
            assert_eq!(values, [of(8), of(9)].concat());
            assert_eq!(used["remains"], json!([]));
        }
    }
    shut_down(&workers);
}

#[test]
fn a_process_that_waits_for_the_end_keeps_what_its_functions_need() {
    let scenario = Scenario::new();
    let [a, b, c] = scenario.formed(["a", "b", "c"], &json!({}));
    a.does(&json!({ "do": "lend", "to": "b" }));
    assert_eq!(c.calls("b", "kept", Value::Null), Ok(json!(9)));
    // Worker b acts like a server: it starts no work itself.
    b.tell(&json!({ "do": "shutdown", "seconds": 20 }));
    scenario.sees_the_end_of(1);
    assert_eq!(c.calls("b", "kept", Value::Null), Ok(json!(9)));
    a.does(&json!({ "do": "lend", "to": "b" }));
    assert_eq!(c.calls("b", "kept", Value::Null), Ok(json!(9)));
    assert!(b.is_silent());
    for worker in [&a, &c] {
        worker.tell(&json!({ "do": "shutdown", "seconds": 20 }));
    }
    for worker in [&a, &b, &c] {
        worker.succeeds();
    }
}
