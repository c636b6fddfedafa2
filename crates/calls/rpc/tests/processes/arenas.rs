//! Memory that is lent to another process.

use std::time::{Duration, Instant};

use rdzv_rpc::tensor::DataType;
use rdzv_rpc::{Arena, Method, Tensor};

use super::worker::{Job, TEST_LIMIT};

const KEEP: Method<Tensor, u64> = Method::new("test.keep");

const LARGE: usize = 8 << 20;

#[test]
fn what_is_shared_to_a_worker_is_free_when_the_worker_is_killed() {
    let job = Job::new(None);
    let mut borrower = job.start("borrower", 0).ready();
    let agent = job.join("owner", 1);
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

    borrower.kill();
    let killed = Instant::now();
    while arena.free() < arena.capacity() {
        assert!(
            killed.elapsed() < TEST_LIMIT,
            "the dead worker has it still"
        );
        // Nothing tells when memory comes back: whoever needs some asks.
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
