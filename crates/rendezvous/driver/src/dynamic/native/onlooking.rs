//! Messages of the task of an agent's connection for its onlookers.
//!
//! Onlookers are users, the recorder of events, and the status.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_core::escape::escape;
use rdzv_rendezvous_proto::coordinator::wire::Report;
use rdzv_rendezvous_proto::group::{Case, Wait};
use rdzv_rendezvous_proto::native_client::{Missing, NativeClient};
use rdzv_rendezvous_proto::waiting::Waiting;

use crate::dynamic::voters::Search;
use crate::group_status::{Attached, Waits};
use crate::{GroupEvent, NodeState, Onlookers, RendezvousEvent};

/// Onlookers of a connection, with the latest information that they have.
pub(super) struct Onlooking {
    onlookers: Onlookers,
    /// Endpoints of the voters, if there are several.
    voters: Vec<String>,
    /// Endpoint of the coordinator of the latest connection.
    coordinator: String,
    /// Coordinator in the latest report to the onlookers.
    known: Option<Attached>,
    /// `true` if the onlookers know that the coordinator is missing.
    is_missing: bool,
    is_waiting: bool,
}

impl Onlooking {
    pub(super) fn new(onlookers: Onlookers, search: Option<&Search>, coordinator: String) -> Self {
        Self {
            onlookers,
            voters: search.map_or_else(Vec::new, Search::endpoints),
            coordinator,
            known: None,
            is_missing: false,
            is_waiting: false,
        }
    }

    /// Waits for a message of this agent to viewers, or to all agents.
    pub(super) async fn next_report(&self) -> Report {
        match &self.onlookers.group {
            Some(group) => group.exchange().next_report().await,
            None => std::future::pending().await,
        }
    }

    /// Stores messages of agents, for viewers or for all agents.
    pub(super) fn reports(&self, watch: u32, messages: Vec<Vec<u8>>) {
        if let Some(group) = &self.onlookers.group {
            group.exchange().received(watch, messages);
        }
    }

    pub(super) fn record(&self, client: &NativeClient, message: String, event: Option<GroupEvent>) {
        tracing::info!("[{}] {message}", escape(client.run()));
        self.onlookers.record(RendezvousEvent {
            group: event,
            ..RendezvousEvent::new(NodeState::Running, message)
        });
    }

    pub(super) fn voters(&mut self, voters: &[String]) {
        self.voters = voters.to_vec();
        if let Some(known) = &mut self.known {
            known.has_voters = !voters.is_empty();
            if let Some(group) = &self.onlookers.group {
                group.attach(known.clone());
            }
        }
    }

    pub(super) fn reached(&mut self, coordinator: String) {
        self.coordinator = coordinator;
    }

    /// Reports the coordinator of the agent, if it has changed.
    pub(super) fn attached(&mut self, client: &NativeClient) {
        let authority = client.authority();
        let authority = authority.map(|authority| (authority.cluster, authority.epoch));
        // A coordinator that was reached again reports its epoch later.
        let known = self.known.as_ref();
        if known.is_some_and(|known| known.authority == authority) {
            return;
        }
        let now = Attached {
            authority,
            has_voters: !self.voters.is_empty(),
            coordinator: self.coordinator.clone(),
        };
        if let Some(group) = &self.onlookers.group {
            group.attach(now.clone());
        }
        let before = self.known.replace(now);
        let Some((_, epoch)) = authority else {
            return;
        };
        let before = before.filter(|before| before.authority.is_some());
        let before = before.map(|before| before.coordinator);
        let coordinator = self.coordinator.clone();
        let message = match &before {
            Some(before) => {
                format!("the coordinator is at {coordinator} in place of {before} (epoch {epoch})")
            }
            None => format!("the coordinator is at {coordinator} (epoch {epoch})"),
        };
        let changed = GroupEvent::CoordinatorChanged {
            coordinator,
            before,
            epoch,
        };
        // The voters and the report about the connection inform the user already.
        tracing::debug!("[{}] {message}", escape(client.run()));
        let event = RendezvousEvent::new(NodeState::Running, message);
        self.onlookers.record(event.about(changed));
    }

    /// Reports that the connection is back after `took`.
    pub(super) fn reattached(&mut self, client: &NativeClient, endpoint: &str, took: Duration) {
        let message = format!("reattached to {endpoint} after {} ms", took.as_millis());
        let coordinator = self.coordinator.clone();
        let event = GroupEvent::Reattached { coordinator, took };
        self.record(client, message, Some(event));
        self.heard();
    }

    /// Ends the report of a missing coordinator, if there is one.
    pub(super) fn heard(&mut self) {
        if std::mem::take(&mut self.is_missing) {
            self.onlookers.wait_for(None);
        }
    }

    /// Ends the report of a join that waits.
    pub(super) fn over(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.onlookers.wait_for(None);
        }
    }

    /// Warns that there is no coordinator, and reports the wait.
    pub(super) fn miss(&mut self, run: &str, endpoint: String, missing: Missing) {
        let (run, silent) = (escape(run), "it is connected but sends nothing");
        let what = missing.what.unwrap_or_else(|| silent.to_owned());
        let workers = if missing.is_fenced {
            "the fence suspends the workers"
        } else {
            "the workers continue"
        };
        let began = Instant::now();
        let sentence = move || {
            let since = began.elapsed();
            format!(
                "no coordinator at {endpoint} for {:.0} s ({what}); {workers}; waiting for {:.0} s more",
                (missing.elapsed + since).as_secs_f64(),
                missing.left.saturating_sub(since).as_secs_f64(),
            )
        };
        tracing::warn!("[{run}] {}", sentence());
        let (case, missing) = if self.voters.is_empty() {
            (Case::W1, vec![self.coordinator.clone()])
        } else {
            (Case::W5, self.voters.clone())
        };
        self.is_missing = true;
        self.wait_for(Arc::new(move || Wait {
            case,
            sentence: format!("[{run}] {}", sentence()),
            missing: missing.clone(),
        }));
    }

    /// Reports that a join waits for other nodes.
    pub(super) fn wait_for_nodes(&mut self, run: &str, waiting: Waiting) {
        let arrived = waiting.arrived.as_ref();
        if arrived.is_none_or(|arrived| arrived.is_spare || arrived.nodes >= waiting.min_nodes) {
            return self.over();
        }
        let (run, began) = (escape(run), Instant::now());
        self.is_waiting = true;
        self.wait_for(Arc::new(move || {
            let left = waiting.left.saturating_sub(began.elapsed());
            let arrived = waiting.arrived.clone();
            let waiting = Waiting {
                arrived,
                left,
                ..waiting
            };
            Wait {
                case: Case::W8,
                sentence: format!("[{run}] {waiting}"),
                missing: Vec::new(),
            }
        }));
    }

    fn wait_for(&self, wait: Waits) {
        self.onlookers.wait_for(Some(wait));
    }
}
