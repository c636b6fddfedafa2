//! Next action of an agent, given the state that it knows.
//!
//! Each request of an agent has one function; a join uses [`exit`] and then [`join`]. The functions
//! only decide; [`apply`](super::apply) changes the state. The first matching rule wins, in the
//! order of PyTorch's handler. Agents of torchrun may share the state. Both programs must therefore
//! agree on the nodes that a round admits or rejects, and on the time of its completion.
//!
//! Some rules are specific to rdzv. They are compatible with agents of torchrun:
//!
//! * A complete round may have lost a node before an agent saw it. If its ranks then have a gap or
//!   are too few, the agent does not join that round. The agent waits for the next round instead.
//! * A round after a change is complete as soon as [all expected
//!   nodes](super::expected::Expected) participate and are enough, without a last call. To agents
//!   of torchrun, the last call seems to have ended.
//! * Each agent measures the last call on its own clock, because the deadline in the state comes
//!   from the clock of another agent.
//! * The last call is longer while nodes that waited for the round are still in the wait list. A
//!   round without them would end immediately. To agents of torchrun, this agent's clock seems
//!   slow.
//! * A waiting agent becomes a spare if the round fills up before the agent gets in. Agents of
//!   torchrun keep waiting, which makes all other agents restart again and again.
//! * An agent that leaves permanently leaves every list, not only the participants, unless the run
//!   is closed.

use std::time::Duration;

use rdzv_core::time::Wall;

use super::{NodeDesc, RendezvousState, Settings, ranks};

/// Change of the shared state, or a result that changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Write a heartbeat of this node.
    KeepAlive,
    /// Participate in the round that is forming.
    AddToParticipants,
    /// Wait for the next round.
    AddToWaitList,
    /// Become a spare: wait until a full round has room.
    AddToRedundancyList,
    /// Stop participating.
    RemoveFromParticipants,
    /// Stop waiting for the next round.
    RemoveFromWaitList,
    /// Stop being a spare. In a join, the timeout starts from zero.
    RemoveFromRedundancyList,
    /// Complete the round: give every participant a rank.
    MarkComplete,
    /// End the run.
    MarkClosed,
    /// Do nothing until the state changes or time passes.
    Wait,
    /// Report success: the state is as requested.
    Finish,
    /// Report a failure: the request can no longer succeed.
    Fail(Ending),
}

impl Action {
    /// Returns the decision for this action, with its reason.
    pub(crate) fn because(self, reason: &'static str) -> Decision {
        let action = self;
        Decision { action, reason }
    }

    /// `true` if the action changes the state, which must then be written.
    pub fn is_change(self) -> bool {
        !matches!(self, Self::Wait | Self::Finish | Self::Fail(_))
    }
}

/// Reason for which a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The run was closed.
    Closed,
    /// The run was closed while this node was a spare.
    NotNeeded,
    /// The time for the request has run out.
    Timeout,
}

/// Phase of a request, according to its remaining time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinPhase {
    /// The request has time left.
    InTime,
    /// The time has run out, but the node may still undo its changes.
    RollBack,
    /// The time for undoing changes has run out too.
    Over,
}

/// Circumstances of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Wall clock, which is compared with the heartbeats of this node.
    pub wall: Wall,
    /// `true` if the last call of the forming round has lasted long enough.
    pub last_call_over: bool,
    /// Phase of the request.
    pub phase: JoinPhase,
    /// `true` if all expected nodes participate in the forming round.
    pub all_here: bool,
}

/// An action and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// The action.
    pub action: Action,
    /// The reason, for logs.
    pub reason: &'static str,
}

/// Reasons of several decisions.
const NOT_LISTED: &str = "the node is in no list";
const TIME_OVER: &str = "the time for it is over";
const RUN_CLOSED: &str = "the run is closed";
pub(crate) const HEARTBEAT_DUE: &str = "a heartbeat is due";
const ROUND_FULL: &str = "the round is full";
const IN_COMPLETE_ROUND: &str = "the round is complete";
const ASKED: &str = "the node requests it";

/// Decides how a node leaves its current round, before it joins the next one.
pub fn exit(state: &RendezvousState, me: &NodeDesc, moment: Moment) -> Decision {
    if !state.participants.contains_key(me) {
        Action::Finish.because(NOT_LISTED)
    } else if moment.phase == JoinPhase::InTime {
        Action::RemoveFromParticipants.because("the node is in a round that it leaves first")
    } else {
        Action::Fail(Ending::Timeout).because(TIME_OVER)
    }
}

/// Decides how a node gets into a complete round.
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
        // A spare has no time limit: it waits until the round needs it.
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
                return Action::MarkComplete.because("all expected nodes are there");
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

/// Extension of the last call while nodes are still in the wait list.
const STRAGGLERS: Duration = Duration::from_secs(5);

/// Returns the extension of the last call; zero if no node waits.
pub fn last_call_extra(state: &RendezvousState) -> Duration {
    if state.wait_list.is_empty() {
        Duration::ZERO
    } else {
        STRAGGLERS
    }
}

/// Decides how a node leaves the rendezvous.
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
    // In a closed run no round will form, so the lists have no effect any more.
    end(state, moment, action)
}

/// Decides how a node ends the run for all nodes.
pub fn close(state: &RendezvousState, moment: Moment) -> Decision {
    end(state, moment, Action::MarkClosed)
}

/// Decides to apply `action`, unless the run is closed or the time is over.
fn end(state: &RendezvousState, moment: Moment, action: Action) -> Decision {
    if state.closed {
        Action::Finish.because(RUN_CLOSED)
    } else if moment.phase == JoinPhase::InTime {
        action.because(ASKED)
    } else {
        Action::Fail(Ending::Timeout).because(TIME_OVER)
    }
}

/// Decides whether a node in a complete round sends a heartbeat.
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

/// `true` if the node's last heartbeat is at least one interval old.
///
/// `false` if the state has no heartbeat of the node.
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
