//! Test of another process that reads memory of this one.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use rdzv_shm::remote_read::{Witness, permit};

/// Returns the result of `shm_peer peek` for these bytes.
///
/// `flip` makes the claimed nonce wrong.
fn peeked(bytes: &[u8], flip: u8) -> (Vec<u8>, String) {
    let (mut socket, theirs) = UnixStream::pair().unwrap();
    let peer = Command::new(rdzv_testing::program("shm_peer"))
        .arg("peek")
        .stdin(OwnedFd::from(theirs))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    permit(peer.id()).unwrap();
    let witness = Witness::new().unwrap();
    let mut claim = witness.claim();
    claim.nonce[0] ^= flip;
    socket.write_all(&claim.address.to_ne_bytes()).unwrap();
    socket.write_all(&claim.nonce).unwrap();
    let location = [bytes.as_ptr() as u64, bytes.len() as u64];
    for number in location {
        socket.write_all(&number.to_ne_bytes()).unwrap();
    }
    let mut read = Vec::new();
    socket.read_to_end(&mut read).unwrap();
    let output = peer.wait_with_output().unwrap();
    (read, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn another_process_reads_what_it_is_shown_and_nothing_else() {
    let bytes: Vec<u8> = (0..12_345_678_u32)
        .map(|at| (at ^ (at >> 11)) as u8)
        .collect();
    let (read, said) = peeked(&bytes, 0);
    assert_eq!(said, "");
    assert!(read == bytes, "{} of {} bytes", read.len(), bytes.len());
    let (read, said) = peeked(b"secret", 1);
    assert!(said.contains("WrongProcess"), "{said}");
    assert_eq!(read, b"");
}
