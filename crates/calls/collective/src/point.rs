//! `send`, `receive`: blocking transfer of one message between two ranks.

use zerocopy::IntoBytes;

use crate::element::Element;
use crate::error::Result;
use crate::group::ProcessGroup;

impl ProcessGroup {
    /// Sends values to a rank.
    ///
    /// The receiving rank must call [`receive`](Self::receive) for the same number of values, with
    /// the same type and tag.
    ///
    /// This returns once the values are in flight to a connected rank. For values of more than 64
    /// KiB, this waits until that rank receives them. The rules are those of
    /// [`PointToPoint`](crate::PointToPoint), which does the same without blocking and without
    /// copying the values. Two ranks that both send large data before they receive wait for each
    /// other. Let one of them receive first, or use [`all_to_all`](Self::all_to_all).
    ///
    /// # Errors
    ///
    /// [`CollectiveError`](crate::CollectiveError) if an argument is invalid, a rank fails, the
    /// receive has another length or type, or the timeout passes.
    pub fn send<T: Element>(&self, values: &[T], to: u32, tag: u32) -> Result<()> {
        let messages = self.point_to_point();
        messages.send(values.to_vec(), to, tag)?.wait().map(drop)
    }

    /// Receives values from a rank, or from any rank; returns the sender.
    ///
    /// If `from` is `None`, the sender can be any rank.
    ///
    /// The sender must call [`send`](Self::send) for the same number of values, with the same type
    /// and tag.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`](crate::CollectiveError) if an argument is invalid, a rank fails, the
    /// message has another length or type, or the timeout passes.
    pub fn receive<T: Element>(
        &self,
        values: &mut [T],
        from: Option<u32>,
        tag: u32,
    ) -> Result<u32> {
        let messages = self.point_to_point();
        let room = vec![T::default(); values.len()];
        let received = messages.receive(room, from, tag)?.wait()?;
        values
            .as_mut_bytes()
            .copy_from_slice(received.buffer.as_bytes());
        Ok(received.from)
    }
}
