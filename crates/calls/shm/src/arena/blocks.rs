//! Blocks of an arena and their use.
//!
//! Block sizes are powers of two. A block can be split into halves. Two free halves are joined.

use std::collections::{BTreeMap, BTreeSet};

const SMALLEST: usize = 4096;

/// Block in use: by its owner, by peers, or both.
#[derive(Debug, Clone, Copy)]
struct Used {
    size: usize,
    generation: u32,
    owned: bool,
    /// Number of leases.
    pins: u64,
}

#[derive(Debug)]
pub(super) struct Blocks {
    capacity: usize,
    /// Offsets of free blocks, by the power of two: entry 0 is for the smallest.
    free: Vec<BTreeSet<usize>>,
    used: BTreeMap<usize, Used>,
    /// Offset of the block of each generation in use.
    generations: BTreeMap<u32, usize>,
    generation: u32,
}

impl Blocks {
    pub(super) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(SMALLEST).next_power_of_two();
        let mut free = vec![BTreeSet::new(); class(capacity) + 1];
        free[class(capacity)].insert(0);
        Self {
            capacity,
            free,
            used: BTreeMap::new(),
            generations: BTreeMap::new(),
            generation: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn free(&self) -> usize {
        self.capacity - self.used.values().map(|used| used.size).sum::<usize>()
    }

    /// Returns the offset of a new block of at least this length.
    pub(super) fn allocate(&mut self, length: usize) -> Option<usize> {
        if length > self.capacity {
            return None;
        }
        let wanted = class(length.max(SMALLEST).next_power_of_two());
        let found = (wanted..self.free.len()).find(|class| !self.free[*class].is_empty())?;
        let offset = self.free[found].pop_first()?;
        for class in wanted..found {
            self.free[class].insert(offset + size(class));
        }
        let generation = self.next_generation();
        let used = Used {
            size: size(wanted),
            generation,
            owned: true,
            pins: 0,
        };
        self.used.insert(offset, used);
        self.generations.insert(generation, offset);
        Some(offset)
    }

    /// Returns a number that no block in use has.
    fn next_generation(&mut self) -> u32 {
        loop {
            self.generation = self.generation.wrapping_add(1);
            if !self.generations.contains_key(&self.generation) {
                return self.generation;
            }
        }
    }

    /// Ends the owner's use of a block.
    ///
    /// The block is free once it has no leases either.
    pub(super) fn release(&mut self, offset: usize) {
        let used = self.used.get_mut(&offset);
        let used = used.expect("an allocated block is released once");
        used.owned = false;
        if used.pins == 0 {
            self.free_up(offset);
        }
    }

    /// Adds a lease of the block at this offset, and returns its generation.
    pub(super) fn pin(&mut self, offset: usize) -> Option<u32> {
        let used = self.holding(offset)?;
        used.pins += 1;
        Some(used.generation)
    }

    /// Ends this number of leases of a block.
    pub(super) fn unpin(&mut self, generation: u32, count: u64) {
        let Some(offset) = self.generations.get(&generation).copied() else {
            return;
        };
        let Some(used) = self.used.get_mut(&offset) else {
            return;
        };
        used.pins = used.pins.saturating_sub(count);
        if used.pins == 0 && !used.owned {
            self.free_up(offset);
        }
    }

    /// Frees a block, and joins it with its other half if that is free.
    fn free_up(&mut self, offset: usize) {
        let Some(used) = self.used.remove(&offset) else {
            return;
        };
        self.generations.remove(&used.generation);
        let (mut offset, mut class) = (offset, class(used.size));
        while class + 1 < self.free.len() {
            let other_half = offset ^ size(class);
            if !self.free[class].remove(&other_half) {
                break;
            }
            offset = offset.min(other_half);
            class += 1;
        }
        self.free[class].insert(offset);
    }

    /// Returns the block in use that has the byte at this offset.
    fn holding(&mut self, offset: usize) -> Option<&mut Used> {
        let (begin, used) = self.used.range_mut(..=offset).next_back()?;
        (offset < begin + used.size).then_some(used)
    }
}

fn class(size: usize) -> usize {
    (size / SMALLEST).trailing_zeros() as usize
}

fn size(class: usize) -> usize {
    SMALLEST << class
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CAPACITY: usize = 64 * SMALLEST;

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_memory_comes_back(
            steps in prop::collection::vec((any::<bool>(), 0..CAPACITY + 10, any::<usize>()), 1..100),
        ) {
            let mut blocks = Blocks::new(CAPACITY);
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (take, length, which) in steps {
                if take || held.is_empty() {
                    let Some(offset) = blocks.allocate(length) else {
                        prop_assert!(length > CAPACITY || !held.is_empty());
                        continue;
                    };
                    prop_assert!(offset + length <= CAPACITY);
                    for (begin, other) in &held {
                        let apart = offset + length.max(1) <= *begin || begin + other <= offset;
                        prop_assert!(apart, "{offset} {length} and {begin} {other}");
                    }
                    held.push((offset, length.max(1)));
                } else {
                    let (offset, _) = held.swap_remove(which % held.len());
                    blocks.release(offset);
                }
            }
            for (offset, _) in held {
                blocks.release(offset);
            }
            prop_assert_eq!(blocks.free(), CAPACITY);
            prop_assert_eq!(blocks.allocate(CAPACITY), Some(0), "the blocks were not joined again");
        }
    }

    #[test]
    fn each_use_has_a_generation() {
        let mut blocks = Blocks::new(2 * SMALLEST);
        let first = blocks.allocate(10).unwrap();
        let generation = blocks.pin(first).unwrap();
        assert_eq!(blocks.pin(first + 9), Some(generation));
        assert_eq!(blocks.pin(SMALLEST), None);
        blocks.unpin(generation, 2);
        blocks.release(first);
        assert_eq!(blocks.pin(first), None);
        assert_eq!(blocks.allocate(10), Some(first));
        assert_ne!(blocks.pin(first).unwrap(), generation);
    }

    #[test]
    fn a_leased_block_is_free_when_all_leases_and_its_owner_are_done() {
        let mut blocks = Blocks::new(SMALLEST);
        let block = blocks.allocate(10).unwrap();
        let generation = blocks.pin(block).unwrap();
        assert_eq!(blocks.pin(block), Some(generation));
        blocks.release(block);
        blocks.unpin(generation, 1);
        assert_eq!(blocks.allocate(1), None, "the block is leased");
        blocks.unpin(generation.wrapping_add(1), 1);
        assert_eq!(blocks.allocate(1), None, "another block was returned");
        blocks.unpin(generation, 1);
        assert_eq!(blocks.allocate(1), Some(block));
    }

    #[test]
    fn generations_go_round_and_leave_out_those_in_use() {
        let mut blocks = Blocks::new(4 * SMALLEST);
        let first = blocks.allocate(1).unwrap();
        assert_eq!(blocks.pin(first), Some(1));
        blocks.generation = u32::MAX;
        let second = blocks.allocate(1).unwrap();
        let third = blocks.allocate(1).unwrap();
        assert_eq!(blocks.pin(second), Some(0));
        assert_eq!(blocks.pin(third), Some(2));
    }
}
