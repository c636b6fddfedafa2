//! The question whether the process at an address coordinates.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::ensure;

/// Whether the one at an address answers as a coordinator does.
pub(super) fn coordinates(endpoint: SocketAddr) -> bool {
    const ANSWER: &[u8; 4] = b"Rdz1";
    ask(endpoint).is_ok_and(|answer| &answer == ANSWER)
}

/// Whether anybody answers there, coordinator or not.
pub(super) fn answers(endpoint: SocketAddr) -> bool {
    ask(endpoint).is_ok()
}

fn ask(endpoint: SocketAddr) -> anyhow::Result<[u8; 4]> {
    const LIMIT: Duration = Duration::from_secs(1);
    // The store's greeting, and its ping, with a number of which a coordinator knows the answer.
    const GREETING: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];
    const PING: [u8; 5] = [13, b'R', b'd', b'z', b'v'];
    let mut stream = TcpStream::connect_timeout(&endpoint, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(&[GREETING, PING].concat())?;
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    ensure!(answer != PING[1..], "a store that is no coordinator");
    Ok(answer)
}
