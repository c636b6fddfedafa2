//! `all_to_all`: every rank sends values to every other rank.

use crate::call::GroupOperation;
use crate::element::Element;
use crate::error::{CollectiveError, Result};
use crate::exchange::{Buffers, Source, Target};
use crate::group::ProcessGroup;
use crate::schedule::{self, Parts};

impl ProcessGroup {
    /// Exchanges parts between all ranks.
    ///
    /// The `n`-th part of `source` is sent to rank `n`. The part that rank `n` sends to this rank
    /// becomes the `n`-th part of `target`. Both buffers must have the same length on all ranks,
    /// which must be a multiple of the world size. The part for this rank itself is copied.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if an argument is invalid, a rank fails or calls another operation, or
    /// the timeout passes.
    pub fn all_to_all<T: Element>(&mut self, source: &[T], target: &mut [T]) -> Result<()> {
        let world_size = self.world_size();
        self.check_length("all_to_all: `target`", target.len(), source.len())?;
        if !source.len().is_multiple_of(world_size as usize) {
            return Err(CollectiveError::Argument(format!(
                "all_to_all: the length {} is not a multiple of the world size, {world_size}",
                source.len()
            )));
        }
        let parts = Parts::even(world_size, source.len());
        let elements = source.len() as u64;
        let (source, target) = ((source, &parts), (target, &parts));
        self.exchange_parts(GroupOperation::AllToAll, elements, source, target)
    }

    /// Sends each rank a part of the source, and receives the parts of the target.
    fn exchange_parts<T: Element>(
        &mut self,
        operation: GroupOperation,
        elements: u64,
        source: Source<'_, T>,
        target: Target<'_, T>,
    ) -> Result<()> {
        let rank = self.rank();
        target.0[target.1.range(rank)].copy_from_slice(&source.0[source.1.range(rank)]);
        let schedule = schedule::pairwise(rank, self.world_size());
        let buffers = Buffers::Between(source, target);
        self.run_schedule(operation, elements, &schedule, buffers, None)
    }

    /// Sends parts of different lengths to all ranks; receives one part from each.
    ///
    /// The `n`-th part of `source` is sent to rank `n`. The part that rank `n` sends to this rank
    /// becomes the `n`-th part of `target`. The parts are consecutive, and their lengths in
    /// elements are `source_lengths` and `target_lengths`.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Argument`] if the lengths do not match the buffers or the world size, or
    /// if the two lengths for this rank itself differ;
    /// [`CollectiveError::Part`] if a rank sends a different number of elements than this rank
    /// expects; otherwise as for [`all_to_all`](Self::all_to_all).
    pub fn all_to_all_split<T: Element>(
        &mut self,
        source: &[T],
        source_lengths: &[usize],
        target: &mut [T],
        target_lengths: &[usize],
    ) -> Result<()> {
        let (rank, world_size) = (self.rank(), self.world_size());
        for (what, lengths, all) in [
            ("source", source_lengths, source.len()),
            ("target", target_lengths, target.len()),
        ] {
            let of = format!("all_to_all_split: `{what}_lengths`");
            self.check_length(&of, lengths.len(), world_size as usize)?;
            let of = format!("all_to_all_split: `{what}`");
            self.check_length(&of, all, lengths.iter().sum())?;
        }
        if source_lengths[rank as usize] != target_lengths[rank as usize] {
            return Err(CollectiveError::Argument(format!(
                "all_to_all_split: this rank has {} x {} for itself, but room for {}",
                source_lengths[rank as usize],
                T::TYPE,
                target_lengths[rank as usize]
            )));
        }
        let lengths: Vec<u64> = source_lengths.iter().map(|length| *length as u64).collect();
        let incoming = self.exchange_lengths(&lengths)?;
        for ((peer, length), room) in (0..).zip(&incoming).zip(target_lengths) {
            if *length != *room as u64 {
                let error = CollectiveError::Part {
                    rank: peer,
                    length: *length,
                    room: *room as u64,
                    element: T::TYPE,
                };
                self.set_broken(&error);
                return Err(error);
            }
        }
        let (source_parts, target_parts) = (Parts::of(source_lengths), Parts::of(target_lengths));
        let (source, target) = ((source, &source_parts), (target, &target_parts));
        self.exchange_parts(GroupOperation::AllToAllUnequal, 0, source, target)
    }

    /// Sends each rank the length of its part; returns the lengths for this rank.
    fn exchange_lengths(&mut self, outgoing: &[u64]) -> Result<Vec<u64>> {
        let mut incoming = outgoing.to_vec();
        let each = Parts::even(self.world_size(), outgoing.len());
        let (source, target) = ((outgoing, &each), (&mut incoming[..], &each));
        self.exchange_parts(GroupOperation::AllToAllUnequal, 0, source, target)?;
        Ok(incoming)
    }

    /// Sends the `n`-th list to rank `n`, and returns the lists for this rank.
    ///
    /// The lists may have any length.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Argument`] if the number of lists differs from the world size;
    /// [`CollectiveError::TooLarge`] if the lists for this rank exceed
    /// [`GroupOptions::largest`](crate::GroupOptions::largest); otherwise as for
    /// [`all_to_all`](Self::all_to_all).
    pub fn all_to_all_unequal<T: Element>(&mut self, lists: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        let world_size = self.world_size();
        self.check_length("all_to_all_unequal", lists.len(), world_size as usize)?;
        let outgoing: Vec<u64> = lists.iter().map(|list| list.len() as u64).collect();
        let incoming = self.exchange_lengths(&outgoing)?;
        let (mut target, target_parts) = self.reserve::<T>("all_to_all_unequal", &incoming)?;
        let source = lists.concat();
        let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
        let source_parts = Parts::of(&lengths);
        let (from, into) = (
            (&source[..], &source_parts),
            (&mut target[..], &target_parts),
        );
        self.exchange_parts(GroupOperation::AllToAllUnequal, 0, from, into)?;
        let received = (0..world_size).map(|rank| target[target_parts.range(rank)].to_vec());
        Ok(received.collect())
    }
}
