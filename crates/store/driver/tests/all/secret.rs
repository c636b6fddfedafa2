//! Tests of a server whose job has a token or certificates.
//!
//! They cover the clients that are admitted, the answers to the others, and the bytes on the
//! network.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rdzv_store::{
    Admission, Credentials, Identity, ServerOptions, Store, StoreError, TcpStore, TcpStoreOptions,
    TcpStoreServer, Token, TorchClients,
};
use rdzv_store_proto::wire::request;
use rdzv_testing::TestAuthority;
use rdzv_trust::handshake::{self, ANSWER_LENGTH, HELLO_LENGTH};

const LONG: Duration = Duration::from_secs(30);

fn token(byte: u8) -> Credentials {
    Credentials {
        token: Some(Token::new(&[byte; 16]).unwrap()),
        identity: None,
    }
}

fn certified(authority: &TestAuthority, name: &str) -> Credentials {
    of_files(authority, authority.files(name))
}

fn of_files(authority: &TestAuthority, (certificate, key): (PathBuf, PathBuf)) -> Credentials {
    let identity = Identity::from_files(&certificate, &key, &authority.file()).unwrap();
    Credentials {
        token: None,
        identity: Some(Arc::new(identity)),
    }
}

fn admission(credentials: &Credentials, torch_clients: TorchClients) -> Admission {
    Admission {
        credentials: credentials.clone(),
        torch_clients,
        agent_prefix: None,
    }
}

fn server(host: Option<&str>, admission: Admission) -> TcpStoreServer {
    TcpStoreServer::start(ServerOptions {
        host: host.map(str::to_owned),
        admission,
        ..ServerOptions::default()
    })
    .unwrap()
}

fn strict(credentials: &Credentials) -> TcpStoreServer {
    server(
        Some("127.0.0.1"),
        admission(credentials, TorchClients::Deny),
    )
}

fn client(host: &str, port: u16, credentials: &Credentials) -> Result<TcpStore, StoreError> {
    TcpStore::connect(TcpStoreOptions {
        timeout: LONG,
        credentials: credentials.clone(),
        ..TcpStoreOptions::new(host, port)
    })
}

/// Asserts that the server refuses the client for this reason.
fn assert_refused(port: u16, credentials: &Credentials, reason: &str) {
    match client("127.0.0.1", port, credentials) {
        Err(error @ StoreError::Refused { .. }) if error.to_string().contains(reason) => {}
        other => panic!("{other:?}"),
    }
}

/// Returns the whole answer of the server to these bytes.
fn answer(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(bytes).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut answer = Vec::new();
    // A reset after the answer is an end too.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Returns the first bytes of PyTorch's client, or of rdzv's without a token.
fn preamble() -> Vec<u8> {
    let mut bytes = Vec::new();
    request::preamble(&mut bytes, 7);
    bytes
}

#[test]
fn both_sides_with_the_token_meet_and_all_requests_work() {
    let server = strict(&token(1));
    let store = client("127.0.0.1", server.port(), &token(1)).unwrap();
    store.set("key", b"value").unwrap();
    let clone = store.try_clone().unwrap();
    assert_eq!(clone.get("key").unwrap(), "value");
    let large = vec![7; 3 << 20];
    store.set("large", &large).unwrap();
    assert_eq!(clone.get("large").unwrap(), large);
}

#[test]
fn each_wrong_pair_is_refused_with_the_flag_that_is_missing() {
    let (with, without) = (strict(&token(1)), strict(&Credentials::default()));
    assert_refused(with.port(), &token(2), "a different job token");
    assert_refused(with.port(), &Credentials::default(), "--token-file");
    assert_refused(without.port(), &token(1), "this store has no job token");
}

#[test]
fn an_earlier_client_is_shown_what_is_missing_instead_of_the_answer() {
    let server = strict(&token(1));
    let shown = String::from_utf8(answer(server.port(), &preamble())).unwrap();
    assert!(
        shown.starts_with("rdzv refuses: this store requires a job token"),
        "{shown}"
    );
    assert!(shown.contains("--token-file"), "{shown}");
}

#[test]
fn a_handshake_that_was_recorded_opens_nothing() {
    let server = strict(&token(1));
    // Another client's handshake, as an observer on the network sees it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let recorded = thread::scope(|scope| {
        let recorded = scope.spawn(|| {
            let mut client = listener.accept().unwrap().0;
            let mut server = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            let mut sent = vec![0; HELLO_LENGTH];
            client.read_exact(&mut sent).unwrap();
            server.write_all(&sent).unwrap();
            let mut answer = [0; ANSWER_LENGTH];
            server.read_exact(&mut answer).unwrap();
            client.write_all(&answer).unwrap();
            let mut proof = [0; 32];
            client.read_exact(&mut proof).unwrap();
            sent.extend_from_slice(&proof);
            sent
        });
        // The relay ends the connection after the proof.
        let outcome = TcpStore::connect(TcpStoreOptions {
            timeout: Duration::from_millis(300),
            credentials: token(1),
            ..TcpStoreOptions::new("127.0.0.1", port)
        });
        assert!(outcome.is_err());
        recorded.join().unwrap()
    });
    let replayed = answer(server.port(), &[recorded, preamble()].concat());
    let (_, after) = replayed.split_at(ANSWER_LENGTH);
    let reason = handshake::reason(after).unwrap();
    assert!(reason.starts_with(b"it has a different job token"));
}

#[test]
fn pytorch_clients_on_loopback_use_a_workers_store_and_no_other() {
    let workers = server(Some("127.0.0.1"), admission(&token(1), TorchClients::Job));
    assert_eq!(answer_prefix(workers.port()), 7);
    let any = server(Some("127.0.0.1"), admission(&token(1), TorchClients::Any));
    assert_eq!(answer_prefix(any.port()), 7);
    let denying = strict(&token(1));
    assert!(answer(denying.port(), &preamble()).starts_with(b"rdzv refuses"));
}

/// Returns the nonce that a store echoes.
fn answer_prefix(port: u16) -> u32 {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(&preamble()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut echoed = [0; 4];
    stream.read_exact(&mut echoed).unwrap();
    u32::from_le_bytes(echoed)
}

#[test]
fn keys_of_agents_are_not_for_workers() {
    let server = server(
        Some("127.0.0.1"),
        Admission {
            agent_prefix: Some(b"/run/".to_vec()),
            ..admission(&token(1), TorchClients::Job)
        },
    );
    let agent = client("127.0.0.1", server.port(), &token(1)).unwrap();
    agent.set("run/rank", b"of an agent").unwrap();
    let worker = || client("127.0.0.1", server.port(), &Credentials::default()).unwrap();
    worker().set("address", b"of a worker").unwrap();
    assert_eq!(agent.get("address").unwrap(), "of a worker");
    assert!(worker().check(&["run/rank"]).is_err());
    assert!(worker().check(&["address", "run/rank"]).is_err());
    assert!(worker().get("run/rank").is_err());
    assert!(worker().add("run/count", 1).is_err());
    assert!(worker().delete_key("run/rank").is_err());
    let overwrites = worker();
    // The server answers neither of these; the next call shows the result.
    let _ = overwrites.set("run/rank", b"of another");
    assert!(overwrites.check(&["address"]).is_err());
    let overwrites = worker();
    let _ = overwrites.multi_set(&[("address", b"x"), ("run/rank", b"y")]);
    assert!(overwrites.check(&["address"]).is_err());
    assert_eq!(agent.get("run/rank").unwrap(), "of an agent");
}

#[test]
fn certificates_admit_and_a_wrong_or_no_one_is_refused_with_the_reason() {
    let authority = TestAuthority::new();
    let server = strict(&certified(&authority, "a"));
    let store = client("127.0.0.1", server.port(), &certified(&authority, "b")).unwrap();
    let large = vec![3; 2 << 20];
    store.set("large", &large).unwrap();
    assert_eq!(store.get("large").unwrap(), large);
    let other = TestAuthority::new();
    assert_refused(server.port(), &certified(&other, "c"), "authority");
    assert_refused(server.port(), &Credentials::default(), "--tls-cert");
    assert_refused(server.port(), &token(1), "--tls-cert");
    let plain = strict(&token(1));
    assert_refused(plain.port(), &certified(&authority, "d"), "TLS failed");
}

#[test]
fn an_expired_certificate_is_refused_with_the_reason() {
    let authority = TestAuthority::new();
    let server = strict(&certified(&authority, "a"));
    let expired = of_files(&authority, authority.expired_files("b"));
    let with_token = Credentials {
        token: token(1).token,
        ..expired.clone()
    };
    for credentials in [&expired, &with_token] {
        assert_refused(server.port(), credentials, "our certificate has expired");
    }
    let server = strict(&expired);
    assert_refused(
        server.port(),
        &certified(&authority, "c"),
        "certificate is invalid",
    );
}

#[test]
fn nothing_of_a_key_a_value_or_the_token_is_seen_on_an_encrypted_connection() {
    let authority = TestAuthority::new();
    let secret = b"the-token-of-this-job";
    let both = |name| Credentials {
        token: Some(Token::new(secret).unwrap()),
        ..certified(&authority, name)
    };
    let server = strict(&both("a"));
    let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (to_server, record) = (server.port(), Arc::clone(&seen));
    let relay = thread::spawn(move || {
        let client = listener.accept().unwrap().0;
        let server = TcpStream::connect(("127.0.0.1", to_server)).unwrap();
        let copy = |mut from: TcpStream, mut to: TcpStream, record: Arc<Mutex<Vec<u8>>>| {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                record.lock().unwrap().extend_from_slice(&buffer[..count]);
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
        };
        let back = thread::spawn({
            let (from, to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let record = Arc::clone(&record);
            move || copy(from, to, record)
        });
        copy(client, server, record);
        back.join().unwrap();
    });
    let store = client("127.0.0.1", port, &both("b")).unwrap();
    store
        .set("a-key-that-no-peer-sees", b"a-value-that-no-peer-sees")
        .unwrap();
    assert_eq!(
        store.get("a-key-that-no-peer-sees").unwrap(),
        "a-value-that-no-peer-sees"
    );
    drop(store);
    relay.join().unwrap();
    let seen = seen.lock().unwrap();
    assert!(seen.len() > 1000, "the relay saw {} bytes", seen.len());
    for text in [&b"a-key-that"[..], b"a-value-that", secret] {
        assert!(!seen.windows(text.len()).any(|bytes| bytes == text));
    }
}

#[test]
fn a_silent_or_slow_handshake_holds_no_other_client_up() {
    let server = strict(&token(1));
    let silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(("127.0.0.1", server.port())).unwrap())
        .collect();
    for (index, mut stream) in silent.iter().enumerate() {
        stream
            .write_all(&handshake::hello([9; 32])[..index])
            .unwrap();
    }
    let store = client("127.0.0.1", server.port(), &token(1)).unwrap();
    store.set("key", b"value").unwrap();
    assert_eq!(store.get("key").unwrap(), "value");
}
