//! Tests of the waits that are woken, and of the time of waking.

use rdzv_core::ident::ConnId;
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::wire::request;

use crate::harness::Harness;

const WOKEN: &[u8] = &[0];
const CANCELED: &[u8] = &[1];
const NOTHING: &[u8] = &[];

fn server() -> Harness {
    Harness::new(Limits::default())
}

fn wait(server: &mut Harness, id: ConnId, keys: &[&str]) -> Vec<u8> {
    server.ask(id, |out| request::wait(out, keys))
}

fn push(server: &mut Harness, id: ConnId, name: &str) {
    server.ask(id, |out| {
        request::queue_push(out, name.as_bytes(), b"entry");
    });
}

fn pop(server: &mut Harness, id: ConnId, name: &str) -> Vec<u8> {
    server.ask(id, |out| request::queue_pop(out, name.as_bytes()))
}

#[test]
fn a_push_wakes_one_waiter_and_no_later_wait_of_it() {
    let mut server = server();
    let (first, second, pusher) = (server.client(), server.client(), server.client());
    assert_eq!(wait(&mut server, first, &["/q"]), NOTHING);
    assert_eq!(wait(&mut server, second, &["/q"]), NOTHING);
    push(&mut server, pusher, "/q");
    assert_eq!(server.take(first), WOKEN);
    assert_eq!(server.take(second), NOTHING);
    assert_eq!(pop(&mut server, first, "/q")[..8], 1_i64.to_le_bytes());
    assert_eq!(wait(&mut server, first, &["/other"]), NOTHING);
    push(&mut server, pusher, "/q");
    assert_eq!(server.take(first), NOTHING);
    assert_eq!(server.take(second), WOKEN);
}

#[test]
fn an_entry_is_offered_to_the_next_when_the_first_does_not_come_for_it() {
    let mut server = server();
    let (first, second, third) = (server.client(), server.client(), server.client());
    let pusher = server.client();
    for id in [first, second, third] {
        wait(&mut server, id, &["/q"]);
    }
    push(&mut server, pusher, "/q");
    assert_eq!(server.take(first), WOKEN);
    server.leave(first);
    assert_eq!(server.take(second), WOKEN, "the first has left");
    server.ask(second, |out| request::ping(out, 1));
    assert_eq!(server.take(third), WOKEN, "the second does something else");
    assert_eq!(pop(&mut server, third, "/q")[..8], 1_i64.to_le_bytes());
}

#[test]
fn as_many_are_woken_as_there_are_entries() {
    let mut server = server();
    let waiters: Vec<ConnId> = (0..4).map(|_| server.client()).collect();
    let pusher = server.client();
    for &id in &waiters {
        wait(&mut server, id, &["/q"]);
    }
    push(&mut server, pusher, "/q");
    push(&mut server, pusher, "/q");
    let woken: Vec<bool> = waiters.iter().map(|&id| server.take(id) == WOKEN).collect();
    assert_eq!(woken, [true, true, false, false]);
}

#[test]
fn a_wait_on_a_key_and_a_queue_that_is_there_ends_with_the_key() {
    let mut server = server();
    let (waiter, other) = (server.client(), server.client());
    push(&mut server, other, "/q");
    assert_eq!(wait(&mut server, waiter, &["/q", "/k"]), NOTHING);
    server.ask(other, |out| request::set(out, b"/k", b"v"));
    assert_eq!(server.take(waiter), WOKEN);
}

#[test]
fn a_failed_compare_set_wakes_nobody_and_a_successful_one_everybody() {
    let mut server = server();
    let (waiter, other) = (server.client(), server.client());
    wait(&mut server, waiter, &["/k"]);
    server.ask(other, |out| request::compare_set(out, b"/k", b"x", b"y"));
    assert_eq!(server.take(waiter), NOTHING);
    server.ask(other, |out| request::compare_set(out, b"/k", b"", b"y"));
    assert_eq!(server.take(waiter), WOKEN);
}

#[test]
fn after_a_cancellation_nothing_comes() {
    let mut server = server();
    let (waiter, other) = (server.client(), server.client());
    wait(&mut server, waiter, &["/k", "/l"]);
    assert_eq!(server.ask(waiter, request::cancel_wait), CANCELED);
    server.ask(other, |out| {
        request::multi_set(out, &[("/k", "1"), ("/l", "2")]);
    });
    assert_eq!(server.take(waiter), NOTHING);
    assert_eq!(server.machine.stats().waits, 0);
}

#[test]
fn a_connection_that_fulfils_its_own_wait_is_answered_in_order() {
    let mut server = server();
    let client = server.client();
    let mut both = Vec::new();
    request::wait(&mut both, &["/n"]);
    request::add(&mut both, b"/n", 5);
    server.send(client, &both);
    assert_eq!(
        server.take(client),
        [&[0][..], &5_i64.to_le_bytes()].concat()
    );
}

#[test]
fn a_value_is_sent_at_once_if_it_is_there_and_waited_for_otherwise() {
    let mut server = server();
    let (reader, writer) = (server.client(), server.client());
    let get = |server: &mut Harness| server.ask(reader, |out| request::get_when_there(out, b"/k"));
    assert_eq!(get(&mut server), NOTHING);
    server.ask(writer, |out| request::set(out, b"/k", b"value"));
    assert_eq!(server.take(reader), WOKEN);
    assert_eq!(get(&mut server), b"\x02\x05\0\0\0\0\0\0\0value");
    server.ask(writer, |out| request::delete_key(out, b"/k"));
    assert_eq!(get(&mut server), NOTHING);
    assert_eq!(server.ask(reader, request::cancel_wait), CANCELED);
    // As in PyTorch, an entry of a queue ends the wait and is not a value.
    push(&mut server, writer, "/k");
    assert_eq!(get(&mut server), WOKEN);
    assert_eq!(server.machine.stats().waits, 0);
}

#[test]
fn a_server_of_ours_answers_its_probe_in_its_own_way() {
    let mut server = server();
    let client = server.client();
    let answer = server.ask(client, |out| request::ping(out, request::NATIVE_PROBE));
    assert_eq!(answer, request::NATIVE_ANSWER.to_le_bytes());
}

#[test]
fn a_barrier_releases_all_with_the_last_and_only_then() {
    let mut server = server();
    let members: Vec<ConnId> = (0..3).map(|_| server.client()).collect();
    let watcher = server.client();
    wait(&mut server, watcher, &["/b"]);
    let enter = |server: &mut Harness, id| server.ask(id, |out| request::barrier(out, b"/b", 3));
    assert_eq!(enter(&mut server, members[0]), NOTHING);
    assert_eq!(
        server.take(watcher),
        WOKEN,
        "the key is there from the first arrival on"
    );
    assert_eq!(enter(&mut server, members[1]), NOTHING);
    assert_eq!(enter(&mut server, members[2]), WOKEN);
    assert_eq!(server.take(members[0]), WOKEN);
    assert_eq!(server.take(members[1]), WOKEN);
}

#[test]
fn a_disconnected_waiter_leaves_nothing_behind() {
    let mut server = server();
    // The table of connections keeps its size.
    let visitor = server.client();
    server.leave(visitor);
    let before = server.machine.stats();
    let waiter = server.client();
    let keys: Vec<String> = (0..1000).map(|index| format!("/k{index}")).collect();
    assert_eq!(server.ask(waiter, |out| request::wait(out, &keys)), NOTHING);
    assert!(server.machine.stats().memory_bytes > before.memory_bytes + 10_000);
    server.leave(waiter);
    let after = server.machine.stats();
    assert_eq!((after.waits, after.memory_bytes), (0, before.memory_bytes));
}

#[test]
fn a_multi_set_in_pieces_is_seen_whole_or_not_at_all() {
    let mut server = server();
    let (writer, waiter) = (server.client(), server.client());
    wait(&mut server, waiter, &["/a"]);
    let mut bytes = Vec::new();
    request::multi_set(&mut bytes, &[("/a", "1"), ("/b", "2")]);
    let (most, last) = bytes.split_at(bytes.len() - 1);
    for byte in most {
        server.send(writer, &[*byte]);
    }
    assert_eq!(server.take(waiter), NOTHING);
    assert_eq!(server.machine.stats().keys, 0);
    server.send(writer, last);
    assert_eq!(server.take(waiter), WOKEN);
    assert_eq!(server.machine.stats().keys, 2);
}
