//! Tests of dynamic groups (SCN-S10, SCN-S11, SCN-S12, SCN-S14, SCN-S16).

use rdzv_rpc::RpcErrorKind;
use serde_json::{Value, json};

use super::worker::{Scenario, Worker, shut_down};

/// Checks that exactly these workers see, call and gather with one another.
fn are_a_group(workers: &[&Worker]) {
    let names: Vec<&str> = workers.iter().map(|worker| worker.name.as_str()).collect();
    for worker in workers {
        worker.sees(&names);
    }
    for from in workers {
        for to in &names {
            assert_eq!(from.calls(to, "double", json!(4)), Ok(json!(8)));
        }
    }
    for worker in workers {
        worker.tell(&json!({ "do": "gather", "value": worker.name, "seconds": 20 }));
    }
    let named = names.iter().map(|name| ((*name).to_owned(), json!(name)));
    let all = Value::Object(named.collect());
    for worker in workers {
        assert_eq!(worker.succeeds(), all);
    }
}

fn leaves(worker: Worker) {
    worker.does(&json!({ "do": "shutdown", "seconds": 20 }));
    worker.tell(&json!({ "do": "exit" }));
    worker.ended();
}

#[test]
fn processes_come_and_go_and_everybody_knows_after_each_step() {
    let scenario = Scenario::new();
    let a = scenario.joined("a-1-2", 0);
    are_a_group(&[&a]);
    let b = scenario.joined("b:c:", 3);
    are_a_group(&[&a, &b]);
    // The new worker comes between the others in the order of ranks.
    let c = scenario.joined("_c-:_", 1);
    are_a_group(&[&a, &c, &b]);
    leaves(b);
    are_a_group(&[&a, &c]);
    let error = a.calls("b:c:", "double", json!(1)).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::UnknownWorker);
    leaves(a);
    are_a_group(&[&c]);
    let d = scenario.joined("0", 0);
    are_a_group(&[&d, &c]);
    shut_down(&[d, c]);
    let keys = scenario.keys();
    assert!(keys.iter().all(|key| !key.contains("/beat/")), "{keys:?}");
}

#[test]
fn a_process_that_replaces_another_is_called_at_the_first_try() {
    let scenario = Scenario::new();
    let old = scenario.joined("old", 0);
    let mut worker = scenario.joined("worker", 1);
    are_a_group(&[&old, &worker]);
    // The same name and rank twice, then the rank alone, then the name alone.
    for (name, rank) in [("worker", 1), ("worker", 1), ("other", 1), ("other", 2)] {
        leaves(worker);
        old.sees(&["old"]);
        worker = scenario.joined(name, rank);
        old.sees(&["old", name]);
        assert_eq!(old.calls(name, "double", json!(rank)), Ok(json!(2 * rank)));
        let by_rank = json!({ "do": "call", "to": rank, "method": "halve", "argument": 8 });
        assert_eq!(old.does(&by_rank), 4);
        assert_eq!(worker.calls("old", "double", json!(1)), Ok(json!(2)));
    }
    let error = old.calls("worker", "double", json!(1)).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::UnknownWorker);
}

#[test]
fn a_process_with_a_bad_map_is_notified_so_itself_and_may_try_again() {
    let scenario = Scenario::new();
    let workers = scenario.started(["a", "b", "c"]);
    let join = |worker: &Worker, maps: Value| {
        let options = json!({ "device_maps": maps });
        worker.init(&json!({ "options": options }))
    };
    for worker in &workers {
        worker.does(&json!({ "do": "devices", "count": 2 }));
    }
    let [a, b, c] = &workers;
    join(a, json!({ "b": { "cuda:0": "cuda:1" } })).unwrap();
    join(b, json!({})).unwrap();
    are_a_group(&[a, b]);
    let error = join(c, json!({ "a": { "cuda:0": "cuda:7" } })).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::DeviceMap);
    assert!(
        error
            .message
            .contains("Node c has target devices with invalid indices"),
        "{}",
        error.message
    );
    are_a_group(&[a, b]);
    let sent = a.does(&json!({ "do": "tensor", "to": "b", "device": 0 }));
    assert_eq!(sent, json!([1, 0, [1, 2, 3]]));
    join(c, json!({ "a": { "cuda:0": "cuda:1" } })).unwrap();
    are_a_group(&[a, b, c]);
    let sent = c.does(&json!({ "do": "tensor", "to": "a", "device": 0 }));
    assert_eq!(sent, json!([1, 0, [1, 2, 3]]));
}

#[test]
fn static_and_dynamic_processes_do_not_disturb_one_another() {
    const MIXED: &str =
        "RPC group mixes statically and dynamically initialized members which is not supported. ";
    let is_refused = |worker: &Worker, init: Value| {
        let error = worker.init(&init).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::GroupMismatch);
        assert!(error.message.starts_with(MIXED), "{}", error.message);
    };
    let scenario = Scenario::new();
    let a = scenario.joined("a", 0);
    let unauthenticated = scenario.start("s", 1);
    is_refused(&unauthenticated, json!({ "world_size": 2 }));
    are_a_group(&[&a]);
    unauthenticated.init(&json!({})).unwrap();
    are_a_group(&[&a, &unauthenticated]);
    leaves(a);
    leaves(unauthenticated);
    // No member is left, so a static group can begin.
    let workers = scenario.formed(["b", "c"], &json!({}));
    is_refused(&scenario.start("d", 2), json!({}));
    let [b, c] = &workers;
    are_a_group(&[b, c]);
    shut_down(&workers);
}
