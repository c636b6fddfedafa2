//! Exchange of the workers' ranks between the agents of one round.
//!
//! ```text
//!   every agent   set  role_info/⟨agent⟩        its role and number of workers
//!   agent 0       get  role_info/0 … G-1        waits for all
//!   agent 0       set  assigned_ranks/0 … G-1   the ranks of each agent
//!   every agent   get  assigned_ranks/⟨agent⟩   waits for its own
//! ```

use rdzv_agent_proto::group::barrier;
use rdzv_core::quantity::count;
use rdzv_core::rank::{Assignment, GroupRank, Rank, RoleInfo, RoleRank, assign};
use rdzv_core::reminder;
use rdzv_store::{Store, StoreError, wait_reminding};
use tracing::warn;

use crate::AgentError;

/// Exchanges ranks through a store with the keys of the round.
///
/// # Errors
///
/// Returns an error if the store fails or contains other data, or if another agent does not write
/// its role or the ranks in time.
pub fn by_store(store: &dyn Store, us: &RoleInfo, agents: u32) -> Result<Assignment, AgentError> {
    store.set(&barrier::role_info(us.rank), json(us).as_bytes())?;
    if us.rank == GroupRank(0) {
        let keys: Vec<String> = (0..agents)
            .map(|agent| barrier::role_info(GroupRank(agent)))
            .collect();
        let infos = read_all::<RoleInfo>(store, &keys)?;
        let pairs: Vec<(String, String)> = assign(&infos)
            .iter()
            .enumerate()
            .map(|(agent, assignment)| {
                let agent = GroupRank(u32::try_from(agent).unwrap_or(u32::MAX));
                (barrier::assigned_ranks(agent), json(assignment))
            })
            .collect();
        let pairs: Vec<(&str, &[u8])> = pairs
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_bytes()))
            .collect();
        store.multi_set(&pairs)?;
    }
    let ours = [barrier::assigned_ranks(us.rank)];
    Ok(read_all(store, &ours)?.remove(0))
}

/// Returns the result that the exchange has if all agents are equal.
pub(super) fn without_store(us: &RoleInfo, agents: u32) -> Assignment {
    let base = us.rank.0 * us.local_world_size;
    let world_size = agents * us.local_world_size;
    Assignment {
        base_rank: Rank(base),
        world_size,
        base_role_rank: RoleRank(base),
        role_world_size: world_size,
    }
}

fn json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("numbers and texts are always JSON")
}

fn read_all<T: serde::de::DeserializeOwned>(
    store: &dyn Store,
    keys: &[String],
) -> Result<Vec<T>, AgentError> {
    let names: Vec<&str> = keys.iter().map(String::as_str).collect();
    wait_reminding(store, &names, None, &mut |missing, left| {
        let left = left.as_secs();
        warn!(
            target: reminder::TARGET,
            left,
            "waiting for the ranks of other agents: {} of {} missing, first {}; {left} s left",
            missing.len(),
            count(names.len(), "key"),
            missing.first().map_or("none", String::as_str),
        );
    })?;
    let values = store.multi_get(&names)?;
    values
        .iter()
        .zip(keys)
        .map(|(value, key)| {
            serde_json::from_slice(value).map_err(|error| {
                AgentError::Store(StoreError::Corrupt {
                    store: format!("{store:?}"),
                    what: format!("key {key} does not have the form that agents write: {error}"),
                })
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rdzv_store::HashStore;

    use super::*;

    fn agent(rank: u32, role: &str, local_world_size: u32) -> RoleInfo {
        RoleInfo {
            role: role.to_owned(),
            rank: GroupRank(rank),
            local_world_size,
        }
    }

    #[test]
    fn agents_of_two_roles_agree_on_ranks() {
        let store = HashStore::new();
        let others = store.try_clone().unwrap();
        let learner =
            thread::spawn(move || by_store(&*others, &agent(1, "learner", 2), 2).unwrap());
        let actor = by_store(&store, &agent(0, "actor", 1), 2).unwrap();
        assert_eq!(actor, Assignment::from((0, 3, 0, 1)));
        assert_eq!(learner.join().unwrap(), Assignment::from((1, 3, 0, 2)));
        assert_eq!(
            &store.get("torchelastic/assigned_ranks/1").unwrap()[..],
            b"[1,3,0,2]"
        );
    }

    #[test]
    fn alike_agents_need_no_exchange() {
        assert_eq!(
            without_store(&agent(2, "trn", 4), 3),
            Assignment::from((8, 12, 8, 12))
        );
    }

    #[test]
    fn a_foreign_value_is_named() {
        let store = HashStore::new();
        store.set("torchelastic/assigned_ranks/1", b"{}").unwrap();
        let error = by_store(&store, &agent(1, "a", 1), 2)
            .unwrap_err()
            .to_string();
        assert!(error.contains("torchelastic/assigned_ranks/1"), "{error}");
    }
}
