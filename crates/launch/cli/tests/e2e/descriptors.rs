//! Tests of the limit of open files, and of jobs that run out of descriptors.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rdzv_store::{Store as _, TcpStore, TcpStoreOptions};
use rustix::process::{Resource, Signal, getrlimit, setrlimit};

use crate::harness::{DEADLINE, free_port, shell};

/// Number of idle connections, more than the programs here may open.
const IDLE: usize = 400;

/// Returns the soft and the hard limit of open files of a process.
fn limits(process: i32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"));
    let mut numbers = line
        .unwrap()
        .split_whitespace()
        .map(|word| word.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Opens connections that stay open.
///
/// Every second one sends nothing. The others have sent the first message of a client.
fn idle_connections(address: SocketAddr) -> Vec<TcpStream> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let connected = |number| {
        let mut stream = TcpStream::connect_timeout(&address, DEADLINE).unwrap();
        if number % 2 == 0 {
            let validate = [&[0x00][..], &0x3C85_F7CE_u32.to_le_bytes()].concat();
            let _it_may_be_closed = stream.write_all(&validate);
        }
        stream
    };
    (0..IDLE).map(connected).collect()
}

/// Waits until the server has closed the first of these connections.
fn await_room(mut idle_connections: Vec<TcpStream>) -> Vec<TcpStream> {
    idle_connections[0]
        .set_read_timeout(Some(DEADLINE))
        .unwrap();
    let ends = idle_connections[0].read(&mut [0; 64]);
    assert!(matches!(ends, Ok(0)), "{ends:?} instead of an end");
    idle_connections
}

/// Asserts the line about the lack of descriptors, which appears every 10 s.
fn assert_said(stderr: &str, limit: &str) {
    let is_it = |line: &&str| line.contains("short of descriptors");
    let line = stderr.lines().find(is_it);
    let line = line.unwrap_or_else(|| panic!("{stderr}"));
    let holder = line.split_once("127.0.0.1: ").unwrap().1;
    let count = holder.split(|letter: char| !letter.is_ascii_digit()).next();
    assert!(count.unwrap().parse::<usize>().unwrap() > 50, "{line}");
    for part in [limit, "ulimit -n", "firewall"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(stderr.lines().filter(is_it).count() <= 4, "{stderr}");
}

#[test]
fn the_agent_raises_its_soft_limit_and_workers_have_the_inherited_one() {
    let script =
        "ulimit -S -n 256; exec \"$RDZV\" run --no-python sh -c 'ulimit -S -n; read go < go'";
    let running = shell(script).pipe("go").start();
    running.stdout.await_text("\n", 1);
    let (soft, hard) = limits(running.agent_pid());
    assert_eq!(soft, hard);
    assert!(soft > 256, "the hard limit here is {hard}");
    running.write("go", "go\n");
    assert_eq!(running.wait().expect(0).stdout, "256\n");
}

#[test]
fn a_group_comes_back_at_once_while_others_hold_the_descriptors_of_its_coordinator() {
    let endpoint = format!("127.0.0.1:{}", free_port());
    let nodes = ["fails", "stays"].map(|name| {
        let job = shell(
            "ulimit -n 256; exec \"$RDZV\" run --nnodes=2 --max-restarts=1 --rdzv-backend=c10d \
             --rdzv-id=job --rdzv-endpoint=\"$ENDPOINT\" --no-python sh -c \
             'echo up $TORCHELASTIC_RESTART_COUNT $RDZV_ROUND; until read go < go; do :; done; \
             test $go = ends'",
        );
        let job = job.env("ENDPOINT", &endpoint).pipe("go");
        (job.env("PET_LOCAL_ADDR", "127.0.0.1").start(), name)
    });
    for (node, _) in &nodes {
        node.stdout.await_text("up", 1);
    }
    let idle = idle_connections(endpoint.parse().unwrap());
    let failed = Instant::now();
    nodes[0].0.write("go", "fails\n");
    for (node, _) in &nodes {
        node.stdout.await_text("up", 2);
    }
    // Without the reserve, the wait for a free descriptor would take 30 s.
    let took = failed.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    let idle = await_room(idle);
    let mut stderr = String::new();
    for (node, _) in &nodes {
        node.write("go", "ends\n");
    }
    for (node, name) in nodes {
        let ended = node.wait().expect(0);
        assert!(
            ended.stdout.ends_with(" 1\n"),
            "{name}: {} {}",
            ended.stdout,
            ended.stderr
        );
        stderr.push_str(&ended.stderr);
    }
    assert_said(&stderr, "of 256 descriptors");
    drop(idle);
}

#[test]
fn clients_of_a_store_are_served_while_others_hold_its_descriptors() {
    let store = shell("ulimit -n 128; exec \"$RDZV\" store --host 127.0.0.1 --port 0").start();
    let address = store.address();
    let client = || {
        let store = TcpStore::connect(TcpStoreOptions {
            timeout: DEADLINE,
            ..TcpStoreOptions::new("127.0.0.1", address.port())
        });
        store.unwrap()
    };
    let early = client();
    assert_eq!(early.add("asked", 1).unwrap(), 1);
    let idle_connections = await_room(idle_connections(address));
    // There are more clients than the store has descriptors beyond the common ones.
    let late: Vec<TcpStore> = (0..50).map(|_| client()).collect();
    for (number, client) in (2..).zip(&late) {
        assert_eq!(client.add("asked", 1).unwrap(), number);
    }
    assert_eq!(early.add("asked", 1).unwrap(), 52);
    drop(idle_connections);
    store.signal(Signal::TERM);
    assert_said(&store.wait().expect(0).stderr, "of 128 descriptors");
}
