//! One worker, as its agent sees it.

use rdzv_core::rank::{LocalRank, Rank, RoleRank};

use crate::worker::{WorkerIdentity, WorkerLocation};

/// One worker of a group.
/// Ranks and sizes are `None` until the agent knows those of the round. torchelastic uses -1 in
/// this case, and so do the methods ending in `_or_unset`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worker {
    /// Location of the worker, once it was started.
    pub id: Option<WorkerLocation>,
    /// Rank within the node.
    pub local_rank: LocalRank,
    /// Rank among all workers of the job.
    pub global_rank: Option<Rank>,
    /// Rank among the workers of the same role.
    pub role_rank: Option<RoleRank>,
    /// Number of workers of the job.
    pub world_size: Option<u32>,
    /// Number of workers of its role.
    pub role_world_size: Option<u32>,
}

impl Worker {
    /// Returns a worker before its first rendezvous.
    pub fn new(local_rank: LocalRank) -> Self {
        Self {
            local_rank,
            ..Self::default()
        }
    }

    /// Returns the global rank, or -1.
    pub fn global_rank_or_unset(&self) -> i64 {
        or_unset(self.global_rank.map(|rank| rank.0))
    }

    /// Returns the role rank, or -1.
    pub fn role_rank_or_unset(&self) -> i64 {
        or_unset(self.role_rank.map(|rank| rank.0))
    }

    /// Returns the world size, or -1.
    pub fn world_size_or_unset(&self) -> i64 {
        or_unset(self.world_size)
    }

    /// Returns the role's world size, or -1.
    pub fn role_world_size_or_unset(&self) -> i64 {
        or_unset(self.role_world_size)
    }
}

impl From<&WorkerIdentity> for Worker {
    fn from(identity: &WorkerIdentity) -> Self {
        Self {
            id: (identity.pid != 0).then_some(WorkerLocation::Process(identity.pid)),
            local_rank: identity.local_rank,
            global_rank: Some(identity.rank),
            role_rank: Some(identity.role_rank),
            world_size: Some(identity.world_size),
            role_world_size: Some(identity.role_world_size),
        }
    }
}

fn or_unset(number: Option<u32>) -> i64 {
    number.map_or(-1, i64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_minus_one() {
        let worker = Worker::new(LocalRank(2));
        assert_eq!(worker.id, None);
        assert_eq!(
            [
                worker.global_rank_or_unset(),
                worker.role_rank_or_unset(),
                worker.world_size_or_unset(),
                worker.role_world_size_or_unset(),
            ],
            [-1; 4]
        );
    }
}
