//! The native wire, byte for byte.
//!
//! After the release of 0.1.0, agents of that version must work together with later ones. Then new
//! values of the wire are added here and to `golden/native_wire.txt`, but a line of the file never
//! changes.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rdzv_core::rank::Assignment;
use rdzv_rendezvous_proto::coordinator::wire::{
    AgentRefusal, Authority, Event, EventReader, HeldRound, Join, LastCoordinator, MAX_EVENT_BYTES,
    Operation, PROBE, PROBE_ANSWER, Program, Reattach, Report, Standing, VERSION, VoterList,
    WireError,
};
use rdzv_rendezvous_proto::waiting::Arrived;
use rdzv_rendezvous_proto::{FencePolicy, NodeDesc, Settings};

const RECORDED: &str = include_str!("../golden/native_wire.txt");

/// Maximum length of a text on the wire.
const LONGEST_TEXT: usize = 4096;

fn recorded() -> BTreeMap<&'static str, Vec<u8>> {
    RECORDED
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, bytes) = line.split_once(' ').unwrap();
            (name, unhex(bytes))
        })
        .collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn join(instance: u64, run: &str, node: NodeDesc, settings: Settings, role: &str) -> Operation {
    Operation::Join(Box::new(Join {
        role: role.to_owned(),
        local_world_size: settings.max_nodes,
        ..Join::new(instance, run, node, settings)
    }))
}

fn report(has_viewer: bool, is_for_all: bool, message: &str) -> Operation {
    Operation::Report(Report {
        has_viewer,
        is_for_all,
        message: message.as_bytes().to_vec(),
    })
}

/// Returns the usual join, with a program.
fn of_program() -> Operation {
    Operation::Join(Box::new(join_of_program(1)))
}

fn join_of_program(attempt: u32) -> Join {
    let node = node("worker-3.example.org", 4711, 2);
    Join {
        role: "default".to_owned(),
        local_world_size: 8,
        program: Some(Program::new("train.py", b"print()", true)),
        attempt,
        ..Join::new(0x0123_4567_89ab_cdef, "job-7", node, Settings::new(2, 8))
    }
}

fn reattach_of(holds: Option<HeldRound>, left: Option<HeldRound>, leaves: bool) -> Operation {
    let last = LastCoordinator {
        cluster: 11,
        epoch: 2,
        address: "10.0.0.1:29400".to_owned(),
    };
    Operation::Reattach(Box::new(Reattach {
        last,
        join: join_of_program(3),
        holds,
        left,
        leaves,
    }))
}

fn reattach(holds: Option<HeldRound>) -> Operation {
    reattach_of(holds, None, false)
}

fn held(round: u64, rank: u32, master: Option<(&str, u16)>, succeeded: bool) -> HeldRound {
    HeldRound {
        round,
        rank,
        master: master.map(|(addr, port)| (addr.to_owned(), port)),
        succeeded,
        size: 4,
        host: Some(1),
    }
}

fn node(addr: &str, pid: i64, local_id: i64) -> NodeDesc {
    NodeDesc {
        addr: addr.to_owned(),
        pid,
        local_id,
    }
}

fn operations() -> Vec<(&'static str, Operation)> {
    // The wire has only whole milliseconds, and only these settings.
    let largest = Settings {
        join_timeout: Duration::from_millis(u64::MAX),
        last_call_timeout: Duration::from_millis(u64::MAX),
        keep_alive_interval: Duration::from_millis(u64::MAX),
        keep_alive_max_attempt: u32::MAX,
        ..Settings::new(u32::MAX, u32::MAX)
    };
    let smallest = Settings {
        join_timeout: Duration::ZERO,
        last_call_timeout: Duration::ZERO,
        keep_alive_interval: Duration::ZERO,
        keep_alive_max_attempt: 0,
        ..Settings::new(0, 0)
    };
    let long = "r".repeat(LONGEST_TEXT);
    let master = |round, addr: &str, port| Operation::Master {
        round,
        addr: addr.to_owned(),
        port,
    };
    vec![
        (
            "operation.join.usual",
            join(
                0x0123_4567_89ab_cdef,
                "job-7",
                node("worker-3.example.org", 4711, 2),
                Settings::new(2, 8),
                "default",
            ),
        ),
        (
            "operation.join.utf8",
            join(7, "läuft", node("node-ä", 1, 0), Settings::new(1, 1), "学"),
        ),
        (
            "operation.join.smallest",
            join(0, "", node("", i64::MIN, i64::MIN), smallest, ""),
        ),
        (
            "operation.join.largest",
            join(
                u64::MAX,
                "run",
                node("a", i64::MAX, i64::MAX),
                largest,
                "role",
            ),
        ),
        ("operation.join.program", of_program()),
        (
            "operation.join.attempt",
            Operation::Join(Box::new(join_of_program(u32::MAX))),
        ),
        (
            "operation.join.from",
            Operation::Join(Box::new(Join {
                from: Some("10.0.0.2:51000".to_owned()),
                ..join_of_program(u32::MAX)
            })),
        ),
        ("operation.detach", Operation::Detach),
        ("operation.reattach.joining", reattach(None)),
        (
            "operation.reattach.member",
            reattach(Some(held(9, 2, Some(("10.0.0.1", 29500)), true))),
        ),
        (
            "operation.reattach.formed",
            reattach(Some(held(u64::MAX, u32::MAX, None, false))),
        ),
        ("operation.succeeded", Operation::Succeeded { round: 9 }),
        (
            "operation.lease",
            Operation::Lease {
                number: 5,
                standing: Standing::Asks,
            },
        ),
        (
            "operation.lease.lifted",
            Operation::Lease {
                number: 0,
                standing: Standing::Lifted,
            },
        ),
        (
            "operation.join.fence",
            Operation::Join(Box::new({
                let mut join = join_of_program(u32::MAX);
                join.settings.fence = FencePolicy::Auto;
                join
            })),
        ),
        (
            "operation.join.sorted",
            Operation::Join(Box::new({
                let mut join = join_of_program(u32::MAX);
                join.settings.sorts_ranks = true;
                join
            })),
        ),
        (
            "operation.candidate",
            Operation::Candidate { willing: true },
        ),
        ("operation.leave", Operation::Leave),
        (
            "operation.close",
            Operation::Close {
                run: "job-7".to_owned(),
            },
        ),
        ("operation.close.longest", Operation::Close { run: long }),
        ("operation.heartbeat", Operation::Heartbeat),
        ("operation.report", report(true, false, "")),
        ("operation.report.message", report(false, false, "{}")),
        ("operation.report.for_all", report(true, true, "{\"x\":1}")),
        (
            "operation.failed",
            Operation::Failed {
                reason: "rank 3 was killed: out of memory".to_owned(),
            },
        ),
        (
            "operation.failed.empty",
            Operation::Failed {
                reason: String::new(),
            },
        ),
        ("operation.master", master(9, "10.0.0.1", 29500)),
        ("operation.master.smallest", master(0, "", 0)),
        (
            "operation.master.largest",
            master(u64::MAX, "::1", u16::MAX),
        ),
        (
            "operation.status",
            Operation::Status {
                run: "job-7".to_owned(),
            },
        ),
    ]
}

fn events() -> Vec<(&'static str, Event)> {
    let formed =
        |round, rank, world_size, assignment: Option<(u32, u32, u32, u32)>| Event::Formed {
            round,
            rank,
            world_size,
            assignment: assignment.map(Assignment::from),
            replaced: Vec::new(),
        };
    let master = |round, addr: &str, port| Event::Master {
        round,
        addr: addr.to_owned(),
        port,
    };
    let membership = |round, waiting, reason: &str| Event::Membership {
        round,
        waiting,
        reason: reason.to_owned(),
    };
    let peer_failed = |node: &str, reason: &str| Event::PeerFailed {
        node: node.to_owned(),
        reason: reason.to_owned(),
    };
    let join_timeout = |milliseconds, joined: &[&str]| {
        Event::Refused(AgentRefusal::JoinTimeout {
            elapsed: Duration::from_millis(milliseconds),
            joined: joined.iter().map(|node| (*node).to_owned()).collect(),
        })
    };
    let unusable = |why: &str| Event::Refused(AgentRefusal::Unusable(why.to_owned()));
    let status = |closed, waiting| Event::Status { closed, waiting };
    const MAX: u32 = u32::MAX;
    vec![
        ("event.formed", formed(4, 1, 3, Some((2, 6, 1, 4)))),
        ("event.formed.mixed", formed(4, 1, 3, None)),
        (
            "event.formed.replaced",
            Event::Formed {
                round: 4,
                rank: 1,
                world_size: 3,
                assignment: Some(Assignment::from((2, 6, 1, 4))),
                replaced: vec![2, 3],
            },
        ),
        ("event.formed.smallest", formed(0, 0, 0, Some((0, 0, 0, 0)))),
        (
            "event.formed.largest",
            formed(u64::MAX, MAX, MAX, Some((MAX, MAX, MAX, MAX))),
        ),
        ("event.master", master(4, "10.0.0.1", 4000)),
        ("event.master.smallest", master(0, "", 0)),
        ("event.master.largest", master(u64::MAX, "nöd", u16::MAX)),
        (
            "event.membership",
            membership(4, 2, "node node-3_4711_0 waits to join"),
        ),
        ("event.membership.smallest", membership(0, 0, "")),
        ("event.membership.largest", membership(u64::MAX, MAX, "ü")),
        (
            "event.peer_failed",
            peer_failed("node-3_4711_0", "rank 3 was killed"),
        ),
        ("event.peer_failed.empty", peer_failed("", "")),
        (
            "event.peer_failed.longest",
            peer_failed("n", &"x".repeat(LONGEST_TEXT)),
        ),
        ("event.closed", Event::Closed),
        ("event.refused.closed", Event::Refused(AgentRefusal::Closed)),
        (
            "event.refused.not_needed",
            Event::Refused(AgentRefusal::NotNeeded),
        ),
        (
            "event.refused.join_timeout",
            join_timeout(600_000, &["node-1_1_0", "node-2_1_0", "17 more"]),
        ),
        ("event.refused.join_timeout.no_node", join_timeout(0, &[])),
        (
            "event.refused.join_timeout.largest",
            join_timeout(u64::MAX, &[""]),
        ),
        ("event.refused.unusable", unusable("3 to 2 nodes cannot be")),
        ("event.refused.unusable.empty", unusable("")),
        ("event.left", Event::Left),
        ("event.alive", Event::Alive(None)),
        (
            "event.reports",
            Event::Reports {
                arrived: None,
                watch: 7,
                messages: b"\x02\0\0\0{}".to_vec(),
            },
        ),
        (
            "event.reports.waiting",
            Event::Reports {
                arrived: Some(Arrived {
                    nodes: 2,
                    named: vec!["a".to_owned(), "b".to_owned()],
                    is_spare: false,
                }),
                watch: 0,
                messages: Vec::new(),
            },
        ),
        ("event.status.open", status(false, 0)),
        ("event.status.closed", status(true, MAX)),
        (
            "event.attached",
            Event::Attached(Authority {
                cluster: 0x0123_4567_89ab_cdef,
                epoch: 3,
                timeout: Duration::from_secs(60),
                takes_voters: false,
                in_process: false,
            }),
        ),
        (
            "event.recoverable",
            Event::Recoverable {
                round: 4,
                host: None,
            },
        ),
        (
            "event.attached.takes_voters",
            Event::Attached(Authority {
                cluster: 0x0123_4567_89ab_cdef,
                epoch: 3,
                timeout: Duration::from_secs(60),
                takes_voters: true,
                in_process: false,
            }),
        ),
        (
            "event.attached.in_process",
            Event::Attached(Authority {
                cluster: 7,
                epoch: 3,
                timeout: Duration::from_secs(60),
                takes_voters: false,
                in_process: true,
            }),
        ),
        (
            "event.voters",
            Event::Voters(VoterList {
                addresses: vec!["10.0.0.1:29400".to_owned(), "b:1".to_owned()],
                voters: 1,
                invites: true,
            }),
        ),
        ("event.all_succeeded", Event::AllSucceeded { round: 4 }),
        ("event.backed", Event::Backed { number: 5 }),
        (
            "event.fence",
            Event::Fence {
                round: 9,
                acts: true,
            },
        ),
        (
            "event.undecided",
            Event::Undecided {
                address: "10.0.0.1:29400".to_owned(),
            },
        ),
    ]
}

#[test]
fn every_operation_and_event_has_the_recorded_bytes_and_is_read_from_them() {
    let recorded = recorded();
    let mut seen = 2;
    assert_eq!(recorded["probe"], PROBE.to_le_bytes());
    assert_eq!(recorded["probe_answer"], PROBE_ANSWER.to_le_bytes());
    for (name, operation) in operations() {
        let mut bytes = Vec::new();
        operation.write(&mut bytes);
        assert_eq!(hex(&bytes), hex(&recorded[name]), "{name}");
        let read = Operation::read(recorded[name][0], &recorded[name][9..]);
        assert_eq!(read.as_ref(), Ok(&operation), "{name}");
        seen += 1;
    }
    for (name, event) in events() {
        let mut bytes = Vec::new();
        event.write(&mut bytes);
        assert_eq!(hex(&bytes), hex(&recorded[name]), "{name}");
        let mut reader = EventReader::default();
        reader.feed(&recorded[name]);
        assert_eq!(reader.next_event(), Ok(Some(event)), "{name}");
        assert_eq!(reader.next_event(), Ok(None), "{name}");
        seen += 1;
    }
    assert_eq!(seen, recorded.len(), "a recorded line has no value here");
}

#[test]
fn a_beginning_of_an_operation_is_refused_or_is_another_operation() {
    for (name, operation) in operations() {
        let mut bytes = Vec::new();
        operation.write(&mut bytes);
        let payload = &bytes[9..];
        assert_eq!(bytes[1..9], (payload.len() as u64).to_le_bytes());
        for cut in 0..payload.len() {
            let Ok(shorter) = Operation::read(bytes[0], &payload[..cut]) else {
                continue;
            };
            assert_ne!(shorter, operation, "{name}: {cut}");
            let mut again = Vec::new();
            shorter.write(&mut again);
            assert_eq!(again[9..], payload[..cut], "{name}: {cut}");
        }
    }
    assert_eq!(Operation::read(0x20, &[9]), Err(WireError::Version(9)));
}

#[test]
fn parts_of_a_join_and_the_rounds_of_an_agent_read_as_they_were_written() {
    let join = Join {
        replaces: vec![5, 6],
        ..join_of_program(3)
    };
    let mut impatient = join.clone();
    impatient.settings.node_timeout = Duration::from_millis(800);
    let mut fenced = Join {
        replaces: Vec::new(),
        ..impatient.clone()
    };
    fenced.settings.fence = FencePolicy::Auto;
    let placed = Join {
        from: Some("10.0.0.2:51000".to_owned()),
        ..join.clone()
    };
    let bereft = Join {
        lost: vec![2, 3],
        ..join.clone()
    };
    let joins =
        [join, impatient, fenced, placed, bereft].map(|join| Operation::Join(Box::new(join)));
    let left = Some(held(7, 2, Some(("10.0.0.1", 4000)), true));
    let unknown = HeldRound {
        host: None,
        ..held(7, 2, None, false)
    };
    let reattaching = [
        reattach(Some(unknown)),
        reattach_of(None, left, false),
        reattach_of(None, None, true),
    ];
    for operation in joins.into_iter().chain(reattaching) {
        let mut bytes = Vec::new();
        operation.write(&mut bytes);
        assert_eq!(Operation::read(bytes[0], &bytes[9..]), Ok(operation));
    }
}

#[test]
fn events_come_out_as_they_went_in_however_the_stream_is_cut() {
    let mut events: Vec<Event> = events().into_iter().map(|(_, event)| event).collect();
    events.push(Event::Alive(Some(Arrived {
        nodes: 3,
        named: vec!["node-a".to_owned(), "node-b".to_owned()],
        is_spare: false,
    })));
    let (round, host) = (7, Some(0));
    events.push(Event::Recoverable { round, host });
    let mut stream = Vec::new();
    events.iter().for_each(|event| event.write(&mut stream));
    for piece in [1, 2, 3, 7, 50, stream.len()] {
        let (mut reader, mut seen) = (EventReader::default(), Vec::new());
        for bytes in stream.chunks(piece) {
            reader.feed(bytes);
            while let Some(event) = reader.next_event().unwrap() {
                seen.push(event);
            }
        }
        assert_eq!(seen, events);
    }
}

#[test]
fn texts_are_cut_at_the_same_byte_and_the_same_bytes_are_refused() {
    // 4096 bytes at most, at the start of a character.
    for (text, kept) in [("ab", 4096), ("ä", 4096), ("a€", 4096), ("€", 4095)] {
        let run = text.repeat(5000);
        let mut bytes = Vec::new();
        Operation::Close { run: run.clone() }.write(&mut bytes);
        assert_eq!(
            bytes[..3],
            [
                0x22,
                (kept + 2_u16).to_le_bytes()[0],
                (kept + 2).to_le_bytes()[1]
            ]
        );
        assert_eq!(bytes[9..11], kept.to_le_bytes());
        assert_eq!(bytes[11..], run.as_bytes()[..usize::from(kept)]);
    }
    assert_eq!(
        Operation::read(0x22, &4097_u16.to_le_bytes()),
        Err(WireError::LongText("the run id"))
    );
    assert_eq!(
        Operation::read(0x22, &[1, 0, 0xff]),
        Err(WireError::NotText("the run id"))
    );
    assert_eq!((VERSION, MAX_EVENT_BYTES), (1, 1 << 20));
    for unknown in [0x1f, 0x2c] {
        let read = Operation::read(unknown, &[]);
        assert_eq!(read, Err(WireError::Unknown(unknown)));
    }
    for unknown in [0, 17] {
        assert_eq!(Event::read(unknown, &[]), Err(WireError::Unknown(unknown)));
    }
}

#[test]
fn fields_that_a_later_version_adds_at_the_end_are_passed_over() {
    // The message of a heartbeat is the rest of its bytes.
    let operations = operations()
        .into_iter()
        .filter(|(_, operation)| !matches!(operation, Operation::Heartbeat | Operation::Report(_)));
    for (name, operation) in operations {
        let mut bytes = Vec::new();
        operation.write(&mut bytes);
        bytes.extend_from_slice(b"later");
        let read = Operation::read(bytes[0], &bytes[9..]);
        assert_eq!(read, Ok(operation), "{name}");
    }
    for (name, event) in events() {
        let mut bytes = Vec::new();
        event.write(&mut bytes);
        let may_lack = [
            "event.formed.mixed",
            "event.alive",
            "event.reports",
            "event.reports.waiting",
            "event.recoverable",
        ];
        if may_lack.contains(&name) {
            // The fields that may be missing are the assignment, the joined nodes, messages, and
            // the rank of the host.
            continue;
        }
        bytes.extend_from_slice(b"later");
        assert_eq!(Event::read(bytes[0], &bytes[5..]), Ok(event), "{name}");
    }
}
