//! Tests of `rdzv store`.

use std::io::{PipeReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use rdzv_store::{Store as _, TcpStore, TcpStoreOptions};
use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::harness::{Running, rdzv};

/// Starts a store at a free port, and returns its address too.
fn listening() -> (Running, SocketAddr) {
    let running = rdzv(["store", "--host", "127.0.0.1", "--port", "0"]).start();
    let address = running.address();
    (running, address)
}

#[test]
fn the_first_line_tells_where_it_listens() {
    let (running, address) = listening();
    assert_ne!(address.port(), 0);
    TcpStream::connect(address).unwrap();
    running.signal(Signal::TERM);
    let ended = running.wait().expect(0);
    assert_eq!(ended.stdout, format!("listening on {address}\n"));
    assert_eq!(ended.stderr, "");
}

#[test]
fn an_interrupt_ends_it_cleanly_with_clients_connected() {
    let (running, address) = listening();
    let _client = TcpStream::connect(address).unwrap();
    running.signal(Signal::INT);
    let ended = running.wait().expect(0);
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_port_in_use_is_one_sentence_and_advice() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ended = rdzv(["store", "--host", "127.0.0.1", "--port", &port]).expect(1);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(
        lines[0].starts_with("rdzv store: cannot listen on "),
        "{lines:?}"
    );
    assert!(
        lines[0].contains(&port) && lines[1].starts_with("help: "),
        "{lines:?}"
    );
}

#[test]
fn recover_without_a_record_is_refused() {
    let ended = rdzv(["store", "--recover", "--restarts", "0"]).expect(2);
    ended.assert_stderr("--recover has no effect with --restarts 0\nhelp: ");
}

/// Returns a full pipe.
fn full_pipe() -> (PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&writer).unwrap();
    rustix::fs::fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    while writer.write(b"x").is_ok() {}
    rustix::fs::fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

/// Sends an HTTP request, and waits until the store has closed the connection.
fn scan(address: SocketAddr) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let _reset_or_end = stream.read_to_end(&mut Vec::new());
}

#[test]
fn a_console_that_nobody_reads_stops_neither_the_service_nor_a_signal() {
    let (unread, stderr) = full_pipe();
    let running = rdzv(["store", "--host", "127.0.0.1", "--port", "0"])
        .stderr(stderr)
        .start();
    let address = running.address();
    scan(address);
    // The store still answers a real client.
    let options = TcpStoreOptions::new(address.ip().to_string(), address.port());
    let client = TcpStore::connect(options).unwrap();
    client.set("key", b"value").unwrap();
    assert_eq!(client.get("key").unwrap(), "value");
    running.signal(Signal::TERM);
    running.wait().expect(0);
    drop(unread);
}

#[test]
fn a_port_scan_is_logged_in_a_few_lines_and_a_count() {
    const SCANS: usize = 200;
    let (running, address) = listening();
    for _ in 0..SCANS {
        scan(address);
    }
    running.signal(Signal::TERM);
    let ended = running.wait().expect(0);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(lines.len() < SCANS / 4, "{}", ended.stderr);
    let logged: usize = lines
        .iter()
        .map(|line| match line.split_once("closed ") {
            Some((_, rest)) => rest.split(' ').next().unwrap().parse().unwrap(),
            None => 1,
        })
        .sum();
    assert_eq!(logged, SCANS, "{}", ended.stderr);
}
