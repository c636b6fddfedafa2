//! A piece of an arena.
#![expect(
    unsafe_code,
    reason = "slices of mapped memory can only be made from raw pointers"
)]

use std::slice;
use std::sync::Arc;

use bytes::Bytes;

use super::Shared;

/// Memory of an arena that nobody else uses. It is given back when it, or the bytes that it became, are
/// dropped.
#[derive(Debug)]
pub struct Block {
    pub(super) arena: Arc<Shared>,
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl Block {
    /// The bytes as they are now, and will stay.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block lies in the mapping, which lives as long as `self`; until `self` is
        // dropped nothing else is given the same place, no other process can write, and who writes
        // in this process has `self` for itself.
        unsafe { slice::from_raw_parts(self.arena.memory.start().add(self.offset), self.length) }
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. Borrowers read only what was frozen, and nobody has `self` any more
        // then.
        unsafe {
            slice::from_raw_parts_mut(self.arena.memory.start().add(self.offset), self.length)
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
