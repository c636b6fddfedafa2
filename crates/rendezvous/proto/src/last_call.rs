//! What people are told while a round that has enough nodes waits for more: otherwise an elastic job
//! that is complete seems to do nothing for half a minute.

use std::fmt;
use std::time::Duration;

use super::{NodeDesc, RendezvousState, Settings};
use rdzv_core::time::Wall;

/// The last call of a round that forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastCall {
    /// How many nodes have come.
    pub nodes: u32,
    /// How many more there may be.
    pub room: u32,
    /// How long they are waited for.
    pub ends_in: Duration,
}

impl LastCall {
    /// The last call of the round that forms, if there is one to speak of and this node takes part.
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

    /// Whether anybody is waited for, and for so long that people notice.
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
             (--rdzv-conf last_call_timeout=0 starts at once)",
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
        NodeDesc {
            addr: name.to_owned(),
            pid: 1,
            local_id: 0,
        }
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
             (--rdzv-conf last_call_timeout=0 starts at once)"
        );
        let other = LastCall::seen_by(&node("b"), &state, &settings, now);
        assert_eq!(other, None, "b does not take part");
        state.participants.insert(node("b"), 0);
        assert!(heard(&state).unwrap().contains("up to 1 further node ("));
        state.deadline = Some(now);
        assert_eq!(heard(&state), None, "it is over");
        state.deadline = Some(now + Duration::from_secs(30));
        state.complete = true;
        assert_eq!(heard(&state), None, "the round is complete");
    }
}
