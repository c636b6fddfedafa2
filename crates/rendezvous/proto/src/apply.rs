//! What an [`Action`] makes of the state. What we do not understand in it stays as it is.

use rdzv_core::time::Wall;

use super::decide::Action;
use super::{NodeDesc, RendezvousState, Settings, ranks};

/// Does an action to the state, for the node `me` at the time `wall`. What is no change does
/// nothing.
pub fn apply(
    state: &mut RendezvousState,
    me: &NodeDesc,
    settings: &Settings,
    action: Action,
    wall: Wall,
) {
    match action {
        Action::KeepAlive => beat(state, me, wall),
        Action::AddToParticipants => add_to_participants(state, me, settings, wall),
        Action::AddToWaitList => {
            state.redundancy_list.remove(me);
            state.wait_list.insert(me.clone());
            beat(state, me, wall);
        }
        Action::AddToRedundancyList => {
            state.wait_list.remove(me);
            state.redundancy_list.insert(me.clone());
            beat(state, me, wall);
        }
        Action::RemoveFromParticipants => {
            state.participants.remove(me);
            state.last_heartbeats.remove(me);
            after_participants_left(state, settings);
        }
        Action::RemoveFromWaitList => {
            state.wait_list.remove(me);
            state.last_heartbeats.remove(me);
        }
        Action::RemoveFromRedundancyList => {
            state.redundancy_list.remove(me);
            state.last_heartbeats.remove(me);
        }
        Action::MarkComplete => mark_complete(state),
        Action::MarkClosed => state.closed = true,
        Action::Wait | Action::Finish | Action::Fail(_) => {}
    }
}

fn beat(state: &mut RendezvousState, me: &NodeDesc, wall: Wall) {
    state.last_heartbeats.insert(me.clone(), wall);
}

fn add_to_participants(
    state: &mut RendezvousState,
    me: &NodeDesc,
    settings: &Settings,
    wall: Wall,
) {
    state.wait_list.remove(me);
    state.participants.insert(me.clone(), 0);
    beat(state, me, wall);
    let count = state.participants.len();
    if count == settings.min_nodes as usize {
        state.deadline = Some(wall + settings.last_call_timeout);
    }
    if count == settings.max_nodes as usize {
        mark_complete(state);
    }
}

fn mark_complete(state: &mut RendezvousState) {
    state.complete = true;
    state.deadline = None;
    ranks::assign(&mut state.participants);
}

/// The rule for the participants that remain: nobody left in a complete round starts the next one,
/// too few in a forming one end the last call.
fn after_participants_left(state: &mut RendezvousState, settings: &Settings) {
    if state.complete {
        if state.participants.is_empty() {
            state.complete = false;
            state.round += 1;
        }
    } else if state.participants.len() < settings.min_nodes as usize {
        state.deadline = None;
    }
}

/// Removes the nodes that are lost, and says which; `is_lost` is given a node and its last heartbeat.
///
/// The heartbeats carry the clocks of their writers, so whether one is old is for the caller to
/// say. We never remove ourselves (`me`): however old our own heartbeat is, we are there.
pub fn sanitise(
    state: &mut RendezvousState,
    me: &NodeDesc,
    settings: &Settings,
    is_lost: impl Fn(&NodeDesc, Wall) -> bool,
) -> Vec<NodeDesc> {
    let heard = state.last_heartbeats.iter();
    let lost = heard.filter(|(node, last)| *node != me && is_lost(node, **last));
    let lost: Vec<_> = lost.map(|(node, _)| node.clone()).collect();
    let before = state.participants.len();
    for node in &lost {
        state.last_heartbeats.remove(node);
        state.participants.remove(node);
        state.wait_list.remove(node);
        state.redundancy_list.remove(node);
    }
    if state.participants.len() < before {
        after_participants_left(state, settings);
    }
    lost
}
