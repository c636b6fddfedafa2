//! `send`, `receive`: from one rank to another. The others take no part and need not know.

use crate::call::{Call, Operation};
use crate::element::Element;
use crate::error::CollectiveError;
use crate::group::ProcessGroup;
use crate::mesh::{Mesh, Running};
use zerocopy::IntoBytes;

impl ProcessGroup {
    /// Sends values to a rank, which has to call [`receive`](Self::receive) for as many of them.
    ///
    /// Returns when the other rank is there and the values are on their way; with much data, when it
    /// has begun to take them. Two ranks that want to exchange values had better use
    /// [`all_to_all`](Self::all_to_all), or one has to receive first. In between, both make the same
    /// collective calls.
    pub fn send<T: Element>(&mut self, values: &[T], to: u32) -> Result<(), CollectiveError> {
        self.check_other("send to", to)?;
        let own = self.rank();
        let count = self.sent.entry(to).or_default();
        *count += 1;
        let call = call::<T>(own, values.len(), *count);
        self.attempt(call, self.timeout(), |mesh, running, _| {
            for piece in pieces(values.len(), mesh.longest() / size_of::<T>()) {
                mesh.post(running, to, &[values[piece].as_bytes()])?;
                mesh.flush(running, mesh.longest())?;
            }
            mesh.flush(running, 0)
        })
    }

    /// Receives values from a rank, which has to call [`send`](Self::send) for as many of them.
    pub fn receive<T: Element>(
        &mut self,
        values: &mut [T],
        from: u32,
    ) -> Result<(), CollectiveError> {
        self.check_other("receive from", from)?;
        let count = self.received.entry(from).or_default();
        *count += 1;
        let call = call::<T>(from, values.len(), *count);
        self.attempt(
            call,
            self.timeout(),
            |mesh: &mut Mesh, running: &Running, _| {
                for piece in pieces(values.len(), mesh.longest() / size_of::<T>()) {
                    mesh.receive(running, from, values[piece].as_mut_bytes())?;
                }
                Ok(())
            },
        )
    }

    fn check_other(&self, what: &str, rank: u32) -> Result<(), CollectiveError> {
        self.check_rank(what, rank)?;
        if rank == self.rank() {
            return Err(CollectiveError::Argument(format!(
                "{what} rank {rank}: that is this rank"
            )));
        }
        Ok(())
    }
}

fn call<T: Element>(from: u32, elements: usize, sequence: u64) -> Call {
    Call {
        operation: Operation::Send { from },
        element: T::TYPE,
        elements: elements as u64,
        sequence,
    }
}

/// The messages of a transfer; one, without anything in it, if there is nothing to transfer.
fn pieces(len: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..len.div_ceil(most).max(1)).map(move |piece| {
        let start = piece * most;
        start..len.min(start + most)
    })
}
