//! Listener that treats every connection in one evil way, and counts its bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_ANSWER};

/// Number of bytes after which a client counts as one without a limit.
const ENDLESS: usize = 512 << 20;

/// Connection, seen from the endpoint.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    sent: usize,
    /// Maximum number of bytes that one connection has accepted.
    most: Arc<AtomicUsize>,
}

/// Purpose of a connection to a store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Store,
    Rendezvous,
}

/// Listens on a free port until the process ends.
///
/// Returns the port, and the maximum number of bytes that one connection has accepted.
pub(crate) fn listen(serve: fn(Peer)) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let most = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&most);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let peer = Peer {
                stream: stream.unwrap(),
                sent: 0,
                most: Arc::clone(&counter),
            };
            thread::spawn(move || serve(peer));
        }
    });
    (port, most)
}

impl Peer {
    /// Sends bytes; `false` if the client has disconnected.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        let mut bytes = bytes.as_ref();
        while !bytes.is_empty() {
            let Ok(count @ 1..) = self.stream.write(bytes) else {
                return false;
            };
            self.sent += count;
            self.most.fetch_max(self.sent, Ordering::Relaxed);
            bytes = &bytes[count..];
        }
        true
    }

    /// Sends the same bytes while the client accepts them.
    pub(crate) fn flood(&mut self, bytes: &[u8]) {
        let copies = bytes.repeat((64 << 10) / bytes.len() + 1);
        while self.sent < ENDLESS && self.send(&copies) {}
    }

    /// Sends one byte at a time.
    pub(crate) fn drip(&mut self, bytes: &[u8], pause: Duration) {
        for byte in bytes {
            if !self.send([*byte]) {
                return;
            }
            thread::sleep(pause);
        }
    }

    /// Sends nothing more until the client disconnects.
    pub(crate) fn hold(mut self) {
        let mut rest = [0; 4096];
        while let Ok(1..) = self.stream.read(&mut rest) {}
    }

    /// Resets the connection.
    pub(crate) fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        let _ = socket.set_linger(Some(Duration::ZERO));
    }

    pub(crate) fn read(&mut self, count: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Answers the preamble as a store does; `hosts` adds a rendezvous.
    pub(crate) fn greet(&mut self, hosts: bool) -> Option<Purpose> {
        let preamble = self.read(10)?;
        let nonce: [u8; 4] = preamble[6..].try_into().unwrap();
        if hosts && nonce == PROBE.to_le_bytes() {
            self.send(PROBE_ANSWER.to_le_bytes());
            return Some(Purpose::Rendezvous);
        }
        self.send(nonce);
        Some(Purpose::Store)
    }

    /// Greets, and answers the wait that comes before the read of `key`.
    pub(crate) fn release(&mut self) -> Option<()> {
        self.greet(false)?;
        self.read(1 + 8 + 8 + "/key".len())?;
        self.send([0]);
        self.read(1 + 8 + "/key".len())?;
        Some(())
    }

    /// Reads the head and the body of an HTTP request.
    pub(crate) fn http_request(&mut self) -> Option<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.read(1)?);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .and_then(|text| text.trim().parse().ok());
        self.read(length.unwrap_or(0))?;
        Some(())
    }

    /// Answers an HTTP request with a body that lasts as long as the connection.
    pub(crate) fn http_answer(&mut self, status: &str, headers: &str) -> Option<()> {
        self.http_request()?;
        let head = format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\n\r\n");
        self.send(head).then_some(())
    }
}
