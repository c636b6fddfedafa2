//! What an agent has to look at by itself, and when: deadlines, and whether other hosts are there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Core;
use crate::wire::clock;
use crate::wire::link::fail;

impl Core {
    /// The driver is to look at deadlines by then.
    pub(crate) fn note_deadline(&self, deadline: Instant) {
        let at = clock::nanoseconds(deadline);
        if self.wake_at.fetch_min(at, Ordering::AcqRel) > at {
            self.poller.wake();
        }
    }

    /// When the driver has to look at deadlines.
    pub(crate) fn wake_at(&self) -> Option<Instant> {
        clock::from_nanoseconds(self.wake_at.load(Ordering::Acquire))
    }

    /// Ends what is over by now.
    ///
    /// For the driver, which looks at the next deadline before it sleeps: it is not woken for that.
    pub(crate) fn expire(self: &Arc<Self>, now: Instant) {
        // Before the look, so that a deadline that comes meanwhile is not lost.
        self.wake_at.store(u64::MAX, Ordering::Release);
        let calls = self.peers.expire(now);
        let references = self.references.expire(self, now);
        let hosts = self.check_hosts(now);
        if let Some(next) = calls.into_iter().chain(references).chain(hosts).min() {
            let at = clock::nanoseconds(next);
            self.wake_at.fetch_min(at, Ordering::AcqRel);
        }
    }

    /// The driver is to look by then whether other hosts are there.
    pub(crate) fn check_hosts_by(&self, next: Instant) {
        let at = clock::nanoseconds(next);
        self.check_hosts_at.fetch_min(at, Ordering::AcqRel);
        self.note_deadline(next);
    }

    /// Looks whether other hosts are there, if it is time; says when to look next.
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
