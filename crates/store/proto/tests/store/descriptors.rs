//! Tests of scarce descriptors, and of the connections that make room.

use std::net::IpAddr;
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{CloseReason, Extension, Input, Reach};
use rdzv_store_proto::wire::request;

use crate::harness::Harness;

/// Marks a connection as an agent's when it sends a request with a payload.
#[derive(Debug)]
struct Agents;

impl Extension for Agents {
    fn prefix(&self) -> &[u8] {
        b"/own."
    }

    fn probe(&self) -> (u32, u32) {
        (1, 2)
    }

    fn watches(&self) -> bool {
        false
    }

    fn request(&mut self, _: Now, from: ConnId, _: u8, payload: &[u8], reach: &mut Reach<'_>) {
        if !payload.is_empty() {
            reach.join(from, None);
        }
        reach.send(from, b"!");
    }

    fn closed(&mut self, _: Now, _: ConnId, _: &mut Reach<'_>) {}

    fn before(&mut self, _: Now, _: &[u8], _: bool, _: &mut Reach<'_>) {}

    fn after(&mut self, _: Now, _: &[u8], _: &mut Reach<'_>) {}

    fn deadline(&self) -> Option<Mono> {
        None
    }

    fn tick(&mut self, _: Now, _: &mut Reach<'_>) {}
}

fn server() -> Harness {
    Harness::extended(Limits::default(), Box::new(Agents))
}

/// Sets the server's clock.
fn at(server: &mut Harness, millis: u64) {
    server.now.mono = Mono::from_origin(Duration::from_millis(millis));
}

fn join(server: &mut Harness, id: ConnId) {
    assert_eq!(
        server.ask(id, |out| request::extension(out, 0x20, b"me")),
        b"!"
    );
}

fn set(server: &mut Harness, id: ConnId) {
    server.ask(id, |out| request::set(out, b"/k", b"v"));
}

fn refused(server: &Harness) -> Vec<u32> {
    let stats = server.machine.stats();
    assert_eq!(stats.refused_for_descriptors, server.closed.len() as u64);
    assert!(
        server
            .closed
            .values()
            .all(|reason| *reason == CloseReason::OutOfDescriptors)
    );
    server.closed.keys().map(|id| id.0).collect()
}

#[test]
fn the_oldest_that_ask_for_nothing_make_room_and_nobody_else_does() {
    let mut server = server();
    let agent = server.client();
    join(&mut server, agent);
    let [first, second] = [server.client(), server.client()];
    let waiting = server.client();
    server.ask(waiting, |out| request::wait(out, &[b"/never"]));
    let worker = server.client();
    set(&mut server, worker);
    let silent = server.connect();
    at(&mut server, 1000);
    let fresh = server.connect();

    // A connection that has not even validated is closed first, then the older client.
    server.handle(Input::DescriptorsShort(2));
    assert_eq!(refused(&server), [first.0, silent.0]);
    server.handle(Input::DescriptorsShort(9));
    assert_eq!(refused(&server), [first.0, second.0, silent.0]);
    // A new connection may be about to send a request.
    at(&mut server, 2000);
    server.handle(Input::DescriptorsShort(9));
    assert_eq!(refused(&server), [first.0, second.0, silent.0, fresh.0]);
    assert_eq!(server.machine.stats().connections, 3);
    assert_eq!(server.machine.stats().waits, 1);
}

#[test]
fn a_ping_is_no_use_of_a_connection() {
    let mut server = server();
    let client = server.client();
    at(&mut server, 150);
    server.ask(client, |out| request::ping(out, 5));
    at(&mut server, 250);
    server.handle(Input::DescriptorsShort(1));
    assert_eq!(refused(&server), [client.0]);
}

#[test]
fn the_last_descriptors_are_for_agents() {
    let mut server = server();
    let known = server.client();
    set(&mut server, known);
    let [agent, asks, writes, later] = [(); 4].map(|()| server.client());
    server.handle(Input::DescriptorsShort(2));
    join(&mut server, agent);
    // A request of the extension without a join makes no agent.
    server.ask(asks, |out| request::extension(out, 0x20, b""));
    set(&mut server, known);
    assert_eq!(refused(&server), [asks.0]);
    set(&mut server, writes);
    assert_eq!(refused(&server), [asks.0, writes.0]);
    // The two refused connections have left room.
    set(&mut server, later);
    assert_eq!(refused(&server), [asks.0, writes.0]);
    assert_eq!(server.machine.stats().connections, 3);
}

#[test]
fn one_that_requests_something_replaces_one_that_does_not() {
    let mut server = server();
    let idle = server.client();
    server.handle(Input::DescriptorsShort(1));
    // The connection is too new.
    assert!(server.closed.is_empty());
    at(&mut server, 1000);
    for _ in 0..2 {
        let worker = server.client();
        set(&mut server, worker);
        assert_eq!(refused(&server), [idle.0]);
    }
}

#[test]
fn connections_that_come_and_go_leave_nothing_behind_an_idle_one() {
    let mut server = server();
    let idle = server.client();
    for _ in 0..10_000 {
        let client = server.client();
        set(&mut server, client);
        server.leave(client);
    }
    at(&mut server, 1000);
    server.handle(Input::DescriptorsShort(1));
    assert_eq!(refused(&server), [idle.0]);
}

#[test]
fn addresses_are_counted_by_their_connections() {
    let mut server = server();
    for (address, connections) in [("10.0.0.1", 2), ("2001:db8::7", 3), ("10.0.0.2", 1)] {
        let address: IpAddr = address.parse().unwrap();
        for _ in 0..connections {
            server.client_from(Some(address));
        }
    }
    let gone = server.client_from(Some("10.0.0.3".parse().unwrap()));
    server.leave(gone);
    let expected = [("2001:db8::", 3), ("10.0.0.1", 2)];
    let expected = expected.map(|(address, count)| (Some(address.parse().unwrap()), count));
    assert_eq!(server.machine.busiest_addresses(2), expected);
    assert_eq!(server.machine.busiest_addresses(9).len(), 3);
}
