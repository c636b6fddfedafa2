//! The server machine, as the recorded clients see it.

use std::collections::BTreeMap;

use rdzv_core::ident::ConnId;
use rdzv_store_proto::limits::Limits;

use crate::harness::Harness;
use crate::replay::Server;

pub(crate) struct Clients {
    server: Harness,
    named: BTreeMap<String, ConnId>,
}

impl Server for Clients {
    fn start() -> Self {
        Self {
            server: Harness::new(Limits::default()),
            named: BTreeMap::new(),
        }
    }

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
