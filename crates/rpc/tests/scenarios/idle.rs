//! Processes that have nothing to do (S31).

use serde_json::json;

use super::worker::{Scenario, all};

/// How long it is measured, in seconds.
const MEASURED: f64 = 2.0;

/// What a process may use, of one core.
const MOST: f64 = 0.002;

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
    // On a machine that is busy with other things, what the calls left to be done is done late: whoever
    // has something to do in each of three measurements is not idle.
    let mut used = Vec::new();
    for _ in 0..3 {
        let measured = all(&workers, &json!({ "do": "idle", "seconds": MEASURED }));
        let measured = measured
            .into_iter()
            .map(|one| one.unwrap().as_f64().unwrap());
        used.push(measured.fold(0.0, f64::max));
        if used.last().is_some_and(|most| *most < MOST) {
            return;
        }
    }
    panic!("the busiest process used these parts of a core: {used:?}");
}
