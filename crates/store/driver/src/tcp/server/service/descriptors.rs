//! Descriptors of the process, which connections must not use up.
//!
//! ```text
//!   0 ───────────────── all clients ────────── agents ──── the process ── limit
//!                                            │            │
//!     beyond it, connections without a request            beyond it, accepting pauses until
//!     make room, and only agents are accepted             another one makes room, or for a time
//! ```
//!
//! The process needs descriptors for what it starts and opens. The kernel assigns the lowest free
//! number. The number of an accepted connection therefore shows how many descriptors are in use in
//! the whole process.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Resource, getrlimit};

/// Largest unit of the reserves. The unit is a sixteenth of the limit.
const MOST_UNIT: usize = 1024;

/// The number of descriptors in use, and its limits.
#[derive(Debug)]
pub(super) struct Descriptors {
    /// Limit of open files; `None` if there is none.
    limit: Option<usize>,
    /// Number above which only agents are accepted.
    for_all: usize,
    /// Number above which accepting pauses.
    for_connections: usize,
    /// Number in use when the last connection was accepted or refused.
    used: usize,
    /// `true` if the machine must be notified of a change.
    has_changed: bool,
}

impl Descriptors {
    /// Creates the state for this process; `has_agents` if agents may join here.
    pub(super) fn new(has_agents: bool) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        Self::within(
            limit.and_then(|limit| usize::try_from(limit).ok()),
            has_agents,
        )
    }

    fn within(limit: Option<usize>, has_agents: bool) -> Self {
        let most = limit.unwrap_or(usize::MAX);
        let unit = (most / 16).min(MOST_UNIT);
        Self {
            limit,
            // Clients of a store without agents leave descriptors for agents of another store in
            // this process.
            for_all: most - if has_agents { 4 * unit } else { 3 * unit },
            for_connections: most - 2 * unit,
            used: 0,
            has_changed: false,
        }
    }

    /// Records an accepted connection.
    pub(super) fn taken(&mut self, descriptor: &OwnedFd) {
        self.now_used(usize::try_from(descriptor.as_raw_fd()).map_or(0, |number| number + 1));
    }

    /// Records that the system has refused a connection.
    pub(super) fn refused(&mut self) {
        self.now_used(self.limit.unwrap_or(self.used));
    }

    fn now_used(&mut self, used: usize) {
        self.has_changed |= self.used > self.for_all || used > self.for_all;
        self.used = used;
    }

    /// `true` if accepting must pause, to let another client make room.
    pub(super) fn are_scarce(&self) -> bool {
        self.used > self.for_connections
    }

    /// Returns the number in use beyond `for_all`, if it may have changed.
    /// The caller must pass this number to the machine.
    pub(super) fn take_beyond(&mut self) -> Option<usize> {
        std::mem::take(&mut self.has_changed).then(|| self.used.saturating_sub(self.for_all))
    }

    /// Returns the number in use, for log lines.
    pub(super) fn shown(&self) -> String {
        match self.limit {
            Some(limit) => format!("{} of {limit} descriptors are in use", self.used),
            None => format!("{} descriptors are in use", self.used),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_and_the_process_have_descriptors_that_others_cannot_take() {
        for (limit, for_all, for_connections) in [
            (256, 192, 224),
            (1024, 768, 896),
            (1 << 20, (1 << 20) - 4096, (1 << 20) - 2048),
        ] {
            let descriptors = Descriptors::within(Some(limit), true);
            assert_eq!(descriptors.for_all, for_all);
            assert_eq!(descriptors.for_connections, for_connections);
        }
    }

    #[test]
    fn the_machine_learns_of_a_lack_and_of_its_end() {
        let mut descriptors = Descriptors::within(Some(256), true);
        let mut reported = |used| {
            descriptors.now_used(used);
            (descriptors.take_beyond(), descriptors.are_scarce())
        };
        assert_eq!(reported(192), (None, false));
        assert_eq!(reported(193), (Some(1), false));
        assert_eq!(reported(225), (Some(33), true));
        assert_eq!(reported(100), (Some(0), false));
        assert_eq!(reported(101), (None, false));
    }
}
