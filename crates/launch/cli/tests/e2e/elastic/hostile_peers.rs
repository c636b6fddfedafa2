//! Tests of hostile peers at the endpoint of a running job of three nodes.
//!
//! The first agent hosts the store and the coordinator. The peers have no token. They must not end
//! the job, restart its workers, or make the agent grow. The load of each peer is bounded.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::{Join, Operation};
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store::Store as _;
use rdzv_testing::hostile::request;
use rustix::net::sockopt::set_socket_linger;

use super::secret::{finish, nodes, start};
use super::{client, first_agent};
use crate::harness::{DEADLINE, Running, poll_for};

/// Number of connections of one hostile peer.
const CONNECTIONS: usize = 60;

/// Maximum growth of the agent during all attacks, in bytes.
const GROWTH: usize = 48 << 20;

/// Target of the attacks, with the connections that stay open until the end.
struct Target {
    address: SocketAddr,
    /// Agent with the coordinator, under its name in the run.
    node: NodeDesc,
    kept: Vec<TcpStream>,
}

impl Target {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, DEADLINE).unwrap();
        stream
            .set_write_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Sends bytes on a new connection and keeps it. The server may refuse it.
    fn send(&mut self, bytes: &[u8]) {
        let mut stream = self.connect();
        let _it_may_be_refused = stream.write_all(bytes);
        self.kept.push(stream);
    }

    /// Sends bytes after a store client's first requests.
    fn send_as_client(&mut self, bytes: &[u8]) {
        self.send(&[&preamble(), bytes].concat());
    }

    /// Sends bytes as a client, and reads the first part of the answer.
    ///
    /// Also returns if the server closes the connection.
    fn ask(&mut self, bytes: &[u8]) {
        let mut stream = self.connect();
        let _it_may_be_refused = stream.write_all(&[&preamble(), bytes].concat());
        let mut answer = [0; 4096];
        let _ends_or_answers = stream.read(&mut answer);
        self.kept.push(stream);
    }
}

/// Returns the requests `VALIDATE` and `PING`; the answer to the ping is 7.
pub(super) fn preamble() -> Vec<u8> {
    [request::validate(), request::ping(7)].concat()
}

pub(super) fn operation(operation: &Operation) -> Vec<u8> {
    let mut out = Vec::new();
    operation.write(&mut out);
    out
}

/// Returns the join of an agent in a run of `nodes` nodes.
pub(super) fn join(run: &str, node: NodeDesc, nodes: u32) -> Vec<u8> {
    operation(&Operation::Join(Box::new(Join {
        instance: 99,
        run: run.to_owned(),
        node,
        settings: Settings::new(nodes, nodes),
        role: "default".to_owned(),
        local_world_size: 1,
        program: None,
        attempt: 1,
        replaces: Vec::new(),
        lost: Vec::new(),
        from: None,
    })))
}

pub(super) fn someone(number: usize) -> NodeDesc {
    NodeDesc::new("192.0.2.9", number as i64)
}

/// Returns random bytes that depend only on the seed.
fn noise(seed: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let byte = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(byte).take(500).collect()
}

type HostilePeer = (&'static str, fn(&mut Target));

const HOSTILE_PEERS: &[HostilePeer] = &[
    ("noise", |target| {
        for number in 0..CONNECTIONS {
            target.send(&noise(number));
            target.send_as_client(&noise(number));
        }
    }),
    ("a browser", |target| {
        target.send(b"GET / HTTP/1.1\r\nHost: job\r\n\r\n");
    }),
    ("a client of TLS", |target| {
        target.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
    }),
    ("half of a first request", |target| {
        let whole = preamble();
        for length in 1..whole.len() {
            target.send(&whole[..length]);
        }
    }),
    ("half of a request", |target| {
        let whole = join("job", someone(1), 3);
        for length in 1..whole.len() {
            target.send_as_client(&whole[..length]);
        }
    }),
    ("requests of any length", |target| {
        for opcode in 0..0x28 {
            for length in [1_u64 << 20, u64::MAX] {
                target.send_as_client(&[&[opcode][..], &length.to_le_bytes()].concat());
            }
        }
    }),
    ("connections that say nothing", |target| {
        for _ in 0..CONNECTIONS {
            target.send(b"");
        }
    }),
    ("a port scan", |target| {
        for _ in 0..CONNECTIONS {
            drop(target.connect());
        }
    }),
    ("resets", |target| {
        for _ in 0..CONNECTIONS {
            let stream = target.connect();
            // With a linger time of zero, the close is a reset.
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
    }),
    ("replies that are not read", |target| {
        for _ in 0..10 {
            target.send_as_client(&request::LIST_KEYS.repeat(20_000));
        }
    }),
    ("waits for what never comes", |target| {
        for number in 0..CONNECTIONS {
            let key = format!("/never/{number}");
            target.send_as_client(&request::wait(std::iter::once(key)));
        }
    }),
    ("barriers that have one member", |target| {
        for number in 0..CONNECTIONS {
            target.send_as_client(&request::barrier(&format!("/barrier/{number}"), 1000));
        }
    }),
    ("agents of runs that are unknown", |target| {
        for number in 0..CONNECTIONS {
            target.send_as_client(&join(&format!("run{number}"), someone(number), 3));
        }
    }),
    ("agents that disagree about the size of the run", |target| {
        for nodes in [1, 2, 4, u32::MAX] {
            target.ask(&join("job", someone(2), nodes));
        }
    }),
    ("an agent with the name of another", |target| {
        let node = target.node.clone();
        target.ask(&join("job", node, 3));
    }),
    ("an agent too many", |target| {
        target.send_as_client(&join("job", someone(3), 3));
    }),
    ("ends of runs that are unknown", |target| {
        for number in 0..CONNECTIONS {
            let run = format!("closed{number}");
            target.ask(&operation(&Operation::Close { run }));
        }
    }),
    ("questions about runs that are unknown", |target| {
        for number in 0..CONNECTIONS {
            let run = format!("asked{number}");
            target.ask(&operation(&Operation::Status { run }));
        }
    }),
    ("words of an agent that never joined", |target| {
        let reason = "no reason".to_owned();
        for said in [
            Operation::Heartbeat,
            Operation::Failed { reason },
            Operation::Leave,
            Operation::Master {
                round: 0,
                addr: "192.0.2.9".to_owned(),
                port: 9,
            },
        ] {
            target.send_as_client(&operation(&said));
        }
    }),
    ("one byte at a time", |target| {
        let whole = [preamble(), join("job", someone(4), 9)].concat();
        let mut stream = target.connect();
        stream.set_nodelay(true).unwrap();
        for byte in whole {
            let _it_may_be_refused = stream.write_all(&[byte]);
        }
        target.kept.push(stream);
    }),
];

/// Returns the resident memory of the agent from `/proc`, in bytes.
fn resident_bytes(agent: i32) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{agent}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kilobytes.unwrap().parse::<usize>().unwrap() << 10
}

fn descriptors(agent: i32) -> usize {
    std::fs::read_dir(format!("/proc/{agent}/fd"))
        .unwrap()
        .count()
}

#[test]
fn hostile_peers_do_not_harm_a_running_job() {
    assert!(HOSTILE_PEERS.len() >= 15);
    let point = first_agent();
    let jobs = nodes(&point, &[]);
    let nodes = start(jobs.map(|job| job.env("LOGLEVEL", "INFO")));
    // All agents are voters before the test counts descriptors.
    let has_voters = |node: &Running| node.stderr.so_far().contains("3 voters: ");
    poll_for("three voters", || nodes.iter().any(has_voters));
    let honest = client(&point.endpoint);
    let address: SocketAddr = point.endpoint.parse().unwrap();
    // The node with the most descriptors is the one that listens at the endpoint.
    let agents = nodes.each_ref().map(Running::agent_pid);
    let before = agents.map(|agent| (descriptors(agent), resident_bytes(agent)));
    let host = (0..3).max_by_key(|node| before[*node].0).unwrap();
    for (number, (name, attack)) in (1..).zip(HOSTILE_PEERS) {
        let mut target = Target {
            address,
            node: NodeDesc::new("127.0.0.1", i64::from(agents[host])),
            kept: Vec::new(),
        };
        attack(&mut target);
        let asked = honest.add("/honest", 1);
        assert_eq!(
            asked.unwrap_or_else(|error| panic!("{name}: {error}")),
            number
        );
        let grown = resident_bytes(agents[host]).saturating_sub(before[host].1);
        assert!(grown <= GROWTH, "{name}: the agent grew by {grown} bytes");
    }
    // After the attacks, the descriptors of the hostile peers are closed.
    while descriptors(agents[host]) > before[host].0 + 1 {
        honest.add("/honest", 1).unwrap();
    }
    drop(honest);
    finish(nodes);
}
