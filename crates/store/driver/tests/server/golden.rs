//! The server over sockets, as the recorded clients see it.

use std::collections::BTreeMap;
use std::io::Write as _;

use rdzv_store::{Limits, TcpStoreServer};

use crate::client::{Client, server};
use crate::replay::Server;

pub(crate) struct Clients {
    server: TcpStoreServer,
    open: BTreeMap<String, Client>,
}

impl Server for Clients {
    fn start() -> Self {
        Self {
            server: server(Limits::default()),
            open: BTreeMap::new(),
        }
    }

    fn open(&mut self, connection: &str) {
        let client = Client::connect(self.server.local_addr());
        self.open.insert(connection.to_owned(), client);
    }

    fn close(&mut self, connection: &str) {
        self.open.remove(connection);
    }

    fn send(&mut self, connection: &str, bytes: &[u8]) {
        if let Some(client) = self.open.get_mut(connection) {
            // The server may have closed already, as the recording expects.
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
