//! Tests of agents that meet in a store, and leave.

use std::sync::Arc;
use std::time::Instant;

use rdzv_store::{HashStore, Store};

use crate::{CallContext, Method, Methods, RpcAgent, RpcErrorKind, RpcOptions};

use super::*;

const NOTHING: Method<(), ()> = Method::new("nothing");
const WAIT: Method<(), ()> = Method::new("wait");

fn methods() -> Methods {
    Methods::new()
        .with(NOTHING, async |()| Ok::<_, String>(()))
        .with(WAIT, async |context: CallContext, ()| {
            context.cancellation().cancelled().await;
            Ok::<_, String>(())
        })
}

fn init(
    store: &Arc<dyn Store>,
    rank: u32,
    world_size: Option<u32>,
) -> Result<RpcAgent, crate::RpcError> {
    RpcAgent::builder(format!("w{rank}"))
        .rank(rank)
        .world_size(world_size)
        .store(Arc::clone(store))
        .methods(methods())
        .options(RpcOptions {
            init_deadline: Duration::from_secs(10),
            timeout: LONGEST.into(),
            ..RpcOptions::default()
        })
        .connect()
}

/// Forms a static group and returns its members.
fn formed(world_size: u32) -> Vec<RpcAgent> {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let store = &store;
                scope.spawn(move || init(store, rank, Some(world_size)).unwrap())
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_static_group_forms_works_and_ends_together() {
    let agents = formed(3);
    for from in &agents {
        for to in 0..3 {
            from.call(to, NOTHING, &()).wait().unwrap();
        }
    }
    std::thread::scope(|scope| {
        for agent in &agents {
            scope.spawn(|| agent.shutdown(Duration::from_secs(10)).unwrap());
        }
    });
    let error = agents[0].call(1, NOTHING, &()).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Stopping);
}

#[test]
fn a_shutdown_waits_for_calls_and_gives_up_in_time() {
    let agents = formed(2);
    let call = agents[0].call("w1", WAIT, &());
    let begun = Instant::now();
    let error = agents[0].shutdown(Duration::from_millis(300)).unwrap_err();
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!(error.kind, RpcErrorKind::Deadline);
    assert!(error.message.contains("w1 (rank 1)"), "{error}");
    assert_eq!(call.wait().unwrap_err().kind, RpcErrorKind::Stopping);
    // The error of the other worker names the missing one.
    let error = agents[1].shutdown(Duration::from_millis(300)).unwrap_err();
    assert!(error.message.contains("w0"), "{error}");
}

#[test]
fn members_of_a_dynamic_group_come_and_go() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let first = init(&store, 0, None).unwrap();
    let second = init(&store, 7, None).unwrap();
    second.call("w0", NOTHING, &()).wait().unwrap();
    // The first worker learns of the second one.
    let wait_for = |number: usize| {
        let workers = first.wait_for_group(|all| all.len() == number, Duration::from_secs(10));
        assert_eq!(workers.unwrap(), first.workers());
    };
    wait_for(2);
    first.call(7, NOTHING, &()).wait().unwrap();
    gather_of(&[&first, &second]);
    second.shutdown(Duration::from_secs(10)).unwrap();
    wait_for(1);
    let error = first.call(7, NOTHING, &()).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::UnknownWorker);
    gather_of(&[&first]);
    // A successor with the same name and rank is reached at the first try.
    let third = init(&store, 7, None).unwrap();
    wait_for(2);
    first.call("w7", NOTHING, &()).wait().unwrap();
    third.call("w0", NOTHING, &()).wait().unwrap();
    gather_of(&[&third, &first]);
    drop((first, third));
}

#[test]
fn a_thousand_newcomers_are_known_to_all_when_their_join_returns() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let elders = [
        init(&store, 0, None).unwrap(),
        init(&store, 1, None).unwrap(),
    ];
    for round in 0..1000 {
        let newcomer = init(&store, 7, None).unwrap();
        for elder in &elders {
            let found = elder.worker(7);
            assert!(
                found.is_ok(),
                "round {round}: {} does not know it",
                elder.me()
            );
        }
        newcomer.shutdown(Duration::from_secs(10)).unwrap();
    }
    let keys = store.list_keys().unwrap();
    assert!(!keys.iter().any(|key| key.contains("/known/")), "{keys:?}");
}

#[test]
fn a_member_that_does_not_confirm_a_newcomer_is_named() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let elder = init(&store, 0, None).unwrap();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let group = elder.guard.as_ref().unwrap().group.lock();
    group.as_ref().unwrap().on_change(move |change| {
        if matches!(change, crate::group::GroupChange::View(view) if view.members().len() == 2) {
            // This listener blocks the thread of the group.
            let _ = released.lock().unwrap().recv();
        }
    });
    drop(group);
    let error = RpcAgent::builder("late")
        .rank(1)
        .store(Arc::clone(&store))
        .options(RpcOptions {
            init_deadline: Duration::from_millis(300),
            ..RpcOptions::default()
        })
        .connect()
        .unwrap_err();
    drop(release);
    assert_eq!(error.kind, RpcErrorKind::Deadline);
    let text = &error.message;
    assert!(
        text.contains("w0 (rank 0)") && text.contains("init_deadline"),
        "{text}"
    );
    let workers = elder.wait_for_group(|all| all.len() == 1, Duration::from_secs(10));
    assert_eq!(workers.unwrap().len(), 1);
}

/// Gathers among all members of the group, which must be these agents.
fn gather_of(agents: &[&RpcAgent]) {
    let mut names: Vec<_> = agents.iter().map(|agent| agent.me().name.clone()).collect();
    names.sort();
    std::thread::scope(|scope| {
        for agent in agents {
            let names = &names;
            scope.spawn(move || {
                let values = agent.all_gather(&agent.me().name, None, Duration::from_secs(10));
                let values = values.unwrap();
                assert!(
                    values.iter().all(|(name, value)| name == value),
                    "{values:?}"
                );
                assert_eq!(values.into_keys().collect::<Vec<_>>(), *names);
            });
        }
    });
}

#[test]
fn waiting_for_a_group_ends_in_time_or_with_the_agent() {
    let store: Arc<dyn Store> = Arc::new(HashStore::new());
    let agent = init(&store, 0, None).unwrap();
    let error = agent
        .wait_for_group(|all| all.len() == 2, Duration::from_millis(10))
        .unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Deadline);
    assert!(error.message.ends_with("its workers are w0"), "{error}");
    std::thread::scope(|scope| {
        let (asked, was_asked) = mpsc::channel();
        let waiting = agent.clone();
        let waiting = scope.spawn(move || {
            let never = |_: &[_]| {
                asked.send(()).unwrap();
                false
            };
            waiting.wait_for_group(never, Duration::from_secs(20))
        });
        was_asked.recv().unwrap();
        agent.stop();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::Stopping);
    });
}

#[test]
fn an_agent_lives_and_ends_twenty_times_in_a_process() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut before = 0;
    for round in 0..20 {
        let agents = formed(2);
        agents[0].call("w1", NOTHING, &()).wait().unwrap();
        std::thread::scope(|scope| {
            for agent in &agents {
                scope.spawn(|| agent.shutdown(Duration::from_secs(10)).unwrap());
            }
        });
        drop(agents);
        if round == 4 {
            before = descriptors();
        }
    }
    // Other tests run in this process at the same time and open descriptors too.
    let after = descriptors();
    assert!(after < before + 400, "{before} descriptors, then {after}");
}
