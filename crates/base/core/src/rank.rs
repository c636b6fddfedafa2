//! Ranks and world sizes, and their computation from the participants.
//!
//! Nodes are ordered by group rank. The workers on one node have consecutive global ranks:
//!
//! ```text
//!   node 0 (actor x 1)   node 1 (learner x 2)
//!   local  0             local  0   1
//!   global 0             global 1   2
//!   role   0             role   0   1
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

number!(
    /// Number of a worker among all workers in the job (`RANK`).
    Rank
);
number!(
    /// Number of a worker on its node (`LOCAL_RANK`).
    LocalRank
);
number!(
    /// Number of an agent among the agents in a round (`GROUP_RANK`).
    GroupRank
);
number!(
    /// Number of a worker among the workers with its role (`ROLE_RANK`).
    RoleRank
);

/// Returns numbers as intervals: `0-2, 5`.
pub fn intervals(numbers: &[u32]) -> String {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    let runs = numbers.chunk_by(|one, other| one + 1 == *other);
    let runs = runs.map(|run| match run {
        [one] => one.to_string(),
        _ => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    runs.collect::<Vec<_>>().join(", ")
}

/// Report of an agent about its own workers in a round.
///
/// If the agents exchange ranks through the store, node 0 reads the JSON form from the key
/// `torchelastic/role_info/<group rank>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleInfo {
    /// Role of all workers of the agent.
    pub role: String,
    /// Group rank of the agent.
    pub rank: GroupRank,
    /// Number of workers that the agent will start.
    pub local_world_size: u32,
}

/// Ranks of an agent's workers.
///
/// If the agents exchange ranks through the store, node 0 writes the JSON form, an array of four
/// numbers, to the key `torchelastic/assigned_ranks/<group rank>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u32, u32, u32)", into = "(u32, u32, u32, u32)")]
pub struct Assignment {
    /// Global rank of the first worker on the node.
    pub base_rank: Rank,
    /// Number of workers in the job.
    pub world_size: u32,
    /// Role rank of the first worker on the node.
    pub base_role_rank: RoleRank,
    /// Number of workers with the node's role in the job.
    pub role_world_size: u32,
}

impl From<(u32, u32, u32, u32)> for Assignment {
    fn from((base, world_size, base_role, role_world_size): (u32, u32, u32, u32)) -> Self {
        Self {
            base_rank: Rank(base),
            world_size,
            base_role_rank: RoleRank(base_role),
            role_world_size,
        }
    }
}

impl From<Assignment> for (u32, u32, u32, u32) {
    fn from(assignment: Assignment) -> Self {
        (
            assignment.base_rank.0,
            assignment.world_size,
            assignment.base_role_rank.0,
            assignment.role_world_size,
        )
    }
}

/// Computes the ranks on every node from the nodes' reports.
/// The reports must be ordered by group rank.
pub fn assign(nodes: &[RoleInfo]) -> Vec<Assignment> {
    let world_size = nodes.iter().map(|node| node.local_world_size).sum();
    let mut role_sizes: BTreeMap<&str, u32> = BTreeMap::new();
    for node in nodes {
        *role_sizes.entry(&node.role).or_default() += node.local_world_size;
    }
    let mut base = 0;
    let mut role_bases: BTreeMap<&str, u32> = BTreeMap::new();
    nodes
        .iter()
        .map(|node| {
            let role_base = role_bases.entry(&node.role).or_default();
            let assignment = Assignment {
                base_rank: Rank(base),
                world_size,
                base_role_rank: RoleRank(*role_base),
                role_world_size: role_sizes[node.role.as_str()],
            };
            base += node.local_world_size;
            *role_base += node.local_world_size;
            assignment
        })
        .collect()
}

/// Formats ranks as ranges in ascending order, without duplicates: `0-3,5`.
pub fn ranges(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks.into_iter().collect::<BTreeSet<u32>>() {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let texts: Vec<String> = runs
        .into_iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    texts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ranks_are_named_in_few_words() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([7]), "7");
        assert_eq!(ranges([5, 0, 2, 1, 3, 1]), "0-3,5");
        assert_eq!(
            ranges([u32::MAX, 0, u32::MAX - 1]),
            "0,4294967294-4294967295"
        );
    }

    fn node(rank: u32, role: &str, size: u32) -> RoleInfo {
        RoleInfo {
            role: role.to_owned(),
            rank: GroupRank(rank),
            local_world_size: size,
        }
    }

    #[test]
    fn mixed_roles_and_sizes_get_consecutive_ranks() {
        let assigned = assign(&[
            node(0, "actor", 1),
            node(1, "learner", 2),
            node(2, "actor", 3),
        ]);
        let as_tuples: Vec<(u32, u32, u32, u32)> = assigned.into_iter().map(Into::into).collect();
        assert_eq!(as_tuples, [(0, 6, 0, 4), (1, 6, 0, 2), (3, 6, 1, 4)]);
    }

    #[test]
    fn json_forms_are_the_ones_on_the_wire() {
        let info = serde_json::to_string(&node(1, "learner", 2)).unwrap();
        assert_eq!(info, r#"{"role":"learner","rank":1,"local_world_size":2}"#);
        let assignment = Assignment::from((1, 3, 0, 2));
        assert_eq!(serde_json::to_string(&assignment).unwrap(), "[1,3,0,2]");
        assert_eq!(
            serde_json::from_str::<Assignment>(" [1, 3,0 ,2]").unwrap(),
            assignment
        );
    }
}
