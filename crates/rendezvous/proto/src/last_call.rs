//! Message while a round that has enough nodes waits for more.
//!
//! Without it, an elastic job with enough nodes seems to do nothing for half a minute.

use std::fmt;
use std::time::Duration;

use super::{NodeDesc, RendezvousState, Settings};
use rdzv_core::time::Wall;

/// The last call of a round that forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastCall {
    /// Number of nodes that have joined.
    pub nodes: u32,
    /// Number of further nodes that may join.
    pub room: u32,
    /// Time until the last call ends.
    pub ends_in: Duration,
}

impl LastCall {
    /// Returns the last call of the forming round, as a participant sees it.
    ///
    /// `None` without a last call, if `me` does not participate, or if the last call is not worth a
    /// message.
    pub fn seen_by(
        me: &NodeDesc,
        state: &RendezvousState,
        settings: &Settings,
        wall: Wall,
    ) -> Option<Self> {
        let deadline = state.deadline.filter(|_| !state.complete)?;
        let nodes = u32::try_from(state.participants.len()).unwrap_or(u32::MAX);
        let call = Self {
            nodes,
            room: settings.max_nodes.saturating_sub(nodes),
            ends_in: deadline.since(wall).min(settings.last_call_timeout),
        };
        (state.participants.contains_key(me) && call.is_worth_announcing()).then_some(call)
    }

    /// `true` if further nodes may join and users would notice the wait.
    pub(super) fn is_worth_announcing(&self) -> bool {
        self.room > 0 && self.ends_in >= Duration::from_secs(1)
    }
}

impl fmt::Display for LastCall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count| if count == 1 { "" } else { "s" };
        write!(
            formatter,
            "{} node{} joined, which is enough; waiting {:.0} s more for up to {} further node{} \
             (--rdzv-conf last_call_timeout=0 starts immediately)",
            self.nodes,
            plural(self.nodes),
            self.ends_in.as_secs_f64(),
            self.room,
            plural(self.room),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeDesc {
        NodeDesc::new(name, 1)
    }

    #[test]
    fn it_is_announced_to_participants_while_there_is_something_to_wait_for() {
        let (min, max) = (1, 3);
        let settings = Settings::new(min, max);
        let now = Wall::from_unix_micros(5_000_000);
        let mut state = RendezvousState::default();
        state.participants.insert(node("a"), 0);
        let heard = |state: &RendezvousState| {
            LastCall::seen_by(&node("a"), state, &settings, now).map(|call| call.to_string())
        };
        assert_eq!(heard(&state), None, "too few nodes");
        state.deadline = Some(now + Duration::from_secs(30));
        assert_eq!(
            heard(&state).unwrap(),
            "1 node joined, which is enough; waiting 30 s more for up to 2 further nodes \
             (--rdzv-conf last_call_timeout=0 starts immediately)"
        );
        let other = LastCall::seen_by(&node("b"), &state, &settings, now);
        assert_eq!(other, None, "b does not participate");
        state.participants.insert(node("b"), 0);
        assert!(heard(&state).unwrap().contains("up to 1 further node ("));
        state.deadline = Some(now);
        assert_eq!(heard(&state), None, "it is over");
        state.deadline = Some(now + Duration::from_secs(30));
        state.complete = true;
        assert_eq!(heard(&state), None, "the round is complete");
    }
}
