//! Tests of functions that call other workers, along chains and in circles.

use rdzv_rpc::{Method, RpcFuture, RpcOptions};
use serde_json::json;

use super::worker::Scenario;

const CHAIN: Method<Vec<String>, u32> = Method::new("scenario.chain");
const BLOCKING_CHAIN: Method<Vec<String>, u32> = Method::new("scenario.blocking_chain");

/// Number of chains at the same time.
const CHAINS: usize = 100;

/// Makes chains of calls through three workers, with one blocking thread each.
/// A fourth worker calls a; the calls continue along the names from the last to the first.
fn chains(method: Method<Vec<String>, u32>, on: &[&str]) {
    let scenario = Scenario::new();
    let workers = scenario.started(["a", "b", "c"]);
    for worker in &workers {
        let one_thread = json!({ "num_worker_threads": 1 });
        worker.begin_init(&json!({ "world_size": 4, "options": one_thread }));
    }
    let agent = scenario.agent("caller", 3, Some(4), RpcOptions::default());
    let expected = u32::try_from(on.len()).unwrap();
    let on: Vec<String> = on.iter().map(|&name| name.to_owned()).collect();
    let chains = (0..CHAINS).map(|_| agent.call("a", method, &on)).collect();
    let answers = RpcFuture::collect(chains).unwrap().wait().unwrap();
    assert_eq!(answers, vec![Ok(expected); CHAINS]);
}

#[test]
fn chains_in_a_circle_need_no_thread_while_they_wait() {
    chains(CHAIN, &["a", "c", "b"]);
    // Three rounds through all workers.
    chains(CHAIN, &["a", "c", "b", "a", "c", "b", "a", "c", "b"]);
}

#[test]
fn chains_that_block_the_only_thread_of_each_worker_end_all_the_same() {
    chains(BLOCKING_CHAIN, &["c", "b"]);
}

#[test]
fn chains_in_a_circle_may_block_the_only_thread_of_each_worker() {
    chains(BLOCKING_CHAIN, &["a", "c", "b", "a", "c", "b"]);
}
