//! Tests of the agent of the process.

use std::time::{Duration, Instant};

use rdzv_rendezvous::Environment;
use rdzv_rpc::init_method::open_store;
use rdzv_rpc::{RpcAgent, RpcAgentBuilder, RpcError, RpcErrorKind, RpcOptions, current, init_rpc};
use rdzv_testing::free_port;

use super::{LONG, TWICE, methods};

/// Creates the builder of an agent that meets others at an init method.
fn builder(name: &str, init_method: &str, deadline: Duration) -> RpcAgentBuilder {
    RpcAgent::builder(name)
        .methods(methods())
        .options(RpcOptions {
            init_method: init_method.to_owned(),
            init_deadline: deadline,
            ..RpcOptions::default()
        })
}

/// Returns the URL of a store that this process can host.
fn free_address() -> String {
    format!("tcp://127.0.0.1:{}", free_port())
}

fn init(address: &str, rank: u32, world_size: Option<u32>) -> Result<RpcAgent, RpcError> {
    init_rpc(
        builder("first", address, LONG)
            .rank(rank)
            .world_size(world_size),
    )
}

fn assert_none() {
    let error = current().unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::NotInitialized);
    assert_eq!(
        error.to_string(),
        "RPC has not been initialized. Call torch.distributed.rpc.init_rpc first."
    );
}

/// Checks that another process-wide agent is refused before any network work.
/// No host answers at this address, so connecting would take the whole deadline.
fn assert_taken() {
    let begun = Instant::now();
    let error = init("tcp://192.0.2.1:1", 1, None).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::AlreadyInitialized);
    assert_eq!(error.to_string(), "RPC is already initialized");
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
}

// This is one test, because there is only one process.
#[test]
fn a_process_has_one_agent_at_a_time() {
    assert_none();

    // A dynamic group: no world size.
    let address = free_address();
    let agent = init(&address, 0, None).unwrap();
    assert_eq!(current().unwrap().me(), agent.me());
    assert_eq!(agent.call("first", TWICE, &4).wait().unwrap(), 8);
    assert_taken();
    agent.shutdown(LONG).unwrap();
    assert_none();

    // A failure leaves the process without an agent.
    let begun = Instant::now();
    let unreachable = builder("no name", "tcp://192.0.2.1:1", LONG).rank(1);
    let error = init_rpc(unreachable).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::InvalidArgument);
    assert!(begun.elapsed() < LONG / 2);
    let address = free_address();
    let short = builder("first", &address, Duration::from_millis(300)).rank(0);
    let error = init_rpc(short.world_size(2)).unwrap_err();
    assert_eq!(error.kind, RpcErrorKind::Deadline);
    assert_none();

    // A static group: while it forms, no other can start, and there is no current agent.
    let address = free_address();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| init(&address, 0, Some(2)).unwrap());
        // The first worker hosts the store, so it has begun when the store can be opened.
        let nowhere = Environment::of([("", ""); 0]);
        let opened = open_store(&address, Some(1), Some(2), LONG, nowhere).unwrap();
        assert_taken();
        assert_none();
        let second = builder("second", &address, LONG).rank(opened.rank.0);
        let second = second.world_size(2).store(opened.store);
        let second = second.connect().unwrap();
        let first = first.join().unwrap();
        assert_eq!(
            current().unwrap().call("second", TWICE, &3).wait().unwrap(),
            6
        );
        assert_taken();
        let ended = scope.spawn(move || second.shutdown(LONG).unwrap());
        first.shutdown(LONG).unwrap();
        ended.join().unwrap();
    });
    assert_none();

    // An agent that was stopped is no longer the agent of the process.
    let address = free_address();
    let agent = init(&address, 0, None).unwrap();
    agent.stop();
    assert_none();
}
