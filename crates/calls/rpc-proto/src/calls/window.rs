//! Limits of one caller's open calls over one connection, at the callee.
//!
//! The limits hold even if the caller misbehaves.

use super::credit::{Credit, CreditLimits};

/// Open calls of one caller at the callee.
///
/// A call is admitted if the calls that are already open are within the limits, so an allowed
/// message of any length passes. The caller keeps to its [`Credit`], which lets a large message
/// pass alone.
#[derive(Debug, Clone)]
pub struct Window {
    /// Calls that count against the caller's own [limits](CreditLimits).
    own: Credit,
    /// Calls that do not count against these limits.
    ///
    /// These are nested calls, and cancelled calls that have not ended.
    beyond: Credit,
}

impl Default for Window {
    /// Creates a window for a caller with the default limits.
    ///
    /// The window has room for twice the caller's calls and the same number of bytes. Beyond them
    /// it has room for 16384 calls and 256 MiB.
    fn default() -> Self {
        let own = CreditLimits::default();
        Self::new(
            CreditLimits {
                calls: 2 * own.calls,
                ..own
            },
            CreditLimits {
                calls: 16_384,
                bytes: 256 << 20,
            },
        )
    }
}

/// Part of a window that one call occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// `true` if the call does not count against the caller's own limits.
    pub beyond: bool,
    /// Number of bytes of the call that are kept.
    pub bytes: u64,
}

impl Window {
    /// Creates an empty window.
    pub fn new(own: CreditLimits, beyond: CreditLimits) -> Self {
        Self {
            own: Credit::new(own),
            beyond: Credit::new(beyond),
        }
    }

    /// `true` if there is room for one more call.
    ///
    /// `beyond` is `true` for a nested call.
    pub fn has_room(&self, beyond: bool) -> bool {
        self.beyond.is_within() && (beyond || self.own.is_within())
    }

    /// Records an admitted call.
    pub fn take(&mut self, share: Share) {
        self.open(share.beyond).take(share.bytes);
    }

    /// Records the end of a call.
    pub fn give_back(&mut self, share: Share) {
        self.open(share.beyond).give_back(share.bytes);
    }

    /// Moves a call that the caller has cancelled, and still counts `kept` bytes.
    ///
    /// The call no longer counts against the caller's own limits.
    pub fn give_up(&mut self, share: &mut Share, kept: u64) {
        self.give_back(*share);
        *share = Share {
            beyond: true,
            bytes: kept.min(share.bytes),
        };
        self.take(*share);
    }

    /// Returns the number of open calls and their total size in bytes.
    pub fn in_use(&self) -> (u32, u64) {
        let (own, beyond) = (&self.own, &self.beyond);
        (own.calls() + beyond.calls(), own.bytes() + beyond.bytes())
    }

    fn open(&mut self, beyond: bool) -> &mut Credit {
        if beyond {
            &mut self.beyond
        } else {
            &mut self.own
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(calls: u32, bytes: u64) -> Window {
        let limits = CreditLimits { calls, bytes };
        Window::new(limits, limits)
    }

    fn share(beyond: bool, bytes: u64) -> Share {
        Share { beyond, bytes }
    }

    #[test]
    fn parts_of_other_calls_pass_when_the_caller_has_used_its_share_up() {
        let mut window = window(2, 100);
        window.take(share(false, 1));
        window.take(share(false, 1));
        assert!(!window.has_room(false));
        assert!(window.has_room(true));
        window.take(share(true, 101));
        assert!(!window.has_room(true));
        window.give_back(share(true, 101));
        window.give_back(share(false, 1));
        assert!(window.has_room(false));
        assert_eq!(window.in_use(), (1, 1));
    }

    #[test]
    fn what_is_given_up_makes_room_for_the_caller_but_not_for_ever() {
        let mut window = window(3, 100);
        for _ in 0..3 {
            assert!(window.has_room(false));
            let mut given_up = share(false, 40);
            window.take(given_up);
            window.give_up(&mut given_up, 40);
            assert_eq!(given_up, share(true, 40));
        }
        assert!(!window.has_room(false));
        let mut last = share(true, 40);
        window.give_up(&mut last, 0);
        assert_eq!(last, share(true, 0));
        assert!(!window.has_room(false), "three calls are still open");
        window.give_back(last);
        assert!(window.has_room(false));
    }

    proptest! {
        /// Admits every call of a caller that keeps to its credit.
        ///
        /// The caller may cancel any calls, as long as the functions of these calls end.
        #[test]
        fn whoever_keeps_to_its_credit_is_let_in(
            steps in prop::collection::vec((0..3_u8, 0..80_u64), 0..200),
        ) {
            let limits = CreditLimits { calls: 5, bytes: 40 };
            let mut credit = Credit::new(limits);
            let mut window = window(5, 40);
            let mut open = Vec::new();
            for (what, bytes) in steps {
                match (what, open.len()) {
                    (0, _) => {
                        if credit.try_take(bytes) {
                            prop_assert!(window.has_room(false));
                            window.take(share(false, bytes));
                            open.push(bytes);
                        }
                    }
                    (_, 0) => {}
                    (1, count) => {
                        let bytes = open.swap_remove(bytes as usize % count);
                        window.give_back(share(false, bytes));
                        credit.give_back(bytes);
                    }
                    (_, count) => {
                        let bytes = open.swap_remove(bytes as usize % count);
                        let mut given_up = share(false, bytes);
                        window.give_up(&mut given_up, 0);
                        credit.give_back(bytes);
                        window.give_back(given_up);
                    }
                }
            }
        }
    }
}
