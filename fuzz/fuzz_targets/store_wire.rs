//! Hostile bytes at the store server.
//!
//! The server does not panic, uses bounded memory, and gives the same answers for any cuts.
//!
//! The first bytes of the input choose the cuts; the rest is what two clients send, in turns. The
//! second run sends everything of a turn in one piece.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{Input, Output, ServerMachine};
use rdzv_store_proto::wire::request;

const CLIENTS: usize = 2;

fuzz_target!(|data: &[u8]| {
    let Some((cuts, rest)) = data.split_at_checked(4) else {
        return;
    };
    // Turns: whose it is, and how many bytes.
    let mut turns = Vec::new();
    let mut rest = rest;
    while let Some((&head, tail)) = rest.split_first() {
        let length = usize::from(head >> 1).min(tail.len());
        let (bytes, tail) = tail.split_at(length);
        turns.push((usize::from(head & 1), bytes));
        rest = tail;
    }
    let whole = run(&turns, &[usize::MAX]);
    let sizes: Vec<usize> = cuts.iter().map(|cut| 1 + usize::from(*cut)).collect();
    assert_eq!(run(&turns, &sizes), whole);
});

/// Answers to the clients, `true` for closed ones, and the store's content.
type Observed = ([Vec<u8>; CLIENTS], [bool; CLIENTS], usize, usize);

fn run(turns: &[(usize, &[u8])], sizes: &[usize]) -> Observed {
    let limits = Limits {
        max_key_bytes: 64,
        max_value_bytes: 64 << 10,
        max_keys_per_request: 100,
        max_keys: 50,
        ..Limits::default()
    };
    let mut world = World {
        machine: ServerMachine::new(limits),
        received: Default::default(),
        closed: [false; CLIENTS],
    };
    let mut preamble = Vec::new();
    request::preamble(&mut preamble, 1);
    for client in 0..CLIENTS {
        world.handle(Input::Connected(id(client), None));
        world.handle(Input::Bytes(id(client), &preamble));
    }
    let mut sizes = sizes.iter().cycle();
    let mut sent = 0;
    for (client, bytes) in turns {
        let mut rest = *bytes;
        while !rest.is_empty() && !world.closed[*client] {
            let size = sizes
                .next()
                .map_or(rest.len(), |size| rest.len().min(*size));
            let (piece, tail) = rest.split_at(size);
            world.handle(Input::Bytes(id(*client), piece));
            rest = tail;
        }
        sent += bytes.len();
    }
    let stats = world.machine.stats();
    // Per connection, a growth step and buffers; per byte, at most an entry and a registration.
    let bound = CLIENTS * (200 << 10) + 64 * (64 << 10) + sent * 400;
    assert!(stats.memory_bytes <= bound, "{stats:?} after {sent} bytes");
    let waits_of_nobody = world.closed.iter().all(|closed| *closed) && stats.waits > 0;
    assert!(!waits_of_nobody, "{stats:?}");
    (world.received, world.closed, stats.keys, stats.queues)
}

struct World {
    machine: ServerMachine,
    received: [Vec<u8>; CLIENTS],
    closed: [bool; CLIENTS],
}

impl World {
    /// Hands an input to the machine, and carries out what that leads to.
    fn handle(&mut self, input: Input<'_>) {
        self.machine.handle(Now::default(), input);
        let mut outputs = Vec::new();
        while let Some(output) = self.machine.poll_output() {
            outputs.push(output);
        }
        for output in outputs {
            match output {
                Output::Flush(id) => {
                    let count = self.collect(id);
                    self.handle(Input::Sent(id, count));
                }
                Output::Close(id, _) => {
                    self.collect(id);
                    self.closed[id.0 as usize] = true;
                    self.handle(Input::Closed(id));
                }
                Output::Yield => self.handle(Input::Turn),
                Output::PauseReading(_) | Output::ResumeReading(_) | Output::Joined(..) => {}
            }
        }
    }

    fn collect(&mut self, id: ConnId) -> usize {
        let before = self.received[id.0 as usize].len();
        for part in self.machine.unsent(id) {
            self.received[id.0 as usize].extend_from_slice(part);
        }
        self.received[id.0 as usize].len() - before
    }
}

fn id(client: usize) -> ConnId {
    ConnId(client as u32)
}
