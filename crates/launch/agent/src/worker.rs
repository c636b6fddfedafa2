//! One worker: its ranks, its location and its files.

use std::fmt;
use std::path::PathBuf;

use rdzv_agent_proto::group::WorkerRanks;
use rdzv_core::rank::{LocalRank, Rank, RoleRank};
use serde::{Deserialize, Serialize};

/// Ranks and process id of a worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerIdentity {
    /// Rank within the node.
    pub local_rank: LocalRank,
    /// Rank in the job.
    pub rank: Rank,
    /// Number of workers in the job.
    pub world_size: u32,
    /// Rank among the workers of its role.
    pub role_rank: RoleRank,
    /// Number of workers of the role.
    #[serde(skip)]
    pub role_world_size: u32,
    /// Process id; 0 before the start, and for a worker that is not a process.
    pub pid: u32,
}

impl WorkerIdentity {
    /// Returns the identity; `pid` is 0 for a worker without a running process.
    pub(crate) fn new(ranks: &WorkerRanks, pid: u32) -> Self {
        Self {
            local_rank: ranks.local_rank,
            rank: ranks.rank,
            world_size: ranks.world_size,
            role_rank: ranks.role_rank,
            role_world_size: ranks.role_world_size,
            pid,
        }
    }
}

/// Location of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkerLocation {
    /// Process of this machine, by process id.
    Process(u32),
    /// Worker elsewhere: `host:port`, or a name that its supervisor chose.
    Remote(String),
}

impl WorkerLocation {
    /// Returns the process id, if the worker is a process.
    pub fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) => Some(*pid),
            Self::Remote(_) => None,
        }
    }
}

impl fmt::Display for WorkerLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(pid) => pid.fmt(formatter),
            Self::Remote(name) => name.fmt(formatter),
        }
    }
}

/// Output files of a worker.
/// Each is `None` if the output goes to no file, or if the worker has no log directory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerFiles {
    /// Standard output.
    pub stdout: Option<PathBuf>,
    /// Standard error.
    pub stderr: Option<PathBuf>,
    /// Path at which the worker writes its error file.
    pub error_file: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_as_torchelastic_writes_them() {
        assert_eq!(WorkerLocation::Process(4242).to_string(), "4242");
        assert_eq!(
            WorkerLocation::Remote("node-b:29500".into()).to_string(),
            "node-b:29500"
        );
    }
}
