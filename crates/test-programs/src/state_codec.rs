//! Reads and writes rendezvous states for scripts; interop tests use it.
//!
//! Each line of standard input is a command and a word. The program answers with one line.
//!
//! | command | answer |
//! |---|---|
//! | `read VALUE` | the state in a store value, as JSON; `null` for the sentinel |
//! | `write JSON` | the store value of such a description |
//! | `again VALUE` | the store value that is written back for one that was read |
//!
//! A description has `round`, `complete`, `closed`, `deadline`, `participants`, `wait_list`,
//! `redundancy_list` and `last_heartbeats`. A node is `[addr, pid, local_id]`; participants are
//! pairs of node and rank, heartbeats pairs of node and time. Times are microseconds after 1970, in
//! UTC. If the program cannot read a word, it answers with `error ` and the reason.

use std::error::Error;
use std::io::{BufRead, Write};

use rdzv_core::time::Wall;
use rdzv_rendezvous_proto::codec::{from_value, to_value};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState};
use serde::{Deserialize, Serialize};

type Node = (String, i64, i64);

#[derive(Serialize, Deserialize)]
struct Description {
    round: u64,
    complete: bool,
    closed: bool,
    deadline: Option<i64>,
    participants: Vec<(Node, u32)>,
    wait_list: Vec<Node>,
    redundancy_list: Vec<Node>,
    last_heartbeats: Vec<(Node, i64)>,
}

pub(crate) fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        match answer(&line?) {
            Ok(text) => writeln!(out, "{text}")?,
            Err(error) => writeln!(out, "error {error}")?,
        }
        out.flush()?;
    }
    Ok(())
}

fn answer(line: &str) -> Result<String, Box<dyn Error>> {
    match line.split_once(' ') {
        Some(("read", value)) => {
            let state = from_value(value.as_bytes())?;
            Ok(serde_json::to_string(&state.map(description))?)
        }
        Some(("write", json)) => Ok(String::from_utf8(to_value(&described(
            serde_json::from_str(json)?,
        )))?),
        Some(("again", value)) => match from_value(value.as_bytes())? {
            Some(state) => Ok(String::from_utf8(to_value(&state))?),
            None => Err("there is no state to write back".into()),
        },
        _ => Err(format!("no such command: {line}").into()),
    }
}

fn description(state: RendezvousState) -> Description {
    let node = |node: NodeDesc| (node.addr, node.pid, node.local_id);
    let nodes = |nodes: std::collections::BTreeSet<NodeDesc>| nodes.into_iter().map(node).collect();
    Description {
        round: state.round,
        complete: state.complete,
        closed: state.closed,
        deadline: state.deadline.map(Wall::unix_micros),
        participants: state
            .participants
            .into_iter()
            .map(|(desc, rank)| (node(desc), rank))
            .collect(),
        wait_list: nodes(state.wait_list),
        redundancy_list: nodes(state.redundancy_list),
        last_heartbeats: state
            .last_heartbeats
            .into_iter()
            .map(|(desc, at)| (node(desc), at.unix_micros()))
            .collect(),
    }
}

fn described(description: Description) -> RendezvousState {
    let node = |(addr, pid, local_id)| NodeDesc {
        addr,
        pid,
        local_id,
    };
    RendezvousState {
        round: description.round,
        complete: description.complete,
        closed: description.closed,
        deadline: description.deadline.map(Wall::from_unix_micros),
        participants: description
            .participants
            .into_iter()
            .map(|(desc, rank)| (node(desc), rank))
            .collect(),
        wait_list: description.wait_list.into_iter().map(node).collect(),
        redundancy_list: description.redundancy_list.into_iter().map(node).collect(),
        last_heartbeats: description
            .last_heartbeats
            .into_iter()
            .map(|(desc, at)| (node(desc), Wall::from_unix_micros(at)))
            .collect(),
        ..RendezvousState::default()
    }
}
