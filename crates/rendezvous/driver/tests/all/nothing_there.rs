//! Errors of `c10d` if there is no store at the endpoint.
//!
//! Each is one sentence: the finding, the endpoint, the time of the attempts, and advice.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rendezvous::RendezvousError;
use rdzv_store::{FileStore, Store};
use tempfile::TempDir;

use crate::support::{member, node};

/// Far longer than any step of these tests.
const LONG: Duration = Duration::from_secs(20);

/// Returns the error of a node that finds no store at a local port for 1 s.
fn said(port: u16, config: &str) -> String {
    said_at("localhost", port, config)
}

fn said_at(host: &str, port: u16, config: &str) -> String {
    let config = format!("read_timeout=1,{config}");
    let mut node = node("c10d", &format!("{host}:{port}"), "run", (1, 1), &config);
    let started = Instant::now();
    let error = node.join(&member()).unwrap_err();
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    assert!(
        matches!(error, RendezvousError::Unreachable { .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(!text.replace("\nhelp: ", " ").contains('\n'), "{text}");
    assert!(text.contains(&format!("{host}:{port}")), "{text}");
    text
}

/// Returns the port of a listener that treats every connection in the same way.
fn impostor(answer: impl Fn(TcpStream) + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap());
        }
    });
    port
}

fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn nobody_is_there() {
    let port = rdzv_testing::free_port();
    let text = said_at("127.0.0.1", port, "is_host=0");
    has(&text, &["no store was found", "refused", "after 1."]);
    has(&text, &["the c10d endpoint", "rdzv store"]);
}

#[test]
fn something_else_is_there() {
    let ssh = impostor(|mut stream| {
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2p1\r\n");
        let _ = stream.read(&mut [0; 64]);
    });
    let http = impostor(|mut stream| {
        let _ = stream.read(&mut [0; 64]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().port();
    for (port, found) in [
        (ssh, "SSH-2.0-OpenSSH"),
        (http, "HTTP/1.1 400"),
        (silent, "sent nothing"),
    ] {
        // The result is the same for a node that would host the store: the port is taken.
        for config in ["is_host=0", "join_timeout=5"] {
            has(
                &said(port, config),
                &["no store", found, "address and port"],
            );
        }
    }
}

#[test]
fn the_port_of_the_one_that_must_host_is_taken() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = said(other.local_addr().unwrap().port(), "is_host=1");
    has(&text, &["has to host", "in use", "is_host=0"]);
}

/// Returns the error of a node that joins a run in this file.
fn error_of_file(path: &Path) -> RendezvousError {
    let endpoint = path.display().to_string();
    let mut node = node("c10d", &endpoint, "run", (1, 1), "store_type=file");
    node.join(&member()).unwrap_err()
}

#[test]
fn a_file_that_cannot_be_opened() {
    let folder = TempDir::new().unwrap();
    let journal = folder.path().join("foreign");
    std::fs::write(&journal, "a text that is no record of a store").unwrap();
    for (path, part) in [
        (folder.path().join("nowhere/state"), "No such file"),
        (folder.path().to_owned(), "Is a directory"),
        (journal, "no store"),
    ] {
        let error = error_of_file(&path);
        assert_eq!(error.class(), "RendezvousConnectionError", "{error:?}");
        has(
            &error.to_string(),
            &[part, &path.display().to_string(), "--rdzv-endpoint"],
        );
    }
}

#[test]
fn a_state_that_is_none() {
    // The first is not base64. The second is base64, but not a pickle.
    for state in [&b"a"[..], b"YQ=="] {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("state");
        let store = FileStore::open(&path, None).unwrap();
        store.set("torch.rendezvous.run", state).unwrap();
        let error = error_of_file(&path);
        assert_eq!(error.class(), "RendezvousStateError", "{error:?}");
        has(&error.to_string(), &["is corrupt", "--rdzv-id"]);
    }
}
