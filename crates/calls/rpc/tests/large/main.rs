//! Sends tensors of more than 4 GiB over each path.
//!
//! A path treats both directions in the same way, and new memory can take minutes to touch. Each
//! path therefore has one direction.
//!
//! The paths run one after another, because the receiver holds as much memory.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod shared;
#[path = "../support/worker.rs"]
mod worker;

use std::time::Duration;

use rdzv_rpc::RpcOptions;
use rdzv_rpc::transport::TransportOptions;
use serde_json::{Value, json};

use shared::{EXAMINE, MAKE, Marks, Path, examined, tensor};
use worker::Scenario;

/// Length that is not a multiple of any piece size.
const LENGTH: u64 = (4 << 30) + 4097;

/// Maximum number of bytes that the kernel moves in one system call.
const MOST_AT_ONCE: u64 = 0x7fff_f000;

/// Returns marks at both ends of the tensor and at all critical offsets.
/// These are the limits of 31-bit and 32-bit numbers and of system calls; one mark is elsewhere.
fn marks() -> Marks {
    let mut offsets = vec![0, 1, 1_234_567_891, LENGTH - 4097, LENGTH - 2, LENGTH - 1];
    for border in [1 << 31, 1 << 32, MOST_AT_ONCE, 2 * MOST_AT_ONCE] {
        offsets.extend([border - 1, border, border + 1]);
    }
    offsets.sort_unstable();
    offsets.dedup();
    offsets.into_iter().zip(1..).collect()
}

fn options(path: Path) -> RpcOptions {
    RpcOptions {
        timeout: Duration::from_secs(1800).into(),
        init_deadline: Duration::from_secs(60),
        transport: TransportOptions {
            unix: path != Path::Tcp,
            shared: path != Path::Unix,
            read_memory: path == Path::Memory,
            ..TransportOptions::default()
        },
        message_limit: 5 << 30,
        ..RpcOptions::default()
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    There,
    Back,
}

fn travels_whole(path: Path, direction: Direction) {
    let scenario = Scenario::new();
    let other = scenario.start("other", 1);
    let transports = match path {
        Path::Unix => json!(["unix", "tcp"]),
        Path::Tcp => json!(["tcp"]),
        Path::Memory | Path::Arena | Path::Ring => Value::Null,
    };
    let mut words = json!({ "message_limit": 5_u64 << 30, "transports": transports });
    if path != Path::Memory {
        words["_channels"] = json!(["basic"]);
    }
    other.begin_init(&json!({ "world_size": 2, "timeout": 1800, "options": words }));
    let agent = scenario.agent("me", 0, Some(2), options(path));
    other.succeeds();

    // The first call finds out whether memory can be read.
    let small = tensor(path, 1, &vec![(0, 1)]);
    let seen = agent.call("other", EXAMINE, &small).wait();
    assert_eq!(seen, Ok((1, vec![(0, 1)])));
    let peers = agent.traffic().peers;
    let kind = match path {
        Path::Memory | Path::Arena | Path::Ring => "shared",
        Path::Unix => "unix",
        Path::Tcp => "tcp",
    };
    assert_eq!(peers[0].transport, kind, "{path:?}");
    assert_eq!(peers[0].reads_memory, path == Path::Memory, "{path:?}");

    let seen = match direction {
        Direction::There => {
            let there = tensor(path, LENGTH, &marks());
            agent.call("other", EXAMINE, &there).wait().unwrap()
        }
        Direction::Back => {
            let made = agent.call("other", MAKE, &(path, LENGTH, marks())).wait();
            examined(&made.unwrap()).unwrap()
        }
    };
    assert_eq!(seen, (LENGTH, marks()), "{direction:?} by {path:?}");
}

#[test]
#[ignore = "takes 5 GiB of memory and most of a minute; `cargo xtask test` runs it"]
fn more_than_4_gib_travel_whole_on_each_way() {
    let ways = [
        (Path::Memory, Direction::There),
        (Path::Arena, Direction::Back),
        (Path::Ring, Direction::There),
        (Path::Unix, Direction::Back),
        (Path::Tcp, Direction::There),
    ];
    for (path, direction) in ways {
        let begun = std::time::Instant::now();
        travels_whole(path, direction);
        eprintln!("{path:?}: {:?}", begun.elapsed());
    }
}
