//! Fence of a node: its state machine, and the clock of its leases.

use std::time::Duration;

use rdzv_core::time::{Mono, Now};
use rustix::time::{ClockId, clock_gettime};

pub use rdzv_rendezvous_proto::fence::{Fence, Input, Output};

/// Returns the time since the boot of this machine.
///
/// This clock also runs while the machine is suspended, like the clocks of the other machines.
pub fn now() -> Now {
    let since = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(since.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(since.tv_nsec).unwrap_or(0);
    Now::at(Mono::from_origin(Duration::new(seconds, nanos)))
}
