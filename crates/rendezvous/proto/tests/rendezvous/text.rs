//! The texts of the tables: nodes, states, times.

use std::fmt::Write as _;

use rdzv_core::time::{Mono, Now, Wall};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState, Settings};

pub(crate) fn node(name: &str) -> NodeDesc {
    NodeDesc::new(name, 1)
}

pub(crate) fn nodes(text: &str) -> Vec<NodeDesc> {
    text.split_whitespace().map(node).collect()
}

/// Parses seconds, with up to six decimals.
pub(crate) fn wall(text: &str) -> Wall {
    let seconds: f64 = text.parse().unwrap_or_else(|_| panic!("{text}: no time"));
    Wall::from_unix_micros((seconds * 1e6).round() as i64)
}

/// Returns both clocks at this number of seconds.
pub(crate) fn now(text: &str) -> Now {
    let wall = wall(text);
    Now {
        mono: Mono::from_origin(std::time::Duration::from_micros(
            u64::try_from(wall.unix_micros()).unwrap(),
        )),
        wall,
    }
}

/// Parses settings such as `2..3`: minimum and maximum number of nodes.
pub(crate) fn settings(text: &str) -> Settings {
    let (min, max) = text.split_once("..").expect("min..max");
    Settings::new(min.trim().parse().unwrap(), max.trim().parse().unwrap())
}

/// `round 1 complete in a:0@5 b:1@6 wait c@7 surplus d@8 deadline 30 closed`.
pub(crate) fn state(text: &str) -> RendezvousState {
    let mut state = RendezvousState::default();
    let mut list = "";
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "round" => state.round = words.next().unwrap().parse().unwrap(),
            "complete" => state.complete = true,
            "closed" => state.closed = true,
            "deadline" => state.deadline = Some(wall(words.next().unwrap())),
            "in" | "wait" | "surplus" => list = word,
            _ => {
                let (name, beat) = word
                    .split_once('@')
                    .map_or((word, None), |(name, beat)| (name, Some(beat)));
                let (name, rank) = name
                    .split_once(':')
                    .map_or((name, 0), |(name, rank)| (name, rank.parse().unwrap()));
                let node = node(name);
                if let Some(beat) = beat {
                    state.last_heartbeats.insert(node.clone(), wall(beat));
                }
                match list {
                    "in" => {
                        state.participants.insert(node, rank);
                    }
                    "wait" => {
                        state.wait_list.insert(node);
                    }
                    "surplus" => {
                        state.redundancy_list.insert(node);
                    }
                    _ => panic!("{text}: {word} is in no list"),
                }
            }
        }
    }
    state
}

/// Formats a state as a text that [`state`] reads.
pub(crate) fn show(state: &RendezvousState) -> String {
    let mut text = format!("round {}", state.round);
    if state.complete {
        text += " complete";
    }
    if state.closed {
        text += " closed";
    }
    if let Some(deadline) = state.deadline {
        let _ = write!(text, " deadline {}", seconds(deadline));
    }
    let beat = |node: &NodeDesc| {
        state
            .last_heartbeats
            .get(node)
            .map(|beat| format!("@{}", seconds(*beat)))
            .unwrap_or_default()
    };
    for (head, list) in [
        (" in", state.participants.keys().collect::<Vec<_>>()),
        (" wait", state.wait_list.iter().collect()),
        (" surplus", state.redundancy_list.iter().collect()),
    ] {
        if !list.is_empty() {
            text += head;
        }
        for node in list {
            let rank = state.participants.get(node).filter(|_| state.complete);
            let rank = rank.map(|rank| format!(":{rank}")).unwrap_or_default();
            let _ = write!(text, " {}{rank}{}", node.addr, beat(node));
        }
    }
    text
}

fn seconds(wall: Wall) -> f64 {
    wall.unix_micros() as f64 / 1e6
}
