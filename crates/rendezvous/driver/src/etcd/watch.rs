//! A thread that follows the changes of a run, until it is dropped or the server is away for too long.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::failure::{Cause, Retry};
use super::http::{Http, Lines, is_silence, too_long};
use crate::RendezvousError;
use crate::dynamic::shared::Notice;

/// A connection on which nothing has come for so long is replaced, because it may be a dead one.
pub(super) const SILENCE: Duration = Duration::from_secs(30);

/// Receives the notices of a watch.
pub(crate) type Observer = Arc<dyn Fn(Notice) + Send + Sync>;

/// What is watched, through one of etcd's APIs.
pub(super) trait Watched: Send + 'static {
    /// The client, which ends with the watch.
    fn http(&self) -> &Http;

    /// What errors say is watched.
    fn key(&self) -> String;

    /// Follows one connection to its end, calling `observer`; an error is retried while it is a
    /// passing one. Also returns whether the server has answered.
    fn follow(&mut self, observer: &Observer) -> (Result<(), Cause>, bool);
}

/// A watch that ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    http: Http,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Calls `observer` for everything that happens from some moment soon on, and when that has
    /// come. When the server is away for too long, it is called for that, and not again.
    pub(super) fn start(
        watched: impl Watched,
        observer: Observer,
    ) -> Result<Self, RendezvousError> {
        let http = watched.http().clone();
        let thread = thread::Builder::new()
            .name("rdzv-etcd-watch".to_owned())
            .spawn(move || run(watched, &observer))
            .map_err(|error| {
                RendezvousError::Argument(format!("no thread to watch etcd with: {error}"))
            })?;
        Ok(Self {
            http,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.http.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut watched: impl Watched, observer: &Observer) {
    let limit = watched.http().limit();
    let mut retry = Retry::within(limit);
    let mut worked = false;
    loop {
        let (end, answered) = watched.follow(observer);
        if answered {
            retry = Retry::within(limit);
        }
        worked |= answered || end.is_ok();
        let Err(cause) = end else { continue };
        if std::mem::take(&mut worked) {
            if watched.http().pause(Duration::ZERO) {
                return;
            }
            // The next request finds out whether the server is away.
            observer(Notice::Changed);
        }
        let again = cause.is_passing().then(|| retry.pause()).flatten();
        if watched.http().pause(again.unwrap_or_default()) {
            return;
        }
        if again.is_none() {
            let place = watched.http().place();
            let failure = retry.failure("watch", watched.key(), place, cause);
            return observer(Notice::Lost(failure.into()));
        }
    }
}

/// Why the answer to a watch has ended.
pub(super) enum End {
    /// To be resumed on another connection.
    Broken(Cause),
    /// Nothing came for long; to be resumed at once.
    Silent,
    /// Earlier changes are not to be had any more.
    Gap,
}

pub(super) fn away(reason: impl Into<String>) -> Cause {
    Cause::Away {
        reason: reason.into(),
        maybe_done: false,
    }
}

/// The next line of an answer that does not end; `at_end` says how it ended instead.
pub(super) fn next_line(lines: &mut Lines, at_end: &str) -> Result<Vec<u8>, End> {
    match lines.next_line() {
        Ok(Some(line)) => Ok(line),
        Ok(None) => Err(End::Broken(away(at_end))),
        Err(error) if is_silence(&error) => Err(End::Silent),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Err(End::Broken(too_long())),
        Err(error) => Err(End::Broken(away(error.to_string()))),
    }
}
