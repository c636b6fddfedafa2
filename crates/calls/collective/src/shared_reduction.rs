//! Reductions between ranks of one host, through their shared buffers.
//!
//! Each rank writes its values to its shared buffer, and the other ranks read them there.
//!
//! ```text
//!   for each piece, on rank r:
//!   1. offer     for each p ≠ r: writes its values of part p to its buffer, and notifies rank p
//!   2. combine   reads the values of part r of each other rank, in the order r-1, r-2, …
//!   3. publish   writes the finished part r to its buffer, and notifies the destinations
//!   4. take      at a destination, for each p ≠ r: reads part p from the buffer of rank p
//! ```
//!
//! Every value is written once, and read once by each rank that needs it, in two rounds. Around a
//! ring, a value would be written and read `2 (world size - 1)` times in sequence. A notification
//! is a message without a payload. A peer that does not share memory gets the values in that
//! message.
//!
//! A shared buffer is used in two halves, alternately for the pieces of all operations of the
//! group. B1: a rank writes to a half only after all other ranks have read the last piece there,
//! which was the piece before the previous one. The proof: each rank notifies every other rank of
//! the previous piece (in 1) after that read, and this rank has waited for the notification (in 2).

use zerocopy::IntoBytes;

use crate::element::{self, Element};
use crate::error::Result;
use crate::exchange::Scratch;
use crate::mesh::Mesh;
use crate::reduce_op::ReduceOp;
use crate::schedule::Parts;
use crate::shared::HALF;

/// Maximum number of ranks for this algorithm; more ranks use a ring.
///
/// The algorithm needs a connection between every two ranks.
pub(crate) const MOST_RANKS: u32 = 16;

/// Number of bytes to copy from a shared buffer before they are combined.
///
/// The bytes stay in the processor's nearest cache.
const CHUNK: usize = 16 * 1024;

/// Buffer to reduce in place: rank `n` finishes the `n`-th part.
pub(crate) struct Reduction<'a, T> {
    pub(crate) values: &'a mut [T],
    pub(crate) parts: &'a Parts,
    pub(crate) reduce: ReduceOp,
    /// Returns `true` for a rank that gets all finished parts.
    pub(crate) takes_all: &'a dyn Fn(u32) -> bool,
}

/// Layout of a piece in every shared buffer.
#[derive(Debug, Clone, Copy)]
struct Layout {
    half: usize,
    /// Maximum number of bytes of each part in a half.
    room: usize,
}

impl Layout {
    /// Creates the layout of half 0 or 1 for this number of ranks.
    fn new(half: usize, world_size: u32) -> Self {
        // Values of every size are aligned, and no two processors write to one cache line.
        let room = HALF / world_size as usize / 64 * 64;
        Self {
            half: half * HALF,
            room,
        }
    }

    fn of_part(self, part: u32) -> usize {
        self.half + part as usize * self.room
    }
}

impl<T: Element> Reduction<'_, T> {
    pub(crate) fn run(mut self, mesh: &mut Mesh, scratch: &mut Scratch) -> Result<()> {
        mesh.connect_all()?;
        let world_size = mesh.member.world_size;
        let most = Layout::new(0, world_size).room / size_of::<T>();
        for piece in 0..self.parts.longest().div_ceil(most) {
            let layout = Layout::new(mesh.next_half()?, world_size);
            let mut piece = Piece {
                of: &mut self,
                piece,
                most,
                layout,
            };
            piece.offer(mesh)?;
            piece.combine(mesh, scratch)?;
            piece.publish(mesh)?;
            piece.take(mesh)?;
        }
        mesh.flush(0)
    }
}

/// One piece of every part.
struct Piece<'a, 'b, T> {
    of: &'a mut Reduction<'b, T>,
    piece: usize,
    /// Maximum number of elements of each part.
    most: usize,
    layout: Layout,
}

impl<T: Element> Piece<'_, '_, T> {
    fn offer(&mut self, mesh: &mut Mesh) -> Result<()> {
        for peer in mesh.member.others() {
            let offset = self.layout.of_part(peer);
            let bytes = self.own(peer).as_bytes();
            if mesh.shares_buffer_with(peer) {
                mesh.write_shared(offset, bytes);
                mesh.post(peer, &[])?;
            } else {
                mesh.post(peer, &[bytes])?;
            }
        }
        Ok(())
    }

    fn combine(&mut self, mesh: &mut Mesh, scratch: &mut Scratch) -> Result<()> {
        let rank = mesh.member.rank;
        let (offset, reduce) = (self.layout.of_part(rank), self.of.reduce);
        for peer in mesh.member.others() {
            let own = self.own(rank);
            if !mesh.reads_buffer_of(peer) {
                let arrived = scratch.room(own.len());
                mesh.receive(peer, arrived.as_mut_bytes())?;
                element::combine(reduce, own, arrived, peer < rank);
                continue;
            }
            mesh.receive(peer, &mut [])?;
            let chunk = CHUNK / size_of::<T>();
            let mut offset = offset;
            for own in own.chunks_mut(chunk) {
                let arrived: &mut [T] = scratch.room(own.len());
                mesh.read_shared(peer, offset, arrived.as_mut_bytes());
                element::combine(reduce, own, arrived, peer < rank);
                offset += CHUNK;
            }
        }
        Ok(())
    }

    fn publish(&mut self, mesh: &mut Mesh) -> Result<()> {
        let rank = mesh.member.rank;
        let (takes_all, offset) = (self.of.takes_all, self.layout.of_part(rank));
        let bytes = self.own(rank).as_bytes();
        let mut is_written = false;
        for peer in mesh.member.others().filter(|peer| takes_all(*peer)) {
            if !mesh.shares_buffer_with(peer) {
                mesh.post(peer, &[bytes])?;
                continue;
            }
            if !is_written {
                mesh.write_shared(offset, bytes);
                is_written = true;
            }
            mesh.post(peer, &[])?;
        }
        Ok(())
    }

    fn take(&mut self, mesh: &mut Mesh) -> Result<()> {
        if !(self.of.takes_all)(mesh.member.rank) {
            return Ok(());
        }
        for peer in mesh.member.others() {
            let offset = self.layout.of_part(peer);
            let bytes = self.own(peer).as_mut_bytes();
            if !mesh.reads_buffer_of(peer) {
                mesh.receive(peer, bytes)?;
            } else {
                mesh.receive(peer, &mut [])?;
                mesh.read_shared(peer, offset, bytes);
            }
        }
        Ok(())
    }

    /// Returns the own values of a part.
    fn own(&mut self, part: u32) -> &mut [T] {
        let range = self.of.parts.piece(part, self.piece, self.most);
        &mut self.of.values[range]
    }
}
