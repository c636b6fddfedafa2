//! Watching one key: a request whose answer comes with the next change, again and again.
//!
//! etcd remembers the last thousand changes of all keys, so nothing is missed between two such
//! requests; where that was not enough, the key is looked at.
//!
//! Every node writes its heartbeats into the state. As the value comes with the change, one that
//! contains nothing but heartbeats is told apart here, and wakes nobody.

use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::codec::from_value;

use super::client::{V2, cause_of};
use super::wire::{KeyAnswer, Node, Refusal, code};
use crate::RendezvousError;
use crate::dynamic::shared::Notice;
use crate::etcd::failure::{Cause, Failure, Patience};
use crate::etcd::http::is_silence;

/// A connection on which nothing has come for so long is replaced, because it may be a dead one.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

type Observer = Arc<dyn Fn(Notice) + Send + Sync>;

/// A watch that ends when it is dropped.
pub(super) struct Watch {
    client: V2,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Tells `observer` of every change from some moment soon on, and when that has come. When the
    /// server is away for too long, it is told that, and nothing more.
    pub(super) fn start(
        client: &V2,
        key: &str,
        observer: Observer,
    ) -> Result<Self, RendezvousError> {
        let client = client.separate();
        let watcher = Watcher {
            client: client.clone(),
            key: key.to_owned(),
            observer,
            next: 0,
            seen: Seen::Nothing,
        };
        let thread = thread::Builder::new()
            .name("rdzv-etcd-watch".to_owned())
            .spawn(move || watcher.run())
            .map_err(|error| {
                RendezvousError::Argument(format!("no thread to watch etcd with: {error}"))
            })?;
        Ok(Self {
            client,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.client.http().close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How waiting for one change ended.
pub(super) enum Waited {
    /// The next change has come.
    Changed(Node),
    /// Nothing came for long.
    Silent,
    /// etcd does not remember that far back.
    Gap,
}

/// Waits for the first change of `key` that is not before `index`, as long as `silence`.
pub(super) fn wait(client: &V2, key: &str, index: u64, silence: Duration) -> Result<Waited, Cause> {
    let away = |reason: String| Cause::Away {
        reason,
        maybe_done: false,
    };
    let mut lines = client.next_change(key, index, silence)?;
    let line = match lines.next_line() {
        Ok(Some(line)) => line,
        Ok(None) => return Err(away("the server ended the wait".to_owned())),
        Err(error) if is_silence(&error) => return Ok(Waited::Silent),
        Err(error) => return Err(away(error.to_string())),
    };
    if let Ok(answer) = serde_json::from_slice::<KeyAnswer>(&line) {
        return Ok(Waited::Changed(answer.node));
    }
    match serde_json::from_slice::<Refusal>(&line) {
        Ok(refusal) if refusal.code == code::INDEX_CLEARED => Ok(Waited::Gap),
        Ok(refusal) if refusal.code == code::WATCHER_CLEARED => Ok(Waited::Gap),
        Ok(refusal) => Err(cause_of(refusal)),
        Err(_) => Err(Cause::NotEtcd(format!("HTTP status {}", lines.status))),
    }
}

struct Watcher {
    client: V2,
    key: String,
    observer: Observer,
    /// The first change that has not been told; 0 if that is not known.
    next: u64,
    seen: Seen,
}

/// What of a key matters to others than its writer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// It has not been looked at.
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

impl Watcher {
    /// Looks at the key, and finds out from where on to wait.
    fn look(&mut self) -> Result<(), Failure> {
        let read = self.client.read("watch", &self.key)?;
        self.next = read.index + 1;
        self.tell(Seen::of(read.node.as_ref()));
        Ok(())
    }

    /// Tells what is there now, if it matters.
    fn tell(&mut self, now: Seen) {
        if now != self.seen {
            self.seen = now;
            (self.observer)(Notice::Changed);
        }
    }

    fn run(mut self) {
        let mut patience = Patience::of(self.client.limit());
        loop {
            let cause = match self.follow() {
                Ok(()) => {
                    patience = Patience::of(self.client.limit());
                    continue;
                }
                Err(cause) => cause,
            };
            let again = cause.is_passing().then(|| patience.pause()).flatten();
            let closed = self.client.http().pause(again.unwrap_or_default());
            if closed {
                return;
            }
            if again.is_none() {
                let place = self.client.http().place();
                let failure = patience.failure("watch", &self.key, place, cause);
                return (self.observer)(Notice::Lost(failure.into()));
            }
            // The server may have come back without its memory; then nothing would ever come.
            self.next = 0;
        }
    }

    /// Waits for one change.
    fn follow(&mut self) -> Result<(), Cause> {
        let waited = match self.next {
            0 => Waited::Gap,
            next => wait(&self.client, &self.key, next, SILENCE)?,
        };
        match waited {
            Waited::Changed(node) => {
                self.next = node.modified + 1;
                // One that has expired or been deleted comes without a value.
                let node = (!node.value.is_empty()).then_some(&node);
                self.tell(Seen::of(node));
            }
            Waited::Silent | Waited::Gap => self.look().map_err(|failure| failure.cause)?,
        }
        Ok(())
    }
}
