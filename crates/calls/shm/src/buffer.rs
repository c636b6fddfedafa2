//! Memory that one process writes and its peers read.
//!
//! A shared buffer is for bytes that many peers need, or that are not read in the order of writing.
//!
//! The memory does not describe its content. Readers must get the locations in another way, for
//! example through a ring. The writer must know when all reads have ended.
#![expect(
    unsafe_code,
    reason = "bytes that another process reads or writes can only be reached by raw pointers"
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::copy_nonoverlapping;

use crate::error::Result;
use crate::sealed::{self, Memory, Pages};

/// Memory of this process that peers can read, but never write.
#[derive(Debug)]
pub struct SharedBuffer {
    memory: Memory,
    file: OwnedFd,
    reserved: bool,
}

impl SharedBuffer {
    /// Creates a zeroed buffer of this many bytes.
    ///
    /// The buffer occupies no memory before [`SharedBuffer::reserve`].
    ///
    /// # Errors
    ///
    /// [`ShmError::System`](crate::ShmError::System) if the system refuses.
    pub fn new(length: usize) -> Result<Self> {
        let (file, memory) = sealed::create("rdzv-board", length, Pages::OnDemandWrittenHere)?;
        Ok(Self {
            memory,
            file,
            reserved: false,
        })
    }

    /// Reserves the memory from the system, once.
    ///
    /// Call this before the first write. Without the reservation, a write would end the process if
    /// the system has no memory left.
    ///
    /// # Errors
    ///
    /// [`ShmError::System`](crate::ShmError::System) if the system has no memory left.
    pub fn reserve(&mut self) -> Result<()> {
        if !self.reserved {
            sealed::reserve(&self.file, self.memory.len())?;
            self.reserved = true;
        }
        Ok(())
    }

    /// Returns the descriptor that peers need to read the buffer.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes bytes at an offset.
    ///
    /// # Panics
    ///
    /// Panics if the bytes go beyond the end, or if the memory was not reserved.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(
            self.reserved,
            "a shared buffer must be reserved before a write"
        );
        let to = within(&self.memory, offset, bytes.len());
        // SAFETY: `within` has compared the end with that of the mapping, which is writable and
        // lives as long as `self`. There is no reference into the mapping, so the two do not
        // overlap. If peers read at the same time, against the protocol, they get wrong bytes and
        // nothing worse.
        unsafe { copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

/// Buffer of a peer.
#[derive(Debug)]
pub struct PeerBuffer(Memory);

impl PeerBuffer {
    /// Opens the buffer of this many bytes that a peer passed.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`](crate::ShmError::Refused) if the descriptor is not sealed memory of
    /// that size; [`ShmError::System`](crate::ShmError::System) if the system cannot map it.
    pub fn open(descriptor: &OwnedFd, length: usize) -> Result<Self> {
        sealed::open_to_read(descriptor, length).map(Self)
    }

    /// Copies the bytes at an offset.
    ///
    /// # Panics
    ///
    /// Panics if the bytes go beyond the end.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = within(&self.0, offset, into.len());
        // SAFETY: `within` has compared the end with that of the mapping, which lives as long as
        // `self` and cannot shrink. There is no reference into the mapping, so the two do not
        // overlap. If the peer writes there against the protocol, the copied bytes are wrong, and
        // all values of bytes are valid.
        unsafe { copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }
}

/// Returns the address of an offset, after a check of the whole range.
fn within(memory: &Memory, offset: usize, length: usize) -> *mut u8 {
    let end = offset.checked_add(length);
    assert!(
        end.is_some_and(|end| end <= memory.len()),
        "{length} bytes at {offset} are not within the {} of the buffer",
        memory.len()
    );
    // SAFETY: the code above has compared the end with that of the mapping.
    unsafe { memory.as_mut_ptr().add(offset) }
}

#[cfg(test)]
mod tests {
    use rustix::io::dup;

    use super::*;

    fn pair(length: usize) -> (SharedBuffer, PeerBuffer) {
        let mut mine = SharedBuffer::new(length).unwrap();
        let theirs = PeerBuffer::open(&dup(mine.descriptor()).unwrap(), length).unwrap();
        mine.reserve().unwrap();
        (mine, theirs)
    }

    #[test]
    fn what_is_written_is_read_at_the_same_offset() {
        let (mut mine, theirs) = pair(8192);
        mine.write(5000, b"here");
        let mut bytes = [9; 6];
        theirs.read(4999, &mut bytes);
        assert_eq!(&bytes, b"\0here\0");
        theirs.read(8192, &mut []);
    }

    #[test]
    fn a_buffer_of_another_size_is_refused() {
        let mine = SharedBuffer::new(8192).unwrap();
        let passed = dup(mine.descriptor()).unwrap();
        let error = PeerBuffer::open(&passed, 4096).unwrap_err().to_string();
        assert!(error.contains("8192 bytes instead of 4096"), "{error}");
    }

    #[test]
    #[should_panic(expected = "2 bytes at 8191 are not within the 8192 of the buffer")]
    fn nothing_is_read_beyond_the_end() {
        pair(8192).1.read(8191, &mut [0; 2]);
    }

    #[test]
    #[should_panic(expected = "are not within the 8192 of the buffer")]
    fn nothing_is_written_beyond_the_end() {
        pair(8192).0.write(usize::MAX, &[0; 2]);
    }
}
