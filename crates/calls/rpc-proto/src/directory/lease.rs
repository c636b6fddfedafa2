//! Expiry of leases: members that have been silent for too long.
//!
//! Each member increments a separate number in the store. An observer records the time at which it
//! last saw the number change. If the number stays the same for the length of the lease, the member
//! is lost. Only the observer's clock counts.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::time::Mono;

/// State of the leases of other members, as one member observes them.
#[derive(Debug, Clone)]
pub struct LeaseWatch {
    lease: Duration,
    last_check: Option<Mono>,
    seen: BTreeMap<u64, Seen>,
}

/// Maximum number of restarts of a lease while its number does not change.
///
/// Without this limit, an observer whose polls are all late would never see a lease end.
const MOST_RESTARTS: u32 = 3;

#[derive(Debug, Clone, Copy)]
struct Seen {
    beats: i64,
    since: Mono,
    /// Restarts of the lease after late polls.
    restarts: u32,
}

impl LeaseWatch {
    /// Creates a watch of leases of this length.
    pub fn new(lease: Duration) -> Self {
        Self {
            lease,
            last_check: None,
            seen: BTreeMap::new(),
        }
    }

    /// Processes readings, and returns the incarnations whose leases expired.
    ///
    /// A reading is an incarnation and its number. A lease expires if its number does not change
    /// for the length of the lease. Members that are not in the readings are forgotten.
    ///
    /// If more than half a lease has passed since the last poll, this process may have been
    /// stopped, or the store unreachable. Other members may also have been unable to renew. All
    /// unchanged leases then restart, each at most three times until its number changes.
    pub fn expired(&mut self, now: Mono, readings: &[(u64, i64)]) -> Vec<u64> {
        let blind = self
            .last_check
            .is_some_and(|last| now.since(last) > self.lease / 2);
        self.last_check = Some(now);
        let before = std::mem::take(&mut self.seen);
        for &(incarnation, beats) in readings {
            let held = before.get(&incarnation);
            let seen = match held.filter(|seen| seen.beats == beats) {
                Some(seen) if blind && seen.restarts < MOST_RESTARTS => Seen {
                    since: now,
                    restarts: seen.restarts + 1,
                    ..*seen
                },
                Some(seen) => *seen,
                None => Seen {
                    beats,
                    since: now,
                    restarts: 0,
                },
            };
            self.seen.insert(incarnation, seen);
        }
        let silent = |seen: &Seen| now.since(seen.since) >= self.lease;
        let silent = self.seen.iter().filter(|(_, seen)| silent(seen));
        silent.map(|(incarnation, _)| *incarnation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_MEMBER: [u64; 0] = [];

    fn at(millis: u64) -> Mono {
        Mono::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn a_number_that_stands_still_for_the_lease_is_noticed() {
        let mut watch = LeaseWatch::new(Duration::from_secs(1));
        assert_eq!(watch.expired(at(0), &[(1, 5), (2, 5)]), NO_MEMBER);
        assert_eq!(watch.expired(at(400), &[(1, 5), (2, 6)]), NO_MEMBER);
        assert_eq!(watch.expired(at(800), &[(1, 5), (2, 6)]), NO_MEMBER);
        assert_eq!(watch.expired(at(1000), &[(1, 5), (2, 6)]), [1]);
        assert_eq!(watch.expired(at(1399), &[(2, 6)]), NO_MEMBER);
        assert_eq!(watch.expired(at(1400), &[(2, 6)]), [2]);
    }

    #[test]
    fn a_new_life_starts_with_a_whole_lease() {
        let mut watch = LeaseWatch::new(Duration::from_secs(1));
        for millis in [0, 500, 900] {
            assert_eq!(watch.expired(at(millis), &[(1, 0)]), NO_MEMBER);
        }
        // The member was forgotten and is back.
        assert_eq!(watch.expired(at(950), &[]), NO_MEMBER);
        assert_eq!(watch.expired(at(1200), &[(1, 0)]), NO_MEMBER);
    }

    #[test]
    fn who_was_blind_blames_nobody() {
        let mut watch = LeaseWatch::new(Duration::from_secs(1));
        watch.expired(at(0), &[(1, 5)]);
        watch.expired(at(500), &[(1, 5)]);
        // The observer was stopped for ten seconds.
        assert_eq!(watch.expired(at(10_500), &[(1, 5)]), NO_MEMBER);
        assert_eq!(watch.expired(at(11_000), &[(1, 5)]), NO_MEMBER);
        assert_eq!(watch.expired(at(11_500), &[(1, 5)]), [1]);
    }

    #[test]
    fn an_observer_whose_every_look_is_late_sees_a_lease_end() {
        let mut watch = LeaseWatch::new(Duration::from_secs(1));
        let looks = (0..10).map(|look| at(look * 700));
        let ends: Vec<_> = looks.map(|now| watch.expired(now, &[(1, 5)])).collect();
        let first = ends.iter().position(|gone| !gone.is_empty());
        // Three restarts, at 700, 1400 and 2100 ms, and then a lease.
        assert_eq!(first, Some(5));
        // A member that renews its lease stays.
        let mut watch = LeaseWatch::new(Duration::from_secs(1));
        for look in 0..10 {
            let beats = i64::try_from(look / 2).unwrap();
            assert_eq!(watch.expired(at(look * 700), &[(1, beats)]), NO_MEMBER);
        }
    }
}
