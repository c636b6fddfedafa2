//! Segments of this process: device memory whose blocks are lent to peers.

use std::collections::BTreeMap;

use bytes::Bytes;
use rdzv_rpc::{Arena, Block};
use rdzv_rpc_proto::rref::Member;

use crate::driver::{CudaDriver, CudaEvent, Fault, IpcHandle, Pointer};
use crate::wire::{self, Card, LENGTH, Sent};

/// Maximum size of all cards of a segment that peers have.
const CARDS: usize = 64 * LENGTH;

/// Limits of the memory for transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaLimits {
    /// Maximum size of all segments of a device, in bytes.
    pub pool: usize,
    /// Minimum size of a segment, in bytes.
    pub segment: usize,
    /// Size of a piece of pinned memory, in bytes.
    pub piece: usize,
}

impl Default for CudaLimits {
    fn default() -> Self {
        Self {
            pool: 1 << 30,
            segment: 64 << 20,
            piece: 1 << 20,
        }
    }
}

/// Segments, and the peers that have opened them.
#[derive(Debug, Default)]
pub(crate) struct Lending {
    segments: Vec<Segment>,
    met: BTreeMap<(Member, u64, u32), Met>,
    /// Peers that cannot open segments, with the reason.
    pub(crate) refused: BTreeMap<Member, String>,
    next: u64,
    /// `true` if no more memory is lent.
    pub(crate) is_closed: bool,
}

/// State of a peer that got a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Met {
    Asked,
    Opened,
}

/// Device memory that peers can open.
#[derive(Debug)]
pub(crate) struct Segment {
    id: u64,
    pub(crate) device: u32,
    pub(crate) pointer: Pointer,
    handle: IpcHandle,
    /// Arena with the same blocks as the memory; only the descriptions are used.
    arena: Arena,
    /// Arena of the cards; a peer holds its card while it has the segment open.
    cards: Arena,
    /// Event behind the last copy into the block at each offset.
    pub(crate) events: BTreeMap<usize, Filled>,
}

/// Event recorded after the last copy into a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    pub(crate) event: CudaEvent,
    pub(crate) handle: IpcHandle,
    /// Maximum number of bytes of a copy.
    len: usize,
}

/// Way in which memory is lent.
pub(crate) enum OwnLoan {
    Copied,
    Unmet(Bytes),
    Block(LoanedBlock),
}

/// Block of a segment, before the copy into it.
pub(crate) struct LoanedBlock {
    pub(crate) segment: u64,
    pub(crate) handle: IpcHandle,
    pub(crate) pointer: Pointer,
    pub(crate) block: Block,
    /// Event for the end of the copy.
    pub(crate) filled: Filled,
    /// Events behind earlier copies into the same memory.
    ///
    /// Their messages may never have been sent.
    pub(crate) earlier: Vec<CudaEvent>,
}

impl Segment {
    /// `true` if neither a peer nor a copy of this process uses the segment.
    ///
    /// A copy may be queued for a message that was never sent.
    fn is_idle(&self, driver: &impl CudaDriver) -> bool {
        let is_filled = |one: &Filled| driver.is_done(self.device, one.event) != Ok(false);
        self.arena.free() == self.arena.capacity()
            && self.cards.free() == self.cards.capacity()
            && self.events.values().all(is_filled)
    }
}

impl Lending {
    /// Returns memory for a loan of `len` bytes to the device `target` of a peer.
    ///
    /// `freed` receives the segments that were removed to make room.
    pub(crate) fn loan(
        &mut self,
        (driver, limits): (&impl CudaDriver, &CudaLimits),
        (device, len): (u32, usize),
        (to, target): (Member, u32),
        card: impl FnOnce(u64, &IpcHandle) -> Card,
        freed: &mut Vec<Segment>,
    ) -> Result<OwnLoan, Fault> {
        if self.is_closed || self.refused.contains_key(&to) {
            return Ok(OwnLoan::Copied);
        }
        // The block in the arena must hold the description.
        let wanted = len.max(LENGTH);
        let found = self.segments.iter().enumerate().find_map(|(index, one)| {
            let block = (one.device == device).then(|| one.arena.allocate(wanted))??;
            Some((index, block))
        });
        let (index, block) = match found {
            Some(found) => found,
            None => {
                if !self.grow((driver, limits), (device, wanted), freed)? {
                    return Ok(OwnLoan::Copied);
                }
                let index = self.segments.len() - 1;
                let Some(block) = self.segments[index].arena.allocate(wanted) else {
                    return Ok(OwnLoan::Copied);
                };
                (index, block)
            }
        };
        let segment = &mut self.segments[index];
        let key = (to, segment.id, target);
        match self.met.get(&key) {
            Some(Met::Opened) => {}
            Some(Met::Asked) => return Ok(OwnLoan::Copied),
            None => {
                let Some(mut shown) = segment.cards.allocate(LENGTH) else {
                    return Ok(OwnLoan::Copied);
                };
                if wire::write(&card(segment.id, &segment.handle), shown.as_mut()).is_err() {
                    return Ok(OwnLoan::Copied);
                }
                self.met.insert(key, Met::Asked);
                return Ok(OwnLoan::Unmet(shown.freeze()));
            }
        }
        let offset = block.offset();
        let overlaps =
            |(start, one): &(&usize, &Filled)| **start < offset + len && offset < **start + one.len;
        let earlier = segment.events.iter().filter(overlaps);
        let earlier = earlier.map(|(_, one)| one.event).collect();
        let filled = match segment.events.get_mut(&offset) {
            Some(filled) => {
                filled.len = filled.len.max(len);
                *filled
            }
            None => {
                let event = driver.event(device, true)?;
                let handle = driver.export_event(device, event)?;
                *segment
                    .events
                    .entry(offset)
                    .or_insert(Filled { event, handle, len })
            }
        };
        Ok(OwnLoan::Block(LoanedBlock {
            segment: segment.id,
            handle: segment.handle,
            pointer: segment.pointer.plus(offset),
            block,
            filled,
            earlier,
        }))
    }

    /// Adds a segment for a block of this size.
    /// Returns `false` at the limit, or if there is no memory.
    fn grow(
        &mut self,
        (driver, limits): (&impl CudaDriver, &CudaLimits),
        (device, wanted): (u32, usize),
        freed: &mut Vec<Segment>,
    ) -> Result<bool, Fault> {
        let capacity = wanted.next_power_of_two().max(limits.segment);
        let used = |all: &Self| all.size(device).0;
        if used(self) + capacity > limits.pool {
            freed.extend(self.sweep(driver));
        }
        if used(self) + capacity > limits.pool {
            return Ok(false);
        }
        let (Ok(arena), Ok(cards)) = (Arena::new(capacity), Arena::new(CARDS)) else {
            return Ok(false);
        };
        // Without memory for a segment, the tensor goes through host memory.
        let Ok(pointer) = driver.allocate_shared(device, capacity) else {
            return Ok(false);
        };
        let handle = match driver.export(device, pointer) {
            Ok(handle) => handle,
            Err(fault) => {
                driver.free_shared(device, pointer)?;
                return Err(fault);
            }
        };
        self.next += 1;
        self.segments.push(Segment {
            id: self.next,
            device,
            pointer,
            handle,
            arena,
            cards,
            events: BTreeMap::new(),
        });
        Ok(true)
    }

    /// Returns the address and size of a segment, and the event of a block in it.
    pub(crate) fn own(
        &self,
        id: u64,
        offset: usize,
    ) -> Option<(Pointer, usize, Option<CudaEvent>)> {
        let segment = self.segments.iter().find(|segment| segment.id == id)?;
        let event = segment.events.get(&offset).map(|one| one.event);
        Some((segment.pointer, segment.arena.capacity(), event))
    }

    /// Records the answer of a peer to a card.
    pub(crate) fn met(&mut self, (to, card): (Member, &Card), answer: Result<(), String>) {
        let key = (to, card.segment, card.target);
        match answer {
            Ok(()) => {
                if let Some(met) = self.met.get_mut(&key) {
                    *met = Met::Opened;
                }
            }
            Err(reason) => {
                self.met.remove(&key);
                self.refused.insert(to, reason);
            }
        }
    }

    /// Forgets the answers of a lost peer; a reconnected peer is asked again.
    pub(crate) fn lost(&mut self, peer: Member) {
        self.met.retain(|(to, _, _), _| *to != peer);
        self.refused.remove(&peer);
    }

    /// Removes and returns the segments that neither a peer nor a queued copy uses.
    pub(crate) fn sweep(&mut self, driver: &impl CudaDriver) -> Vec<Segment> {
        let idle: Vec<Segment> = self
            .segments
            .extract_if(.., |segment| segment.is_idle(driver))
            .collect();
        for segment in &idle {
            self.met.retain(|(_, id, _), _| *id != segment.id);
        }
        idle
    }

    /// `true` if a segment is left although all loans end or no known peer has it.
    pub(crate) fn is_orphaned(&self) -> bool {
        let has_peer = |segment: &Segment| self.met.keys().any(|(_, id, _)| *id == segment.id);
        self.segments
            .iter()
            .any(|segment| self.is_closed || !has_peer(segment))
    }

    /// Returns the size of the segments of a device, and the bytes that are lent.
    pub(crate) fn size(&self, device: u32) -> (usize, usize) {
        let own = self.segments.iter().filter(|one| one.device == device);
        own.fold((0, 0), |(all, in_use), one| {
            let capacity = one.arena.capacity();
            (all + capacity, in_use + capacity - one.arena.free())
        })
    }

    /// Returns the devices with segments.
    pub(crate) fn devices(&self) -> impl Iterator<Item = u32> {
        self.segments.iter().map(|segment| segment.device)
    }
}

impl Card {
    /// Describes a segment for the device `target` of a peer.
    pub(crate) fn new(
        (process, namespace): (u64, String),
        (segment, handle): (u64, &IpcHandle),
        target: u32,
    ) -> Self {
        Self {
            process,
            namespace,
            segment,
            handle: Sent::new(handle),
            target,
        }
    }
}
