//! Tests of accelerator tensors between processes (SCN-S7, SCN-S15).

use serde_json::{Value, json};

use super::worker::{Scenario, Worker};

/// Checks on which device a tensor arrives, and that it returns to its own.
fn sends(worker: &Worker, to: &str, device: u32, arrives: u32) {
    let sent = worker.does(&json!({ "do": "tensor", "to": to, "device": device }));
    assert_eq!(sent, json!([arrives, device, [1, 2, 3]]), "{to}");
}

#[test]
fn results_come_back_to_their_devices_also_after_a_process_has_left() {
    let scenario = Scenario::new();
    let workers = scenario.started(["a", "b", "c"]);
    let maps: [Value; 3] = [
        json!({ "b": { "cuda:0": "cuda:1" }, "c": { "cuda:1": "cuda:2", "cuda:2": "cuda:1" } }),
        json!({ "a": { "cuda:2": "cuda:3" }, "c": { "cuda:3": "cuda:0" } }),
        json!({ "a": { "cuda:1": "cuda:1", "cuda:0": "cuda:3" } }),
    ];
    for (worker, maps) in workers.iter().zip(maps) {
        worker.does(&json!({ "do": "devices", "count": 4 }));
        let options = json!({ "device_maps": maps });
        worker.init(&json!({ "options": options })).unwrap();
    }
    let [a, b, c] = &workers;
    for worker in [a, b, c] {
        worker.sees(&["a", "b", "c"]);
    }
    sends(a, "b", 0, 1);
    sends(b, "a", 2, 3);
    sends(b, "c", 3, 0);
    let those_of_a_and_c = || {
        sends(a, "c", 1, 2);
        sends(a, "c", 2, 1);
        sends(c, "a", 1, 1);
        sends(c, "a", 0, 3);
    };
    those_of_a_and_c();
    b.does(&json!({ "do": "shutdown", "seconds": 20 }));
    for worker in [a, c] {
        worker.sees(&["a", "c"]);
    }
    those_of_a_and_c();
}
