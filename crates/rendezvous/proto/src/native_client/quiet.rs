//! Steps of an agent whose coordinator sends nothing over an open connection.

use std::time::Duration;

use crate::silence;
use rdzv_core::time::Mono;

/// Minimum time to wait for an answer before the agent logs the silence.
const TELL_AFTER: Duration = Duration::from_secs(2);

/// Time until the kernel has resent data; its limit counts from then.
const KERNEL_BEGINS: Duration = Duration::from_millis(500);

/// Time between two messages.
const REMIND: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask the coordinator for an answer; its kernel must acknowledge the question.
    Ask,
    /// Ask the other voters for the current coordinator.
    Search,
    /// Log that the coordinator has sent nothing for this time.
    ///
    /// Its machine still answers.
    Tell(Duration),
}

/// Steps taken since the last message of the coordinator.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    node_timeout: Duration,
    heard: Mono,
    asked: Option<Mono>,
    search_at: Option<Mono>,
    tell_at: Mono,
}

impl Quiet {
    pub(super) fn new(now: Mono, node_timeout: Duration) -> Self {
        Self {
            node_timeout,
            heard: now,
            tell_at: now,
            ..Self::default()
        }
    }

    pub(super) fn heard(&mut self, now: Mono) {
        (self.heard, self.asked, self.search_at) = (now, None, None);
    }

    /// Returns the time at which to call [`Quiet::next`].
    pub(super) fn deadline(&self) -> Mono {
        match self.asked {
            None => self.heard + silence::ask(self.node_timeout),
            Some(_) => self
                .search_at
                .map_or(self.tell_at, |at| at.min(self.tell_at)),
        }
    }

    /// Returns the step that is due, if any.
    ///
    /// The agent asks other voters only if there are some. Later times count from the question to
    /// the coordinator, because this process may have been delayed before.
    pub(super) fn next(&mut self, now: Mono, has_voters: bool) -> Option<Step> {
        if self.deadline() > now {
            return None;
        }
        let wait = silence::ask(self.node_timeout);
        if self.asked.is_none() {
            self.asked = Some(now);
            self.search_at = has_voters.then_some(now + wait);
            let acknowledged = silence::unacknowledged(self.node_timeout) + KERNEL_BEGINS;
            self.tell_at = now + TELL_AFTER.max(acknowledged);
            return Some(Step::Ask);
        }
        if self.search_at.is_some_and(|at| at <= now) {
            self.search_at = Some(now + wait);
            return Some(Step::Search);
        }
        self.tell_at = now + REMIND;
        Some(Step::Tell(now.since(self.heard)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Mono {
        Mono::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn the_coordinator_is_asked_first_and_the_others_after_it() {
        let mut quiet = Quiet::new(at(0), silence::NODE_TIMEOUT);
        assert_eq!(quiet.next(at(999), true), None);
        assert_eq!(quiet.next(at(1000), true), Some(Step::Ask));
        assert_eq!(quiet.next(at(1999), true), None);
        assert_eq!(quiet.next(at(2000), true), Some(Step::Search));
        assert_eq!(quiet.next(at(2999), true), None);
        // The answer of the voters may have taken long.
        assert_eq!(quiet.next(at(3100), true), Some(Step::Search));
        let told = Step::Tell(Duration::from_millis(3101));
        assert_eq!(quiet.next(at(3101), true), Some(told));
        assert_eq!(quiet.deadline(), at(4100));
        quiet.heard(at(3200));
        assert_eq!(quiet.deadline(), at(4200));
    }

    #[test]
    fn without_other_voters_people_are_reminded() {
        let mut quiet = Quiet::new(at(0), silence::NODE_TIMEOUT);
        // This process was delayed: it may not have read earlier messages yet.
        assert_eq!(quiet.next(at(20_000), false), Some(Step::Ask));
        assert_eq!(quiet.deadline(), at(22_000));
        let told = |seconds| Some(Step::Tell(Duration::from_secs(seconds)));
        assert_eq!(quiet.next(at(22_000), false), told(22));
        assert_eq!(quiet.next(at(31_000), false), None);
        assert_eq!(quiet.next(at(32_000), false), told(32));
    }
}
