//! A worker is killed while it is being called.

use std::time::{Duration, Instant};

use rdzv_rpc::{Method, RpcErrorKind, RpcFuture};

use super::worker::{Job, TEST_LIMIT};

const CHAIN: Method<Vec<String>, u32> = Method::new("test.chain");
const STALL: Method<(), ()> = Method::new("test.stall");
const STALLED: Method<usize, ()> = Method::new("test.stalled");
const FLOOD: Method<(String, usize), (Vec<Ending>, Duration)> = Method::new("test.flood");

type Ending = (RpcErrorKind, Option<String>);

/// Calls of each caller that are on their way when the worker is killed.
const CALLS: usize = 64;

/// How long after its death the last of them may end.
const LATEST: Duration = Duration::from_secs(20);

#[test]
fn calls_to_a_worker_that_is_killed_end_at_once_and_name_it() {
    let job = Job::new(None);
    // Whoever comes later knows those who were there.
    let mut victim = job.start("victim", 0).ready();
    let _other = job.start("other", 1).ready();
    let agent = job.join("caller", 2);

    let theirs = agent.call("other", FLOOD, &("victim".to_owned(), CALLS));
    let ours: Vec<_> = (0..CALLS)
        .map(|_| agent.call("victim", STALL, &()))
        .collect();
    agent.call("victim", STALLED, &(2 * CALLS)).wait().unwrap();
    assert!(ours.iter().all(|call| !call.is_done()) && !theirs.is_done());

    let killed = Instant::now();
    victim.kill();
    let lost = (RpcErrorKind::PeerLost, Some("victim".to_owned()));
    for call in ours {
        let error = call.wait().unwrap_err();
        let worker = error.worker.as_ref().map(|worker| worker.name.to_string());
        assert_eq!((error.kind, worker), lost, "{error}");
        assert!(error.to_string().contains("victim"), "{error}");
    }
    assert!(killed.elapsed() < LATEST, "{:?}", killed.elapsed());
    // The other caller is told as well, and tells.
    let (theirs, took) = theirs.wait().unwrap();
    assert!(
        killed.elapsed() < LATEST,
        "{:?}, of these {took:?}",
        killed.elapsed()
    );
    assert_eq!(theirs, vec![lost; CALLS]);

    // Later calls fail as fast.
    let again = Instant::now();
    let error = agent.call("victim", STALL, &()).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::PeerLost, "{error}");
    assert!(again.elapsed() < LATEST, "{:?}", again.elapsed());

    // When the lease is over it is gone for all, and can be started again.
    let is_there = |name: &str| agent.worker(name).is_ok();
    agent
        .wait_for_group(|_| !is_there("victim"), TEST_LIMIT)
        .unwrap();
    let error = agent.call("victim", STALL, &()).wait().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::UnknownWorker, "{error}");
    let _victim = job.start("victim", 0).ready();
    agent
        .wait_for_group(|_| is_there("victim"), TEST_LIMIT)
        .unwrap();
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
