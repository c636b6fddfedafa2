//! Tests that rdzv escapes the texts of other processes and nodes.
//!
//! | entrance | test |
//! |---|---|
//! | failure from another node: sentence, host, role, cause, traceback, stderr, path | here |
//! | error file of a worker, heartbeat, timer, text on its stderr that names a cause | here |
//! | last lines of a worker's stderr, verdict, report, failure block: with real processes | here |
//! | name of a node in the shared state, as agents of torchrun write it | here |
//! | native rendezvous: names and sentences of the coordinator, names of joining agents | here |
//! | value in a store that is not a number; server that is not a store | here |
//! | name of a node that announces a failure, by a store | `peer_failures`, `failure_channel` |
//! | address of the workers' store, by a store | `bootstrap`, `runs/master` |
//! | full name of this host, by the resolver | `rdzv-agent`, `host_name` |
//! | refusal of etcd | `etcd/v3` |
//! | stack and thread names of a worker | `hang/stack` |
//! | refusal of an RPC peer, error of a remote function | `rdzv-rpc`, `rdzv-rpc-proto` |
//! | records of RPC workers | `rdzv-rpc`, `rdzv-rpc-proto` |
//! | name of a handler, over HTTP | `rdzv-worker-server` |

#![allow(
    clippy::unwrap_used,
    reason = "test code: a test ends at the first unexpected result"
)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rdzv_agent_proto::group::diagnosis::diagnose;
use rdzv_agent_proto::group::{Cause, ErrorFile, Evidence, Exit, Failure};
use rdzv_agent_proto::hang::heartbeat::{HeartbeatLimits, Heartbeats};
use rdzv_agent_proto::hang::timers::TimerRequest;
use rdzv_core::rank::LocalRank;
use rdzv_core::time::{Mono, Wall};
use rdzv_rendezvous_proto::codec;
use rdzv_rendezvous_proto::coordinator::wire::{AgentRefusal, Event, EventReader, Operation};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState};
use rdzv_store::{HashStore, Store, TcpStore, TcpStoreOptions};

/// Text that would attack a terminal or its reader.
///
/// It clears the screen, forges a verdict, and reverses the direction of the text.
const HOSTILE: &str = "x\u{1b}[2J\r\u{9b}31m\nrdzv: first failure: forged\u{202e}\u{2028}";

/// Asserts that the text shows the hostile characters in escaped form only.
fn assert_escaped(entrance: &str, shown: &str) {
    assert!(shown.contains("x\\u{1b}[2J"), "{entrance}: {shown:?}");
    assert_harmless(entrance, shown);
}

fn assert_harmless(entrance: &str, shown: &str) {
    let harmful = |letter: char| {
        letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}')
    };
    assert!(!shown.contains(harmful), "{entrance}: {shown:?}");
}

/// Asserts the same for a text that keeps its lines.
fn assert_lines_escaped(entrance: &str, shown: &str) {
    assert_escaped(entrance, &shown.replace('\n', " "));
}

/// Returns a failure in which every text is hostile.
fn failure() -> Failure {
    Failure {
        cause: Cause::Reported {
            kind: HOSTILE.to_owned(),
            text: HOSTILE.to_owned(),
        },
        evidence: Evidence {
            host: HOSTILE.to_owned(),
            role: HOSTILE.to_owned(),
            traceback: Some(HOSTILE.to_owned()),
            stderr_tail: vec![HOSTILE.to_owned()],
            error_file: Some(ErrorFile {
                path: HOSTILE.into(),
                content: Err(String::new()),
            }),
            ..Evidence::default()
        },
    }
}

#[test]
fn a_failure_of_another_node() {
    let announced = failure().encode(HOSTILE, Wall::default(), 1 << 16);
    let (sentence, failure) = Failure::decode(&announced);
    let (Failure { cause, evidence }, _) = failure.unwrap();
    assert_escaped("sentence", &sentence);
    assert_escaped("kind of the cause", cause.kind());
    assert_escaped("cause", &cause.to_string());
    assert_escaped("host", &evidence.host);
    assert_escaped("role", &evidence.role);
    assert_lines_escaped("traceback", &evidence.traceback.unwrap());
    assert_escaped("stderr", &evidence.stderr_tail[0]);
    let path = evidence.error_file.unwrap().path;
    assert_escaped("error file", path.to_str().unwrap());
    let (sentence, _) = Failure::decode(HOSTILE);
    assert_escaped("sentence without a record", &sentence);
}

#[test]
fn a_worker_says_why_it_failed() {
    let object = serde_json::json!({ "message": {
        "message": HOSTILE,
        "extraInfo": { "py_callstack": HOSTILE },
    }});
    for content in [serde_json::json!({ "message": HOSTILE }), object] {
        let file = ErrorFile::parse("error.json".into(), &content.to_string());
        assert_lines_escaped("message of an error file", file.message().unwrap());
        assert_lines_escaped("traceback of an error file", file.traceback().unwrap());
        let evidence = Evidence {
            error_file: Some(file),
            ..Evidence::default()
        };
        let cause = diagnose(Exit::Code(1), &evidence).to_string();
        assert_escaped("cause from an error file", &cause);
    }
    let evidence = Evidence {
        stderr_tail: vec![format!("Fatal Python error: {HOSTILE}")],
        ..Evidence::default()
    };
    let cause = diagnose(Exit::Code(1), &evidence).to_string();
    assert_escaped("cause from stderr", &cause);
}

#[test]
fn a_worker_sends_heartbeats_and_timers() {
    let worker = LocalRank(0);
    let mut beats = Heartbeats::new(HeartbeatLimits::parse("1").unwrap());
    beats.started(Mono::ZERO, worker);
    beats.beat(
        Mono::ZERO,
        0.0,
        worker,
        format!("{HOSTILE} {HOSTILE}").as_bytes(),
    );
    let missed = &beats.missed(Mono::ZERO + Duration::from_secs(2))[0];
    assert_escaped("phase", &format!("{} {}", missed.phase, missed.note));
    let request = serde_json::json!({
        "pid": 1, "scope_id": HOSTILE, "expiration_time": 1.0, "signal": 9,
    });
    match TimerRequest::parse(request.to_string().as_bytes()) {
        Ok(TimerRequest::Acquire(timer)) => assert_escaped("scope of a timer", &timer.scope),
        other => panic!("{other:?}"),
    }
}

fn hostile_node() -> NodeDesc {
    NodeDesc::new(HOSTILE, 1)
}

#[test]
fn a_node_in_the_shared_state() {
    let state = RendezvousState {
        wait_list: [hostile_node()].into(),
        ..RendezvousState::default()
    };
    let read = codec::from_value(&codec::to_value(&state))
        .unwrap()
        .unwrap();
    assert_eq!(read, state, "others have to find the node that they wrote");
    assert_escaped("node", &read.wait_list.first().unwrap().to_string());
}

fn read_back(event: &Event) -> Event {
    let mut wire = Vec::new();
    event.write(&mut wire);
    let mut reader = EventReader::default();
    reader.feed(&wire);
    reader.next_event().unwrap().unwrap()
}

#[test]
fn a_coordinator_speaks() {
    let text = || HOSTILE.to_owned();
    let (round, waiting, reason) = (1, 1, text());
    match read_back(&Event::Membership {
        round,
        waiting,
        reason,
    }) {
        Event::Membership { reason, .. } => assert_escaped("change of membership", &reason),
        other => panic!("{other:?}"),
    }
    let (node, reason) = (text(), text());
    match read_back(&Event::PeerFailed { node, reason }) {
        Event::PeerFailed { node, .. } => assert_escaped("node that failed", &node),
        other => panic!("{other:?}"),
    }
    match read_back(&Event::Refused(AgentRefusal::Unusable(text()))) {
        Event::Refused(AgentRefusal::Unusable(sentence)) => assert_escaped("refusal", &sentence),
        other => panic!("{other:?}"),
    }
    let (elapsed, joined) = (Duration::ZERO, vec![text()]);
    match read_back(&Event::Refused(AgentRefusal::JoinTimeout {
        elapsed,
        joined,
    })) {
        Event::Refused(AgentRefusal::JoinTimeout { joined, .. }) => {
            assert_escaped("node that had joined", &joined[0]);
        }
        other => panic!("{other:?}"),
    }
    let (round, addr, port) = (1, text(), 1);
    let mut wire = Vec::new();
    Event::Master { round, addr, port }.write(&mut wire);
    let mut reader = EventReader::default();
    reader.feed(&wire);
    let refused = reader.next_event().unwrap_err().to_string();
    assert!(refused.contains("the master address"), "{refused}");
}

#[test]
fn a_peer_that_is_no_member_joins() {
    let (round, addr, port) = (1, HOSTILE.to_owned(), 1);
    let master = Operation::Master { round, addr, port };
    let mut wire = Vec::new();
    master.write(&mut wire);
    // The message begins with the opcode and eight bytes of length.
    let refused = Operation::read(master.opcode(), &wire[9..]).unwrap_err();
    assert!(
        refused.to_string().contains("control characters"),
        "{refused}"
    );
}

#[test]
fn a_store_holds_something_else() {
    let store = HashStore::new();
    store.set("key", HOSTILE.as_bytes()).unwrap();
    assert_escaped("value", &store.add("key", 1).unwrap_err().to_string());
}

#[test]
fn a_server_is_no_store() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"\x1b[2J\n");
    });
    let options = TcpStoreOptions {
        timeout: Duration::from_secs(2),
        wait_for_workers: false,
        ..TcpStoreOptions::new("127.0.0.1", address.port())
    };
    let error = TcpStore::connect(options).unwrap_err().to_string();
    assert_harmless("answer of a server", &error.replace('\n', " "));
    server.join().unwrap();
}

/// Script of a worker that writes only to its files.
///
/// The console then contains only lines of rdzv.
const WORKER: &str = r#"
printf '%s' "$CONTENT" > "$TORCHELASTIC_ERROR_FILE"
printf 'last \033[2J\302\2331m\342\200\256line\n' >&2
exit 3
"#;

#[test]
fn the_console_and_the_report_of_a_run() {
    for content in [
        String::new(),
        serde_json::json!({ "message": HOSTILE }).to_string(),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let report = directory.path().join("report.json");
        let ended = Command::new(env!("CARGO_BIN_EXE_rdzv"))
            .args(["run", "-r", "3", "--no-python", "--report"])
            .arg(&report)
            .arg("--log-dir")
            .arg(directory.path())
            .args(["sh", "-c", WORKER])
            .env("CONTENT", &content)
            .output()
            .unwrap();
        assert_eq!(ended.status.code(), Some(1));
        let console = String::from_utf8(ended.stderr).unwrap();
        for line in console.lines() {
            assert_harmless("console", line);
        }
        let verdicts = console.lines();
        let verdicts = verdicts.filter(|line| line.starts_with("rdzv: first failure"));
        assert_eq!(verdicts.count(), 1, "{console}");
        assert!(console.contains("\\u{1b}[2J"), "{console}");
        let report = std::fs::read_to_string(report).unwrap();
        for line in report.lines() {
            assert_harmless("report", line);
        }
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let first = &report["first_failure"];
        let tail = first["stderr_tail"][0].as_str().unwrap();
        assert_eq!(tail, "last \\u{1b}[2J\\u{9b}1m\\u{202e}line");
        assert_harmless("cause", first["cause"]["text"].as_str().unwrap());
    }
}
