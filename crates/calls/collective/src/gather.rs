//! `gather`, `all_gather`: each rank sends its values to one or all ranks.

use crate::call::GroupOperation;
use crate::element::Element;
use crate::error::{CollectiveError, Result};
use crate::exchange::Buffers;
use crate::group::ProcessGroup;
use crate::schedule::{self, Parts, Schedule};

/// Maximum total size in bytes for the algorithm that minimises steps.
///
/// Larger data uses the algorithm that minimises bytes.
const SMALL: usize = 32 * 1024;

impl ProcessGroup {
    /// Returns the values from all ranks on the rank `root`, and `None` elsewhere.
    ///
    /// The values are concatenated in rank order. Each rank must pass the same number of values.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if an argument is invalid, a rank fails or calls another operation, or
    /// the timeout passes.
    pub fn gather<T: Element>(&mut self, own: &[T], root: u32) -> Result<Option<Vec<T>>> {
        self.check_rank("gather to", root)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let schedule = schedule::direct_gather(rank, world_size, root);
        let operation = GroupOperation::Gather { root };
        if rank != root {
            let mut own = own.to_vec();
            let parts = Parts::only(rank, world_size, own.len());
            self.perform(operation, &schedule, &mut own, &parts, None)?;
            return Ok(None);
        }
        let parts = Parts::even(world_size, self.of_all(own.len()));
        let mut all = vec![T::default(); self.of_all(own.len())];
        all[parts.range(rank)].copy_from_slice(own);
        let buffers = Buffers::OneBuffer((&mut all, &parts));
        self.run_schedule(operation, own.len() as u64, &schedule, buffers, None)?;
        Ok(Some(all))
    }

    /// Copies the values from all ranks to all ranks.
    ///
    /// On return, `all` contains the values concatenated in rank order.
    ///
    /// Each rank must pass the same number of values, and a buffer for the values from all ranks.
    /// Up to 32 KiB in total, the ranks use an algorithm with few steps (Bruck). Larger data goes
    /// around a ring.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if an argument is invalid, a rank fails or calls another operation, or
    /// the timeout passes.
    pub fn all_gather<T: Element>(&mut self, own: &[T], all: &mut [T]) -> Result<()> {
        self.check_length("all_gather: `all`", all.len(), self.of_all(own.len()))?;
        let parts = Parts::even(self.world_size(), all.len());
        all[parts.range(self.rank())].copy_from_slice(own);
        self.all_gather_inplace(all)
    }

    /// Performs [`all_gather`](Self::all_gather) in place.
    ///
    /// `all` has one part of equal length for each rank. The caller must have written its own
    /// values to its part.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if an argument is invalid, a rank fails or calls another operation, or
    /// the timeout passes.
    pub fn all_gather_inplace<T: Element>(&mut self, all: &mut [T]) -> Result<()> {
        let each = all.len() / self.world_size() as usize;
        self.check_length("all_gather: `all`", all.len(), self.of_all(each))?;
        let parts = Parts::even(self.world_size(), all.len());
        let schedule = self.gathering(size_of_val(all));
        self.perform(GroupOperation::AllGather, &schedule, all, &parts, None)
    }

    /// Returns the values from all ranks, as one list for each rank.
    ///
    /// The number of values may differ between ranks.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::TooLarge`] if the total exceeds
    /// [`GroupOptions::largest`](crate::GroupOptions::largest); otherwise as for
    /// [`all_gather`](Self::all_gather).
    pub fn all_gather_unequal<T: Element>(&mut self, own: &[T]) -> Result<Vec<Vec<T>>> {
        let (all, parts) = self.all_gather_parts(own)?;
        let lists = (0..self.world_size()).map(|rank| all[parts.range(rank)].to_vec());
        Ok(lists.collect())
    }

    /// Returns the values from all ranks in one buffer, and the part of each rank.
    pub(crate) fn all_gather_parts<T: Element>(&mut self, own: &[T]) -> Result<(Vec<T>, Parts)> {
        let operation = GroupOperation::AllGatherUnequal;
        let (rank, world_size) = (self.rank(), self.world_size());
        let mut lengths = vec![0_u64; world_size as usize];
        lengths[rank as usize] = own.len() as u64;
        let each = Parts::even(world_size, lengths.len());
        let schedule = self.gathering(size_of_val(&lengths[..]));
        self.perform(operation, &schedule, &mut lengths, &each, None)?;
        let (mut all, parts) = self.reserve::<T>("all_gather_unequal", &lengths)?;
        all[parts.range(rank)].copy_from_slice(own);
        let schedule = self.gathering(size_of_val(&all[..]));
        self.perform(operation, &schedule, &mut all, &parts, None)?;
        Ok((all, parts))
    }

    fn gathering(&self, bytes: usize) -> Schedule {
        let (rank, world_size) = (self.rank(), self.world_size());
        if bytes <= SMALL {
            schedule::bruck(rank, world_size)
        } else {
            schedule::ring_gather(rank, world_size)
        }
    }

    /// Reserves memory for the values that the ranks announce.
    pub(crate) fn reserve<T: Element>(
        &mut self,
        what: &'static str,
        lengths: &[u64],
    ) -> Result<(Vec<T>, Parts)> {
        let room = room(what, lengths, self.options.largest);
        let room = room.inspect_err(|error| self.set_broken(error))?;
        let lengths: Vec<usize> = lengths.iter().map(|length| *length as usize).collect();
        Ok((room, Parts::of(&lengths)))
    }
}

/// Reserves memory for all these elements, up to `largest` bytes.
fn room<T: Element>(what: &'static str, lengths: &[u64], largest: u64) -> Result<Vec<T>> {
    let most = largest / size_of::<T>() as u64;
    let mut left = most;
    for (rank, &length) in (0..).zip(lengths) {
        left = left.checked_sub(length).ok_or(CollectiveError::TooLarge {
            what,
            rank,
            length,
            element: T::TYPE,
            largest,
        })?;
    }
    let total = (most - left) as usize;
    let mut room = Vec::new();
    let reserved = room.try_reserve_exact(total);
    reserved.map_err(|_| CollectiveError::System {
        what: format!("reserve memory for {total} x {} in {what}", T::TYPE),
        source: std::io::ErrorKind::OutOfMemory.into(),
    })?;
    room.resize(total, T::default());
    Ok(room)
}
