//! The recorded exchanges of PyTorch's clients, byte for byte.

use std::collections::BTreeMap;

use rdzv_core::ident::ConnId;
use rdzv_store_proto::limits::Limits;

use crate::harness::Harness;
use crate::replay::{Server, play};

#[test]
fn every_basic_operation_is_answered_as_recorded() {
    assert_eq!(play("libuv/core", &mut Clients::new()), 71);
}

#[test]
fn blocking_operations_are_answered_as_recorded() {
    assert_eq!(play("libuv/two-clients", &mut Clients::new()), 16);
}

#[test]
fn joining_is_answered_as_recorded() {
    assert_eq!(play("libuv/init", &mut Clients::new()), 3);
}

#[test]
fn bad_input_is_answered_as_recorded_or_better() {
    assert_eq!(play("libuv/malformed", &mut Clients::new()), 25);
}

struct Clients {
    server: Harness,
    named: BTreeMap<String, ConnId>,
}

impl Clients {
    fn new() -> Self {
        Self {
            server: Harness::new(Limits::default()),
            named: BTreeMap::new(),
        }
    }
}

impl Server for Clients {
    fn open(&mut self, connection: &str) {
        let id = self.server.connect();
        self.named.insert(connection.to_owned(), id);
    }

    fn close(&mut self, connection: &str) {
        let id = self.named.remove(connection).unwrap();
        self.server.leave(id);
    }

    fn send(&mut self, connection: &str, bytes: &[u8]) {
        self.server.send(self.named[connection], bytes);
    }

    fn receive(&mut self, connection: &str, length: usize) -> Vec<u8> {
        let received = self.server.received.get_mut(&self.named[connection]);
        let received = received.expect("an answer");
        assert!(
            received.len() >= length,
            "{received:02x?}, of {length} bytes"
        );
        received.drain(..length).collect()
    }

    fn expect_close(&mut self, connection: &str) {
        assert!(self.server.closed.contains_key(&self.named[connection]));
    }

    fn assert_quiet(&mut self) {
        for (id, received) in &self.server.received {
            assert!(received.is_empty(), "{id:?} received {received:02x?} more");
        }
    }
}
