//! Tests of static groups: all workers join, or all receive the reason why not.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::RpcErrorKind;
use rdzv_rpc::group::Group;
use rdzv_rpc_proto::worker::WorkerId;
use rdzv_store::Store;

use super::support::{
    LONG, connection, form_all, form_each, formed, join, names, shut_down, stores, tcp_store,
    with_devices, worker,
};
use super::watched::Watched;

/// Time within which all workers must know of a failure.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn all_ranks_see_the_same_group() {
    for store in stores() {
        let workers = vec![worker("a-0", 0), worker("b:1", 1), worker("c_2", 2)];
        let groups = formed(form_all(&store, workers.clone(), LONG));
        for (rank, group) in groups.iter().enumerate() {
            let view = group.view();
            assert_eq!(names(&view), ["a-0", "b:1", "c_2"]);
            assert_eq!(view.me().info.id.0 as usize, rank);
            assert_eq!(**view.named("b:1").unwrap(), workers[1]);
            assert_eq!(view.epoch(), groups[0].view().epoch());
            assert!(group.is_static());
        }
    }
}

#[test]
fn a_group_of_one_needs_nobody() {
    for store in stores() {
        let group = Group::form(store, worker("alone", 0), 1, LONG).unwrap();
        assert_eq!(names(&group.view()), ["alone"]);
        group.shutdown_barrier(LONG).unwrap();
    }
}

#[test]
fn a_bad_map_is_notified_to_all_ranks_in_the_same_words() {
    for store in stores() {
        let started = Instant::now();
        let workers = vec![
            worker("w0", 0),
            with_devices("w1", 1, 2, &[("w0", &[(1, 0)])]),
            worker("w2", 2),
        ];
        let results = form_all(&store, workers, LONG);
        assert!(started.elapsed() < SOON);
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::DeviceMap);
            let (text, remedy) = error.message.split_once("\nw0 counts no ").unwrap();
            assert!(
                remedy.contains("RpcAgentBuilder::device_backend"),
                "{remedy}"
            );
            assert_eq!(
                text,
                "Node w1 has target devices with invalid indices in its device map for w0\n\
                 device map = {cuda:1: cuda:0}\ndevice count = 0"
            );
        }
    }
}

#[test]
fn a_map_for_a_unknown_worker_is_notified_to_all_ranks() {
    let workers = vec![
        with_devices("w0", 0, 2, &[("w7", &[(1, 0)])]),
        worker("w1", 1),
    ];
    for result in form_all(&tcp_store(), workers, LONG) {
        assert_eq!(
            result.unwrap_err().message,
            "Node w0 has invalid target node names in its device maps\n\
             device maps = ['w7']\nnode names = ['w0', 'w1']"
        );
    }
}

#[test]
fn after_a_refusal_the_same_store_serves_again() {
    for store in stores() {
        let bad = vec![
            worker("w0", 0),
            with_devices("w1", 1, 2, &[("w0", &[(1, 0)])]),
        ];
        assert!(form_all(&store, bad, LONG).iter().all(Result::is_err));
        let good = vec![worker("w0", 0), worker("w1", 1)];
        formed(form_all(&store, good, LONG));
    }
}

#[test]
fn replies_find_their_way_back() {
    let workers = vec![
        with_devices("w0", 0, 4, &[("w1", &[(0, 2), (1, 3)])]),
        with_devices("w1", 1, 4, &[]),
    ];
    let names: Vec<_> = workers
        .iter()
        .map(|worker| worker.info.name.clone())
        .collect();
    let groups = formed(form_all(&tcp_store(), workers, LONG));
    let (caller, callee) = (groups[0].view(), groups[1].view());
    for (here, there) in caller.device_map(&names[1]).unwrap().pairs() {
        assert_eq!(
            callee.reverse_map(&names[0]).unwrap().get(there),
            Some(here)
        );
        assert!(callee.devices().contains(&there));
    }
}

#[test]
fn two_world_sizes_are_both_named_soon() {
    for store in stores() {
        let started = Instant::now();
        let workers = vec![(worker("w0", 0), 2), (worker("w1", 1), 3)];
        let results = form_each(&store, workers, LONG);
        assert!(started.elapsed() < SOON);
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::GroupMismatch);
            let sizes = |text: &str| text.contains(" 2") && text.contains(" 3");
            assert!(sizes(&error.message), "{error}");
        }
        // A worker that arrives late gets the error too, whatever its world size.
        let error = Group::form(connection(&store), worker("w2", 2), 3, LONG).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::GroupMismatch, "{error}");
        // With the same size for all workers, the group forms.
        let workers = vec![worker("w0", 0), worker("w1", 1), worker("w2", 2)];
        formed(form_all(&store, workers, LONG));
    }
}

#[test]
fn missing_ranks_are_named_at_the_deadline() {
    for store in stores() {
        let deadline = Duration::from_millis(500);
        let started = Instant::now();
        let workers = vec![(worker("w0", 0), 4), (worker("w2", 2), 4)];
        let results = form_each(&store, workers, deadline);
        assert!((deadline..SOON).contains(&started.elapsed()));
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::Deadline);
            assert!(
                error
                    .message
                    .contains("of 4 workers, ranks 1, 3 did not join"),
                "{error}"
            );
        }
        // Workers that arrive too late do not wait for a group that has failed. Each gets the error
        // once.
        for late in [1, 3] {
            let started = Instant::now();
            let late = worker(&format!("w{late}"), late);
            let error = Group::form(connection(&store), late, 4, LONG).unwrap_err();
            assert!(error.message.contains("ranks 1, 3 did not join"), "{error}");
            assert!(started.elapsed() < SOON);
        }
        let workers = (0..4).map(|rank| worker(&format!("w{rank}"), rank));
        formed(form_all(&store, workers.collect(), LONG));
    }
}

#[test]
fn what_cannot_be_right_is_refused_before_the_store_is_asked() {
    for store in stores() {
        let keys = store.num_keys().unwrap();
        for (id, world_size, what) in [(0, 0, "got 0"), (2, 2, "rank 2"), (u32::MAX, 2, "rank 4")] {
            let user = Watched::dying_before(0, &store);
            let me = worker("w", id);
            let error = Group::form(user.clone(), me, world_size, LONG).unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
            assert!(error.message.contains(what), "{error}");
            assert!(!user.has_died());
        }
        assert_eq!(store.num_keys().unwrap(), keys);
    }
}

#[test]
fn two_workers_of_one_name_are_named_on_all_ranks() {
    for store in stores() {
        let workers = vec![worker("a", 0), worker("b", 1), worker("a", 2)];
        for result in form_all(&store, workers, LONG) {
            let error = result.unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::DuplicateName);
            assert_eq!(
                error.message,
                "RPC worker name a is not unique. Workers 0 and 2 share the same name."
            );
        }
    }
}

#[test]
fn two_workers_of_one_rank_are_notified_soon() {
    for store in stores() {
        let started = Instant::now();
        let workers = vec![
            (worker("a", 0), 3),
            (worker("b", 1), 3),
            (worker("c", 1), 3),
        ];
        for result in form_each(&store, workers, LONG) {
            let error = result.unwrap_err();
            assert_eq!(error.kind, RpcErrorKind::DuplicateId, "{error}");
            assert!(error.message.contains("one group have rank 1"), "{error}");
        }
        assert!(started.elapsed() < SOON);
    }
}

#[test]
fn processes_with_different_histories_meet_in_one_store() {
    for store in stores() {
        // Three times, both workers form a group and shut down cleanly. Then they form a group
        // without a shutdown, and another one. The last group has a third worker.
        for _ in 0..3 {
            let groups = formed(form_all(&store, vec![worker("a", 0), worker("b", 1)], LONG));
            shut_down(&groups);
        }
        let epoch = |groups: &[Group]| groups[0].view().epoch();
        let first = formed(form_all(&store, vec![worker("a", 0), worker("b", 1)], LONG));
        let second = formed(form_all(&store, vec![worker("a", 0), worker("b", 1)], LONG));
        assert!(epoch(&second) > epoch(&first));
        shut_down(&second);
        let workers = vec![worker("a", 0), worker("b", 1), worker("new", 2)];
        assert_eq!(
            names(&formed(form_all(&store, workers, LONG))[2].view()),
            ["a", "b", "new"]
        );
    }
}

/// Tests that a worker that dies during forming can be started again.
/// Wherever it dies before it counts itself as ready, its new life gets the group formed. If
/// necessary, the others go to the next round with it. None of them needs a restart.
#[test]
fn a_worker_that_dies_while_forming_can_be_started_again() {
    // The calls: the round, the slot, the round again, the wait for the others, their slots, the
    // ready key.
    for call in 0..7 {
        let store = tcp_store();
        let others = thread::scope(|scope| {
            let others = [("w0", 0), ("w2", 2)].map(|(name, id)| {
                let store = connection(&store);
                scope.spawn(move || Group::form(store, worker(name, id), 3, LONG))
            });
            let dying = Watched::dying_before(call, &store);
            let user: Arc<dyn Store> = dying.clone();
            assert!(Group::form(user, worker("w1", 1), 3, LONG).is_err());
            assert!(dying.has_died());
            let again = Group::form(connection(&store), worker("w1", 1), 3, LONG);
            assert_eq!(
                names(&again.unwrap().view()),
                ["w0", "w1", "w2"],
                "call {call}"
            );
            others.map(|other| other.join().unwrap())
        });
        for other in formed(others.into()) {
            assert!(other.view().with_id(WorkerId(1)).is_some());
        }
    }
}

#[test]
fn a_worker_that_comes_and_then_hangs_is_named_by_all_at_the_deadline() {
    for store in stores() {
        let deadline = Duration::from_millis(500);
        // The worker takes its slot, and never records that it has read the others.
        let (hangs, hung) = std::sync::mpsc::channel::<()>();
        let hung = std::sync::Mutex::new(hung);
        let watched = Watched::new(&store, move |key| {
            !key.ends_with("ready/1") || hung.lock().unwrap().recv().is_ok()
        });
        let errors = thread::scope(|scope| {
            let others = [("w0", 0), ("w2", 2)].map(|(name, id)| {
                let store = connection(&store);
                scope.spawn(move || Group::form(store, worker(name, id), 3, deadline))
            });
            let hanging = scope.spawn(|| Group::form(watched, worker("w1", 1), 3, deadline));
            let errors = others.map(|other| other.join().unwrap().unwrap_err());
            drop(hangs);
            assert!(hanging.join().unwrap().is_err());
            errors
        });
        for error in &errors {
            assert_eq!(error.kind, RpcErrorKind::Deadline);
            let named = "of 3 workers, w1 (rank 1) joined and then sent nothing more";
            assert!(error.message.contains(named), "{error}");
        }
        assert_eq!(errors[0].message, errors[1].message);
    }
}

#[test]
fn a_static_worker_does_not_disturb_a_dynamic_group_nor_the_other_way_round() {
    const MIXED: &str =
        "RPC group mixes statically and dynamically initialized members which is not supported. ";
    for store in stores() {
        let member = join(&store, worker("a", 0)).unwrap();
        let error = Group::form(connection(&store), worker("b", 1), 2, LONG).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::GroupMismatch);
        assert!(error.message.starts_with(MIXED), "{error}");
        let other = join(&store, worker("b", 1)).unwrap();
        member.leave().unwrap();
        other.leave().unwrap();
        // No member is left, so a static group can begin.
        let groups = formed(form_all(&store, vec![worker("a", 0), worker("b", 1)], LONG));
        let error = join(&store, worker("c", 2)).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::GroupMismatch);
        assert!(error.message.starts_with(MIXED), "{error}");
        shut_down(&groups);
        join(&store, worker("c", 2)).unwrap().leave().unwrap();
    }
}

#[test]
fn after_a_static_group_that_was_not_formed_a_dynamic_one_can_begin() {
    for store in stores() {
        let workers = vec![
            worker("w0", 0),
            with_devices("w1", 1, 2, &[("stranger", &[(0, 0)])]),
        ];
        for result in form_all(&store, workers, LONG) {
            assert_eq!(result.unwrap_err().kind, RpcErrorKind::DeviceMap);
        }
        let first = join(&store, worker("a", 0)).unwrap();
        let second = join(&store, worker("b", 1)).unwrap();
        assert_eq!(names(&second.view()), ["a", "b"]);
        let error = Group::form(connection(&store), worker("c", 0), 1, LONG).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::GroupMismatch);
        second.leave().unwrap();
        first.leave().unwrap();
        let alone = Group::form(connection(&store), worker("c", 0), 1, LONG).unwrap();
        alone.shutdown_barrier(LONG).unwrap();
    }
}
