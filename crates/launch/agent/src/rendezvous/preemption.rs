//! Notices of preemption, which agents send to each other.
//!
//! The notice is a key in the store of the round. The agent that receives the signal sets the key,
//! and all agents that handle preemption wait for it. Agents outside the round receive nothing.

use std::thread;
use std::time::Duration;

use rdzv_core::rank::GroupRank;
use rdzv_store::StoreError;
use tokio::sync::mpsc::UnboundedSender;
use tracing::{info, warn};

use super::Answer;
use crate::round_store::RoundStore;

/// Key whose value is the signal number and the rank of its receiver.
const KEY: &str = "rdzv/preempted";

/// Timeout of one wait for the key; the agent then waits again.
const WAIT: Duration = Duration::from_secs(3600);

/// Time limit for storing the notice.
const ANNOUNCE_WITHIN: Duration = Duration::from_secs(10);

/// Waits for a notice on a thread that ends with the round.
pub(super) fn listen(store: &RoundStore, answers: UnboundedSender<Answer>) {
    let store = store.clone();
    start("preemption", move || match hear(&store) {
        Ok((signal, by)) => {
            let _ = answers.send(Answer::Preempted { signal, by });
        }
        // This is the usual end: the round is over.
        Err(error) => info!("this agent no longer waits for a notice of preemption: {error}"),
    });
}

fn hear(store: &RoundStore) -> Result<(i32, GroupRank), StoreError> {
    let store = store.connect()?;
    loop {
        match store.wait(&[KEY], Some(WAIT)) {
            Err(StoreError::WaitTimeout { .. }) => {}
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    let value = store.get(KEY)?;
    read(&value).ok_or_else(|| StoreError::Corrupt {
        store: format!("{store:?}"),
        what: format!("key {KEY} does not contain two numbers"),
    })
}

/// Notifies the other agents on a separate thread.
pub(super) fn announce(store: &RoundStore, signal: i32, by: GroupRank) {
    let store = store.clone();
    start("preemption notice", move || {
        let told = store.apart().and_then(|store| {
            store.set_timeout(ANNOUNCE_WITHIN);
            store.set(KEY, format!("{signal} {by}").as_bytes())
        });
        if let Err(error) = told {
            warn!("cannot notify the other nodes of the preemption of this node: {error}");
        }
    });
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(work) {
        warn!(
            "cannot exchange notices of preemption with other nodes, because no thread can be \
             started: {error}"
        );
    }
}

fn read(value: &[u8]) -> Option<(i32, GroupRank)> {
    let (signal, by) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    Some((signal.parse().ok()?, GroupRank(by.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_two_numbers() {
        assert_eq!(read(b"10 3"), Some((10, GroupRank(3))));
        for bad in [&b"10"[..], b"10 x", b"", b"x 1", b"\xff 1"] {
            assert_eq!(read(bad), None);
        }
    }
}
