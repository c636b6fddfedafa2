//! Processes that are workers again and again (S28).

use serde_json::json;

use super::worker::{Scenario, Worker};

#[test]
fn a_process_started_again_meets_one_that_has_been_in_other_groups() {
    let scenario = Scenario::new();
    let [old] = scenario.started(["old"]);
    for _ in 0..3 {
        let new = scenario.start("new", 1);
        let both: [&Worker; 2] = [&old, &new];
        for worker in both {
            worker.begin_init(&json!({ "world_size": 2 }));
        }
        for worker in both {
            worker.succeeds();
        }
        assert_eq!(old.calls("new", "double", json!(1)), Ok(json!(2)));
        assert_eq!(new.calls("old", "double", json!(1)), Ok(json!(2)));
        for worker in both {
            worker.tell(&json!({ "do": "shutdown", "seconds": 20 }));
        }
        for worker in both {
            worker.succeeds();
        }
    }
}
