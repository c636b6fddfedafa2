//! Messages that the agents of a job exchange, mainly for viewers.
//!
//! ```text
//!   server of views ── send ──► ReportExchange ── next_report ──► connection ──► coordinator
//!                   ◄── next ──                ◄── received ────             ◄──
//! ```
//!
//! The coordinator passes messages on without reading them. Without a viewer, only a new connection
//! or a message for all agents wakes a receiver here.

use std::collections::VecDeque;
use std::sync::Arc;

use rdzv_lock::Mutex;
use rdzv_rendezvous_proto::coordinator::wire::Report;
use tokio::sync::Notify;

/// Maximum number of messages that wait in one direction; later ones are lost.
const MOST_WAITING: usize = 1 << 14;

/// Exchange of one agent. Clones share one state.
#[derive(Clone, Default)]
pub struct ReportExchange(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Notified if a report waits for the connection.
    to_send: Notify,
    /// Notified if a message has arrived, or the watch has changed.
    arrived: Notify,
}

#[derive(Default)]
struct State {
    reports: VecDeque<Report>,
    received: Vec<Vec<u8>>,
    watch: u32,
    is_new: bool,
}

impl ReportExchange {
    /// Sends a message to all agents that have a viewer, or to all agents.
    ///
    /// `has_viewer` is `true` if this agent has a viewer. The coordinator forgets the viewer 5 s
    /// after the last such message.
    pub fn send(&self, has_viewer: bool, is_for_all: bool, message: Vec<u8>) {
        let mut state = self.0.state.lock();
        if state.reports.len() < MOST_WAITING {
            state.reports.push_back(Report {
                has_viewer,
                is_for_all,
                message,
            });
        }
        self.0.to_send.notify_one();
    }

    /// Returns `true` if the connection has taken all messages.
    pub fn is_sent(&self) -> bool {
        self.0.state.lock().reports.is_empty()
    }

    /// Waits for messages of other agents, and for changes of the watch.
    ///
    /// The number of the watch is 0 while no agent of the job has a viewer. It changes when a
    /// viewer attaches, and after a lost connection.
    pub async fn next(&self) -> (u32, Vec<Vec<u8>>) {
        loop {
            {
                let mut state = self.0.state.lock();
                if std::mem::take(&mut state.is_new) {
                    return (state.watch, std::mem::take(&mut state.received));
                }
            }
            self.0.arrived.notified().await;
        }
    }

    /// Waits for a report to send.
    pub(crate) async fn next_report(&self) -> Report {
        loop {
            {
                if let Some(report) = self.0.state.lock().reports.pop_front() {
                    return report;
                }
            }
            self.0.to_send.notified().await;
        }
    }

    /// Stores messages from the coordinator; the watch is 0 without a connection.
    pub(crate) fn received(&self, watch: u32, messages: Vec<Vec<u8>>) {
        let mut state = self.0.state.lock();
        let left = MOST_WAITING.saturating_sub(state.received.len());
        state.received.extend(messages.into_iter().take(left));
        state.watch = watch;
        state.is_new = true;
        self.0.arrived.notify_one();
    }
}
