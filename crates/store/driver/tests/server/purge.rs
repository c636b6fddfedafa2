//! Tests of purging between attempts.

use rdzv_store::Limits;
use rdzv_store_proto::wire::request;

use crate::client::{Client, server};

#[test]
fn a_purge_keeps_the_prefixes_named_and_nothing_else() {
    let server = server(Limits::default());
    let mut client = Client::join(server.local_addr());
    client.send(|out| {
        for key in ["/keep/a", "/keeper", "/other", "init/"] {
            request::set(out, key.as_bytes(), b"v");
        }
        request::queue_push(out, b"/queue", b"v");
    });
    client.synchronize();
    server.purge(&["/keep/", "init/"]);
    assert_eq!(client.num_keys(), 2);
    assert_eq!(server.stats().queues, 0);
}

#[test]
fn what_was_sent_before_a_purge_does_not_appear_after_it() {
    let server = server(Limits::default());
    for round in 0..50 {
        // Writers send and end immediately, some of them before the server has accepted them.
        for writer in 0..4 {
            let mut client = Client::connect(server.local_addr());
            client.send(|out| {
                request::preamble(out, 1);
                for key in 0..100 {
                    let key = format!("/{round}/{writer}/{key}");
                    request::set(out, key.as_bytes(), &[b'v'; 500]);
                }
            });
        }
        server.purge(&[]);
        let mut reader = Client::join(server.local_addr());
        reader.synchronize();
        assert_eq!(reader.num_keys(), 0, "round {round}");
    }
}

#[test]
fn a_purge_reads_on_where_replies_are_not_taken() {
    let server = server(Limits {
        max_unsent_bytes: 10_000,
        ..Limits::default()
    });
    let mut client = Client::join(server.local_addr());
    client.send(|out| request::set(out, b"/big", &vec![1; 8 << 20]));
    client.synchronize();
    client.send(|out| {
        request::get(out, b"/big");
        request::get(out, b"/big");
        request::set(out, b"/late", b"v");
    });
    server.purge(&[]);
    assert_eq!(Client::join(server.local_addr()).num_keys(), 0);
    client.receive(2 * (8 + (8 << 20)));
    assert_eq!(client.num_keys(), 0);
}

#[test]
fn a_wait_survives_a_purge() {
    let server = server(Limits::default());
    let mut waiter = Client::join(server.local_addr());
    waiter.send(|out| request::wait(out, &["/k"]));
    server.purge(&[]);
    let mut writer = Client::join(server.local_addr());
    writer.send(|out| request::set(out, b"/k", b"v"));
    assert_eq!(waiter.receive(1), [0]);
}
