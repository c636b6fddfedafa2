//! Test of a worker that is killed while others call it.

use std::time::{Duration, Instant};

use rdzv_rpc::{Method, RpcErrorKind, RpcFuture, RpcOptions};
use rustix::process::Signal;
use serde_json::json;

use super::worker::{LIMIT, Scenario};

const CHAIN: Method<Vec<String>, u32> = Method::new("scenario.chain");
const WAIT: Method<(), ()> = Method::new("scenario.wait");
const REACHED: Method<(String, u64), ()> = Method::new("scenario.reached");

/// Calls of each caller that are in flight when the worker is killed.
const CALLS: usize = 64;

/// Time after the death of the worker by which the last call must end.
const LATEST: Duration = Duration::from_secs(20);

/// Time without lease renewal after which the group removes a worker.
const LEASE: Duration = Duration::from_secs(2);

#[test]
fn calls_to_a_worker_that_is_killed_end_at_once_and_name_it() {
    let scenario = Scenario::new();
    let join = |name, rank| {
        let worker = scenario.start(name, rank);
        let options = json!({ "lease": LEASE.as_secs_f64() });
        worker.init(&json!({ "options": options })).unwrap();
        worker
    };
    // A worker that joins later knows the earlier ones.
    let (victim, other) = (join("victim", 0), join("other", 1));
    let options = RpcOptions {
        lease: LEASE,
        ..RpcOptions::default()
    };
    let agent = scenario.agent("caller", 2, None, options);

    let theirs: Vec<String> = (0..CALLS).map(|number| number.to_string()).collect();
    for name in &theirs {
        other.begins(name, "victim", "wait");
    }
    let ours: Vec<_> = (0..CALLS)
        .map(|_| agent.call("victim", WAIT, &()))
        .collect();
    let all = ("waiting".to_owned(), 2 * CALLS as u64);
    agent.call("victim", REACHED, &all).wait().unwrap();
    assert!(ours.iter().all(|call| !call.is_done()));
    for name in &theirs {
        assert_eq!(other.does(&json!({ "do": "done", "name": name })), false);
    }

    let killed = Instant::now();
    victim.signal(Signal::KILL);
    let lost = (RpcErrorKind::PeerLost, Some("victim".to_owned()));
    for call in ours {
        let error = call.wait().unwrap_err();
        let worker = error.worker.as_ref().map(|worker| worker.name.to_string());
        assert_eq!((error.kind, worker), lost, "{error}");
        assert!(error.to_string().contains("victim"), "{error}");
    }
    for name in &theirs {
        let error = other.loses(name);
        assert_eq!((error.kind, error.worker), lost);
    }
    assert!(killed.elapsed() < LATEST, "{:?}", killed.elapsed());

    // Later calls fail as quickly.
    let again = Instant::now();
    let error = agent.call("victim", WAIT, &()).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
    assert!(again.elapsed() < LATEST, "{:?}", again.elapsed());

    // When its lease has expired, all workers have removed the victim. It can then be started
    // again.
    let is_there = |name: &str| agent.worker(name).is_ok();
    agent
        .wait_for_group(|_| !is_there("victim"), LIMIT)
        .unwrap();
    let error = agent.call("victim", WAIT, &()).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::UnknownWorker, "{error}");
    let _victim = join("victim", 0);
    agent.wait_for_group(|_| is_there("victim"), LIMIT).unwrap();
    assert_eq!(
        agent
            .call("victim", CHAIN, &vec!["other".to_owned()])
            .wait(),
        Ok(1)
    );
    let calls: Vec<_> = (0..CALLS)
        .map(|_| agent.call("victim", CHAIN, &Vec::new()))
        .collect();
    let answers = RpcFuture::collect(calls).unwrap().wait().unwrap();
    assert_eq!(answers, vec![Ok(0); CALLS]);
}
