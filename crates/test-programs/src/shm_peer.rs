//! The other process of the `rdzv-shm` tests; its standard input is a socket.
//!
//! | argument | action |
//! |---|---|
//! | `echo` | accepts rings and sends all data back, until the socket ends |
//! | `sink` | accepts rings and reads all data, until the socket ends |
//! | `peek` | reads a claim, an address and a length; returns bytes of the other process |

use std::env;
use std::error::Error;
use std::io::{IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rdzv_shm::remote_read::{self, Claim, NONCE};
use rdzv_shm::{SharedLink, pair, pass};
use rustix::event::{PollFd, PollFlags, poll};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) fn main() -> Result<()> {
    let socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    match env::args().nth(1).as_deref() {
        Some("echo") => echo(socket),
        Some("sink") => sink(socket),
        Some("peek") => peek(socket),
        other => Err(format!("there is no part {other:?}").into()),
    }
}

/// Accepts the rings that the other process offers.
fn accepted(socket: &mut UnixStream) -> Result<SharedLink> {
    let mut message = [0; pair::MESSAGE];
    let (length, descriptors) = pass::receive(&socket, &mut message)?;
    assert_eq!(length, pair::MESSAGE, "an offer comes in one piece");
    let link = pair::accept(&message, descriptors)?;
    socket.write_all(b"y")?;
    Ok(link)
}

fn echo(mut socket: UnixStream) -> Result<()> {
    let mut link = accepted(&mut socket)?;
    let mut buffer = vec![0; 64 << 10];
    loop {
        let length = link.consumer.read(&mut buffer)?;
        let mut bytes = &buffer[..length];
        if length == 0 && link.consumer.prepare_to_sleep() {
            let more = sleep(link.consumer.doorbell(), &socket)?;
            link.consumer.awake();
            if !more {
                return Ok(());
            }
        }
        while !bytes.is_empty() {
            let written = link.producer.write(&[IoSlice::new(bytes)])?;
            bytes = &bytes[written..];
            if written == 0 && link.producer.prepare_to_sleep() {
                let more = sleep(link.producer.doorbell(), &socket)?;
                link.producer.awake();
                if !more {
                    return Ok(());
                }
            }
        }
    }
}

fn sink(mut socket: UnixStream) -> Result<()> {
    let mut link = accepted(&mut socket)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        if link.consumer.read(&mut buffer)? == 0 && link.consumer.prepare_to_sleep() {
            let more = sleep(link.consumer.doorbell(), &socket)?;
            link.consumer.awake();
            if !more {
                return Ok(());
            }
        }
    }
}

/// Waits until the doorbell rings (`true`) or the socket ends (`false`).
fn sleep(doorbell: impl AsFd, socket: &UnixStream) -> Result<bool> {
    let mut wait = [
        PollFd::new(&doorbell, PollFlags::IN),
        PollFd::new(socket, PollFlags::IN),
    ];
    match poll(&mut wait, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(wait[1].revents().is_empty())
}

fn peek(mut socket: UnixStream) -> Result<()> {
    let address = number(&mut socket)?;
    let mut nonce = [0; NONCE];
    socket.read_exact(&mut nonce)?;
    let (begin, length) = (number(&mut socket)?, number(&mut socket)?);
    let peer = pass::peer(&socket)?;
    remote_read::probe(&peer, &Claim { address, nonce })?;
    let mut into = vec![0; usize::try_from(length)?];
    remote_read::read_by(2, peer.process, begin, &mut into)?;
    socket.write_all(&into)?;
    Ok(())
}

fn number(socket: &mut UnixStream) -> Result<u64> {
    let mut bytes = [0; 8];
    socket.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
