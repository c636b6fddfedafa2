//! Watching a run through the v3 API: every change, in order, and every node's end.
//!
//! The watch names the revision from which it continues, so nothing is missed while the server or
//! the connection is away; it only comes late. If the server has compacted that revision away, or
//! has lost its memory, the members are read, and the difference is announced.

use std::collections::BTreeSet;
use std::sync::Arc;

use rdzv_rendezvous_proto::NodeDesc;
use serde_json::{Value, json};

use super::failure::{Cause, Failure, shown};
use super::http::{Http, Lines, parse};
use super::layout::Layout;
use super::leases::{LEFT, Leases};
use super::v3::{V3, after};
use super::watch::{End, Observer, SILENCE, Watch, Watched, away, next_line};
use super::wire::{Event, Int, WatchAnswer, WatchLine, text};
use crate::RendezvousError;
use crate::dynamic::shared::Notice;

/// Watches are numbered in the order of their creation.
const CHANGES: usize = 0;
const MEMBERS: usize = 1;

/// Watches a run through connections of its own.
pub(super) fn watch_run(
    v3: &V3,
    layout: Layout,
    leases: Arc<Leases>,
    observer: Observer,
) -> Result<Watch, RendezvousError> {
    let watched = Run {
        v3: v3.separate(),
        layout,
        leases,
        next: [0; 2],
        members: BTreeSet::new(),
    };
    Watch::start(watched, observer)
}

struct Run {
    v3: V3,
    layout: Layout,
    leases: Arc<Leases>,
    /// The revision from which each watch continues; zeros at the beginning.
    next: [i64; 2],
    /// The member keys that are there, except for those of members that have left.
    members: BTreeSet<Vec<u8>>,
}

impl Watched for Run {
    fn http(&self) -> &Http {
        self.v3.http()
    }

    fn key(&self) -> String {
        self.layout.members()
    }

    fn follow(&mut self, observer: &Observer) -> (Result<(), Cause>, bool) {
        let (end, answered) = match self.next {
            [0, 0] => (End::Gap, false),
            _ => self.follow_connection(observer),
        };
        let end = match end {
            End::Silent => Ok(()),
            End::Broken(cause) => Err(cause),
            End::Gap => self.catch_up(observer).map_err(|failure| failure.cause),
        };
        (end, answered)
    }
}

impl Run {
    fn follow_connection(&mut self, observer: &Observer) -> (End, bool) {
        let mut lines = match self.v3.watch(&self.creations(), SILENCE, None) {
            Ok(lines) => lines,
            Err(cause) => return (End::Broken(cause), false),
        };
        let mut answered = false;
        loop {
            let end = match next_answer(&mut lines) {
                Ok(answer) => {
                    answered = true;
                    self.apply(answer, observer).err()
                }
                Err(end) => Some(end),
            };
            if let Some(end) = end {
                return (end, answered);
            }
        }
    }

    fn creations(&self) -> [Value; 2] {
        let members = self.layout.members();
        [
            json!({
                "key": text(self.layout.changes().as_bytes()),
                "start_revision": Int(self.next[CHANGES])
            }),
            json!({
                "key": text(members.as_bytes()),
                "range_end": text(&after(members.as_bytes())),
                "start_revision": Int(self.next[MEMBERS])
            }),
        ]
    }

    fn apply(&mut self, answer: WatchAnswer, observer: &Observer) -> Result<(), End> {
        if answer.canceled {
            return Err(match answer.compact_revision.0 {
                0 => End::Broken(away("the server has ended the watch")),
                _ => End::Gap,
            });
        }
        let watch = usize::try_from(answer.watch_id.0).unwrap_or(usize::MAX);
        let Some(next) = self.next.get_mut(watch) else {
            return Err(End::Broken(Cause::NotEtcd(format!(
                "it speaks of a watch with number {}",
                answer.watch_id.0
            ))));
        };
        if answer.created && answer.header.revision.0 < *next - 1 {
            // The server does not know the changes that were seen.
            return Err(End::Gap);
        }
        for event in &answer.events {
            *next = (*next).max(event.kv.mod_revision.0.saturating_add(1));
        }
        if watch == MEMBERS {
            self.note_members(&answer.events, observer);
        } else if !answer.events.is_empty() {
            observer(Notice::Changed);
        }
        Ok(())
    }

    fn note_members(&mut self, events: &[Event], observer: &Observer) {
        let mut gone = Vec::new();
        for event in events {
            let key = event.kv.key.0.to_vec();
            if event.kind != "DELETE" && event.kv.value.0 != LEFT {
                self.members.insert(key);
            } else if event.kind != "DELETE" {
                self.members.remove(&key);
            } else if self.members.remove(&key) {
                gone.push(key);
            }
        }
        self.announce_gone(&gone, observer);
    }

    fn announce_gone(&self, keys: &[Vec<u8>], observer: &Observer) {
        let gone: Vec<NodeDesc> = keys
            .iter()
            .filter(|key| !self.leases.is_own(key))
            .filter_map(|key| self.layout.node(key))
            .collect();
        if !gone.is_empty() {
            observer(Notice::Gone(gone));
        }
    }

    /// Reads who is there; the watch begins after that.
    fn read_members(&mut self) -> Result<BTreeSet<Vec<u8>>, Failure> {
        let found = self.v3.range(self.layout.members().as_bytes(), false)?;
        self.next = [found.header.revision.0.saturating_add(1); 2];
        let here = found.kvs.iter().filter(|found| found.value.0 != LEFT);
        let members = here.map(|found| found.key.0.to_vec()).collect();
        Ok(std::mem::replace(&mut self.members, members))
    }

    fn catch_up(&mut self, observer: &Observer) -> Result<(), Failure> {
        let before = self.read_members()?;
        let gone: Vec<Vec<u8>> = before.difference(&self.members).cloned().collect();
        self.announce_gone(&gone, observer);
        observer(Notice::Changed);
        Ok(())
    }
}

/// The next line of a watch.
pub(super) fn next_answer(lines: &mut Lines) -> Result<WatchAnswer, End> {
    let line = next_line(lines, "the server has closed the connection")?;
    let line: WatchLine = parse(&line).map_err(End::Broken)?;
    match line {
        WatchLine {
            result: Some(answer),
            ..
        } => Ok(answer),
        WatchLine { error, .. } => {
            let said = error.map_or_else(String::new, |error| shown(&error.to_string()));
            Err(End::Broken(away(said)))
        }
    }
}
