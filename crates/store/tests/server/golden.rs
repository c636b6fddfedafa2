//! The recorded exchanges of PyTorch's clients, over sockets.

use std::collections::BTreeMap;
use std::io::Write as _;

use rdzv_store::{Limits, TcpStoreServer};

use crate::client::{Client, server};
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
    server: TcpStoreServer,
    open: BTreeMap<String, Client>,
}

impl Clients {
    fn new() -> Self {
        Self {
            server: server(Limits::default()),
            open: BTreeMap::new(),
        }
    }
}

impl Server for Clients {
    fn open(&mut self, connection: &str) {
        let client = Client::connect(self.server.local_addr());
        self.open.insert(connection.to_owned(), client);
    }

    fn close(&mut self, connection: &str) {
        self.open.remove(connection);
    }

    fn send(&mut self, connection: &str, bytes: &[u8]) {
        if let Some(client) = self.open.get_mut(connection) {
            // The server may have closed already, which the recording expects.
            let _ = client.0.write_all(bytes);
        }
    }

    fn receive(&mut self, connection: &str, length: usize) -> Vec<u8> {
        self.open.get_mut(connection).unwrap().receive(length)
    }

    fn expect_close(&mut self, connection: &str) {
        let mut client = self.open.remove(connection).unwrap();
        assert_eq!(client.receive_to_end(), b"", "nothing but a close");
    }

    fn assert_quiet(&mut self) {
        for client in self.open.values_mut() {
            client.synchronize();
        }
    }
}
