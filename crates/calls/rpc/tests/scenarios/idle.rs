//! Test of processes that have nothing to do (SCN-S31).

use serde_json::json;

use super::worker::{Scenario, all};

/// Duration of the measurement in seconds.
const MEASURED: f64 = 2.0;

/// Maximum use by a process, in cores; one that always polls would use one.
const MOST: f64 = 0.05;

#[test]
fn processes_that_are_connected_and_have_nothing_to_do_use_no_processor() {
    let scenario = Scenario::new();
    let names = ["a", "b", "c", "d"];
    let workers = scenario.formed(names, &json!({}));
    for from in &workers {
        for to in names {
            from.calls(to, "double", json!(1)).unwrap();
        }
    }
    for used in all(&workers, &json!({ "do": "idle", "seconds": MEASURED })) {
        let used = used.unwrap().as_f64().unwrap();
        assert!(used < MOST, "{used} of a core");
    }
}
