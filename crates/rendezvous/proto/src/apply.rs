//! The effect of an [`Action`] on the state.

use rdzv_core::time::Wall;

use super::decide::Action;
use super::{NodeDesc, RendezvousState, Settings, ranks};

/// Applies an action to the state, for the node `me` at the time `wall`.
///
/// `Wait`, `Finish` and `Fail` leave the state unchanged.
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

/// Follows up after participants have been removed.
///
/// A complete round without participants starts the next round. A forming round with too few
/// participants ends the last call.
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

/// Removes lost nodes and returns them.
///
/// `is_lost` receives a node and its last heartbeat. Each heartbeat carries its writer's clock, so
/// the caller decides whether it is too old. `me` is never removed, however old its heartbeat is.
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
