//! A group of voters and its coordinator as one process sees them at one moment, for those who ask how things stand.
//!
//! Nothing here is kept up to date: a machine makes a [`GroupView`] when it is asked for one.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::recovering::Recovering;

/// The view of a process in which a voter or a coordinator is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupView {
    /// The group, if it is in one.
    pub cluster: Option<u64>,
    /// The number of the coordinator, the highest that it knows of.
    pub epoch: Option<u64>,
    /// The term, where there are voters: the epoch is the same number then.
    pub term: Option<u64>,
    /// Its part, if it has one.
    pub role: Option<Role>,
    /// The members of the group, by their places.
    pub voters: Vec<VoterView>,
    /// The number of voters that the group should have, with those that are there.
    pub target: usize,
    /// The endpoint of the coordinator, if it knows one.
    pub coordinator: Option<String>,
    /// For what it waits.
    pub waiting: Option<Wait>,
    /// The number of elections that it has seen.
    pub elections: u64,
    /// The number of times that the group has begun anew without its log.
    pub takeovers: u64,
}

/// The part of a process in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The coordinator is here.
    Coordinator,
    /// It votes.
    Voter,
    /// It has the log, or is about to, and does not vote.
    Learner,
    /// It takes part in rounds alone.
    Agent,
}

/// A member of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VoterView {
    /// Its number, of which there is one for each life of a process.
    #[serde(serialize_with = "hexadecimal")]
    pub id: Option<u64>,
    /// Its endpoint, as far as it has said that.
    pub address: Option<String>,
    /// Its state.
    pub state: VoterState,
    /// For how long it has said nothing to this process. Followers say something to their leader only.
    #[serde(rename = "last_heard_s", serialize_with = "seconds")]
    pub last_heard: Option<Duration>,
    /// The number of entries of the log that it lacks; the leader knows it.
    pub lag: Option<u64>,
}

/// The state of a member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VoterState {
    /// It has been elected.
    Leader,
    /// It votes.
    Follower,
    /// It does not vote.
    Learner,
    /// There is no connection to it, or it should have said something.
    Silent,
    /// Its process has ended, or is about to.
    Ended,
}

impl VoterState {
    /// Whether it votes, and is there.
    pub fn votes(self) -> bool {
        matches!(self, Self::Leader | Self::Follower)
    }
}

/// The kinds of waits, by their numbers in the design.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Case {
    /// The only coordinator is gone.
    W1,
    /// Too few of a round have come back to a new coordinator.
    W2,
    /// Nobody knows whether the coordinator of a round, which was at another address, has ended.
    W3,
    /// Nothing is heard of anybody of a round.
    W4,
    /// No majority of the voters is in contact. A process that is cut off with a minority (W6) sees the same.
    W5,
    /// Fewer nodes than a round needs.
    W8,
}

/// Something that a process waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// Its kind.
    pub case: Case,
    /// The words that people read.
    pub sentence: String,
    /// Those who are missing, as far as they are known: endpoints, or group ranks.
    pub missing: Vec<String>,
}

impl Wait {
    /// A coordinator waits for the members of the last round of a run.
    pub(crate) fn of_recovery(run: &str, recovering: &Recovering) -> Self {
        let hosts = recovering.silent.as_ref();
        let named = |rank: &u32| match hosts.and_then(|hosts| hosts.get(rank)) {
            Some(host) => format!("group rank {rank} ({host})"),
            None => format!("group rank {rank}"),
        };
        Self {
            case: match (hosts, &recovering.elsewhere) {
                (_, Some(_)) => Case::W3,
                (Some(_), _) => Case::W4,
                (None, _) => Case::W2,
            },
            sentence: format!("[{}] {recovering}", rdzv_core::escape::escape(run)),
            missing: recovering.missing.iter().map(named).collect(),
        }
    }

    /// No majority of the voters is in contact.
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

/// A number with more digits than some readers of JSON keep, as text.
pub fn hexadecimal<S: Serializer>(number: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    number
        .map(|number| format!("{number:016x}"))
        .serialize(serializer)
}

/// A time in seconds, to the millisecond.
pub fn seconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let millis = time.map(|time| (time.as_secs_f64() * 1e3).round() / 1e3);
    millis.serialize(serializer)
}
