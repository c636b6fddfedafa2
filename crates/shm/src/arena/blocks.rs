//! Which parts of an arena are in use: blocks whose sizes are powers of two, split and joined again
//! with the other half of what they were split from.

use std::collections::{BTreeMap, BTreeSet};

/// The smallest block.
const SMALLEST: usize = 4096;

/// A block in use.
#[derive(Debug, Clone, Copy)]
struct Used {
    size: usize,
    generation: u64,
}

/// The parts of an arena.
#[derive(Debug)]
pub(super) struct Blocks {
    capacity: usize,
    /// Where free blocks begin, by the power of two: entry 0 is for the smallest.
    free: Vec<BTreeSet<usize>>,
    used: BTreeMap<usize, Used>,
    generation: u64,
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
            generation: 0,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn free(&self) -> usize {
        self.capacity - self.used.values().map(|used| used.size).sum::<usize>()
    }

    /// The offset of a block of at least this length.
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
        self.generation += 1;
        let used = Used {
            size: size(wanted),
            generation: self.generation,
        };
        self.used.insert(offset, used);
        Some(offset)
    }

    /// Takes a block back.
    pub(super) fn release(&mut self, offset: usize) {
        let used = self.used.remove(&offset);
        let used = used.expect("a block is released once, by what was allocated");
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

    /// The generation of the block in use that holds the byte at this offset.
    pub(super) fn generation_at(&self, offset: usize) -> Option<u64> {
        let (begin, used) = self.used.range(..=offset).next_back()?;
        (offset < begin + used.size).then_some(used.generation)
    }
}

/// The class of a power of two.
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
            prop_assert_eq!(blocks.allocate(CAPACITY), Some(0), "it was not joined again");
        }
    }

    #[test]
    fn each_use_has_a_generation() {
        let mut blocks = Blocks::new(2 * SMALLEST);
        let first = blocks.allocate(10).unwrap();
        let generation = blocks.generation_at(first).unwrap();
        assert_eq!(blocks.generation_at(first + 9), Some(generation));
        assert_eq!(blocks.generation_at(SMALLEST), None);
        blocks.release(first);
        assert_eq!(blocks.generation_at(first), None);
        assert_eq!(blocks.allocate(10), Some(first));
        assert!(blocks.generation_at(first).unwrap() > generation);
    }
}
