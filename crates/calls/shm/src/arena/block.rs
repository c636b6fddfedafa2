//! Blocks of an arena.
#![expect(
    unsafe_code,
    reason = "slices of mapped memory can only be made from raw pointers"
)]

use std::slice;
use std::sync::Arc;

use bytes::Bytes;

use super::Shared;

/// Memory of an arena in exclusive use.
///
/// The memory is free once the block, or the bytes made from it, are dropped and no lease is left.
#[derive(Debug)]
pub struct Block {
    pub(super) arena: Arc<Shared>,
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl Block {
    /// Returns the offset of the block in its arena.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Converts the block to bytes, which never change.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block is in the mapping, which lives as long as `self`. Until `self` is
        // dropped, no other block gets the same memory. No other process can write, and a writer in
        // this process has exclusive access to `self`.
        unsafe {
            slice::from_raw_parts(self.arena.memory.as_mut_ptr().add(self.offset), self.length)
        }
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. Borrowers read only frozen bytes, and after the freeze no code has
        // `self`.
        unsafe {
            slice::from_raw_parts_mut(self.arena.memory.as_mut_ptr().add(self.offset), self.length)
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.blocks.lock().release(self.offset);
    }
}

impl From<Block> for Bytes {
    fn from(block: Block) -> Self {
        block.freeze()
    }
}
