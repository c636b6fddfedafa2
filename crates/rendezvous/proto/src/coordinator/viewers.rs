//! Messages from agents to viewers.
//!
//! The coordinator passes the messages on without reading them.
//!
//! This data is volatile: agents with a viewer repeat that they have one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::wire::Report;
use rdzv_core::ident::ConnId;
use rdzv_core::time::Mono;

/// Time without a report after which an agent has no viewer.
const FORGET_AFTER: Duration = Duration::from_secs(5);

/// Size of waiting messages that are sent without a report of their receiver.
const MOST_WAITING: usize = 32 << 10;

/// Maximum size of a message for viewers, and of one for all agents.
const MOST_BYTES: usize = 256 << 10;
const MOST_FOR_ALL: usize = 1 << 10;

/// Agents of a run that have a viewer.
#[derive(Debug, Default)]
pub(super) struct Viewers {
    /// Time of the last report, and the messages that wait, by agent.
    agents: BTreeMap<ConnId, (Mono, Vec<u8>)>,
    watch: u32,
    /// Last number that was used.
    last: u32,
}

impl Viewers {
    /// Returns the number of the watch; 0 without a viewer.
    pub(super) fn watch(&self) -> u32 {
        self.watch
    }

    /// Handles a report, and returns the messages that all agents must receive now.
    pub(super) fn report(&mut self, now: Mono, from: ConnId, report: Report) -> Option<Vec<u8>> {
        let before = self.watch;
        self.agents
            .retain(|_, (at, _)| now.since(*at) < FORGET_AFTER);
        if !report.has_viewer {
            self.agents.remove(&from);
        } else if let Some((at, _)) = self.agents.get_mut(&from) {
            *at = now;
        } else {
            self.agents.insert(from, (now, Vec::new()));
            self.last = self.last.wrapping_add(1).max(1);
            self.watch = self.last;
        }
        if self.agents.is_empty() {
            self.watch = 0;
        }
        let most = if report.is_for_all {
            MOST_FOR_ALL
        } else {
            MOST_BYTES
        };
        let mut framed = Vec::new();
        if (1..=most).contains(&report.message.len()) {
            framed.extend_from_slice(&(report.message.len() as u32).to_le_bytes());
            framed.extend_from_slice(&report.message);
        }
        if report.is_for_all {
            return (before != self.watch || !framed.is_empty()).then_some(framed);
        }
        for (agent, (_, waiting)) in &mut self.agents {
            if *agent != from {
                waiting.extend_from_slice(&framed);
            }
        }
        (before != self.watch).then(Vec::new)
    }

    /// Takes messages that must be sent now.
    ///
    /// These are the messages for `reporter`, and many messages for another agent.
    pub(super) fn take(&mut self, reporter: ConnId) -> Option<(ConnId, Vec<u8>)> {
        let (agent, (_, waiting)) = self.agents.iter_mut().find(|(agent, (_, waiting))| {
            let is_due = **agent == reporter || waiting.len() > MOST_WAITING;
            is_due && !waiting.is_empty()
        })?;
        Some((*agent, std::mem::take(waiting)))
    }
}
