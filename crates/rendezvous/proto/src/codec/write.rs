//! Writes the state as a pickle, in Python's order and with its sharing.

use std::collections::BTreeSet;

use crate::{NodeDesc, RendezvousState};
use rdzv_core::time::Wall;
use rdzv_pickle::{Class, Memo, Time, Writer};

use super::{node, state as names};

/// Approximate size of a node and its heartbeat, in bytes.
const NODE_BYTES: usize = 110;

/// Approximate size of everything else, in bytes.
const OTHER_BYTES: usize = 512;

pub(super) fn state(state: &RendezvousState) -> Vec<u8> {
    let count = state.last_heartbeats.len() + state.wait_list.len() + state.redundancy_list.len();
    let mut writer = Writer::with_capacity(OTHER_BYTES + NODE_BYTES * count);
    let mut nodes = Nodes {
        written: Vec::new(),
        names: [None; node::ALL.len()],
    };
    writer.object(Class::State);
    writer.dict(names::ALL.into_iter(), |writer, name| {
        writer.text(name);
        attribute(writer, &mut nodes, state, name);
    });
    writer.build();
    writer.finish()
}

fn attribute<'a>(
    writer: &mut Writer,
    nodes: &mut Nodes<'a>,
    state: &'a RendezvousState,
    name: &str,
) {
    let time = |writer: &mut Writer, wall: Wall| {
        writer.time(Time::utc(wall, state.has_naive_times));
    };
    match name {
        names::ROUND => writer.int(state.round.into()),
        names::COMPLETE => writer.bool(state.complete),
        names::DEADLINE => match state.deadline {
            None => writer.none(),
            Some(deadline) => time(writer, deadline),
        },
        names::CLOSED => writer.bool(state.closed),
        names::PARTICIPANTS => {
            let mut run = nodes.run();
            writer.dict(state.participants.iter(), |writer, (node, rank)| {
                run.write(writer, node);
                writer.int((*rank).into());
            });
            run.end();
        }
        names::WAIT_LIST => nodes.write_set(writer, &state.wait_list),
        names::REDUNDANCY_LIST => nodes.write_set(writer, &state.redundancy_list),
        names::LAST_HEARTBEATS => {
            let mut run = nodes.run();
            writer.dict(state.last_heartbeats.iter(), |writer, (node, at)| {
                run.write(writer, node);
                time(writer, *at);
            });
            run.end();
        }
        _ => writer.none(),
    }
}

/// Nodes that are already in the pickle; each node is written only once.
struct Nodes<'a> {
    /// List for each attribute that contains nodes, in the order of the nodes.
    written: Vec<Vec<(&'a NodeDesc, Memo)>>,
    /// Memo entries of the names of a node's attributes.
    names: [Option<Memo>; node::ALL.len()],
}

impl<'a> Nodes<'a> {
    /// Starts a run of nodes in ascending order.
    fn run(&mut self) -> Run<'a, '_> {
        Run {
            passed: vec![0; self.written.len()],
            written: Vec::new(),
            nodes: self,
        }
    }

    fn write_set(&mut self, writer: &mut Writer, set: &'a BTreeSet<NodeDesc>) {
        let mut run = self.run();
        writer.set(set.iter(), |writer, node| run.write(writer, node));
        run.end();
    }
}

/// A run of nodes in ascending order.
///
/// The written nodes are in the same order, so the search for a node walks along both sequences.
struct Run<'a, 'n> {
    nodes: &'n mut Nodes<'a>,
    /// Position of the walk in each list.
    passed: Vec<usize>,
    written: Vec<(&'a NodeDesc, Memo)>,
}

impl<'a> Run<'a, '_> {
    fn write(&mut self, writer: &mut Writer, node: &'a NodeDesc) {
        match self.find(node) {
            Some(memo) => writer.recall(memo),
            None => {
                let memo = self.write_new(writer, node);
                self.written.push((node, memo));
            }
        }
    }

    fn find(&mut self, node: &NodeDesc) -> Option<Memo> {
        let lists = self.nodes.written.iter().zip(&mut self.passed);
        for (list, passed) in lists {
            while let Some((known, memo)) = list.get(*passed) {
                match (*known).cmp(node) {
                    std::cmp::Ordering::Less => *passed += 1,
                    std::cmp::Ordering::Equal => return Some(*memo),
                    std::cmp::Ordering::Greater => break,
                }
            }
        }
        None
    }

    fn write_new(&mut self, writer: &mut Writer, desc: &NodeDesc) -> Memo {
        let memo = writer.object(Class::Node);
        let attributes = node::ALL.into_iter().zip(&mut self.nodes.names);
        writer.dict(attributes, |writer, (name, written)| {
            writer.name(name, written);
            match name {
                node::ADDR => drop(writer.text(&desc.addr)),
                node::PID => writer.int(desc.pid.into()),
                _ => writer.int(desc.local_id.into()),
            }
        });
        writer.build();
        memo
    }

    fn end(self) {
        self.nodes.written.push(self.written);
    }
}
