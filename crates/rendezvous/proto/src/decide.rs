//! What one agent does next, given what it knows: one function for each thing an agent may want.
//!
//! Nothing here changes anything; [`apply`](super::apply) does. The first matching line wins, in
//! the order of PyTorch's handler, because its agents may share the state with ours: who is let in,
//! who is turned away and when a round is complete must come out the same.
//!
//! Some lines are ours, and change nothing for the others:
//!
//! * a round that lost somebody before we saw it is not joined (the ranks would have a gap, or be
//!   too few); we wait for the next one instead;
//! * a round after a change is complete as soon as [everybody who can be
//!   expected](super::expected::Expected) is there, without a last call; to the others this looks
//!   as if our last call had ended;
//! * a last call lasts its time by the clock of the agent that sees it: the end that stands in the
//!   state is a time of somebody else's clock;
//! * the last call is a little longer while nodes that waited for the round have not got in yet:
//!   a round without them would end as soon as it began. To the others our clock seems slow;
//! * who waited for a round that is full before it got in becomes surplus. Agents of torchrun go on
//!   waiting, which tells all the others to start over, again and again;
//! * an agent that leaves for good leaves every list, not only the participants.

use std::time::Duration;

use rdzv_core::time::Wall;

use super::{NodeDesc, RendezvousState, Settings, ranks};

/// What to do to the shared state, or that nothing has to be done to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Write that we are alive.
    KeepAlive,
    /// Take part in the round that is forming.
    AddToParticipants,
    /// Wait for the next round.
    AddToWaitList,
    /// Wait until a full round has room.
    AddToRedundancyList,
    /// Take part no longer.
    RemoveFromParticipants,
    /// Wait no longer.
    RemoveFromWaitList,
    /// Be surplus no longer. The time to join starts anew.
    RemoveFromRedundancyList,
    /// Complete the round: give everybody a rank.
    MarkComplete,
    /// End the run.
    MarkClosed,
    /// Nothing until the state changes or time passes.
    Wait,
    /// What was wanted is the case.
    Finish,
    /// What was wanted will never be the case.
    Fail(Ending),
}

impl Action {
    /// The decision to do it.
    pub(crate) fn because(self, reason: &'static str) -> Decision {
        let action = self;
        Decision { action, reason }
    }

    /// Whether it changes the state, so that it must be written.
    pub fn is_change(self) -> bool {
        !matches!(self, Self::Wait | Self::Finish | Self::Fail(_))
    }
}

/// Why something will never be the case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The run was closed.
    Closed,
    /// The run was closed while we were surplus.
    NotNeeded,
    /// Its time is over.
    Timeout,
}

/// How much time a request has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinPhase {
    /// It has some.
    InTime,
    /// None, but there is still time to take back what was written.
    RollBack,
    /// None at all.
    Over,
}

/// When a decision is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// The wall clock, to be compared with the heartbeats of this node.
    pub wall: Wall,
    /// Whether the last call of the round that is forming has lasted long enough.
    pub last_call_over: bool,
    /// How much time the request has left.
    pub phase: JoinPhase,
    /// Whether everybody who can be expected in the round that is forming is there.
    pub all_here: bool,
}

/// An action and why it was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub action: Action,
    /// Why, for logs.
    pub reason: &'static str,
}

/// Reasons of several decisions.
const NOT_LISTED: &str = "the node is in no list";
const TIME_OVER: &str = "the time for it is over";
const RUN_CLOSED: &str = "the run is closed";
pub(crate) const HEARTBEAT_DUE: &str = "a heartbeat is due";
const ROUND_FULL: &str = "the round is full";
const IN_COMPLETE_ROUND: &str = "the round is complete";
const ASKED: &str = "it was asked for";

/// Before a node joins: it leaves the round that it is in.
pub fn exit(state: &RendezvousState, me: &NodeDesc, moment: Moment) -> Decision {
    if !state.participants.contains_key(me) {
        Action::Finish.because(NOT_LISTED)
    } else if moment.phase == JoinPhase::InTime {
        Action::RemoveFromParticipants.because("the node is in a round that it leaves first")
    } else {
        Action::Fail(Ending::Timeout).because(TIME_OVER)
    }
}

/// A node wants to be in a complete round.
pub fn join(
    state: &RendezvousState,
    me: &NodeDesc,
    settings: &Settings,
    moment: Moment,
) -> Decision {
    let participant = state.participants.contains_key(me);
    let waiting = state.wait_list.contains(me);
    let surplus = state.redundancy_list.contains(me);
    let count = state.participants.len();
    let min = settings.min_nodes as usize;
    let max = settings.max_nodes as usize;
    let due = keep_alive_due(state, me, settings, moment.wall);

    if state.closed {
        let ending = if surplus {
            Ending::NotNeeded
        } else {
            Ending::Closed
        };
        return Action::Fail(ending).because(RUN_CLOSED);
    }
    if surplus {
        // No time limit: the node is there in case it is needed.
        return match (count == max, due) {
            (true, true) => Action::KeepAlive.because(HEARTBEAT_DUE),
            (true, false) => Action::Wait.because(ROUND_FULL),
            (false, _) => {
                Action::RemoveFromRedundancyList.because("the round is not full any more")
            }
        };
    }
    let whole = ranks::are_assigned(&state.participants) && count >= min;
    if state.complete && participant && whole {
        return Action::Finish.because(IN_COMPLETE_ROUND);
    }
    if moment.phase != JoinPhase::InTime {
        let action = match moment.phase {
            JoinPhase::RollBack if participant => Action::RemoveFromParticipants,
            JoinPhase::RollBack if waiting => Action::RemoveFromWaitList,
            _ => Action::Fail(Ending::Timeout),
        };
        return action.because(TIME_OVER);
    }
    if state.complete {
        if participant {
            return Action::RemoveFromParticipants.because("the complete round has lost nodes");
        }
        if count < max && !waiting {
            return Action::AddToWaitList.because("the round is complete without this node");
        }
        if count >= max {
            return Action::AddToRedundancyList.because(ROUND_FULL);
        }
    } else if participant {
        if count >= min && count <= max {
            if moment.last_call_over {
                return Action::MarkComplete.because("the last call is over");
            }
            if moment.all_here {
                return Action::MarkComplete.because("everybody who can be expected is there");
            }
        }
    } else {
        return Action::AddToParticipants.because("a round is forming");
    }
    if due {
        Action::KeepAlive.because(HEARTBEAT_DUE)
    } else if !participant {
        Action::Wait.because("waiting for the next round")
    } else if count < min {
        Action::Wait.because("fewer nodes than needed have joined")
    } else {
        Action::Wait.because("more nodes may join until the last call is over")
    }
}

/// How long after the last call those who still stand in the wait list are waited for.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// Time after the end of the last call until we complete the round that is forming.
pub fn last_call_grace(state: &RendezvousState) -> Duration {
    match state.wait_list.is_empty() {
        true => Duration::ZERO,
        false => STRAGGLERS,
    }
}

/// A node does not want to take part any more.
pub fn leave(state: &RendezvousState, me: &NodeDesc, moment: Moment) -> Decision {
    let action = if state.participants.contains_key(me) {
        Action::RemoveFromParticipants
    } else if state.wait_list.contains(me) {
        Action::RemoveFromWaitList
    } else if state.redundancy_list.contains(me) {
        Action::RemoveFromRedundancyList
    } else {
        return Action::Finish.because(NOT_LISTED);
    };
    // Whom nobody lets in any more, nobody misses either.
    if state.closed {
        Action::Finish.because(RUN_CLOSED)
    } else if moment.phase == JoinPhase::InTime {
        action.because(ASKED)
    } else {
        Action::Fail(Ending::Timeout).because(TIME_OVER)
    }
}

/// A node ends the run for everybody.
pub fn close(state: &RendezvousState, moment: Moment) -> Decision {
    if state.closed {
        Action::Finish.because(RUN_CLOSED)
    } else if moment.phase == JoinPhase::InTime {
        Action::MarkClosed.because(ASKED)
    } else {
        Action::Fail(Ending::Timeout).because(TIME_OVER)
    }
}

/// A node that is in a complete round.
pub fn keep_alive(
    state: &RendezvousState,
    me: &NodeDesc,
    settings: &Settings,
    wall: Wall,
) -> Decision {
    if keep_alive_due(state, me, settings, wall) {
        Action::KeepAlive.because(HEARTBEAT_DUE)
    } else {
        Action::Finish.because(IN_COMPLETE_ROUND)
    }
}

/// Whether our last heartbeat in the state is an interval old. Never, if there is none.
pub fn keep_alive_due(
    state: &RendezvousState,
    me: &NodeDesc,
    settings: &Settings,
    wall: Wall,
) -> bool {
    state
        .last_heartbeats
        .get(me)
        .is_some_and(|last| *last <= wall - settings.keep_alive_interval)
}
