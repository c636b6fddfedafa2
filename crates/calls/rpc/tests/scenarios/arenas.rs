//! Tests of memory that is lent to another process.

use std::time::{Duration, Instant};

use rdzv_rpc::tensor::DataType;
use rdzv_rpc::{Arena, Method, RpcOptions, Tensor};
use rustix::process::Signal;

use super::worker::{LIMIT, Scenario};

const KEEP: Method<Tensor, u64> = Method::new("scenario.keep_tensor");

const LARGE: usize = 8 << 20;

#[test]
fn what_is_shared_to_a_worker_is_free_when_the_worker_is_killed() {
    let scenario = Scenario::new();
    let borrower = scenario.joined("borrower", 0);
    let agent = scenario.agent("owner", 1, None, RpcOptions::default());
    let arena = Arena::new(2 * LARGE).unwrap();
    let mut block = arena.allocate(LARGE).unwrap();
    block.as_mut().fill(2);
    let tensor = Tensor::from_bytes(DataType::U8, [LARGE], block).unwrap();

    for _ in 0..3 {
        let sum = agent.call("borrower", KEEP, &tensor).wait();
        assert_eq!(sum, Ok(2 * LARGE as u64));
    }
    drop(tensor);
    assert_eq!(arena.capacity() - arena.free(), LARGE, "it is kept there");

    borrower.signal(Signal::KILL);
    let killed = Instant::now();
    while arena.free() < arena.capacity() {
        assert!(killed.elapsed() < LIMIT, "the dead worker has it still");
        // No event reports that memory was returned, so the test polls.
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
