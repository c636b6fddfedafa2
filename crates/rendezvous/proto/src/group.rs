//! View of a group of voters and its coordinator, for status reports.
//!
//! A view shows what one process knows at one moment. A machine creates a [`VoterGroupView`] on
//! request, and does not update it later.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::recovering::Recovering;

/// Knowledge of one process about its group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VoterGroupView {
    /// Id of the group; `None` if the process is in no group.
    pub cluster: Option<u64>,
    /// Highest epoch that the process knows.
    pub epoch: Option<u64>,
    /// The term, if the group has voters. It equals the epoch.
    pub term: Option<u64>,
    /// Role of the process in the group, if it has one.
    pub role: Option<VoterRole>,
    /// Members of the group, by endpoint index; unknown endpoints come last.
    pub voters: Vec<VoterView>,
    /// Target number of voters, including the present ones.
    pub target: usize,
    /// Endpoint of the coordinator, if the process knows it.
    pub coordinator: Option<String>,
    /// Event that the process waits for, if any.
    pub waiting: Option<Wait>,
    /// Number of elections that the process has seen.
    pub elections: u64,
    /// Number of known times that the group has restarted without its log.
    pub takeovers: u64,
}

/// Role of a process in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VoterRole {
    /// The process is the coordinator.
    Coordinator,
    /// The process votes.
    Voter,
    /// The process replicates the log, or will soon, but does not vote.
    Learner,
    /// The process only participates in rounds.
    Agent,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VoterView {
    /// Id of the member; each new process draws a new one.
    #[serde(serialize_with = "hexadecimal")]
    pub id: Option<u64>,
    /// Endpoint of the member, if the member has reported it.
    pub address: Option<String>,
    /// State of the member.
    pub state: VoterState,
    /// Time since the member's last message to this process.
    ///
    /// Followers that have a leader usually send messages only to it.
    #[serde(rename = "last_heard_s", serialize_with = "seconds")]
    pub last_heard: Option<Duration>,
    /// Number of log entries that the member lacks. Only the leader knows it.
    pub lag: Option<u64>,
}

/// The state of a member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VoterState {
    /// The member is the elected leader, or the only coordinator.
    Leader,
    /// The member votes.
    Follower,
    /// The member does not vote.
    Learner,
    /// The member has no connection, or an expected message has not arrived.
    Silent,
    /// The process of the member has ended or will end soon.
    Ended,
}

impl VoterState {
    /// `true` if the member votes and is in contact.
    pub fn votes(self) -> bool {
        matches!(self, Self::Leader | Self::Follower)
    }
}

/// Kind of a wait; `docs/high-availability.md` lists the kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Case {
    /// The only coordinator is lost.
    W1,
    /// Too few agents of a round have reattached to a new coordinator.
    W2,
    /// The coordinator of a round, at another address, may still be running.
    W3,
    /// All agents of a round are silent.
    W4,
    /// No majority of the voters is in contact, or, at the start, not all of them.
    ///
    /// A process that is cut off with a minority is in the same case.
    W5,
    /// Fewer nodes have joined than a round needs.
    W8,
}

/// Event that a process waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// Kind of the wait.
    pub case: Case,
    /// Description for users.
    pub sentence: String,
    /// Known missing members: endpoints, or group ranks.
    pub missing: Vec<String>,
}

impl Wait {
    /// Creates the wait of a coordinator for the members of a run's last round.
    pub(crate) fn of_recovery(run: &str, recovering: &Recovering) -> Self {
        let missing = recovering.names();
        Self {
            case: match (&recovering.silent, &recovering.elsewhere) {
                (_, Some(_)) => Case::W3,
                (Some(_), _) => Case::W4,
                (None, _) => Case::W2,
            },
            sentence: format!("[{}] {recovering}", rdzv_core::escape::escape(run)),
            missing: missing.map(|name| format!("group rank {name}")).collect(),
        }
    }

    /// Creates the wait for missing voters.
    pub fn for_voters(present: usize, of: usize, missing: Vec<String>) -> Self {
        Self {
            case: Case::W5,
            sentence: format!(
                "no coordinator: {present} of {of} voters are in contact; missing {}",
                missing.join(", ")
            ),
            missing,
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.case, self.sentence)
    }
}

/// Writes a number as text, because some JSON readers cannot keep all digits.
pub fn hexadecimal<S: Serializer>(number: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    number
        .map(|number| format!("{number:016x}"))
        .serialize(serializer)
}

/// Writes a time in seconds, rounded to milliseconds.
pub fn seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let millis = time.map(|time| (time.as_secs_f64() * 1e3).round() / 1e3);
    millis.serialize(serializer)
}
