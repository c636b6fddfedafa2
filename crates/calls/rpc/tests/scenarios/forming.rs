//! Tests of static groups, formed or refused (SCN-S6, SCN-S8, SCN-S9).

use std::time::{Duration, Instant};

use rdzv_rpc::RpcErrorKind;
use rdzv_testing::free_port;
use serde_json::{Value, json};

use super::worker::{Scenario, Worker, all_succeed, begin_all, shut_down};

/// Time within which all workers must know of a failure.
const SOON: Duration = Duration::from_secs(20);

/// Address without a host: a connection attempt would take its whole time.
const NOWHERE: &str = "tcp://192.0.2.1:1";

/// Makes all workers join a group of this size; all must fail soon.
fn all_fail(workers: &[Worker], init: impl Fn(usize) -> Value) -> Vec<super::worker::Failure> {
    let begun = Instant::now();
    for (rank, worker) in workers.iter().enumerate() {
        worker.begin_init(&init(rank));
    }
    let errors = workers.iter().map(|worker| worker.answer().unwrap_err());
    let errors = errors.collect();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    errors
}

#[test]
fn a_bad_map_of_one_process_is_notified_to_all_and_nothing_is_left() {
    let scenario = Scenario::new();
    let workers = scenario.started(["w0", "w1", "w2"]);
    for worker in &workers {
        worker.does(&json!({ "do": "devices", "count": 2 }));
    }
    // Descriptors that a process opens only once are open after the first group.
    let good = json!({ "world_size": 3 });
    begin_all(&workers, &good);
    all_succeed(&workers);
    shut_down(&workers);
    let has = |worker: &Worker| {
        // The process has two other threads.
        let process = worker.does(&json!({ "do": "process", "threads": 2 }));
        assert_eq!(process["threads"], 2, "{}", worker.name);
        process["descriptors"].clone()
    };
    let before: Vec<Value> = workers.iter().map(has).collect();
    let keys = scenario.keys();

    let errors = all_fail(&workers, |rank| {
        let target = if rank == 1 { "cuda:5" } else { "cuda:1" };
        let options = json!({ "device_maps": { "w0": { "cuda:1": target } } });
        match rank {
            0 => good.clone(),
            _ => json!({ "world_size": 3, "options": options }),
        }
    });
    for error in errors {
        assert_eq!(error.kind, RpcErrorKind::DeviceMap);
        assert_eq!(
            error.message,
            "Node w1 has target devices with invalid indices in its device map for w0\n\
             device map = {cuda:1: cuda:5}\ndevice count = 2"
        );
    }
    for (worker, before) in workers.iter().zip(before) {
        assert_eq!(has(worker), before, "descriptors of {}", worker.name);
    }
    // The same processes form a group in the same store when the map is right.
    begin_all(&workers, &good);
    all_succeed(&workers);
    assert_eq!(workers[0].calls("w1", "double", json!(4)), Ok(json!(8)));
    shut_down(&workers);
    // Only the keys that explain the refusal are left, for workers that come late.
    let is_word = |key: &String| key.starts_with("rdzv/rpc/2/") || keys.contains(key);
    let left = scenario.keys();
    assert!(left.iter().all(is_word), "{left:?}");
}

#[test]
fn processes_of_two_world_sizes_are_notified_both_soon() {
    let scenario = Scenario::new();
    let workers = scenario.started(["w0", "w1"]);
    for error in all_fail(&workers, |rank| json!({ "world_size": 2 + rank })) {
        assert_eq!(error.kind, RpcErrorKind::GroupMismatch);
        let both = error.message.contains(" 2") && error.message.contains(" 3");
        assert!(both, "{}", error.message);
    }
}

#[test]
fn two_world_sizes_are_notified_to_all_processes_also_if_one_of_them_has_the_store() {
    let scenario = Scenario::new();
    // No launcher hosts a store here: the worker of rank 0 does.
    let port = free_port();
    let workers: Vec<Worker> = (0..8)
        .map(|rank| scenario.start_at(port, &format!("w{rank}"), rank, &[]))
        .collect();
    // The first process and its store end when it has failed.
    for one in [7, 1, 3] {
        let size = |rank: usize| if rank == one { 9 } else { 8 };
        for error in all_fail(&workers, |rank| json!({ "world_size": size(rank) })) {
            assert_eq!(error.kind, RpcErrorKind::GroupMismatch, "{error:?}");
            let both = error.message.contains(" 8") && error.message.contains(" 9");
            assert!(both, "{}", error.message);
        }
    }
}

#[test]
fn processes_that_do_not_come_are_named_at_the_deadline() {
    let scenario = Scenario::new();
    let workers = [scenario.start("w0", 0), scenario.start("w2", 2)];
    let options = json!({ "init_deadline": 0.5 });
    let errors = all_fail(&workers, |_| json!({ "world_size": 4, "options": options }));
    for error in errors {
        assert_eq!(error.kind, RpcErrorKind::Deadline);
        let missing = "of 4 workers, ranks 1, 3 did not join";
        assert!(error.message.contains(missing), "{}", error.message);
    }
}

#[test]
fn processes_that_do_not_come_are_named_also_if_one_that_waits_has_the_store() {
    let scenario = Scenario::new();
    let port = free_port();
    let workers = [0, 2, 3].map(|rank| scenario.start_at(port, &format!("w{rank}"), rank, &[]));
    let options = json!({ "init_deadline": 0.8 });
    let errors = all_fail(&workers, |_| json!({ "world_size": 4, "options": options }));
    for error in errors {
        assert_eq!(error.kind, RpcErrorKind::Deadline, "{error:?}");
        let missing = "of 4 workers, rank 1 did not join";
        assert!(error.message.contains(missing), "{}", error.message);
    }
}

#[test]
fn names_and_ranks_that_cannot_be_are_refused_before_anybody_is_asked() {
    let scenario = Scenario::new();
    let [worker] = scenario.started(["worker"]);
    let legal = |letter: char| letter.is_ascii_alphanumeric() || "-_:".contains(letter);
    let letters = (0_u8..128).map(char::from).chain(['é', 'ß', '次']);
    let illegal = letters.filter(|letter| !legal(*letter));
    let mut names: Vec<String> = illegal.map(|letter| format!("a{letter}b")).collect();
    assert_eq!(names.len(), 128 - 65 + 3);
    names.extend([String::new(), "x".repeat(128)]);
    let begun = Instant::now();
    for name in names {
        let init = json!({ "name": name, "rank": 0, "init_method": NOWHERE });
        let error = worker.init(&init).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument, "{name:?}");
    }
    for (rank, size, said) in [(2, 2, "rank 2 is not below"), (0, 0, "at least 1, got 0")] {
        let init = json!({ "rank": rank, "world_size": size, "init_method": NOWHERE });
        let error = worker.init(&init).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
        assert!(error.message.contains(said), "{}", error.message);
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(scenario.keys(), Vec::<String>::new());
    // This name is just short enough.
    let name = "x".repeat(127);
    worker
        .init(&json!({ "name": name, "world_size": 1 }))
        .unwrap();
    assert_eq!(worker.calls(&name, "double", json!(1)), Ok(json!(2)));
}

#[test]
fn processes_of_one_name_or_one_rank_are_named_to_all() {
    let scenario = Scenario::new();
    let workers = scenario.started(["a", "b", "a"]);
    for error in all_fail(&workers, |_| json!({ "world_size": 3 })) {
        assert_eq!(error.kind, RpcErrorKind::DuplicateName);
        let said = "RPC worker name a is not unique. Workers 0 and 2 share the same name.";
        assert_eq!(error.message, said);
    }
    let workers = scenario.started(["a", "b", "c"]);
    for error in all_fail(&workers, |at| json!({ "world_size": 3, "rank": at.min(1) })) {
        assert_eq!(error.kind, RpcErrorKind::DuplicateId);
        assert!(
            error.message.contains("one group have rank 1"),
            "{}",
            error.message
        );
    }
}

#[test]
fn a_newcomer_of_a_name_or_rank_that_somebody_has_is_notified_so() {
    let scenario = Scenario::new();
    let first = scenario.joined("a", 0);
    for (name, rank, kind) in [
        ("a", 1, RpcErrorKind::DuplicateName),
        ("b", 0, RpcErrorKind::DuplicateId),
    ] {
        let error = scenario.start(name, rank).init(&json!({})).unwrap_err();
        assert_eq!(error.kind, kind, "{}", error.message);
    }
    first.sees(&["a"]);
}
