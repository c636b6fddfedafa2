//! Watch of a run: all changes in order, and the end of each node.
//!
//! A separate thread follows the changes until the watch is dropped or cannot continue, for example
//! because the server was away for too long. Each watch continues at a fixed revision. It therefore
//! misses nothing while the server or the connection is away; the notices are only late. If the
//! server has compacted that revision, or has lost its data, the thread reads the members and
//! announces the difference.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rdzv_rendezvous_proto::NodeDesc;
use serde_json::{Value, json};

use super::failure::{Cause, Retry, shown};
use super::http::{Client, Lines, is_silence, parse, too_long};
use super::layout::Layout;
use super::leases::{LEFT, Leases};
use super::v3::after;
use super::wire::{Event, Int, WatchAnswer, WatchLine, text};
use crate::RendezvousError;
use crate::dynamic::shared::Notice;
use crate::runtime::{Call, beside};

/// Index of the watch of the changes.
///
/// etcd numbers watches in the order of their creation.
const CHANGES: usize = 0;

/// Index of the watch of the members.
const MEMBERS: usize = 1;

/// Receiver of the notices of a watch.
pub(crate) type Observer = Arc<dyn Fn(Notice) + Send + Sync>;

/// Watch that ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    client: Client,
    call: Option<Call>,
}

impl Watch {
    /// Watches a run through separate connections, and sends notices to `observer`.
    ///
    /// The first notice of a running watch is [`Notice::Changed`]. If the watch cannot continue,
    /// `observer` gets a last notice about that.
    pub(super) fn start(
        client: &Client,
        layout: Layout,
        leases: Arc<Leases>,
        observer: Observer,
    ) -> Result<Self, RendezvousError> {
        let client = client.separate();
        let run = Run {
            client: client.clone(),
            layout,
            leases,
            observer,
            next: [0; 2],
            members: BTreeSet::new(),
        };
        let call = beside(move || run.watch()).map_err(|error| {
            RendezvousError::Argument(format!("cannot start a thread that watches etcd: {error}"))
        })?;
        Ok(Self {
            client,
            call: Some(call),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.client.close();
        if let Some(call) = self.call.take() {
            call.join();
        }
    }
}

struct Run {
    client: Client,
    layout: Layout,
    leases: Arc<Leases>,
    observer: Observer,
    /// Revision at which each watch continues; 0 before the first read.
    next: [i64; 2],
    /// Present member keys, except those of members that have left.
    members: BTreeSet<Vec<u8>>,
}

impl Run {
    fn watch(mut self) {
        let limit = self.client.limit();
        let mut retry = Retry::within(limit);
        let mut worked = false;
        loop {
            let mut answered = false;
            let end = self.follow(&mut answered);
            if answered {
                retry = Retry::within(limit);
            }
            worked |= answered || end.is_ok();
            let Err(cause) = end else { continue };
            if std::mem::take(&mut worked) {
                if self.client.pause(Duration::ZERO) {
                    return;
                }
                // The next request of the node finds out whether the server is away.
                (self.observer)(Notice::Changed);
            }
            let again = cause.is_passing().then(|| retry.pause()).flatten();
            if self.client.pause(again.unwrap_or_default()) {
                return;
            }
            if again.is_none() {
                let endpoint = self.client.endpoint();
                let failure = retry.failure("watch", self.layout.members(), endpoint, cause);
                return (self.observer)(Notice::Lost(failure.into()));
            }
        }
    }

    /// Follows one connection to its end.
    ///
    /// Sets `answered` if the server has answered. The caller retries after a passing error.
    fn follow(&mut self, answered: &mut bool) -> Result<(), Cause> {
        if self.next == [0, 0] {
            return self.catch_up();
        }
        let mut lines = self.client.watch(&self.creations(), None)?;
        loop {
            let applied = next_answer(&mut lines).and_then(|answer| {
                *answered = true;
                self.apply(&answer)
            });
            match applied {
                Ok(()) => {}
                Err(End::Silent) => return Ok(()),
                Err(End::Broken(cause)) => return Err(cause),
                Err(End::Gap) => return self.catch_up(),
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

    fn apply(&mut self, answer: &WatchAnswer) -> Result<(), End> {
        if answer.canceled {
            return Err(match answer.compact_revision.0 {
                0 => End::Broken(Cause::away("the server ended the watch", false)),
                _ => End::Gap,
            });
        }
        let watch = usize::try_from(answer.watch_id.0).unwrap_or(usize::MAX);
        let Some(next) = self.next.get_mut(watch) else {
            return Err(End::Broken(Cause::NotEtcd(format!(
                "it sent an event of an unknown watch, {}",
                answer.watch_id.0
            ))));
        };
        if answer.created && answer.header.revision.0 < *next - 1 {
            // The server has lost changes that this watch has already seen.
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
            let key = event.kv.key.to_vec();
            if event.kind != "DELETE" && event.kv.value != LEFT {
                self.members.insert(key);
            } else if event.kind != "DELETE" {
                self.members.remove(&key);
            } else if self.members.remove(&key) {
                gone.push(key);
            }
        }
        self.announce_gone(&gone);
    }

    fn announce_gone(&self, keys: &[Vec<u8>]) {
        let gone: Vec<NodeDesc> = keys
            .iter()
            .filter(|key| !self.leases.is_own(key))
            .filter_map(|key| self.layout.node(key))
            .collect();
        if !gone.is_empty() {
            (self.observer)(Notice::Gone(gone));
        }
    }

    /// Reads the members and announces the missing ones before the watch continues.
    fn catch_up(&mut self) -> Result<(), Cause> {
        let found = self.client.range(self.layout.members().as_bytes(), false);
        let found = found.map_err(|failure| failure.cause)?;
        self.next = [found.header.revision.0.saturating_add(1); 2];
        let here = found.kvs.iter().filter(|found| found.value != LEFT);
        let members = here.map(|found| found.key.to_vec()).collect();
        let before = std::mem::replace(&mut self.members, members);
        let gone: Vec<Vec<u8>> = before.difference(&self.members).cloned().collect();
        self.announce_gone(&gone);
        (self.observer)(Notice::Changed);
        Ok(())
    }
}

/// Reason for the end of a watch's answer.
pub(super) enum End {
    /// The connection failed.
    ///
    /// The watch continues on another one if the cause may pass.
    Broken(Cause),
    /// No data arrived for a long time; the watch continues immediately.
    Silent,
    /// The server no longer has the earlier changes.
    Gap,
}

/// Reads the next line of a watch.
pub(super) fn next_answer(lines: &mut Lines) -> Result<WatchAnswer, End> {
    let line = match lines.next_line() {
        Ok(Some(line)) => line,
        Ok(None) => {
            let closed = Cause::away("the server closed the connection", false);
            return Err(End::Broken(closed));
        }
        Err(error) if is_silence(&error) => return Err(End::Silent),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            return Err(End::Broken(too_long()));
        }
        Err(error) => return Err(End::Broken(Cause::away(error.to_string(), false))),
    };
    let line: WatchLine = parse(&line).map_err(End::Broken)?;
    match line {
        WatchLine {
            result: Some(answer),
            ..
        } => Ok(answer),
        WatchLine { error, .. } => {
            let said = error.map_or_else(String::new, |error| shown(&error.to_string()));
            Err(End::Broken(Cause::away(said, false)))
        }
    }
}
