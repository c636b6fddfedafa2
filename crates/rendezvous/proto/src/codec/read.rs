//! Reads the state from a pickle.

use std::collections::{BTreeMap, BTreeSet};

use crate::{NodeDesc, RendezvousState};
use rdzv_core::time::Wall;
use rdzv_pickle::decode::MAX_LENGTH;
use rdzv_pickle::document::Pairs;
use rdzv_pickle::{Budget, Class, Document, Item};

use super::CodecError;
use super::{node, state as names};

pub(super) fn state(pickle: &[u8]) -> Result<RendezvousState, CodecError> {
    let document = Document::read(pickle)?;
    let mut reading = Reading {
        document: &document,
        budget: Budget::for_length(pickle.len().min(MAX_LENGTH)),
        has_naive_times: false,
    };
    reading.state()
}

struct Reading<'d, 'a> {
    document: &'d Document<'a>,
    budget: Budget,
    has_naive_times: bool,
}

impl<'d, 'a> Reading<'d, 'a> {
    fn state(&mut self) -> Result<RendezvousState, CodecError> {
        let root = self.document.root();
        let attributes = self
            .document
            .attributes(root, Class::State)
            .ok_or_else(|| wrong("root", root, "a rendezvous state"))?;
        let need = |name| needed(attributes, name, || "state".to_owned());

        let deadline = match need(names::DEADLINE)? {
            Item::None => None,
            item => Some(self.time(item, || names::DEADLINE.to_owned())?),
        };
        let redundancy_list = attribute(attributes, names::REDUNDANCY_LIST);
        Ok(RendezvousState {
            round: whole(need(names::ROUND)?, || names::ROUND.to_owned())?,
            complete: truth(need(names::COMPLETE)?, names::COMPLETE)?,
            deadline,
            closed: truth(need(names::CLOSED)?, names::CLOSED)?,
            participants: self.by_node(
                need(names::PARTICIPANTS)?,
                names::PARTICIPANTS,
                |_, rank, at| whole(rank, || format!("rank of item {at} of participants")),
            )?,
            wait_list: self.nodes(need(names::WAIT_LIST)?, names::WAIT_LIST)?,
            redundancy_list: match redundancy_list {
                None => BTreeSet::new(),
                Some(list) => self.nodes(list, names::REDUNDANCY_LIST)?,
            },
            last_heartbeats: self.by_node(
                need(names::LAST_HEARTBEATS)?,
                names::LAST_HEARTBEATS,
                |reading, time, at| {
                    reading.time(time, || format!("time of item {at} of last_heartbeats"))
                },
            )?,
            has_naive_times: self.has_naive_times,
        })
    }

    fn by_node<T>(
        &mut self,
        item: Item<'a>,
        part: &str,
        value: impl Fn(&mut Self, Item<'a>, usize) -> Result<T, CodecError>,
    ) -> Result<BTreeMap<NodeDesc, T>, CodecError> {
        let pairs = self.document.dict(item);
        pairs
            .ok_or_else(|| wrong(part, item, "a dict"))?
            .iter()
            .enumerate()
            .map(|(at, [key, item])| Ok((self.node(*key, part, at)?, value(self, *item, at)?)))
            .collect()
    }

    fn nodes(&mut self, item: Item<'a>, part: &str) -> Result<BTreeSet<NodeDesc>, CodecError> {
        let items = self.document.set(item);
        items
            .ok_or_else(|| wrong(part, item, "a set"))?
            .iter()
            .enumerate()
            .map(|(at, item)| self.node(*item, part, at))
            .collect()
    }

    fn node(&mut self, item: Item<'a>, list: &str, at: usize) -> Result<NodeDesc, CodecError> {
        let part = || format!("item {at} of {list}");
        let attributes = self
            .document
            .attributes(item, Class::Node)
            .ok_or_else(|| wrong(&part(), item, "a node"))?;
        let get = |name| needed(attributes, name, part);
        let addr = match get(node::ADDR)? {
            Item::Text(addr) => addr,
            other => return Err(wrong(&format!("addr of {}", part()), other, "a text")),
        };
        self.budget
            .spend(addr.len() + size_of::<NodeDesc>() + size_of_val(attributes))
            .map_err(|problem| CodecError::Unfolds {
                part: part(),
                problem,
            })?;
        Ok(NodeDesc {
            addr: addr.to_owned(),
            pid: whole(get(node::PID)?, || format!("pid of {}", part()))?,
            local_id: whole(get(node::LOCAL_ID)?, || format!("local_id of {}", part()))?,
        })
    }

    fn time(&mut self, item: Item<'a>, part: impl FnOnce() -> String) -> Result<Wall, CodecError> {
        let Item::Time(time) = item else {
            return Err(wrong(&part(), item, "a time"));
        };
        self.has_naive_times |= time.zone.is_none();
        Ok(time.wall())
    }
}

/// Returns the last attribute with this name.
fn attribute<'a>(attributes: Pairs<'_, 'a>, name: &str) -> Option<Item<'a>> {
    let is_it = |known: &Item<'_>| matches!(known, Item::Text(known) if *known == name);
    let found = attributes.iter().rev().find(|[known, _]| is_it(known));
    found.map(|[_, item]| *item)
}

fn needed<'a>(
    attributes: Pairs<'_, 'a>,
    name: &'static str,
    part: impl FnOnce() -> String,
) -> Result<Item<'a>, CodecError> {
    let absent = || CodecError::Absent { part: part(), name };
    attribute(attributes, name).ok_or_else(absent)
}

fn truth(item: Item<'_>, part: &str) -> Result<bool, CodecError> {
    match item {
        Item::Bool(truth) => Ok(truth),
        other => Err(wrong(part, other, "a boolean")),
    }
}

fn whole<T: TryFrom<i128>>(item: Item<'_>, part: impl FnOnce() -> String) -> Result<T, CodecError> {
    let Item::Int(number) = item else {
        return Err(wrong(&part(), item, "an integer"));
    };
    T::try_from(number).map_err(|_| CodecError::Range {
        part: part(),
        found: number,
    })
}

fn wrong(part: &str, found: Item<'_>, wanted: &'static str) -> CodecError {
    CodecError::Kind {
        part: part.to_owned(),
        found: found.kind(),
        wanted,
    }
}
