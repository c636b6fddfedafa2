//! Tests with thousands of idle or stalled connections.
//!
//! They do not disturb other clients.

use std::io::Write as _;
use std::time::{Duration, Instant};

use rdzv_store::Limits;
use rdzv_store_proto::wire::request;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::client::{Client, server};

/// Number of descriptors per connection, because both ends are in this process.
const DESCRIPTORS_EACH: u64 = 2;

#[test]
fn idle_and_stalled_connections_disturb_nobody_and_cost_little() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let possible = limit.current.unwrap_or(u64::MAX).saturating_sub(500) / DESCRIPTORS_EACH;
    let (idle, stalled) = if possible >= 5500 {
        (5000, 500)
    } else {
        // A tenth of the connections under a low limit; the proportions stay.
        (500, 50)
    };
    let server = server(Limits::default());
    let address = server.local_addr();
    let empty = server_memory(&server);
    let idle: Vec<Client> = (0..idle).map(|_| Client::join(address)).collect();
    let per_idle = server_memory(&server) / idle.len();
    assert!(per_idle < 1000, "{per_idle} bytes per idle connection");

    let mut owner = Client::join(address);
    owner.send(|out| request::set(out, b"/big", &vec![1; 8 << 20]));
    owner.synchronize();
    let before = server_memory(&server);
    let half = 100_000;
    let mut held = Vec::new();
    for index in 0..stalled {
        let mut client = Client::join(address);
        if index % 2 == 0 {
            // The client stops in the middle of a value.
            let key = format!("/half/{index}");
            client.send(|out| request::set_head(out, key.as_bytes(), 8 << 20));
            client.0.write_all(&vec![2; half]).unwrap();
        } else {
            // The client sends many requests and reads nothing.
            client.send(|out| (0..50).for_each(|_| request::get(out, b"/big")));
        }
        held.push(client);
    }
    owner.synchronize();
    let growth = server_memory(&server) - before;
    let bound = stalled / 2 * (2 * half + (64 << 10)) + stalled * 8192;
    assert!(
        growth < bound,
        "{growth} bytes for {stalled} stalled connections"
    );
    println!(
        "{} idle: {per_idle} bytes each; {stalled} stalled: {} bytes each; resident {} kB",
        idle.len(),
        growth / stalled,
        resident()
    );

    // All other clients are served as if these did not exist.
    let began = Instant::now();
    for _ in 0..1000 {
        owner.synchronize();
    }
    let each = began.elapsed() / 1000;
    assert!(each < Duration::from_millis(50), "{each:?} per request");
    drop(held);
    drop(idle);
    while server.stats().connections > 1 {
        owner.synchronize();
    }
    // Only the value and the table are left, and the table keeps its size.
    let left = server_memory(&server) - empty;
    assert!(left < (8 << 20) + 6000 * 500, "{left} bytes are left");
}

fn server_memory(server: &rdzv_store::TcpStoreServer) -> usize {
    server.stats().memory_bytes
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.unwrap().split_whitespace().nth(1).unwrap().to_owned()
}
