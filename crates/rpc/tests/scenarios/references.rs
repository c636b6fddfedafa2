//! Remote references between processes (S22).

use serde_json::json;

use super::worker::{Scenario, shut_down};

#[test]
fn references_go_through_all_processes_and_nothing_is_left_of_them_after_a_second() {
    let scenario = Scenario::new();
    let workers = scenario.formed(["a", "b", "c"], &json!({}));
    // From owner to user to user and back, and to oneself.
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
