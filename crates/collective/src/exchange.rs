//! Carries out a schedule on a buffer.
//!
//! The buffer is taken in pieces, the whole schedule on each, so that no message is longer than
//! [`MESSAGE`] and data flow through long chains of ranks like through a pipe. Sending is only
//! queued: a rank goes on to receive while its own data are on their way, and waits for them only
//! when more than a message is behind. With S1 of the schedules that cannot deadlock.

use crate::element::{self, Element};
use crate::error::CollectiveError;
use crate::mesh::{Mesh, Running};
use crate::reduce::Reduce;
use crate::schedule::{Arrival, Schedule};

/// The most bytes of one message: small enough to stay in a processor's cache between the copy and
/// the socket, long enough that system calls do not count.
const MESSAGE: usize = 256 * 1024;

/// Carries out a schedule; `reduce` says what combining means, where the schedule combines.
pub(crate) fn run<T: Element>(
    mesh: &mut Mesh,
    running: &Running,
    schedule: &Schedule,
    values: &mut [T],
    reduce: Option<Reduce>,
    scratch: &mut Vec<u8>,
) -> Result<(), CollectiveError> {
    let piece = (MESSAGE / size_of::<T>()).saturating_mul(schedule.parts as usize);
    if values.is_empty() {
        // Still every rank hears from the others, and compares the call.
        run_piece(mesh, running, schedule, values, reduce, scratch)?;
    }
    for piece in values.chunks_mut(piece) {
        run_piece(mesh, running, schedule, piece, reduce, scratch)?;
    }
    mesh.settle(running, 0)
}

fn run_piece<T: Element>(
    mesh: &mut Mesh,
    running: &Running,
    schedule: &Schedule,
    values: &mut [T],
    reduce: Option<Reduce>,
    scratch: &mut Vec<u8>,
) -> Result<(), CollectiveError> {
    let own_rank = mesh.member().rank;
    for step in &schedule.steps {
        if let Some(message) = step.send {
            let part = &values[schedule.range(message.part, values.len())];
            let bytes =
                u32::try_from(size_of_val(part)).expect("a message is at most MESSAGE long");
            mesh.post(running, message.peer, bytes, |queue| T::encode(part, queue))?;
        }
        if let Some((message, arrival)) = step.receive {
            let len = values.len();
            let part = &mut values[schedule.range(message.part, len)];
            scratch.resize(size_of_val(part), 0);
            mesh.receive(running, message.peer, scratch)?;
            match (arrival, reduce) {
                (Arrival::Combine, Some(reduce)) => {
                    element::combine(reduce, part, scratch, message.peer < own_rank);
                }
                _ => {
                    for (own, arrived) in part.iter_mut().zip(T::decode(scratch)) {
                        *own = arrived;
                    }
                }
            }
        }
        mesh.settle(running, MESSAGE)?;
    }
    Ok(())
}
