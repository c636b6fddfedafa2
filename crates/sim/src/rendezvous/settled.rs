//! What must be true in the end, when all faults are over: INV-R5.

use rdzv_rendezvous_proto::{RendezvousState, Settings};

use super::agent::{Agent, Doing};

/// What is not yet as it must be in the end.
pub fn unsettled(
    agents: &[Agent],
    stored: Option<&RendezvousState>,
    settings: &Settings,
) -> Option<String> {
    let Some(state) = stored else {
        return Some("nobody has written anything".into());
    };
    let up: Vec<_> = agents
        .iter()
        .filter(|agent| agent.doing != Doing::Nothing)
        .collect();
    if state.closed {
        return up
            .first()
            .map(|agent| format!("{} is there after the end", agent.me));
    }
    let (min, max) = (settings.min_nodes as usize, settings.max_nodes as usize);
    if up.len() < min {
        return up
            .iter()
            .find(|agent| matches!(agent.doing, Doing::Working(_)))
            .map(|agent| format!("{} works with too few others", agent.me));
    }
    let mut working = 0;
    let mut first = None;
    for agent in up.iter() {
        match &agent.doing {
            Doing::Working(formed) => {
                working += 1;
                let first = first.get_or_insert(formed);
                if first.round != formed.round || first.participants != formed.participants {
                    return Some(format!("{} is in another round", agent.me));
                }
                if !state.participants.contains_key(&agent.me) {
                    return Some(format!("{} is in a round without it", agent.me));
                }
            }
            _ if state.redundancy_list.contains(&agent.me) => {}
            doing => return Some(format!("{} is {doing:?}", agent.me)),
        }
    }
    let wanted = up.len().min(max);
    let size = first.map_or(0, |formed| formed.participants.len());
    (working != wanted || size != wanted)
        .then(|| format!("{working} of {} work, in a round of {size}", up.len()))
}
