//! Tests with group members that send nonsense after a valid greeting.
//!
//! More cases: `PROPTEST_CASES=20000 cargo test -p rdzv-rpc --lib byzantine`.

use std::io::{ErrorKind, IoSlice};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use proptest::prelude::*;
use rdzv_rpc_proto::frame::{FrameKind, Header, PartHead, PartLocation, encode, method_hash};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::bulk::remote_read::Lending;
use crate::runtime::connect::{ends, greet, say, sleep};
use crate::transport;
use crate::wire::handshake::Greeting;
use crate::wire::link::Ends;
use crate::{CallOptions, Method, RpcFuture, Tensor, Timeout, blocking};

const COUNT: Method<Vec<Tensor>, usize> = Method::new("count");
const SLOW: Method<u64, u64> = Method::new("slow");
const STALL: Method<(), ()> = Method::new("stall");

/// Longest time for an operation that the byzantine peer does not disturb.
const LIMIT: Duration = Duration::from_secs(60);

fn methods() -> Methods {
    Methods::new()
        .with(COUNT, async |tensors: Vec<Tensor>| {
            Ok::<_, String>(tensors.len())
        })
        .with(SLOW, blocking(|number: u64| Ok::<_, String>(number)))
        .with(STALL, async |()| {
            std::future::pending::<Result<(), String>>().await
        })
}

/// Data that a byzantine peer sends.
#[derive(Debug, Clone)]
enum Piece {
    Frame {
        kind: FrameKind,
        flags: u16,
        call: u64,
        method: &'static str,
        deadline: u64,
        body: Vec<u8>,
        parts: Vec<PartHead>,
    },
    /// A ping with a readable address, so that the victim reads that memory.
    Ping,
    Bytes(Vec<u8>),
}

impl Piece {
    fn write(&self, into: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => into.extend_from_slice(bytes),
            Self::Ping => {
                let us = rdzv_shm::pass::Peer {
                    process: std::process::id(),
                    user: 0,
                    group: 0,
                };
                let lending = Lending::new(Some(us), rdzv_shm::Pool::default());
                let body = lending.ping().unwrap_or_default();
                encode(&Header::new(FrameKind::Ping), &body, &[], into);
            }
            Self::Frame {
                kind,
                flags,
                call,
                method,
                deadline,
                body,
                parts,
            } => {
                let header = Header {
                    flags: *flags,
                    call: *call,
                    method: method_hash(method, 1),
                    deadline_micros: *deadline,
                    ..Header::new(*kind)
                };
                encode(&header, body, parts, into);
                for part in parts {
                    if part.location == PartLocation::Inline {
                        let length = usize::try_from(part.length).unwrap();
                        into.resize(into.len() + length, 7);
                    }
                }
            }
        }
    }
}

fn part() -> impl Strategy<Value = PartHead> {
    let inline = (0..200_u64).prop_map(PartHead::inline);
    let process = (any::<u64>(), 0..1_000_000_u64).prop_map(|(address, length)| PartHead {
        location: PartLocation::Process { address },
        length,
    });
    let arena = (0..3_u32, 0..3_u32, any::<u64>(), 0..1_000_000_u64).prop_map(
        |(arena, generation, offset, length)| PartHead {
            location: PartLocation::Arena {
                arena,
                generation,
                offset,
            },
            length,
        },
    );
    prop_oneof![inline, process, arena]
}

fn piece() -> impl Strategy<Value = Piece> {
    let frame = (
        proptest::sample::select(&FrameKind::ALL[..]),
        0..4_u16,
        0..8_u64,
        proptest::sample::select(
            &[
                "count",
                "slow",
                "stall",
                "missing",
                "rdzv.rref.create",
                "rdzv.rref.fetch",
            ][..],
        ),
        prop_oneof![Just(0), 1..2000_u64],
        prop_oneof![
            Just(vec![0, 0, 0, 0]),
            Just(vec![0, 0, 0, 0, 0]),
            proptest::collection::vec(any::<u8>(), 0..64),
        ],
        proptest::collection::vec(part(), 0..3),
    )
        .prop_map(
            |(kind, flags, call, method, deadline, body, parts)| Piece::Frame {
                kind,
                flags,
                call,
                method,
                deadline,
                body,
                parts,
            },
        );
    let bytes = proptest::collection::vec(any::<u8>(), 1..100).prop_map(Piece::Bytes);
    prop_oneof![20 => frame, 2 => Just(Piece::Ping), 1 => bytes]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(piece(), 1..12).prop_map(|pieces| {
        let mut bytes = Vec::new();
        for piece in &pieces {
            piece.write(&mut bytes);
        }
        bytes
    })
}

/// Writes until all bytes are written or the victim has closed the connection.
fn push(ends: &mut Ends, mut bytes: &[u8]) {
    let deadline = Instant::now() + LIMIT;
    while !bytes.is_empty() {
        match ends.writer.half().write(&[IoSlice::new(bytes)]) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                sleep(ends, PollFlags::OUT, deadline).expect("the victim reads in time");
            }
            Err(_) => return,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_caller_that_sends_nonsense_harms_nobody_else(which in 0..3_usize, bytes in bytes()) {
        let made = Made { transports: transports()[which].0.clone(), worker_threads: 1, ..Made::default() };
        let agents = super::made(3, &made, methods);
        let core = agents[2].core();
        let members = core.members();
        let victim = &members[&WorkerId(1)];
        let deadline = Instant::now() + LIMIT;
        let carrier = transport::connect(&victim.peer_address, &core.transports, deadline).unwrap();
        let mut ends = ends(core, carrier, core.limits);
        greet(core, victim, &mut ends, deadline).unwrap();
        push(&mut ends, &bytes);
        let within = CallOptions::new().timeout(Timeout::After(LIMIT));
        for number in 0..3 {
            let answer = agents[0].call_with(within, 1, SLOW, &number).wait();
            prop_assert_eq!(answer, Ok(number));
        }
        drop(ends);
        let tensors = vec![Tensor::from_vec(vec![1_u8; 100_000], [100_000]).unwrap()];
        let answer = agents[2].call_with(within, 1, COUNT, &tensors).wait();
        prop_assert_eq!(answer, Ok(1), "the same worker, behaving well");
    }

    #[test]
    fn a_callee_that_sends_nonsense_harms_nobody_else(which in 0..3_usize, bytes in bytes()) {
        let made = Made { transports: transports()[which].0.clone(), worker_threads: 1, ..Made::default() };
        let agents = super::made(3, &made, methods);
        // An impostor answers at the address of w2 and knows the greeting of w2.
        let mut listener = Listener::new(Ipv4Addr::LOCALHOST.into(), made.transports).unwrap();
        let mut members = (*agents[0].core().members()).clone();
        members.get_mut(&WorkerId(2)).unwrap().peer_address = listener.peer_address().unwrap();
        agents[0].core().set_members(members);
        let impostor = Arc::clone(agents[2].core());
        let byzantine = thread::spawn(move || {
            let limit = Timespec::try_from(LIMIT).unwrap();
            let carrier = loop {
                if let Some(carrier) = listener.accept().unwrap() {
                    break carrier;
                }
                let mut watched = [PollFd::from_borrowed_fd(listener.descriptor(), PollFlags::IN)];
                assert_ne!(poll(&mut watched, Some(&limit)), Ok(0), "no peer connects");
            };
            let credentials = carrier.credentials();
            let mut ends = ends(&impostor, carrier, impostor.limits);
            let deadline = Instant::now() + LIMIT;
            let mut greeting = Greeting::acceptor(impostor.hello(), None, credentials, deadline);
            loop {
                match ends.reader.next().unwrap() {
                    Some(frame) => {
                        let said = greeting.take(&frame).unwrap();
                        for (kind, body) in said.answers {
                            say(&mut ends, kind, &body, deadline).unwrap();
                        }
                        if said.peer.is_some() {
                            break;
                        }
                    }
                    None => sleep(&mut ends, PollFlags::IN, deadline).unwrap(),
                }
            }
            push(&mut ends, &bytes);
        });
        let within = CallOptions::new().timeout(Timeout::After(LIMIT));
        let tensors = vec![Tensor::from_vec(vec![1_u8; 100_000], [100_000]).unwrap(); 2];
        let calls: Vec<RpcFuture<usize>> =
            (0..4).map(|_| agents[0].call_with(within, 2, COUNT, &tensors)).collect();
        prop_assert_eq!(agents[0].call_with(within, 1, COUNT, &tensors).wait(), Ok(2));
        let begun = Instant::now();
        for call in calls {
            // Some calls may look answered; the others end with the connection or with an error
            // frame.
            let _ = call.wait();
        }
        prop_assert!(begun.elapsed() < LIMIT, "calls to the byzantine peer do not end");
        byzantine.join().unwrap();
        prop_assert_eq!(agents[0].call_with(within, 1, COUNT, &tensors).wait(), Ok(2));
        prop_assert_eq!(agents[0].traffic().in_flight, 0);
    }
}
