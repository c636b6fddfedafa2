//! `rdzv store`.

use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;

use crate::harness::{Running, rdzv};

/// Starts a store, and tells where it listens.
fn listening(arguments: &[&str]) -> (Running, SocketAddr) {
    let running = rdzv(["store"]).args(arguments).start();
    running.stdout.await_text("\n", 1);
    let line = running.stdout.so_far();
    let address = line.strip_prefix("listening on ").unwrap().trim_end();
    let address = address.parse().unwrap();
    (running, address)
}

#[test]
fn the_first_line_tells_where_it_listens() {
    let (running, address) = listening(&["--host", "127.0.0.1", "--port", "0"]);
    assert_ne!(address.port(), 0);
    TcpStream::connect(address).unwrap();
    running.signal(Signal::TERM);
    let ended = running.wait().expect(0);
    assert_eq!(ended.stdout, format!("listening on {address}\n"));
    assert_eq!(ended.stderr, "");
}

#[test]
fn an_interrupt_ends_it_cleanly_with_clients_connected() {
    let (running, address) = listening(&["--host", "127.0.0.1", "--port", "0"]);
    let _client = TcpStream::connect(address).unwrap();
    running.signal(Signal::INT);
    let ended = running.wait().expect(0);
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_port_in_use_is_one_sentence() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ended = rdzv(["store", "--host", "127.0.0.1", "--port", &port])
        .run()
        .expect(1);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(
        ended.stderr.starts_with("rdzv store: ") && ended.stderr.contains(&port),
        "{}",
        ended.stderr
    );
}
