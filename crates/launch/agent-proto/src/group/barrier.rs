//! Store keys that the agents of one round share.
//!
//! The keys are relative to the round's prefix.

use std::time::Duration;

use rdzv_core::rank::GroupRank;

/// Prefix of the two keys of the exit barrier: a counter and a flag.
/// The store's barrier operation adds the rest of each key.
pub const TERMINAL_STATE: &str = "torchelastic/agent/terminal_state";

/// torchrun's limit on the wait at the exit barrier.
/// `rdzv run` and the library have no limit by default.
pub const EXIT_BARRIER_TIMEOUT: Duration = Duration::from_secs(300);

/// Key of an agent's role: a [`rdzv_core::rank::RoleInfo`] as JSON.
pub fn role_info(agent: GroupRank) -> String {
    format!("torchelastic/role_info/{agent}")
}

/// Key of an agent's ranks, set by agent 0.
/// The value is a [`rdzv_core::rank::Assignment`] as JSON.
pub fn assigned_ranks(agent: GroupRank) -> String {
    format!("torchelastic/assigned_ranks/{agent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_references() {
        assert_eq!(role_info(GroupRank(2)), "torchelastic/role_info/2");
        assert_eq!(
            assigned_ranks(GroupRank(0)),
            "torchelastic/assigned_ranks/0"
        );
    }
}
