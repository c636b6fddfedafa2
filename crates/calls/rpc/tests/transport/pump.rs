//! Reading and writing as an agent does: until it would block, then sleeping.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use rdzv_rpc::transport::{ReadHalf, Readiness, WriteHalf};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::world::TEST_LIMIT;

/// Sleeps until the descriptor is ready.
pub(crate) fn wait(descriptor: impl AsFd, flags: PollFlags) {
    let limit = Timespec::try_from(TEST_LIMIT).unwrap();
    loop {
        let mut watched = [PollFd::new(&descriptor, flags)];
        match poll(&mut watched, Some(&limit)) {
            Ok(0) => panic!("nothing within {TEST_LIMIT:?}"),
            Ok(_) => return,
            Err(Errno::INTR) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads some bytes or the end, and waits for them.
pub(crate) fn read(half: &mut dyn ReadHalf, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match half.read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
        if half.prepare_to_sleep() {
            wait(half.descriptor(), PollFlags::IN);
            half.awake();
        }
    }
}

/// Reads until the end.
pub(crate) fn read_to_end(half: &mut dyn ReadHalf) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    let mut piece = vec![0; 50_000];
    loop {
        match read(half, &mut piece)? {
            0 => return Ok(all),
            count => all.extend_from_slice(&piece[..count]),
        }
    }
}

/// Writes some bytes, and waits for room.
pub(crate) fn write(half: &mut dyn WriteHalf, parts: &[IoSlice<'_>]) -> io::Result<usize> {
    loop {
        match half.write(parts) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
        if half.prepare_to_sleep() {
            let flags = match half.ready_when() {
                Readiness::Readable => PollFlags::IN,
                Readiness::Writable => PollFlags::OUT,
            };
            wait(half.descriptor(), flags);
            half.awake();
        }
    }
}

/// Writes all bytes.
pub(crate) fn write_all(half: &mut dyn WriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = write(half, &[IoSlice::new(bytes)])?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Reads until the buffer is full.
pub(crate) fn fill(half: &mut dyn ReadHalf, mut into: &mut [u8]) {
    while !into.is_empty() {
        let count = read(half, into).unwrap();
        assert!(count > 0, "closed with {} bytes missing", into.len());
        into = &mut into[count..];
    }
}
