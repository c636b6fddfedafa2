//! Tests of the addresses of a server.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::thread;

use rdzv_store::{Limits, ServerOptions, StoreError, TcpStoreServer};

use crate::client::{Client, server};

#[test]
fn without_a_host_both_families_are_served() {
    let server = TcpStoreServer::start(ServerOptions::default()).unwrap();
    assert!(server.local_addr().ip().is_unspecified());
    Client::join(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port())));
    if server.local_addr().is_ipv6() {
        Client::join(SocketAddr::from((Ipv6Addr::LOCALHOST, server.port())));
    }
}

#[test]
fn with_a_host_exactly_that_is_bound() {
    for host in ["127.0.0.1", "localhost"] {
        let server = TcpStoreServer::start(ServerOptions {
            host: Some(host.to_owned()),
            ..ServerOptions::default()
        })
        .unwrap();
        assert!(server.local_addr().ip().is_loopback());
        Client::join(server.local_addr());
    }
}

#[test]
fn a_port_in_use_is_named() {
    let first = server(Limits::default());
    let error = TcpStoreServer::start(ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        port: first.port(),
        ..ServerOptions::default()
    })
    .unwrap_err();
    let text = error.to_string();
    assert!(
        text.to_lowercase().contains("address already in use"),
        "{text}"
    );
    assert!(text.contains(&first.port().to_string()), "{text}");
}

#[test]
fn a_socket_bound_by_somebody_else_is_adopted() {
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr().unwrap();
    let server = TcpStoreServer::start(ServerOptions {
        listeners: vec![bound],
        port: address.port(),
        ..ServerOptions::default()
    })
    .unwrap();
    assert_eq!(server.local_addr(), address);
    Client::join(address);
}

#[test]
fn an_adopted_socket_on_another_port_is_refused() {
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = bound.local_addr().unwrap().port();
    let other = if port == 1024 { 1025 } else { 1024 };
    let error = TcpStoreServer::start(ServerOptions {
        listeners: vec![bound],
        port: other,
        ..ServerOptions::default()
    })
    .unwrap_err();
    assert!(matches!(error, StoreError::Argument(_)));
    let text = error.to_string();
    assert!(
        text.contains(&format!(
            "is bound to port {port}, expected to be bound to port {other}"
        )),
        "{text}"
    );
}

#[test]
fn the_thread_has_a_name_and_ends_with_the_handle() {
    let server = server(Limits::default());
    let address = server.local_addr();
    let named = || {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .any(|name| name.trim() == "rdzv-store")
    };
    // A thread has the name of its parent until it runs.
    Client::join(address);
    assert!(named());
    thread::spawn(move || drop(server)).join().unwrap();
    let refused = std::net::TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}
