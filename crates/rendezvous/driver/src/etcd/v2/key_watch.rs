//! Watching one key: a request whose answer comes with the next change, again and again.
//!
//! etcd remembers the last thousand changes of all keys, so nothing is missed between two such
//! requests; where that was not enough, the key is read.
//!
//! Every node writes its heartbeats into the state. As the value comes with the change, one that
//! contains nothing but heartbeats is recognised here, and causes no notice.

use std::time::Duration;

use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::codec::from_value;

use super::requests::{V2, cause_of};
use super::wire::{KeyAnswer, Node, Refusal, code};
use crate::RendezvousError;
use crate::dynamic::shared::Notice;
use crate::etcd::failure::Cause;
use crate::etcd::http::{Http, parse};
use crate::etcd::watch::{End, Observer, SILENCE, Watch, Watched, next_line};

/// Watches a key through connections of its own.
pub(super) fn watch_key(
    client: &V2,
    key: &str,
    observer: Observer,
) -> Result<Watch, RendezvousError> {
    let watched = Key {
        client: client.separate(),
        key: key.to_owned(),
        next: 0,
        seen: Seen::Nothing,
    };
    Watch::start(watched, observer)
}

/// Waits for the first change of `key` that is not before `index`, as long as `silence`.
pub(super) fn wait(client: &V2, key: &str, index: u64, silence: Duration) -> Result<Node, End> {
    let lines = client.next_change(key, index, silence);
    let mut lines = lines.map_err(End::Broken)?;
    let line = next_line(&mut lines, "the server ended the wait")?;
    if let Ok(answer) = parse::<KeyAnswer>(&line) {
        return Ok(answer.node);
    }
    Err(match parse::<Refusal>(&line) {
        Ok(refusal) if matches!(refusal.code, code::INDEX_CLEARED | code::WATCHER_CLEARED) => {
            End::Gap
        }
        Ok(refusal) => End::Broken(cause_of(refusal)),
        Err(_) => End::Broken(Cause::NotEtcd(format!("HTTP status {}", lines.status))),
    })
}

struct Key {
    client: V2,
    key: String,
    /// The first change that has not been seen; 0 if that is not known.
    next: u64,
    seen: Seen,
}

/// What of a key matters to others than its writer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// It has not been read.
    Nothing,
    Absent,
    /// A state, without its heartbeats.
    State(Box<RendezvousState>),
    /// Something else, by the index of its change.
    Other(u64),
}

impl Seen {
    fn of(node: Option<&Node>) -> Self {
        let Some(node) = node else {
            return Self::Absent;
        };
        match from_value(node.value.as_bytes()) {
            Ok(Some(mut state)) => {
                state.last_heartbeats.clear();
                Self::State(Box::new(state))
            }
            _ => Self::Other(node.modified),
        }
    }
}

impl Watched for Key {
    fn http(&self) -> &Http {
        self.client.http()
    }

    fn key(&self) -> String {
        self.key.clone()
    }

    fn follow(&mut self, observer: &Observer) -> (Result<(), Cause>, bool) {
        let end = self.next_state().map(|now| {
            if now != self.seen {
                self.seen = now;
                observer(Notice::Changed);
            }
        });
        if end.is_err() {
            // The server may have come back without its memory; then nothing would ever come.
            self.next = 0;
        }
        let answered = end.is_ok();
        (end, answered)
    }
}

impl Key {
    /// Waits for one change, or reads the key.
    fn next_state(&mut self) -> Result<Seen, Cause> {
        let waited = match self.next {
            0 => Err(End::Gap),
            next => wait(&self.client, &self.key, next, SILENCE),
        };
        match waited {
            Ok(node) => {
                self.next = node.modified + 1;
                // One that has expired or been deleted comes without a value.
                Ok(Seen::of((!node.value.is_empty()).then_some(&node)))
            }
            Err(End::Silent | End::Gap) => {
                let read = self.client.read("watch", &self.key);
                let read = read.map_err(|failure| failure.cause)?;
                self.next = read.index + 1;
                Ok(Seen::of(read.node.as_ref()))
            }
            Err(End::Broken(cause)) => Err(cause),
        }
    }
}
