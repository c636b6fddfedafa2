//! Time of the group.
//!
//! Each command carries the time of the leader that proposed it. A new leader continues from the
//! time of the previous leader.

use std::time::Duration;

use bytes::{Buf as _, BufMut as _};
use rdzv_core::time::{Mono, Now, Wall};

/// Time of the group, at one member.
#[derive(Debug, Default)]
pub(super) struct GroupClock {
    /// Time of the last applied command.
    applied: Now,
    /// At the leader: the group's time and the local time at the start of the term.
    began: Option<(Now, Mono)>,
}

impl GroupClock {
    /// Starts the clock of a new leader.
    ///
    /// `last` is the time of the newest command in its log.
    pub(super) fn lead(&mut self, now: Now, last: Now) {
        self.began = Some((last, now.mono));
    }

    pub(super) fn applied(&self) -> Now {
        self.applied
    }

    pub(super) fn apply(&mut self, at: Now) {
        self.applied = at;
    }

    /// Returns the group's time, at the leader.
    pub(super) fn at(&self, now: Now, pace: u32) -> Now {
        let (last, began) = self.began.unwrap_or((self.applied, now.mono));
        Now {
            mono: last.mono + now.mono.since(began) * pace,
            wall: last.wall.max(now.wall),
        }
    }
}

pub(super) fn write(at: Now, bytes: &mut Vec<u8>) {
    let nanos = at.mono.since(Mono::ZERO).as_nanos();
    bytes.put_u64_le(u64::try_from(nanos).unwrap_or(u64::MAX));
    bytes.put_i64_le(at.wall.unix_micros());
}

pub(super) fn read(bytes: &mut &[u8]) -> Option<Now> {
    let nanos = bytes.try_get_u64_le().ok()?;
    Some(Now {
        mono: Mono::from_origin(Duration::from_nanos(nanos)),
        wall: Wall::from_unix_micros(bytes.try_get_i64_le().ok()?),
    })
}
