//! `all_to_all`: every rank has something for every other one.

use crate::call::Operation;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::exchange::Buffers;
use crate::group::ProcessGroup;
use crate::schedule::{self, Parts};

impl ProcessGroup {
    /// Sends the `n`-th part of `source` to rank `n`, and receives the part for this rank from each
    /// rank `n` into the `n`-th part of `target`.
    ///
    /// Both have to have the same length on all ranks, a multiple of the world size. The part for this
    /// rank itself is copied.
    pub fn all_to_all<T: Element>(
        &mut self,
        source: &[T],
        target: &mut [T],
    ) -> Result<(), CollectiveError> {
        let world_size = self.world_size();
        self.check_length("all_to_all: `target`", target.len(), source.len())?;
        if !source.len().is_multiple_of(world_size as usize) {
            return Err(CollectiveError::Argument(format!(
                "all_to_all of {} elements: the length is no multiple of the world size, {world_size}",
                source.len()
            )));
        }
        let parts = Parts::even(world_size, source.len());
        let call = self.next_call::<T>(Operation::AllToAll, source.len() as u64);
        let own = parts.range(self.rank());
        target[own.clone()].copy_from_slice(&source[own]);
        let schedule = schedule::pairwise(self.rank(), world_size);
        let buffers = Buffers::Between {
            source,
            source_parts: &parts,
            target,
            target_parts: &parts,
        };
        self.run_schedule(call, &schedule, buffers, None)
    }

    /// Sends the `n`-th list to rank `n`, and returns what each rank had for this one. Lists may be of
    /// any length.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Argument`] if there are not as many lists as ranks;
    /// [`CollectiveError::TooLarge`] if the ranks have more for this one than
    /// [`GroupOptions::largest`](crate::GroupOptions::largest).
    pub fn all_to_all_unequal<T: Element>(
        &mut self,
        lists: &[Vec<T>],
    ) -> Result<Vec<Vec<T>>, CollectiveError> {
        let (rank, world_size) = (self.rank(), self.world_size());
        self.check_length("all_to_all_unequal", lists.len(), world_size as usize)?;
        let operation = Operation::AllToAllUnequal;
        let schedule = schedule::pairwise(rank, world_size);
        let outgoing: Vec<u64> = lists.iter().map(|list| list.len() as u64).collect();
        let mut incoming = outgoing.clone();
        let each = Parts::even(world_size, outgoing.len());
        let call = self.next_call::<u64>(operation, 0);
        let buffers = Buffers::Between {
            source: &outgoing,
            source_parts: &each,
            target: &mut incoming,
            target_parts: &each,
        };
        self.run_schedule(call, &schedule, buffers, None)?;
        let (mut target, target_parts) = self.reserve::<T>("all_to_all_unequal", &incoming)?;
        let source = lists.concat();
        let lengths: Vec<usize> = lists.iter().map(Vec::len).collect();
        let source_parts = Parts::of(&lengths);
        target[target_parts.range(rank)].copy_from_slice(&lists[rank as usize]);
        let call = self.next_call::<T>(operation, 0);
        let buffers = Buffers::Between {
            source: &source,
            source_parts: &source_parts,
            target: &mut target,
            target_parts: &target_parts,
        };
        self.run_schedule(call, &schedule, buffers, None)?;
        let received = (0..world_size).map(|rank| target[target_parts.range(rank)].to_vec());
        Ok(received.collect())
    }
}
