//! Tensors of more than 4 GiB, whole, on each way there is, and in both directions.
//!
//! A way treats both directions alike, and memory that is new can take minutes: each way has one.
//!
//! One after another: the receiver holds as much.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod shared;

use std::process::{Command, Stdio};
use std::sync::Arc;

use rdzv_rpc::RpcAgent;
use rdzv_store::{ServerOptions, TcpStore, TcpStoreOptions, TcpStoreServer};
use rdzv_testing::Process;

use shared::{EXAMINE, MAKE, Marks, Path, WORLD_SIZE, examined, options, tensor};

/// Not a multiple of anything that something is cut into.
const LENGTH: u64 = (4 << 30) + 4097;

/// The system moves no more than this at once.
const MOST_AT_ONCE: u64 = 0x7fff_f000;

/// At both ends of the tensor, at both sides of where a number of 31 or 32 bits is over, where a system
/// call is, and somewhere else.
fn marks() -> Marks {
    let mut places = vec![0, 1, 1_234_567_891, LENGTH - 4097, LENGTH - 2, LENGTH - 1];
    for border in [1 << 31, 1 << 32, MOST_AT_ONCE, 2 * MOST_AT_ONCE] {
        places.extend([border - 1, border, border + 1]);
    }
    places.sort_unstable();
    places.dedup();
    places.into_iter().zip(1..).collect()
}

fn start(store: &str, path: Path) -> Process {
    let mut command = Command::new(rdzv_testing::program("large_worker"));
    command
        .arg(store)
        .arg(serde_json::to_string(&path).unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Process::start(&mut command)
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    There,
    Back,
}

fn travels_whole(path: Path, direction: Direction) {
    let server = TcpStoreServer::start(ServerOptions {
        port: 0,
        ..ServerOptions::default()
    });
    let server = server.unwrap();
    let other = start(&format!("127.0.0.1:{}", server.port()), path);
    let store = TcpStoreOptions::new("127.0.0.1", server.port());
    let store = Arc::new(TcpStore::connect(store).unwrap());
    let builder = RpcAgent::builder("me").rank(0).world_size(WORLD_SIZE);
    let agent = builder
        .store(store)
        .options(options(path))
        .connect()
        .unwrap();
    assert_eq!(other.line(), "ready");

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
            let made = agent.call("other", MAKE, &(LENGTH, marks())).wait();
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
