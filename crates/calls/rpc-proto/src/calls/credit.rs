//! Limits of calls and bytes in flight to a peer.

/// Limits of calls and bytes in flight to one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditLimits {
    /// Maximum number of calls that were sent and have not ended (default: 256).
    pub calls: u32,
    /// Maximum total size of these calls' requests, in bytes (default: 64 MiB).
    pub bytes: u64,
}

impl Default for CreditLimits {
    fn default() -> Self {
        Self {
            calls: 256,
            bytes: 64 << 20,
        }
    }
}

/// Calls and bytes in flight to one peer, within limits.
///
/// A message that alone exceeds the limit of bytes passes when nothing else is in flight. No other
/// message passes until that call has ended. The driver decides the order of waiting messages. If
/// the driver requests credit only for the first message in its queue, other messages cannot
/// overtake a large message.
#[derive(Debug, Clone, Default)]
pub struct Credit {
    limits: CreditLimits,
    calls: u32,
    bytes: u64,
}

impl Credit {
    /// Creates credit with no calls in flight.
    pub fn new(limits: CreditLimits) -> Self {
        Self {
            limits,
            calls: 0,
            bytes: 0,
        }
    }

    /// Reserves credit for a call of this many bytes, if there is enough.
    #[must_use]
    pub fn try_take(&mut self, bytes: u64) -> bool {
        let after = self.bytes.saturating_add(bytes);
        let fits =
            self.calls == 0 || (self.calls < self.limits.calls && after <= self.limits.bytes);
        if fits {
            self.take(bytes);
        }
        fits
    }

    /// Reserves credit for a call, even if there is not enough.
    pub(super) fn take(&mut self, bytes: u64) {
        self.calls += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// `true` if fewer calls than the limit, and at most its bytes, are in flight.
    pub(super) fn is_within(&self) -> bool {
        self.calls < self.limits.calls && self.bytes <= self.limits.bytes
    }

    /// Releases the credit of a call that has ended.
    pub fn give_back(&mut self, bytes: u64) {
        debug_assert!(self.calls > 0 && self.bytes >= bytes, "no such call");
        self.calls = self.calls.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Returns the number of calls in flight.
    pub fn calls(&self) -> u32 {
        self.calls
    }

    /// Returns the number of bytes in flight.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn as_many_calls_as_the_limit() {
        let mut credit = Credit::default();
        assert_eq!((0..300).filter(|_| credit.try_take(0)).count(), 256);
        credit.give_back(0);
        assert!(credit.try_take(0));
        assert!(!credit.try_take(0));
    }

    #[test]
    fn as_many_bytes_as_the_limit() {
        let mut credit = Credit::default();
        assert_eq!((0..10).filter(|_| credit.try_take(16 << 20)).count(), 4);
        assert!(!credit.try_take(1));
        assert!(credit.try_take(0));
        credit.give_back(16 << 20);
        assert!(credit.try_take(16 << 20));
    }

    #[test]
    fn a_message_over_the_limit_passes_alone() {
        let mut credit = Credit::default();
        assert!(credit.try_take(1));
        assert!(!credit.try_take(1 << 30));
        credit.give_back(1);
        assert!(credit.try_take(1 << 30));
        assert!(!credit.try_take(0), "nothing beside it");
        credit.give_back(1 << 30);
        assert!(credit.try_take(u64::MAX));
    }

    proptest! {
        #[test]
        fn it_is_never_over_the_limits_except_alone(
            steps in prop::collection::vec((any::<bool>(), 0..50_u64), 0..200),
        ) {
            let mut credit = Credit::new(CreditLimits { calls: 5, bytes: 40 });
            let mut out = Vec::new();
            for (give, bytes) in steps {
                match if give { out.pop() } else { None } {
                    Some(bytes) => credit.give_back(bytes),
                    None if credit.try_take(bytes) => out.push(bytes),
                    None => prop_assert!(!out.is_empty()),
                }
                let total: u64 = out.iter().sum();
                prop_assert_eq!((credit.calls() as usize, credit.bytes()), (out.len(), total));
                prop_assert!(out.len() <= 5 && (total <= 40 || out.len() == 1));
            }
        }
    }
}
