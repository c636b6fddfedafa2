//! The fence of a node: its machine, and the clock on which leases end.

use std::time::Duration;

use rdzv_core::time::{Mono, Now, Wall};
use rustix::time::{ClockId, clock_gettime};

pub use rdzv_rendezvous_proto::fence::{Fence, Input, Output};

/// The time since the machine was started. It goes on while the machine is suspended, as that of the others does.
pub fn now() -> Now {
    let since = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(since.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(since.tv_nsec).unwrap_or(0);
    Now {
        mono: Mono::from_origin(Duration::new(seconds, nanos)),
        wall: Wall::default(),
    }
}
