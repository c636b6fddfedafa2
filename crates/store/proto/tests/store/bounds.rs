//! Tests of the limits.
//!
//! One connection is closed with a reason, and memory stays bounded.

use std::time::Duration;

use rdzv_core::time::Mono;
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{CloseReason, Input};
use rdzv_store_proto::wire::StoreWireError;
use rdzv_store_proto::wire::request;

use crate::harness::Harness;

fn limited(change: impl FnOnce(&mut Limits)) -> Harness {
    let mut limits = Limits::default();
    change(&mut limits);
    Harness::new(limits)
}

#[test]
fn a_declared_giant_is_refused_before_its_body() {
    let mut server = limited(|_| {});
    let client = server.client();
    let mut head = Vec::new();
    request::set_head(&mut head, b"/k", 1 << 62);
    server.send(client, &head);
    assert!(matches!(
        server.closed[&client],
        CloseReason::Wire(StoreWireError::ValueTooLong { .. })
    ));
    assert_eq!(server.machine.stats().connections, 0);
}

#[test]
fn a_declared_large_value_costs_what_arrived() {
    let mut server = limited(|_| {});
    for _ in 0..100 {
        let client = server.client();
        let mut head = Vec::new();
        request::set_head(&mut head, b"/k", 8 << 20);
        head.resize(head.len() + 1000, 0);
        server.send(client, &head);
    }
    let memory = server.machine.stats().memory_bytes;
    assert!(
        memory < 100 * (80 << 10),
        "{memory} bytes for 100 begun values"
    );
}

#[test]
fn the_key_that_is_too_many_costs_its_writer_the_connection() {
    let mut server = limited(|limits| limits.max_keys = 3);
    let client = server.client();
    for key in ["/1", "/2", "/3", "/1"] {
        server.ask(client, |out| request::set(out, key.as_bytes(), b"v"));
    }
    assert!(server.closed.is_empty());
    server.ask(client, |out| request::add(out, b"/4", 1));
    assert_eq!(
        server.closed[&client],
        CloseReason::TooManyKeys { limit: 3 }
    );
    assert_eq!(server.machine.stats().keys, 3);
}

#[test]
fn memory_ends_at_its_limit_for_stored_values_and_for_queues() {
    let mut server = limited(|limits| limits.max_memory_bytes = 1 << 20);
    let value = vec![b'v'; 10_000];
    let client = server.client();
    let mut stored = 0;
    while server.closed.is_empty() && stored < 1000 {
        let key = format!("/{stored}");
        server.ask(client, |out| match stored % 3 {
            0 => request::set(out, key.as_bytes(), &value),
            1 => request::append(out, b"/growing", &value),
            _ => request::queue_push(out, b"/queue", &value),
        });
        stored += 1;
    }
    assert!(matches!(
        server.closed[&client],
        CloseReason::OverShare { .. }
    ));
    assert!(
        (7..=13).contains(&stored),
        "{stored} values of 10 kB in an eighth of 1 MiB"
    );
    assert!(server.machine.stats().memory_bytes <= 1 << 17);
    let other = server.client();
    assert_eq!(server.ask(other, request::get_num_keys).len(), 8);
}

#[test]
fn a_slow_reader_is_not_read_from_and_loses_nothing() {
    let mut server = limited(|limits| limits.max_unsent_bytes = 1000);
    let client = server.client();
    server.ask(client, |out| request::set(out, b"/k", &[7; 600]));
    server.stalled.push(client);
    let mut requests = Vec::new();
    for nonce in 0..10 {
        request::get(&mut requests, b"/k");
        request::ping(&mut requests, nonce);
    }
    server.send(client, &requests);
    assert!(server.paused[&client]);
    let unsent: usize = server.machine.unsent(client).map(<[u8]>::len).sum();
    assert!((1001..1620).contains(&unsent), "{unsent} bytes unsent");
    // The client reads them in small parts.
    let mut taken: Vec<u8> = Vec::new();
    while taken.len() < 10 * (608 + 4) {
        let some: Vec<u8> = server
            .machine
            .unsent(client)
            .flatten()
            .copied()
            .take(100)
            .collect();
        assert!(!some.is_empty(), "stuck after {} bytes", taken.len());
        taken.extend(&some);
        server.handle(Input::Sent(client, some.len()));
    }
    assert!(!server.paused[&client]);
    for (nonce, answer) in taken.chunks(608 + 4).enumerate() {
        assert_eq!(answer[608..], (nonce as u32).to_le_bytes());
    }
}

#[test]
fn stalled_readers_of_one_large_value_share_it() {
    let mut server = limited(|_| {});
    let writer = server.client();
    server.ask(writer, |out| request::set(out, b"/big", &vec![1; 4 << 20]));
    for _ in 0..500 {
        let reader = server.client();
        server.stalled.push(reader);
        server.ask(reader, |out| request::get(out, b"/big"));
    }
    let memory = server.machine.stats().memory_bytes;
    assert!(memory < (5 << 20), "{memory} bytes");
    server.ask(writer, |out| request::set(out, b"/big", b"small now"));
    assert!(
        server.machine.stats().memory_bytes > 4 << 20,
        "the readers still hold it"
    );
}

#[test]
fn a_connection_too_many_is_closed_and_the_others_are_not() {
    let mut server = limited(|limits| limits.max_connections = 2);
    let (one, two, three) = (server.client(), server.client(), server.connect());
    assert_eq!(
        server.closed[&three],
        CloseReason::TooManyConnections { limit: 2 }
    );
    server.leave(one);
    let four = server.client();
    assert!(!server.closed.contains_key(&two) && !server.closed.contains_key(&four));
}

#[test]
fn whoever_does_not_identify_itself_is_closed_in_time_and_others_are_not() {
    let mut server = limited(|limits| limits.validation_timeout = Duration::from_secs(5));
    let (silent, client) = (server.connect(), server.client());
    server.send(silent, &[0, 0xCE]);
    let at = |seconds| Mono::from_origin(Duration::from_secs(seconds));
    server.now.mono = at(4);
    let late = server.connect();
    server.handle(Input::Tick);
    assert!(server.closed.is_empty());
    server.now.mono = at(5);
    server.handle(Input::Tick);
    assert!(matches!(server.closed[&silent], CloseReason::Silent(_)));
    assert!(!server.closed.contains_key(&client) && !server.closed.contains_key(&late));
}

#[test]
fn a_purge_carries_out_what_was_held_back_first() {
    let mut server = limited(|limits| limits.max_unsent_bytes = 100);
    let (client, holder) = (server.client(), server.client());
    server.ask(holder, |out| request::set(out, b"/keep/a", b"1"));
    server.ask(client, |out| request::set(out, b"/k", &[7; 600]));
    server.stalled.push(client);
    let mut requests = Vec::new();
    request::get(&mut requests, b"/k");
    request::set(&mut requests, b"/late", b"1");
    request::queue_push(&mut requests, b"/late queue", b"1");
    server.send(client, &requests);
    assert!(server.paused[&client]);
    server.handle(Input::PreparePurge);
    server.handle(Input::Purge(&[b"/keep/"]));
    let stats = server.machine.stats();
    assert_eq!((stats.keys, stats.queues), (1, 0));
}
