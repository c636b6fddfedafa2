//! Tests of dynamic groups: workers join, leave and die.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_rpc::RpcErrorKind;
use rdzv_rpc::group::Group;
use rdzv_rpc_proto::directory::ViewChange;
use rdzv_rpc_proto::worker::WorkerName;
use rdzv_store::{FileStore, Store};

use super::support::{
    LEASE, LONG, Views, connection, form_all, formed, join, names, shut_down, stores, tcp_store,
    with_devices, worker,
};
use super::watched::Watched;

/// Time within which a dead member is removed, even on a busy machine.
const OUT: Duration = LEASE.saturating_add(Duration::from_secs(25));

#[test]
fn members_come_and_go_and_everybody_knows() {
    for store in stores() {
        let a = join(&store, worker("a-1", 0)).unwrap();
        let said = Views::of(&a);
        said.wait_for(&["a-1"]);
        // The view is ordered by id, not by time of arrival.
        let c = join(&store, worker("c:_-", 7)).unwrap();
        let b = join(&store, worker("b_2", 3)).unwrap();
        let before = said.wait_for(&["a-1", "b_2", "c:_-"]);
        assert_eq!(names(&b.view()), ["a-1", "b_2", "c:_-"]);
        Views::of(&c).wait_for(&["a-1", "b_2", "c:_-"]);
        b.leave().unwrap();
        let after = said.wait_for(&["a-1", "c:_-"]);
        Views::of(&c).wait_for(&["a-1", "c:_-"]);
        let changes = after.changes_since(&before);
        assert!(
            matches!(&changes[..], [ViewChange::Left(gone)] if gone.info.name.as_str() == "b_2"),
            "{changes:?}"
        );
        // A second departure has no effect.
        b.leave().unwrap();
        a.shutdown_barrier(LONG).unwrap();
        Views::of(&c).wait_for(&["c:_-"]);
    }
}

#[test]
fn a_leavers_name_and_rank_are_free_at_once() {
    let store = tcp_store();
    let a = join(&store, worker("a", 0)).unwrap();
    let said = Views::of(&a);
    let b = join(&store, worker("b", 1)).unwrap();
    let old = said.wait_for(&["a", "b"]);
    b.leave().unwrap();
    said.wait_for(&["a"]);
    // The same name and rank, with a new incarnation.
    let b = join(&store, worker("b", 1)).unwrap();
    let new = said.wait_for(&["a", "b"]);
    assert!(new.epoch() > old.epoch());
    assert_ne!(
        new.named("b").unwrap().incarnation,
        old.named("b").unwrap().incarnation
    );
    assert_eq!(new.changes_since(&old).len(), 2);
    b.leave().unwrap();
    // The same rank with another name.
    let _x = join(&store, worker("x", 1)).unwrap();
    said.wait_for(&["a", "x"]);
}

#[test]
fn who_lives_keeps_its_name_and_rank() {
    const LEASE: Duration = Duration::from_secs(30);
    let join = |store: &Arc<dyn Store>, worker| Group::join(connection(store), worker, LEASE, LONG);
    for store in stores() {
        let _a = join(&store, worker("a", 0)).unwrap();
        let started = Instant::now();
        let error = join(&store, worker("a", 1)).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::DuplicateName);
        assert_eq!(
            error.message,
            "RPC worker name a is not unique. Workers 0 and 1 share the same name."
        );
        let error = join(&store, worker("b", 0)).unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::DuplicateId);
        assert_eq!(
            error.message,
            "RPC worker id 0 is not unique. Worker a and already has ID and b cannot be added."
        );
        // The two checks that a is alive together took less than one lease.
        assert!(started.elapsed() < LEASE);
        join(&store, worker("b", 1)).unwrap();
    }
}

#[test]
fn a_member_that_dies_is_out_when_its_lease_is_over() {
    for store in stores() {
        let a = join(&store, worker("a", 0)).unwrap();
        let said = Views::of(&a);
        let dying = Watched::dying_before(i64::MAX, &store);
        let b = Group::join(dying, worker("b", 1), LEASE, LONG).unwrap();
        let before = said.wait_for(&["a", "b"]);
        let died = Instant::now();
        drop(b);
        let after = said.wait_for(&["a"]);
        assert!(
            (LEASE / 2..OUT).contains(&died.elapsed()),
            "{:?}",
            died.elapsed()
        );
        assert!(matches!(
            after.changes_since(&before)[..],
            [ViewChange::Lost(_)]
        ));
    }
}

#[test]
fn a_worker_that_died_alone_does_not_keep_its_successor_out() {
    for store in stores() {
        drop(join(&store, worker("a", 0)).unwrap());
        let started = Instant::now();
        let again = join(&store, worker("a", 0)).unwrap();
        assert!(started.elapsed() < OUT, "{:?}", started.elapsed());
        assert_eq!(names(&again.view()), ["a"]);
    }
}

/// Tests a worker that dies at any point during its join, or shortly after it.
/// The others join and leave normally, and after its lease nothing is left of it.
#[test]
fn a_joiner_that_dies_anywhere_leaves_no_ghost() {
    let mut seen = BTreeSet::new();
    for call in 0.. {
        let store = tcp_store();
        let a = join(&store, worker("a", 0)).unwrap();
        let said = Views::of(&a);
        let dying = Watched::dying_before(call, &store);
        let user: Arc<dyn Store> = dying.clone();
        let joiner = Group::join(user, worker("ghost", 1), LEASE, LONG);
        let has_joined = joiner.is_ok();
        seen.insert(has_joined);
        drop(joiner);
        let died = Instant::now();
        // The dead worker delays no other worker.
        let other = join(&store, worker("b", 2)).unwrap();
        other.leave().unwrap();
        assert!(died.elapsed() < OUT, "call {call}");
        // Its name and rank are free when its lease has expired, at the latest.
        let again = join(&store, worker("ghost", 1)).unwrap();
        assert!(died.elapsed() < OUT, "call {call}: {:?}", died.elapsed());
        assert_eq!(names(&again.view()), ["a", "ghost"]);
        again.leave().unwrap();
        said.wait_for(&["a"]);
        a.leave().unwrap();
        // No key of a lease is left.
        let keys = store.list_keys().unwrap();
        assert!(
            !keys.iter().any(|key| key.contains("/beat/")),
            "call {call}: {keys:?}"
        );
        if has_joined && call > 12 {
            break;
        }
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_joiner_with_a_bad_map_is_notified_so_and_the_group_is_as_before() {
    for store in stores() {
        let a = join(&store, worker("a", 0)).unwrap();
        let epoch = a.view().epoch();
        let started = Instant::now();
        let bad = with_devices("b", 1, 1, &[("a", &[(0, 3)])]);
        let error = join(&store, bad).unwrap_err();
        assert!(started.elapsed() < LONG / 3);
        assert_eq!(error.kind, RpcErrorKind::DeviceMap);
        let (text, remedy) = error.message.split_once("\na counts no ").unwrap();
        assert!(
            remedy.contains("RpcAgentBuilder::device_backend"),
            "{remedy}"
        );
        assert_eq!(
            text,
            "Node b has target devices with invalid indices in its device map for a\n\
             device map = {cuda:0: cuda:3}\ndevice count = 0"
        );
        let good = join(&store, worker("b", 1)).unwrap();
        assert_eq!(good.view().epoch(), epoch + 1);
        assert_eq!(names(&good.view()), ["a", "b"]);
    }
}

#[test]
fn every_member_works_out_its_own_maps() {
    let store = tcp_store();
    let name = |text: &str| WorkerName::new(text).unwrap();
    let a = join(
        &store,
        with_devices("a", 0, 4, &[("b", &[(0, 1)]), ("c", &[(1, 2)])]),
    )
    .unwrap();
    let b = join(
        &store,
        with_devices("b", 1, 4, &[("a", &[(2, 3)]), ("c", &[(3, 0)])]),
    )
    .unwrap();
    let c = join(&store, with_devices("c", 2, 4, &[("a", &[(1, 1)])])).unwrap();
    let views = [&a, &b, &c].map(|group| Views::of(group).wait_for(&["a", "b", "c"]));
    let reverse = |at: usize, caller: &str| {
        let map = views[at].reverse_map(&name(caller));
        map.map(ToString::to_string)
    };
    assert_eq!(reverse(0, "b").unwrap(), "{cuda:3: cuda:2}");
    assert_eq!(reverse(0, "c").unwrap(), "{cuda:1: cuda:1}");
    assert_eq!(reverse(1, "a").unwrap(), "{cuda:1: cuda:0}");
    assert_eq!(reverse(1, "c"), None);
    assert_eq!(reverse(2, "a").unwrap(), "{cuda:2: cuda:1}");
    assert_eq!(reverse(2, "b").unwrap(), "{cuda:0: cuda:3}");
    let devices = |view: &rdzv_rpc_proto::directory::GroupView| -> Vec<String> {
        view.devices().iter().map(ToString::to_string).collect()
    };
    assert_eq!(devices(&views[0]), ["cuda:0", "cuda:1", "cuda:3"]);
    // After b has left, only the devices that the maps of b contributed are removed.
    b.leave().unwrap();
    let at_a = Views::of(&a).wait_for(&["a", "c"]);
    let at_c = Views::of(&c).wait_for(&["a", "c"]);
    assert_eq!(at_a.reverse_map(&name("b")), None);
    assert_eq!(
        at_a.reverse_map(&name("c")).unwrap().to_string(),
        "{cuda:1: cuda:1}"
    );
    assert_eq!(
        at_c.reverse_map(&name("a")).unwrap().to_string(),
        "{cuda:2: cuda:1}"
    );
    assert_eq!(devices(&at_a), ["cuda:0", "cuda:1"]);
}

#[test]
fn many_join_at_once() {
    let store = tcp_store();
    let groups: Vec<Group> = std::thread::scope(|scope| {
        let joining: Vec<_> = (0..8)
            .map(|id| {
                let store = &store;
                scope.spawn(move || join(store, worker(&format!("w{id}"), id)).unwrap())
            })
            .collect();
        joining.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let all = ["w0", "w1", "w2", "w3", "w4", "w5", "w6", "w7"];
    for group in &groups {
        Views::of(group).wait_for(&all);
    }
    std::thread::scope(|scope| {
        for group in &groups[1..] {
            scope.spawn(|| group.leave().unwrap());
        }
    });
    Views::of(&groups[0]).wait_for(&["w0"]);
}

#[test]
fn a_member_without_a_store_is_notified_that_it_is_on_its_own() {
    let store = tcp_store();
    let dying = Watched::dying_before(200, &store);
    let group = Group::join(dying, worker("a", 0), LEASE, LONG).unwrap();
    let error = Views::of(&group).wait_for_the_end();
    assert_eq!(error.kind, RpcErrorKind::Store);
    // A listener that is added later gets the end too.
    assert_eq!(Views::of(&group).wait_for_the_end(), error);
    assert_eq!(names(&group.view()), ["a"]);
}

#[test]
fn a_file_is_enough_to_meet_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store: Arc<dyn Store> = Arc::new(FileStore::open(path, None).unwrap());
    let workers = vec![worker("a", 0), worker("b", 1), worker("c", 2)];
    let groups = formed(form_all(&store, workers, LONG));
    shut_down(&groups);
    let a = join(&store, worker("a", 0)).unwrap();
    let said = Views::of(&a);
    let b = join(&store, worker("b", 1)).unwrap();
    let c = join(&store, worker("c", 2)).unwrap();
    said.wait_for(&["a", "b", "c"]);
    b.leave().unwrap();
    said.wait_for(&["a", "c"]);
    let died = Instant::now();
    drop(c);
    said.wait_for(&["a"]);
    assert!(died.elapsed() < OUT, "{:?}", died.elapsed());
}

#[test]
fn a_lease_that_cannot_be_kept_up_is_refused() {
    let short = Duration::from_millis(99);
    let error = Group::join(connection(&tcp_store()), worker("a", 0), short, LONG).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
}
