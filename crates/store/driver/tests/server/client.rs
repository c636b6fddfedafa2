//! A client that sends exactly the given bytes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rdzv_store::{Limits, ServerOptions, TcpStoreServer};
use rdzv_store_proto::wire::request;

/// Time far beyond that of any test.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) fn server(limits: Limits) -> TcpStoreServer {
    TcpStoreServer::start(ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        limits,
        ..ServerOptions::default()
    })
    .unwrap()
}

pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    /// Connects and sends nothing.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// Connects and is validated.
    pub(crate) fn join(address: SocketAddr) -> Self {
        let mut client = Self::connect(address);
        client.send(|out| request::preamble(out, 9));
        assert_eq!(client.receive(4), 9_u32.to_le_bytes());
        client
    }

    pub(crate) fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.0.write_all(&bytes).unwrap();
    }

    pub(crate) fn receive(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Checks that the server has executed and answered everything.
    /// No answer may be left that the test has not received.
    pub(crate) fn synchronize(&mut self) {
        self.send(|out| request::ping(out, 0xABCD));
        assert_eq!(self.receive(4), 0xABCD_u32.to_le_bytes());
    }

    pub(crate) fn num_keys(&mut self) -> u64 {
        self.send(request::get_num_keys);
        u64::from_le_bytes(self.receive(8).try_into().unwrap())
    }

    /// Returns all bytes up to the server's close.
    pub(crate) fn receive_to_end(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.0.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("{error} instead of a close"),
        }
        bytes
    }
}
