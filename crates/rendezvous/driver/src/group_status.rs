//! The group of voters and its coordinator as this process knows them, for the status of an agent or a store.
//!
//! ```text
//!   who asks ──► GroupStatus::look ── ping ──► thread of the store server, which writes down what it sees
//!                       ▲                        └─ the voter, or the only coordinator
//!                       └── agent: its coordinator, what it waits for, its lease; written down when it changes
//! ```
//!
//! A server is asked when somebody looks, so that an idle one does nothing for it. An agent may be
//! about to connect for seconds just then, and writes down what it knows beforehand.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rdzv_core::time::Mono;
use rdzv_lock::Mutex;
use rdzv_rendezvous_proto::group::{self, GroupView, Role, VoterView, Wait};
use rdzv_store::Pinger;
use serde::Serialize;

use crate::event::{Recorder, RendezvousEvent};
use crate::fence;

/// Time that a look waits for the server's thread, which answers at once if it runs.
const ANSWERING: Duration = Duration::from_millis(100);

/// Those who look on at a rendezvous.
#[derive(Clone, Default)]
pub struct Onlookers {
    /// The receiver of its events.
    pub recorder: Option<Recorder>,
    /// The place to write down how its group stands, if anybody may ask.
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

    /// This agent waits for something, or does not any more.
    pub(crate) fn wait_for(&self, wait: Option<Waits>) {
        if let Some(group) = &self.group {
            group.0.lock().wait = wait;
        }
    }
}

/// The wait, at the moment of the call.
pub(crate) type Waits = Arc<dyn Fn() -> Wait + Send + Sync>;

/// The knowledge that this process has of its group. Clones are the same.
#[derive(Clone, Default)]
pub struct GroupStatus(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// The store server of this process, if it is a voter or has the coordinator.
    server: Option<Pinger>,
    /// As that has seen the group last.
    view: Option<GroupView>,
    /// The coordinator of this agent.
    agent: Option<Attached>,
    wait: Option<Waits>,
    /// The end of the lease of this node's workers; `None` without a fence.
    ///
    /// `true` beside it if they are suspended.
    lease: Option<(Option<Mono>, bool)>,
}

/// The coordinator of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Attached {
    /// Its cluster and epoch, if another coordinator follows it when it dies.
    pub(crate) authority: Option<(u64, u32)>,
    /// Whether it is one of several voters.
    pub(crate) has_voters: bool,
    /// Its endpoint.
    pub(crate) coordinator: String,
}

/// The answer to the question how the group stands. What this process cannot know is `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
pub struct GroupReport {
    /// The group.
    #[serde(serialize_with = "group::hexadecimal")]
    pub cluster: Option<u64>,
    /// The number of the coordinator.
    pub epoch: Option<u64>,
    /// The term; there is none without several voters.
    pub term: Option<u64>,
    /// The part of this process.
    pub role: Option<Role>,
    /// The members of the group.
    pub voters: Option<Vec<VoterView>>,
    /// The number of voters that it should have.
    pub target: Option<usize>,
    /// The endpoint of the coordinator.
    pub coordinator: Option<String>,
    /// For how long the workers of this node may run without another answer.
    #[serde(rename = "lease_left_s", serialize_with = "group::seconds")]
    pub lease_left: Option<Duration>,
    /// `true` if the workers of this node are suspended; `None` without a fence.
    pub fenced: Option<bool>,
    /// For what this process waits.
    pub waiting: Option<Wait>,
    /// The number of elections that it has seen. Not in the status: a metric.
    #[serde(skip)]
    pub elections: u64,
    /// The number of times that the group has begun anew without its log. The same.
    #[serde(skip)]
    pub takeovers: u64,
}

impl fmt::Debug for GroupStatus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("GroupStatus")
    }
}

/// Two are equal if they are the same.
impl PartialEq for GroupStatus {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for GroupStatus {}

impl GroupStatus {
    /// The server of this process is asked from here on.
    pub fn ask(&self, server: Pinger) {
        self.0.lock().server = Some(server);
    }

    /// The server sees this.
    pub(crate) fn see(&self, view: GroupView) {
        self.0.lock().view = Some(view);
    }

    /// The coordinator of this agent is another one.
    pub(crate) fn attach(&self, attached: Attached) {
        self.0.lock().agent = Some(attached);
    }

    /// The end of the lease of this node's workers, on the clock of [`fence::now`], and whether they stand still.
    pub fn lease(&self, until: Option<Mono>, stands: bool) {
        self.0.lock().lease = Some((until, stands));
    }

    /// The group as it stands. Waits up to a tenth of a second for the thread of the server. `None` where there is no group.
    pub fn look(&self) -> Option<GroupReport> {
        let server = self.0.lock().server.clone();
        if let Some(server) = server {
            let (alive, answer) = mpsc::channel();
            server(alive);
            // What it has seen last is shown if it does not answer.
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
            role: is_agent.then_some(Role::Agent),
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
            // An agent that was at a coordinator which is gone has no other one.
            report.coordinator = view.coordinator;
            report.waiting = view.waiting;
            (report.elections, report.takeovers) = (view.elections, view.takeovers);
        }
        if let Some((until, stands)) = self.lease {
            let now = fence::now().mono;
            report.lease_left = until.map(|until| until.since(now));
            report.fenced = (until.is_some() || stands).then_some(stands);
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
            theirs.see(GroupView {
                cluster: Some(7),
                epoch: Some(2),
                term: Some(2),
                role: Some(Role::Coordinator),
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
