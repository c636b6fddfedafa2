//! Tests of the start of a worker: options and store (SCN-S3, SCN-S4).

use rdzv_rpc::RpcErrorKind;
use rdzv_testing::free_port;
use serde_json::{Value, json};

use super::worker::{Scenario, all_succeed, begin_all, shut_down};

/// Address without a host: a connection attempt would take its whole time.
const NOWHERE: &str = "tcp://192.0.2.1:1?rank=0";

#[test]
fn workers_meet_where_their_environment_says() {
    let scenario = Scenario::new();
    // No launcher hosts a store here: the worker of rank 0 does.
    let port = free_port();
    let mut ranks = 0..;
    let workers = ["a", "b", "c"].map(|name| {
        let rank = ranks.next().unwrap();
        scenario.start_at(port, name, rank, &[])
    });
    begin_all(&workers, &json!({ "world_size": 3 }));
    for (rank, worker) in workers.iter().enumerate() {
        assert_eq!(worker.succeeds()["rank"], rank);
    }
    for from in &workers {
        for to in ["a", "b", "c"] {
            assert_eq!(from.calls(to, "double", json!(4)), Ok(json!(8)));
        }
    }
    let error = workers[0]
        .init(&json!({ "init_method": NOWHERE }))
        .unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::AlreadyInitialized);
    shut_down(&workers);
    let error = workers[0].calls("b", "double", json!(4)).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::NotInitialized);
}

#[test]
fn what_a_process_asks_for_is_honoured_or_refused() {
    let scenario = Scenario::new();
    let workers = scenario.started(["a", "b"]);
    let a = &workers[0];
    let refused = |words: Value| {
        let error = a.init(&words).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument, "{error:?}");
        error.message
    };
    let option = |word: &str, value: Value| refused(json!({ "options": { word: value } }));
    assert!(option("colour", json!(1)).contains("unknown field `colour`"));
    assert!(option("num_worker_threads", json!(0)).ends_with("must be positive, got 0"));
    assert!(option("num_worker_threads", json!("two")).contains("cannot be \"two\""));
    assert!(option("devices", json!(["cpu"])).contains("a list of CUDA devices, but got"));
    assert!(option("transports", json!(["pigeon"])).contains("pigeon"));
    assert_eq!(
        option("_channels", json!(["pigeon"])),
        "Unknown channel: pigeon"
    );
    let two_to_one = json!({ "b": { "cuda:0": "cuda:1", "cuda:1": "cuda:1" } });
    assert!(option("device_maps", two_to_one).contains("cuda:1"));
    assert!(refused(json!({ "timeout": -0.5 })).ends_with("RPC Timeout must be non-negative"));

    // After all these errors the process becomes a worker, and the given device maps apply.
    let maps = json!({ "b": { "cuda:0": "cuda:1" } });
    for (worker, maps) in [(a, maps), (&workers[1], json!({}))] {
        worker.does(&json!({ "do": "devices", "count": 2 }));
        let options = json!({ "device_maps": maps });
        let init = json!({ "world_size": 2, "options": options });
        worker.begin_init(&init);
    }
    all_succeed(&workers);
    let sent = a.does(&json!({ "do": "tensor", "to": "b", "device": 0 }));
    assert_eq!(sent, json!([1, 0, [1, 2, 3]]));
}
