//! What it costs to receive 64 MiB, by where they are received into and how.
//!
//! ```sh
//! cargo run --release -p rdzv-shm --example memory
//! ```
//!
//! The program starts itself again with the socket as standard input. `memory hold` shows its memory and
//! waits; `memory peek` reads what it is shown by two threads, and sends it back over the socket.

use std::env;
use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Instant;

use rdzv_shm::remote_read::{self, Claim, NONCE, Witness};
use rdzv_shm::{Pool, PoolOptions, pass};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LENGTH: usize = 64 << 20;

pub(crate) fn main() -> Result<()> {
    match env::args().nth(1).as_deref() {
        Some("hold") => hold(),
        Some("peek") => peek(),
        Some(other) => Err(format!("there is no part called {other}").into()),
        None => measure(),
    }
}

/// The socket that standard input is.
fn socket() -> Result<UnixStream> {
    Ok(UnixStream::from(
        std::io::stdin().as_fd().try_clone_to_owned()?,
    ))
}

fn number(socket: &mut UnixStream) -> Result<u64> {
    let mut bytes = [0; 8];
    socket.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn hold() -> Result<()> {
    let mut socket = socket()?;
    remote_read::permit(pass::peer(&socket)?.process)?;
    let witness = Witness::new()?;
    let bytes = vec![7_u8; LENGTH];
    let claim = witness.claim();
    socket.write_all(&claim.address.to_ne_bytes())?;
    socket.write_all(&claim.nonce)?;
    socket.write_all(&(bytes.as_ptr() as u64).to_ne_bytes())?;
    socket.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// First the claim of a witness, then where to read and how much.
fn peek() -> Result<()> {
    let mut socket = socket()?;
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

/// The median speed of a few times.
fn report(what: &str, mut once: impl FnMut() -> Result<()>) -> Result<()> {
    let mut took = Vec::new();
    for _ in 0..9 {
        let begun = Instant::now();
        once()?;
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    let speed = LENGTH as f64 / took[took.len() / 2].as_secs_f64() / 1e9;
    println!("{what:<60} {speed:>6.2} GB/s");
    Ok(())
}

fn measure() -> Result<()> {
    let source = vec![1_u8; LENGTH];
    report("copy into fresh memory", || {
        let mut fresh = Vec::with_capacity(LENGTH);
        fresh.extend_from_slice(&source);
        std::hint::black_box(&fresh);
        Ok(())
    })?;
    for huge_pages in [false, true] {
        let pages = if huge_pages { "2 MiB" } else { "4 KiB" };
        let pool = Pool::new(PoolOptions {
            huge_pages,
            ..PoolOptions::default()
        });
        report(
            &format!("copy into a new buffer of a pool, pages of {pages}"),
            || {
                pool.clear();
                pool.take(LENGTH).as_mut().copy_from_slice(&source);
                Ok(())
            },
        )?;
        report(
            &format!("copy into a used buffer of a pool, pages of {pages}"),
            || {
                pool.take(LENGTH).as_mut().copy_from_slice(&source);
                Ok(())
            },
        )?;
    }
    other_processes()
}

fn other_processes() -> Result<()> {
    let (mut socket, theirs) = UnixStream::pair()?;
    let mut process = Command::new(env::current_exe()?)
        .arg("hold")
        .stdin(OwnedFd::from(theirs))
        .spawn()?;
    let address = number(&mut socket)?;
    let mut nonce = [0; NONCE];
    socket.read_exact(&mut nonce)?;
    let begin = number(&mut socket)?;
    // Of a pair that was made here the peer is this process.
    let peer = pass::Peer {
        process: process.id(),
        ..pass::peer(&socket)?
    };
    remote_read::probe(&peer, &Claim { address, nonce })?;
    report("read another process into fresh memory", || {
        let mut fresh = vec![0; LENGTH];
        Ok(remote_read::read_by(1, peer.process, begin, &mut fresh)?)
    })?;
    let pool = Pool::default();
    for threads in [1, 2, 4] {
        report(
            &format!("read another process into a used buffer, {threads} threads"),
            || {
                let mut buffer = pool.take(LENGTH);
                Ok(remote_read::read_by(
                    threads,
                    peer.process,
                    begin,
                    buffer.as_mut(),
                )?)
            },
        )?;
    }
    drop(socket);
    process.wait()?;
    Ok(())
}
