//! Reductions between ranks of one host: each writes its values in its shared buffer, where the
//! others read them.
//!
//! ```text
//!   for each piece        rank r
//!   1. offer              writes what it has of part p in its shared buffer, and tells rank p    for each p ≠ r
//!   2. combine            reads what each of the others has of part r, in the order of r-1, r-2, …
//!   3. publish            writes the finished part r in its shared buffer, and tells all destinations
//!   4. take               reads part p from the shared buffer of rank p                          for each p ≠ r
//! ```
//!
//! Every value is written once and read once by whoever needs it, in two rounds, where around a
//! ring it is written and read `2 (world size - 1)` times one after the other. To tell is to send a
//! message without a payload; a peer that does not share memory gets the values in it.
//!
//! A shared buffer is used in two halves, one for each piece in turns, over all operations of the
//! group. B1: who writes into a half has heard from every rank that it has read all it needs of the
//! piece before the last, which lay there. For every rank tells every other one of the last piece
//! (in 1) after that, and this rank has waited for it (in 2).

use zerocopy::IntoBytes;

use crate::element::{self, Element};
use crate::error::Result;
use crate::exchange::Scratch;
use crate::mesh::Mesh;
use crate::reduce_op::ReduceOp;
use crate::schedule::Parts;
use crate::shared::HALF;

/// With more ranks than this, values go around a ring: every rank has a connection to every other
/// one.
pub(crate) const MOST_RANKS: u32 = 16;

/// Number of bytes that are copied from a shared buffer before they are combined: they stay in the
/// processor's nearest cache.
const CHUNK: usize = 16 * 1024;

/// A buffer that is reduced in place: rank `n` finishes the `n`-th part.
pub(crate) struct Reduction<'a, T> {
    pub(crate) values: &'a mut [T],
    pub(crate) parts: &'a Parts,
    pub(crate) reduce: ReduceOp,
    /// `true` for a rank that gets the finished parts of the others.
    pub(crate) takes_all: &'a dyn Fn(u32) -> bool,
}

/// Where a piece lies on all shared buffers.
#[derive(Debug, Clone, Copy)]
struct Layout {
    /// Where the half begins.
    half: usize,
    /// Number of bytes of each part that a half holds.
    room: usize,
}

impl Layout {
    /// Half 0 or 1 of a shared buffer for so many ranks.
    fn new(half: usize, world_size: u32) -> Self {
        // Values of every size stand aligned, and no two processors write into one line of a cache.
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
    /// Runs it.
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
    /// Number of elements of each part.
    most: usize,
    layout: Layout,
}

impl<T: Element> Piece<'_, '_, T> {
    fn offer(&mut self, mesh: &mut Mesh) -> Result<()> {
        for peer in mesh.member.others() {
            let place = self.layout.of_part(peer);
            let bytes = self.own(peer).as_bytes();
            if mesh.shares_buffer_with(peer) {
                mesh.write_shared(place, bytes);
                mesh.post(peer, &[])?;
            } else {
                mesh.post(peer, &[bytes])?;
            }
        }
        Ok(())
    }

    fn combine(&mut self, mesh: &mut Mesh, scratch: &mut Scratch) -> Result<()> {
        let rank = mesh.member.rank;
        let (place, reduce) = (self.layout.of_part(rank), self.of.reduce);
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
            let mut place = place;
            for own in own.chunks_mut(chunk) {
                let arrived: &mut [T] = scratch.room(own.len());
                mesh.read_shared(peer, place, arrived.as_mut_bytes());
                element::combine(reduce, own, arrived, peer < rank);
                place += CHUNK;
            }
        }
        Ok(())
    }

    fn publish(&mut self, mesh: &mut Mesh) -> Result<()> {
        let rank = mesh.member.rank;
        let (takes_all, place) = (self.of.takes_all, self.layout.of_part(rank));
        let bytes = self.own(rank).as_bytes();
        let mut is_written = false;
        for peer in mesh.member.others().filter(|peer| takes_all(*peer)) {
            if !mesh.shares_buffer_with(peer) {
                mesh.post(peer, &[bytes])?;
                continue;
            }
            if !is_written {
                mesh.write_shared(place, bytes);
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
            let place = self.layout.of_part(peer);
            let bytes = self.own(peer).as_mut_bytes();
            if !mesh.reads_buffer_of(peer) {
                mesh.receive(peer, bytes)?;
            } else {
                mesh.receive(peer, &mut [])?;
                mesh.read_shared(peer, place, bytes);
            }
        }
        Ok(())
    }

    /// The own values of a part.
    fn own(&mut self, part: u32) -> &mut [T] {
        let range = self.of.parts.piece(part, self.piece, self.most);
        &mut self.of.values[range]
    }
}
