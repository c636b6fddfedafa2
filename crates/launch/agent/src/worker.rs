//! One worker: its place in the job, and where it runs.

use std::fmt;
use std::path::PathBuf;

use rdzv_agent_proto::group::WorkerRanks;
use rdzv_core::rank::{LocalRank, Rank, RoleRank};
use serde::Serialize;

/// A worker's place in the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerIdentity {
    /// Rank within the node.
    pub local_rank: LocalRank,
    /// Rank in the job.
    pub rank: Rank,
    /// Number of workers in the job.
    pub world_size: u32,
    /// Rank among its role.
    pub role_rank: RoleRank,
    /// Number of workers of its role.
    #[serde(skip)]
    pub role_world_size: u32,
    /// Process id; 0 before it was started.
    pub pid: u32,
}

impl WorkerIdentity {
    /// The worker at this place; `pid` is 0 for one that is no process, or not started yet.
    pub(crate) fn new(place: &WorkerRanks, pid: u32) -> Self {
        Self {
            local_rank: place.local_rank,
            rank: place.rank,
            world_size: place.world_size,
            role_rank: place.role_rank,
            role_world_size: place.role_world_size,
            pid,
        }
    }
}

/// Where a worker runs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerId {
    /// A process of this machine, by its process id.
    Process(u32),
    /// Somewhere else: `host:port`, or whatever its supervisor calls it.
    Remote(String),
}

impl WorkerId {
    /// The process id, of a process.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) => Some(*pid),
            Self::Remote(_) => None,
        }
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => pid.fmt(formatter),
            Self::Remote(name) => name.fmt(formatter),
        }
    }
}

/// The output files of a worker; `None` where it writes to the agent's own stream, or has no
/// directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerFiles {
    /// Its standard output.
    pub stdout: Option<PathBuf>,
    /// Its standard error.
    pub stderr: Option<PathBuf>,
    /// Where it leaves its error file.
    pub error_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_torchelastic_writes_them() {
        assert_eq!(WorkerId::Process(4242).to_string(), "4242");
        assert_eq!(
            WorkerId::Remote("node-b:29500".into()).to_string(),
            "node-b:29500"
        );
    }
}
