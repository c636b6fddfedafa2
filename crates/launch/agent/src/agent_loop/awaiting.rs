//! Reminders that name what the agent waits for, when a wait takes long.

use rdzv_agent_proto::group::Awaited;
use rdzv_core::rank::LocalRank;
use rdzv_core::reminder::{self, Reminder};
use rdzv_core::time::Mono;
use tracing::warn;

use crate::worker::WorkerIdentity;

/// Current wait of the agent's worker group.
#[derive(Debug, Default)]
pub(super) struct Awaiting(Option<Wait>);

#[derive(Debug)]
struct Wait {
    awaited: Awaited,
    since: Mono,
    reminder: Reminder,
}

impl Awaiting {
    pub(super) fn update(&mut self, now: Mono, awaited: Option<Awaited>) {
        let before = self.0.take();
        self.0 = awaited.map(|awaited| match before {
            Some(before) if awaited.is_same(&before.awaited) => Wait { awaited, ..before },
            _ => Wait {
                awaited,
                since: now,
                reminder: Reminder::default(),
            },
        });
    }

    pub(super) fn due(&self) -> Option<Mono> {
        let wait = self.0.as_ref()?;
        Some(wait.since + wait.reminder.next())
    }

    pub(super) fn remind(&mut self, now: Mono, workers: &[WorkerIdentity]) {
        let Some(wait) = &mut self.0 else {
            return;
        };
        if wait.reminder.is_due(now.since(wait.since)) {
            let left = wait
                .awaited
                .deadline()
                .map(|deadline| deadline.since(now).as_secs());
            let sentence = wait
                .awaited
                .sentence(now, |running| named(running, workers));
            warn!(target: reminder::TARGET, left, "{sentence}");
        }
    }
}

/// Returns a text such as `rank 3` or `ranks 0-4, 7`.
fn named(running: &[LocalRank], workers: &[WorkerIdentity]) -> String {
    let of_group = workers
        .iter()
        .filter(|worker| running.contains(&worker.local_rank));
    let ranks: Vec<u32> = of_group.map(|worker| worker.rank.0).collect();
    rdzv_console::stop::ranks(&ranks)
}
