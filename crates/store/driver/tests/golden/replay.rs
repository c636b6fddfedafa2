//! A server that replays the recorded server.
//!
//! It sends the recorded bytes, and requires the bytes of the recorded client.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rdzv_store_proto::wire::request;
use serde_json::Value;

use crate::recorded::bytes_of;

/// Time far beyond that of any test.
const LONG: Duration = Duration::from_secs(20);

pub(crate) struct Replay {
    listener: TcpListener,
    connections: HashMap<String, TcpStream>,
    /// Process id of the recorded client, which its PING sends.
    recorded_nonce: Option<[u8; 4]>,
}

impl Replay {
    pub(crate) fn new() -> Self {
        Self {
            listener: TcpListener::bind("127.0.0.1:0").unwrap(),
            connections: HashMap::new(),
            recorded_nonce: None,
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// Plays the server's part of an exchange.
    pub(crate) fn play(&mut self, exchange: &str, frames: &[Value]) {
        for frame in frames {
            let connection = frame["conn"].as_str().unwrap();
            match frame["event"].as_str() {
                Some("open") => {
                    let stream = self.listener.accept().unwrap().0;
                    stream.set_read_timeout(Some(LONG)).unwrap();
                    stream.set_nodelay(true).unwrap();
                    self.connections.insert(connection.to_owned(), stream);
                }
                Some(event) => panic!("{exchange}: unexpected event {event}"),
                None => self.frame(exchange, connection, frame),
            }
        }
    }

    fn frame(&mut self, exchange: &str, connection: &str, frame: &Value) {
        let mut bytes = bytes_of(frame);
        let preamble = [0, 0xCE, 0xF7, 0x85, 0x3C, 0x0D];
        if bytes.starts_with(&preamble) {
            self.recorded_nonce = Some(bytes[6..10].try_into().unwrap());
        }
        if let Some(nonce) = self.recorded_nonce {
            let ours = request::NATIVE_PROBE.to_le_bytes();
            if bytes.starts_with(&preamble) {
                bytes[6..10].copy_from_slice(&ours);
            } else if bytes == nonce {
                bytes = ours.to_vec();
            }
        }
        let stream = self.connections.get_mut(connection).unwrap();
        if frame["dir"] == "s2c" {
            return stream.write_all(&bytes).unwrap();
        }
        let mut sent = vec![0; bytes.len()];
        stream
            .read_exact(&mut sent)
            .unwrap_or_else(|error| panic!("{exchange}: {error} instead of {bytes:x?}"));
        assert!(
            sent == bytes,
            "{exchange}: sent {sent:x?} instead of {bytes:x?}"
        );
    }

    /// Asserts that no client has sent anything more.
    pub(crate) fn assert_quiet(&mut self, exchange: &str) {
        for stream in self.connections.values_mut() {
            stream.set_nonblocking(true).unwrap();
            let mut more = [0; 64];
            let read = stream.read(&mut more);
            // 0 bytes: a clone that was closed.
            assert!(
                matches!(&read, Ok(0))
                    || matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
                "{exchange}: more was sent: {read:?} {more:x?}"
            );
            stream.set_nonblocking(false).unwrap();
        }
    }
}
