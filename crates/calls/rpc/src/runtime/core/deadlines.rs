//! Times at which the driver runs: deadlines, and checks of other hosts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Core;
use crate::wire::clock;
use crate::wire::link::fail;

impl Core {
    /// Makes the driver check the deadlines at this time at the latest.
    pub(crate) fn note_deadline(&self, deadline: Instant) {
        let at = clock::nanoseconds(deadline);
        if self.wake_at.fetch_min(at, Ordering::AcqRel) > at {
            self.poller.wake();
        }
    }

    /// Returns the time at which the driver must check the deadlines.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        clock::from_nanoseconds(self.wake_at.load(Ordering::Acquire))
    }

    /// Ends the calls whose deadline has passed, and runs other due work.
    ///
    /// Only the driver calls this. The driver reads the next deadline before it sleeps, so this
    /// does not wake it.
    pub(crate) fn expire(self: &Arc<Self>, now: Instant) {
        // The reset comes first, so that a deadline noted during the checks is not lost.
        self.wake_at.store(u64::MAX, Ordering::Release);
        let calls = self.peers.expire(now);
        let references = self.references.expire(self, now);
        let hosts = self.check_hosts(now);
        if let Some(next) = calls.into_iter().chain(references).chain(hosts).min() {
            let at = clock::nanoseconds(next);
            self.wake_at.fetch_min(at, Ordering::AcqRel);
        }
    }

    /// Makes the driver check the other hosts at this time at the latest.
    pub(crate) fn check_hosts_by(&self, next: Instant) {
        let at = clock::nanoseconds(next);
        self.check_hosts_at.fetch_min(at, Ordering::AcqRel);
        self.note_deadline(next);
    }

    /// Checks the other hosts if due, and returns the time of the next check.
    fn check_hosts(&self, now: Instant) -> Option<Instant> {
        let due = clock::from_nanoseconds(self.check_hosts_at.load(Ordering::Acquire))?;
        if due > now {
            return Some(due);
        }
        self.check_hosts_at.store(u64::MAX, Ordering::Release);
        let looks = self.poller.all().into_iter().filter_map(|endpoint| {
            let look = endpoint.link().look(now);
            look.unwrap_or_else(|error| {
                fail(&endpoint, error);
                None
            })
        });
        let next = clock::nanoseconds(looks.min()?);
        let next = self
            .check_hosts_at
            .fetch_min(next, Ordering::AcqRel)
            .min(next);
        clock::from_nanoseconds(next)
    }
}
