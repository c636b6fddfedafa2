//! Tests of the interface for requests of rdzv.
//!
//! They cover what an extension is shown, and that a plain server ignores such requests.

use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{CloseReason, Extension, Reach};
use rdzv_store_proto::wire::StoreWireError;
use rdzv_store_proto::wire::request;

use crate::harness::Harness;

const PROBE: u32 = 0xABCD_0001;

/// Echoes requests to the connection whose number they name, and records calls.
#[derive(Debug, Default)]
struct Recorder {
    watches: bool,
    seen: Vec<String>,
}

impl Extension for Recorder {
    fn prefix(&self) -> &[u8] {
        b"/own."
    }

    fn probe(&self) -> (u32, u32) {
        (PROBE, !PROBE)
    }

    fn watches(&self) -> bool {
        self.watches
    }

    fn request(&mut self, _: Now, from: ConnId, opcode: u8, payload: &[u8], reach: &mut Reach<'_>) {
        self.watches = true;
        match payload {
            b"close" => reach.close(from, "it asked for it"),
            [to, rest @ ..] => {
                reach.send(ConnId(u32::from(*to)), &[&[opcode], rest].concat());
            }
            [] => {
                reach.send(from, self.seen.join(" ").as_bytes());
                self.seen.clear();
            }
        }
    }

    fn closed(&mut self, _: Now, id: ConnId, _: &mut Reach<'_>) {
        self.seen.push(format!("closed:{}", id.0));
    }

    fn before(&mut self, _: Now, key: &[u8], writes: bool, reach: &mut Reach<'_>) {
        let key_text = String::from_utf8_lossy(key);
        self.seen.push(format!("before:{key_text}:{writes}"));
        if !writes {
            reach.store(key, b"fresh");
        }
    }

    fn after(&mut self, _: Now, key: &[u8], reach: &mut Reach<'_>) {
        let value = String::from_utf8_lossy(reach.value(key).unwrap_or(b"-")).into_owned();
        self.seen
            .push(format!("after:{}={value}", String::from_utf8_lossy(key)));
    }

    fn deadline(&self) -> Option<Mono> {
        None
    }

    fn tick(&mut self, _: Now, _: &mut Reach<'_>) {}
}

fn extended() -> Harness {
    Harness::extended(Limits::default(), Box::new(Recorder::default()))
}

#[test]
fn a_request_reaches_the_extension_however_it_is_cut() {
    let mut bytes = Vec::new();
    request::extension(&mut bytes, 0x20, b"\x00hello");
    for cut in 0..bytes.len() {
        let mut world = extended();
        let client = world.client();
        world.send(client, &bytes[..cut]);
        assert!(world.take(client).is_empty());
        world.send(client, &bytes[cut..]);
        assert_eq!(world.take(client), b"\x20hello");
    }
}

#[test]
fn the_extension_may_send_to_another_connection() {
    let mut world = extended();
    let (one, two) = (world.client(), world.client());
    let answer = world.ask(one, |out| request::extension(out, 0x13, &[two.0 as u8, 9]));
    assert!(answer.is_empty());
    assert_eq!(world.take(two), [0x13, 9]);
}

#[test]
fn only_its_own_keys_are_shown_and_a_value_is_fresh_when_it_is_read() {
    let mut world = extended();
    let client = world.client();
    // The extension watches nothing before its first request.
    world.ask(client, |out| request::set(out, b"/own.a", b"0"));
    world.ask(client, |out| request::extension(out, 0x20, b""));
    world.ask(client, |out| request::set(out, b"/other", b"1"));
    let got = world.ask(client, |out| request::get(out, b"/own.a"));
    assert_eq!(&got[8..], b"fresh");
    world.ask(client, |out| {
        request::compare_set(out, b"/own.a", b"fresh", b"next");
    });
    let seen = world.ask(client, |out| request::extension(out, 0x20, b""));
    assert_eq!(
        String::from_utf8_lossy(&seen),
        "before:/own.a:false before:/own.a:true after:/own.a=next"
    );
}

#[test]
fn a_multi_set_is_shown_as_a_whole() {
    let mut world = extended();
    let client = world.client();
    world.ask(client, |out| request::extension(out, 0x20, b""));
    world.ask(client, |out| {
        request::multi_set(out, &[("/own.a", "1"), ("/other", "2"), ("/own.b", "3")]);
    });
    let seen = world.ask(client, |out| request::extension(out, 0x20, b""));
    assert_eq!(
        String::from_utf8_lossy(&seen),
        "before:/own.a:true before:/own.b:true after:/own.a=1 after:/own.b=3"
    );
}

#[test]
fn it_is_notified_of_connections_that_are_gone_and_may_end_one() {
    let mut world = extended();
    let (one, two) = (world.client(), world.client());
    world.leave(two);
    let seen = world.ask(one, |out| request::extension(out, 0x20, b""));
    assert_eq!(seen, format!("closed:{}", two.0).as_bytes());
    world.ask(one, |out| request::extension(out, 0x20, b"close"));
    assert_eq!(
        world.closed[&one],
        CloseReason::Extension("it asked for it".to_owned())
    );
}

#[test]
fn only_a_server_with_an_extension_answers_its_probe_differently() {
    let mut world = extended();
    let client = world.client();
    let answer = world.ask(client, |out| request::ping(out, PROBE));
    assert_eq!(answer, (!PROBE).to_le_bytes());
    let mut plain = Harness::new(Limits::default());
    let client = plain.client();
    let answer = plain.ask(client, |out| request::ping(out, PROBE));
    assert_eq!(answer, PROBE.to_le_bytes());
}

#[test]
fn without_an_extension_its_opcodes_are_unknown() {
    let mut plain = Harness::new(Limits::default());
    let client = plain.client();
    plain.send(client, &[0x20]);
    assert_eq!(
        plain.closed[&client],
        CloseReason::Wire(StoreWireError::UnknownOpcode(0x20))
    );
}

#[test]
fn a_request_that_is_too_long_is_refused_by_its_head() {
    let mut world = extended();
    let client = world.client();
    let mut head = vec![0x20];
    head.extend_from_slice(&(1_u64 << 40).to_le_bytes());
    world.send(client, &head);
    assert!(matches!(
        world.closed[&client],
        CloseReason::Wire(StoreWireError::ValueTooLong { .. })
    ));
}
