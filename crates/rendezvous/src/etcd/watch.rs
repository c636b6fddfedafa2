//! Watching a run: a thread that is told of every change, in order, and of every node's end.
//!
//! It knows from which revision on it has to be told, so nothing is missed while the server or the
//! connection is away; it only comes late. If the server has compacted that revision away, or has
//! lost its memory, the thread looks at what is there and tells the difference.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdzv_rendezvous_proto::NodeDesc;
use serde_json::{Value, json};

use super::failure::{Cause, Failure, Patience};
use super::http::{Lines, is_silence};
use super::layout::Layout;
use super::leases::{LEFT, Leases};
use super::v3::{V3, after};
use super::wire::{Event, Int, WatchAnswer, WatchLine, text};
use crate::RendezvousError;
use crate::dynamic::shared::Notice;

/// A connection on which nothing has come for so long is replaced, because it may be a dead one.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// Watches are numbered in the order of their creation.
const CHANGES: usize = 0;
const MEMBERS: usize = 1;

/// Who is told.
pub(crate) type Observer = Arc<dyn Fn(Notice) + Send + Sync>;

/// A watch that ends when it is dropped.
pub(crate) struct Watch {
    v3: V3,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Tells `observer` of everything that happens from some moment soon on, and when that has come.
    /// When the server is away for longer than `limit`, it is told that, and nothing more.
    pub(crate) fn start(
        v3: &V3,
        limit: Duration,
        layout: Layout,
        leases: Arc<Leases>,
        observer: Observer,
    ) -> Result<Self, RendezvousError> {
        let v3 = v3.with_patience(limit);
        let watcher = Watcher {
            v3: v3.clone(),
            limit,
            layout,
            leases,
            observer,
            next: [0; 2],
            members: BTreeSet::new(),
        };
        let thread = thread::Builder::new()
            .name("rdzv-etcd-watch".to_owned())
            .spawn(move || watcher.run())
            .map_err(|error| {
                RendezvousError::Argument(format!("no thread to watch etcd with: {error}"))
            })?;
        Ok(Self {
            v3,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.v3.http().close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Why one connection's watch has ended.
pub(super) enum End {
    /// To be resumed on another connection.
    Broken(Cause),
    /// Nothing came for long; to be resumed at once.
    Silent,
    /// What should come next is not to be had any more.
    Gap,
}

struct Watcher {
    v3: V3,
    limit: Duration,
    layout: Layout,
    leases: Arc<Leases>,
    observer: Observer,
    /// From which revision on each watch has to be told; zeros at the beginning.
    next: [i64; 2],
    /// The member keys that are there, except for those of members that have left.
    members: BTreeSet<Vec<u8>>,
}

impl Watcher {
    fn run(mut self) {
        let mut patience = Patience::of(self.limit);
        loop {
            let (end, heard) = match self.next {
                [0, 0] => (End::Gap, false),
                _ => self.follow(),
            };
            if heard {
                patience = Patience::of(self.limit);
            }
            let cause = match end {
                End::Silent => continue,
                End::Broken(cause) => cause,
                End::Gap => match self.look_again() {
                    Ok(()) => continue,
                    Err(failure) => failure.cause,
                },
            };
            let again = cause.is_passing().then(|| patience.pause()).flatten();
            match again {
                Some(pause) if self.v3.http().pause(pause) => return,
                Some(_) => {}
                None if self.v3.http().pause(Duration::ZERO) => return,
                None => {
                    let place = self.v3.http().place();
                    let failure = patience.failure("watch", self.layout.members(), place, cause);
                    return (self.observer)(Notice::Lost(failure.into()));
                }
            }
        }
    }

    /// Follows one connection to its end; tells whether anything was heard on it.
    fn follow(&mut self) -> (End, bool) {
        let mut lines = match self.v3.watch(&self.creations(), SILENCE, None) {
            Ok(lines) => lines,
            Err(cause) => return (End::Broken(cause), false),
        };
        let mut heard = false;
        loop {
            match next_answer(&mut lines) {
                Ok(answer) => {
                    heard = true;
                    if let Err(end) = self.take(answer) {
                        return (end, heard);
                    }
                }
                Err(end) => return (end, heard),
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

    fn take(&mut self, answer: WatchAnswer) -> Result<(), End> {
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
            // What we have seen has not happened, as far as this server knows.
            return Err(End::Gap);
        }
        for event in &answer.events {
            *next = (*next).max(event.kv.mod_revision.0.saturating_add(1));
        }
        if watch == MEMBERS {
            self.note_members(&answer.events);
        } else if !answer.events.is_empty() {
            (self.observer)(Notice::Changed);
        }
        Ok(())
    }

    fn note_members(&mut self, events: &[Event]) {
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
        self.tell_gone(&gone);
    }

    fn tell_gone(&self, keys: &[Vec<u8>]) {
        let gone: Vec<NodeDesc> = keys
            .iter()
            .filter(|key| !self.leases.is_own(key))
            .filter_map(|key| self.layout.node(key))
            .collect();
        if !gone.is_empty() {
            (self.observer)(Notice::Gone(gone));
        }
    }

    /// Sees who is there, and begins to be told after that.
    fn look(&mut self) -> Result<BTreeSet<Vec<u8>>, Failure> {
        let found = self.v3.range(self.layout.members().as_bytes(), false)?;
        self.next = [found.header.revision.0.saturating_add(1); 2];
        let here = found.kvs.iter().filter(|found| found.value.0 != LEFT);
        let members = here.map(|found| found.key.0.to_vec()).collect();
        Ok(std::mem::replace(&mut self.members, members))
    }

    fn look_again(&mut self) -> Result<(), Failure> {
        let before = self.look()?;
        let gone: Vec<Vec<u8>> = before.difference(&self.members).cloned().collect();
        self.tell_gone(&gone);
        (self.observer)(Notice::Changed);
        Ok(())
    }
}

pub(super) fn away(reason: impl Into<String>) -> Cause {
    Cause::Away {
        reason: reason.into(),
        maybe_done: false,
    }
}

/// The next line of a watch.
pub(super) fn next_answer(lines: &mut Lines) -> Result<WatchAnswer, End> {
    let line = match lines.next_line() {
        Ok(Some(line)) => line,
        Ok(None) => return Err(End::Broken(away("the server has closed the connection"))),
        Err(error) if is_silence(&error) => return Err(End::Silent),
        Err(error) => return Err(End::Broken(away(error.to_string()))),
    };
    let line: WatchLine = serde_json::from_slice(&line)
        .map_err(|error| End::Broken(Cause::NotEtcd(error.to_string())))?;
    match line {
        WatchLine {
            result: Some(answer),
            ..
        } => Ok(answer),
        WatchLine { error, .. } => {
            let said = error.map_or_else(String::new, |error| error.to_string());
            Err(End::Broken(away(said)))
        }
    }
}
