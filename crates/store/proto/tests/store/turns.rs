//! Tests of turns.
//!
//! The requests of one connection delay the others by at most one turn.

use std::net::IpAddr;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{CloseReason, Input, Output, TURN_WORK};
use rdzv_store_proto::wire::request::{self, Opcode};

use crate::harness::Harness;

fn server() -> Harness {
    Harness::new(Limits::default())
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("/k/{number}")).collect()
}

/// Fills a store with keys.
fn fill(server: &mut Harness, id: ConnId, count: usize) {
    let pairs: Vec<(String, &str)> = names(count).into_iter().map(|key| (key, "")).collect();
    server.ask(id, |out| request::multi_set(out, &pairs));
}

#[test]
fn a_write_of_a_large_value_that_a_barrier_waits_on_does_not_read_it() {
    let mut server = server();
    let (waiter, writer) = (server.client(), server.client());
    server.ask(waiter, |out| request::barrier(out, b"/n", 1 << 40));
    server.ask(writer, |out| request::set(out, b"/n", &vec![b'0'; 8 << 20]));
    for _ in 0..1000 {
        server.ask(writer, |out| request::append(out, b"/n", b"0"));
    }
    assert!(server.machine.stats().longest_turn < TURN_WORK);
    // The value is not a number, whatever it begins with.
    server.ask(writer, |out| request::add(out, b"/n", 1));
    assert!(matches!(
        server.closed[&writer],
        CloseReason::NotANumber { .. }
    ));
    assert_eq!(server.take(waiter), b"");
}

#[test]
fn a_key_with_many_barriers_costs_a_write_nothing_for_those_that_stay() {
    let mut server = server();
    let writer = server.client();
    let waiters: Vec<ConnId> = (0..2000).map(|_| server.client()).collect();
    for (number, id) in waiters.iter().enumerate() {
        let size = if number < 10 { 5000 } else { 1 << 40 };
        server.ask(*id, |out| request::barrier(out, b"/b", size));
    }
    server.ask(writer, |out| request::set(out, b"/b", b"5000"));
    let woken = waiters.iter().filter(|id| server.take(**id) == [0]);
    assert_eq!(woken.count(), 10);
    assert_eq!(server.machine.stats().waits, 1990);
}

#[test]
fn a_pipeline_of_lists_is_cut_in_turns_and_others_are_served_in_between() {
    let mut server = server();
    let greedy = server.client();
    fill(&mut server, greedy, 400);
    let lists = 200;
    give(
        &mut server,
        Input::Bytes(greedy, &[Opcode::ListKeys.byte()].repeat(lists)),
    );
    let honest = ConnId(1);
    let (mut taken, mut turns) = (0, 0);
    loop {
        let mut yielded = false;
        while let Some(output) = server.machine.poll_output() {
            match output {
                // The reader is fast: it takes all available bytes.
                Output::Flush(id) => taken += take(&mut server, id),
                Output::Yield => yielded = true,
                _ => {}
            }
        }
        if !yielded {
            let unsent = take(&mut server, greedy);
            taken += unsent;
            if unsent == 0 {
                break;
            }
            continue;
        }
        // Another connection is served between any two turns of this one.
        if turns == 0 {
            give(&mut server, Input::Connected(honest, None));
            let mut preamble = Vec::new();
            request::preamble(&mut preamble, 7);
            give(&mut server, Input::Bytes(honest, &preamble));
            while server.machine.poll_output().is_some() {}
            assert_eq!(take(&mut server, honest), 4);
        }
        turns += 1;
        give(&mut server, Input::Turn);
    }
    let one: usize = 8 + names(400).iter().map(|key| 8 + key.len()).sum::<usize>();
    assert_eq!(taken, lists * one);
    assert!(turns > 50, "{turns} turns");
    assert!(server.machine.stats().longest_turn < 2 * TURN_WORK);
}

/// Passes an input to the machine, and leaves its outputs.
fn give(server: &mut Harness, input: Input<'_>) {
    server.machine.handle(server.now, input);
}

fn take(server: &mut Harness, id: ConnId) -> usize {
    let count = server.machine.unsent(id).map(<[u8]>::len).sum();
    give(server, Input::Sent(id, count));
    count
}

#[test]
fn no_connection_has_a_second_turn_before_every_other_has_had_one() {
    let mut server = server();
    let greedy: Vec<ConnId> = (0..10).map(|_| server.client()).collect();
    let asked = 20_000;
    // A request counts as 64 and its one byte.
    let one_turn = TURN_WORK.div_ceil(65);
    let mut answered = vec![0; greedy.len()];
    for id in &greedy {
        let counts = vec![Opcode::GetNumKeys.byte(); asked];
        give(&mut server, Input::Bytes(*id, &counts));
        while server.machine.poll_output().is_some() {}
    }
    while answered.iter().any(|count| *count < asked) {
        for (id, answered) in greedy.iter().zip(&mut answered) {
            let turn = take(&mut server, *id) / 8;
            assert_eq!(turn, one_turn.min(asked - *answered));
            *answered += turn;
            while server.machine.poll_output().is_some() {}
        }
        give(&mut server, Input::Turn);
        while server.machine.poll_output().is_some() {}
    }
}

#[test]
fn replies_are_bounded_before_they_are_made() {
    let mut server = server();
    let client = server.client();
    server.ask(client, |out| request::set(out, b"/k", &[7; 16_000]));
    let before = server.machine.stats().memory_bytes;
    server.stalled.push(client);
    let keys = vec!["/k"; 30_000];
    server.ask(client, |out| request::multi_get(out, &keys));
    let grown = server.machine.stats().peak_memory_bytes - before;
    // The request itself counts twice, with replies up to the bound, in a buffer that has doubled.
    assert!(grown < 6 << 20, "{grown} bytes for 30 000 replies of 16 kB");
    // The reader that resumes gets all of them.
    server.stalled.clear();
    let unsent = server.machine.unsent(client).map(<[u8]>::len).sum();
    server.handle(Input::Sent(client, unsent));
    let taken = unsent + server.take(client).len();
    assert_eq!(taken, keys.len() * 16_008);
}

#[test]
fn requests_about_many_keys_are_answered_right_in_steps() {
    let mut server = server();
    let (client, other) = (server.client(), server.client());
    let all = names(100_000);
    fill(&mut server, client, 100_000);
    assert_eq!(server.machine.stats().keys, all.len());
    assert_eq!(server.ask(client, |out| request::check(out, &all)), [0]);
    assert_eq!(server.ask(client, |out| request::wait(out, &all)), [0]);
    let values = server.ask(client, |out| request::multi_get(out, &all));
    assert_eq!(values, vec![0; 8 * all.len()]);
    let listed = server.ask(client, request::list_keys);
    let expected: usize = all.iter().map(|key| 8 + key.len()).sum();
    assert_eq!(listed.len(), 8 + expected);
    assert_eq!(listed[..8], (all.len() as i64).to_le_bytes());
    // A wait for one more key ends with that key, and a check of it fails.
    let more: Vec<String> = all.into_iter().chain(["/more".to_owned()]).collect();
    assert_eq!(server.ask(client, |out| request::check(out, &more)), [1]);
    assert_eq!(server.ask(client, |out| request::wait(out, &more)), b"");
    server.ask(other, |out| request::set(out, b"/more", b""));
    assert_eq!(server.take(client), [0]);
    assert!(server.machine.stats().longest_turn < 2 * TURN_WORK);
}

/// Returns the holder that is over its share.
fn holder(reason: &CloseReason) -> &'static str {
    match reason {
        CloseReason::OverShare { holder, .. } => holder,
        other => panic!("{other}"),
    }
}

#[test]
fn one_peer_that_fills_its_share_and_leaves_takes_nothing_from_others() {
    let memory = 64 << 20;
    let mut server = Harness::new(Limits {
        max_memory_bytes: memory,
        ..Limits::default()
    });
    let host = |number: u8| Some(IpAddr::from([10, 0, 0, number]));
    let fill_up = |number: u8, server: &mut Harness| {
        let id = server.client_from(host(number));
        for key in 0..1000 {
            let key = format!("/fill/{}/{key}", id.0);
            server.ask(id, |out| request::set(out, key.as_bytes(), &[7; 100_000]));
            if let Some(reason) = server.closed.remove(&id) {
                return reason;
            }
        }
        panic!("the server did not refuse it");
    };
    assert_eq!(holder(&fill_up(66, &mut server)), "its connection");
    assert!(server.machine.stats().memory_bytes <= memory / 8 + (1 << 20));
    fill_up(66, &mut server);
    assert_eq!(holder(&fill_up(66, &mut server)), "its address");
    assert!(server.machine.stats().memory_bytes <= memory / 4 + (1 << 20));
    // Another host continues to write.
    let honest = server.client_from(host(1));
    for key in 0..50 {
        server.ask(honest, |out| {
            request::set(out, format!("/h/{key}").as_bytes(), &[1; 100_000]);
        });
    }
    assert!(server.closed.is_empty());
    // Deleting the stored keys frees the share.
    let kept = [&b"/h/"[..]];
    server.handle(Input::PreparePurge);
    server.handle(Input::Purge(&kept));
    fill_up(66, &mut server);
}

#[test]
fn a_connection_has_a_bound_of_waits() {
    let mut server = Harness::new(Limits {
        max_waits: 3,
        ..Limits::default()
    });
    let client = server.client();
    for _ in 0..3 {
        server.ask(client, |out| request::wait(out, &["/never"]));
    }
    assert!(server.closed.is_empty());
    server.ask(client, |out| request::barrier(out, b"/b", 9));
    assert_eq!(
        server.closed[&client],
        CloseReason::TooManyWaits { limit: 3 }
    );
    assert_eq!(server.machine.stats().waits, 0);
}

#[test]
fn a_purge_ends_a_peer_that_does_not_take_the_replies_to_what_it_has_sent() {
    let mut server = Harness::new(Limits {
        max_unsent_bytes: 1000,
        ..Limits::default()
    });
    let client = server.client();
    server.ask(client, |out| request::set(out, b"/k", &[7; 10_000]));
    server.stalled.push(client);
    let mut requests = Vec::new();
    (0..2000).for_each(|_| request::get(&mut requests, b"/k"));
    server.send(client, &requests);
    assert!(server.paused[&client]);
    server.handle(Input::PreparePurge);
    server.handle(Input::Purge(&[]));
    assert!(matches!(server.closed[&client], CloseReason::Unread { .. }));
    assert!(server.machine.stats().peak_memory_bytes < 200_000);
}
