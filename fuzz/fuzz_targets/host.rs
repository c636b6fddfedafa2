//! Native wire of the rendezvous, from both sides.
//!
//! No operation makes a host panic. Every message that can be read can be written, and then reads
//! the same.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::coordinator::wire::{EventReader, Operation};
use rdzv_rendezvous_proto::coordinator::{Coordinator, Input, Note, Origin, Output};

fuzz_target!(|bytes: &[u8]| {
    let mut reader = EventReader::default();
    reader.feed(bytes);
    while let Ok(Some(event)) = reader.next_event() {
        let (mut written, mut again) = (Vec::new(), EventReader::default());
        event.write(&mut written);
        again.feed(&written);
        assert_eq!(again.next_event(), Ok(Some(event)));
    }
    operate(Coordinator::default(), false, bytes);
    let note = Note::new(1, Duration::from_secs(60));
    let host = Coordinator::restartable(Now::default(), note, Origin::default());
    operate(host, true, bytes);
});

/// Each request: connection, opcode, length, payload.
fn operate(mut host: Coordinator, restartable: bool, bytes: &[u8]) {
    let mut rest = bytes;
    while let [from, opcode, length, more @ ..] = rest {
        let (payload, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        let opcode = 0x20 + opcode % 9;
        if let Ok(operation) = Operation::read(opcode, payload) {
            let mut written = Vec::new();
            operation.write(&mut written);
            assert_eq!(Operation::read(opcode, &written[9..]), Ok(operation));
        }
        let from = ConnId(u32::from(from % 4));
        let request = Input::Request {
            from,
            opcode,
            payload,
        };
        handle(&mut host, request);
    }
    for id in 0..4 {
        handle(&mut host, Input::Closed(ConnId(id)));
    }
    // Agents may come back to one that is started again.
    assert!(restartable || !host.is_active());
}

fn handle(host: &mut Coordinator, input: Input<'_>) {
    host.handle(Now::default(), input);
    while let Some(key) = looks(host).pop() {
        let (key, value) = (&key[..], None);
        host.handle(Now::default(), Input::Found { key, value });
    }
}

fn looks(host: &mut Coordinator) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| host.poll_output())
        .filter_map(|output| match output {
            Output::Read(key) => Some(key),
            _ => None,
        })
        .collect()
}
