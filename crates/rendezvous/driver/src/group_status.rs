//! Status of the voter group and its coordinator, as this process knows it.
//!
//! ```text
//!   caller ──► GroupStatus::look ── ping ──► thread of the store server, which stores its view
//!                      ▲                       └─ the voter, or the only coordinator
//!                      └── agent: coordinator, current wait, lease; stored at each change
//! ```
//!
//! A server updates its view only on request, so that an idle server does no work for it. An agent
//! may be busy with a connection attempt for seconds, so it stores its view in advance.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rdzv_core::time::Mono;
use rdzv_lock::Mutex;
use rdzv_rendezvous_proto::group::{self, VoterGroupView, VoterRole, VoterView, Wait};
use rdzv_store::Pinger;
use serde::Serialize;

use crate::event::{Recorder, RendezvousEvent};
use crate::fence;
use crate::report_exchange::ReportExchange;

/// Time limit for a reply of the server's thread.
///
/// A running server replies immediately.
const ANSWERING: Duration = Duration::from_millis(100);

/// Receivers of information about a rendezvous.
#[derive(Clone, Default)]
pub struct Onlookers {
    /// Receiver of events.
    pub recorder: Option<Recorder>,
    /// Storage for the status of the group, if a status endpoint reports it.
    pub group: Option<GroupStatus>,
}

impl fmt::Debug for Onlookers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Onlookers({:?})", self.group)
    }
}

impl Onlookers {
    pub(crate) fn record(&self, event: RendezvousEvent) {
        if let Some(record) = &self.recorder {
            record(event);
        }
    }

    /// Sets the current wait of this agent; `None` if the agent no longer waits.
    pub(crate) fn wait_for(&self, wait: Option<Waits>) {
        if let Some(group) = &self.group {
            group.0.lock().wait = wait;
        }
    }
}

/// Closure that describes the wait at the moment of the call.
pub(crate) type Waits = Arc<dyn Fn() -> Wait + Send + Sync>;

/// Knowledge of this process about its group. Clones share one state.
#[derive(Clone, Default)]
pub struct GroupStatus(Arc<Mutex<Known>>, ReportExchange);

#[derive(Default)]
struct Known {
    /// Store server of this process; `None` unless it votes or coordinates.
    server: Option<Pinger>,
    /// Latest view of that server.
    view: Option<VoterGroupView>,
    /// Coordinator that the agent in this process obeys.
    agent: Option<Attached>,
    wait: Option<Waits>,
    /// End of the lease of this node's workers; `None` without a fence.
    ///
    /// The second value is `true` if the workers are suspended.
    lease: Option<(Option<Mono>, bool)>,
}

/// Coordinator that an agent obeys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Attached {
    /// Cluster and epoch, if another coordinator follows this one when it dies.
    pub(crate) authority: Option<(u64, u32)>,
    /// `true` if the coordinator is one of several voters.
    pub(crate) has_voters: bool,
    /// Endpoint of the coordinator.
    pub(crate) coordinator: String,
}

/// Status of the group. A field is `None` if this process cannot know it.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct GroupReport {
    /// Identifier of the group.
    #[serde(serialize_with = "group::hexadecimal")]
    pub cluster: Option<u64>,
    /// Epoch of the coordinator.
    pub epoch: Option<u64>,
    /// Raft term, if this process is a voter or knows of several voters.
    pub term: Option<u64>,
    /// Role of this process.
    pub role: Option<VoterRole>,
    /// Members of the group.
    pub voters: Option<Vec<VoterView>>,
    /// Number of voters that the group should have.
    pub target: Option<usize>,
    /// Endpoint of the coordinator.
    pub coordinator: Option<String>,
    /// Time for which this node's workers may run without a new lease.
    #[serde(rename = "lease_left_s", serialize_with = "group::seconds")]
    pub lease_left: Option<Duration>,
    /// `true` if the workers of this node are suspended; `None` without a fence.
    pub fenced: Option<bool>,
    /// Current wait of this process.
    pub waiting: Option<Wait>,
    /// Number of elections that this process has seen.
    ///
    /// A metric, not part of the status.
    #[serde(skip)]
    pub elections: u64,
    /// Number of times that the group restarted without its log. A metric too.
    #[serde(skip)]
    pub takeovers: u64,
}

impl fmt::Debug for GroupStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GroupStatus")
    }
}

/// Two values are equal if they share one state.
impl PartialEq for GroupStatus {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for GroupStatus {}

impl GroupStatus {
    /// Returns the exchange of messages with the other agents of the job.
    pub fn exchange(&self) -> &ReportExchange {
        &self.1
    }

    /// Sets the server that [`GroupStatus::look`] asks.
    pub fn ask(&self, server: Pinger) {
        self.0.lock().server = Some(server);
    }

    pub(crate) fn see(&self, view: VoterGroupView) {
        self.0.lock().view = Some(view);
    }

    pub(crate) fn attach(&self, attached: Attached) {
        self.0.lock().agent = Some(attached);
    }

    /// Stores the end of the workers' lease on the clock of [`fence::now`].
    ///
    /// `stands` is `true` if the workers are suspended.
    pub fn lease(&self, lease_end: Option<Mono>, stands: bool) {
        self.0.lock().lease = Some((lease_end, stands));
    }

    /// Returns the status of the group, or `None` if there is no group.
    ///
    /// Waits at most 0.1 s for the thread of the server.
    pub fn look(&self) -> Option<GroupReport> {
        let server = self.0.lock().server.clone();
        if let Some(server) = server {
            let (alive, answer) = mpsc::channel();
            server(alive);
            // Without a reply, the previous view is shown.
            let _ = answer.recv_timeout(ANSWERING);
        }
        let (wait, mut report) = {
            let known = self.0.lock();
            if known.view.is_none() && known.agent.is_none() && known.wait.is_none() {
                return None;
            }
            (known.wait.clone(), known.report())
        };
        if report.waiting.is_none() {
            report.waiting = wait.map(|wait| wait());
        }
        Some(report)
    }
}

impl Known {
    fn report(&self) -> GroupReport {
        let agent = self.agent.clone().unwrap_or_default();
        let epoch = agent.authority.map(|(_, epoch)| u64::from(epoch));
        let is_agent = self.agent.is_some() || self.wait.is_some();
        let mut report = GroupReport {
            cluster: agent.authority.map(|(cluster, _)| cluster),
            epoch,
            term: epoch.filter(|_| agent.has_voters),
            role: is_agent.then_some(VoterRole::Agent),
            coordinator: self.agent.as_ref().map(|agent| agent.coordinator.clone()),
            ..GroupReport::default()
        };
        if let Some(view) = self.view.clone() {
            report.cluster = view.cluster.or(report.cluster);
            report.epoch = view.epoch.or(report.epoch);
            report.term = view.term.or(report.term);
            report.role = view.role.or(report.role);
            report.voters = Some(view.voters);
            report.target = Some(view.target);
            // If the server knows no coordinator, the agent has lost the one that it reported.
            report.coordinator = view.coordinator;
            report.waiting = view.waiting;
            (report.elections, report.takeovers) = (view.elections, view.takeovers);
        }
        if let Some((lease_end, stands)) = self.lease {
            let now = fence::now().mono;
            report.lease_left = lease_end.map(|lease_end| lease_end.since(now));
            report.fenced = (lease_end.is_some() || stands).then_some(stands);
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use rdzv_rendezvous_proto::group::{Case, VoterState};

    use super::*;

    fn json(status: &GroupStatus) -> String {
        serde_json::to_string_pretty(&status.look()).unwrap()
    }

    fn waits() -> Waits {
        Arc::new(|| Wait {
            case: Case::W1,
            sentence: "no coordinator".to_owned(),
            missing: vec!["node-a:29400".to_owned()],
        })
    }

    #[test]
    fn where_there_is_no_group_there_is_no_report() {
        assert_eq!(json(&GroupStatus::default()), "null");
    }

    #[test]
    fn an_agent_that_is_no_voter_knows_its_coordinator_and_for_what_it_waits() {
        let status = GroupStatus::default();
        status.attach(Attached {
            authority: Some((0xabc, 4)),
            has_voters: true,
            coordinator: "node-b:29400".to_owned(),
        });
        status.lease(None, true);
        let onlookers = Onlookers {
            recorder: None,
            group: Some(status.clone()),
        };
        onlookers.wait_for(Some(waits()));
        assert_eq!(
            json(&status),
            r#"{
  "cluster": "0000000000000abc",
  "epoch": 4,
  "term": 4,
  "role": "agent",
  "voters": null,
  "target": null,
  "coordinator": "node-b:29400",
  "lease_left_s": null,
  "fenced": true,
  "waiting": {
    "case": "W1",
    "sentence": "no coordinator",
    "missing": [
      "node-a:29400"
    ]
  }
}"#
        );
        onlookers.wait_for(None);
        assert_eq!(status.look().unwrap().waiting, None);
    }

    #[test]
    fn a_voter_is_asked_when_somebody_looks() {
        let status = GroupStatus::default();
        let theirs = status.clone();
        status.ask(Arc::new(move |alive| {
            theirs.see(VoterGroupView {
                cluster: Some(7),
                epoch: Some(2),
                term: Some(2),
                role: Some(VoterRole::Coordinator),
                voters: vec![
                    VoterView {
                        id: Some(0x1234_5678_9abc_def0),
                        address: Some("node-a:29400".to_owned()),
                        state: VoterState::Leader,
                        last_heard: None,
                        lag: Some(0),
                    },
                    VoterView {
                        id: Some(1),
                        address: None,
                        state: VoterState::Silent,
                        last_heard: Some(Duration::from_micros(2_345_678)),
                        lag: Some(12),
                    },
                ],
                target: 3,
                coordinator: Some("node-a:29400".to_owned()),
                waiting: None,
                elections: 1,
                takeovers: 0,
            });
            alive.send(()).unwrap();
        }));
        assert_eq!(
            json(&status),
            r#"{
  "cluster": "0000000000000007",
  "epoch": 2,
  "term": 2,
  "role": "coordinator",
  "voters": [
    {
      "id": "123456789abcdef0",
      "address": "node-a:29400",
      "state": "leader",
      "last_heard_s": null,
      "lag": 0
    },
    {
      "id": "0000000000000001",
      "address": null,
      "state": "silent",
      "last_heard_s": 2.346,
      "lag": 12
    }
  ],
  "target": 3,
  "coordinator": "node-a:29400",
  "lease_left_s": null,
  "fenced": null,
  "waiting": null
}"#
        );
    }
}
