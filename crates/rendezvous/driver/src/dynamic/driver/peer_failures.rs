//! Immediate notices of the permanent failure of a member.
//!
//! A member that fails writes the reason below the prefix of the round. Every other member waits
//! for this on a separate connection. Agents of torchelastic neither write nor read it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdzv_core::escape::escape;
use rdzv_store::{Store, StoreError};

use crate::RendezvousError;
use crate::dynamic::watch::Watch;

/// Key with the node that failed first and, after a line break, its reason.
const KEY: &str = "rdzv/failed";

/// Key that exists once [`KEY`] exists. The other members wait for this key.
///
/// PyTorch's older server does not end a wait when a compare-and-set creates the key.
const ANNOUNCED: &str = "rdzv/failed/told";

/// Duration of one wait in a store whose waits cannot be interrupted.
const SLICE: Duration = Duration::from_secs(1);

/// Writes the failure of `node`. Only the first failure of a round counts.
pub(super) fn report(round: &dyn Store, node: &str, reason: &str) -> Result<(), RendezvousError> {
    let reason = reason.lines().collect::<Vec<_>>().join(" ");
    round.compare_set(KEY, b"", format!("{node}\n{reason}").as_bytes())?;
    round.set(ANNOUNCED, b"1")?;
    Ok(())
}

/// Returns the failure of another node that is already written; does not wait.
pub(super) fn reported(round: &dyn Store, me: &str) -> Option<(String, String)> {
    let looked = round
        .check(&[ANNOUNCED])
        .and_then(|notified| notified.then(|| round.get(KEY)).transpose());
    let value = looked
        .inspect_err(|error| tracing::debug!(%error, "cannot check for failures of other nodes"))
        .ok()??;
    let (node, reason) = parse(&value);
    (node != me).then_some((node, reason))
}

/// Splits a value into node and reason.
fn parse(value: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(value);
    let (node, reason) = text.split_once('\n').unwrap_or((&text, ""));
    // A record may follow the sentence: the code that splits the record escapes its texts.
    (escape(node), reason.to_owned())
}

/// Waits for the failure of another node, and passes it to `notify`.
///
/// Without a second connection, this node notices a failure only when the failed node closes the
/// run or misses its heartbeats.
pub(super) fn watch(
    round: &dyn Store,
    me: &str,
    notify: impl FnOnce(String, String) + Send + 'static,
) -> Option<Watch> {
    let store = round
        .try_clone()
        .inspect_err(|error| tracing::warn!(%error, "cannot watch for failures of other nodes"))
        .ok()?;
    let (me, breaker) = (
        me.to_owned(),
        store.connection().and_then(|it| it.breaker()),
    );
    let slice = breaker.as_ref().map_or(SLICE, |_| Duration::MAX);
    Watch::start(breaker, move |over| {
        if let Some((node, reason)) = wait(&*store, slice, over)
            && node != me
            && !over.load(Ordering::Relaxed)
        {
            notify(node, reason);
        }
    })
    .inspect_err(|error| tracing::warn!(%error, "cannot watch for failures of other nodes"))
    .ok()
}

/// Waits for a failure and returns the node and its reason.
///
/// `None` if the watch has ended, or if the store is lost, which other code reports.
fn wait(store: &dyn Store, slice: Duration, over: &AtomicBool) -> Option<(String, String)> {
    while !over.load(Ordering::Relaxed) {
        match store.wait(&[ANNOUNCED], Some(slice)) {
            Ok(()) => {
                return store.get(KEY).ok().map(|value| parse(&value));
            }
            Err(StoreError::WaitTimeout { .. }) => {}
            Err(_) => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rdzv_store::HashStore;

    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn the_first_failure_is_heard_by_the_others() {
        let store = HashStore::new();
        let (sender, notified) = mpsc::channel();
        let notify = move |node, reason| sender.send((node, reason)).unwrap();
        let _watch = watch(&store, "b", notify).unwrap();
        report(&store, "a", "worker 3 exited\nwith code 7").unwrap();
        report(&store, "c", "too late").unwrap();
        let failure = ("a".to_owned(), "worker 3 exited with code 7".to_owned());
        assert_eq!(notified.recv_timeout(LONG), Ok(failure));
    }

    #[test]
    fn what_was_announced_can_be_read_by_all_but_who_announced_it() {
        let store = HashStore::new();
        assert_eq!(reported(&store, "b"), None);
        report(&store, "a", "worker 3 exited\nwith code 7").unwrap();
        let notified = ("a".to_owned(), "worker 3 exited with code 7".to_owned());
        assert_eq!(reported(&store, "b"), Some(notified));
        assert_eq!(reported(&store, "a"), None);
        let store = HashStore::new();
        report(&store, "a\u{1b}[2J", "x").unwrap();
        let (node, _) = reported(&store, "b").unwrap();
        assert_eq!(node, "a\\u{1b}[2J");
    }

    #[test]
    fn nobody_hears_of_its_own_failure() {
        let store = HashStore::new();
        let (sender, notified) = mpsc::channel();
        let notify = move |node, reason| sender.send((node, reason)).unwrap();
        let watch = watch(&store, "a", notify).unwrap();
        report(&store, "a", "x").unwrap();
        assert!(
            notified.recv_timeout(LONG).is_err(),
            "the watch ends without a word"
        );
        drop(watch);
    }
}
