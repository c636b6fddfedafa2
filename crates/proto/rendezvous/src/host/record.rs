//! What a round of native agents agreed on, under the keys of the reference.
//!
//! Native agents are told their ranks and need no keys. But people and programs look into the store to
//! see who takes part, so the host writes there what agents of the reference would have. Only the
//! keys of the latest such round are kept: nobody waits for them, and rounds may be many.

use super::Output;
use super::keys::{assigned_ranks, role_info};
use super::run::Run;
use rdzv_core::machine::Outbox;
use rdzv_core::rank::{Assignment, RoleInfo};

/// The keys that stand in the store: of this round, for so many nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    round: u64,
    nodes: u32,
}

impl Run {
    /// Writes the ranks of a complete round, given in the order of the nodes.
    pub(super) fn record(
        &mut self,
        infos: &[RoleInfo],
        assignments: &[Assignment],
        out: &mut Outbox<Output>,
    ) {
        if let Some(Record { round, nodes }) = self.recorded.take() {
            for rank in 0..nodes {
                out.push(Output::Remove(role_info(&self.id, round, rank)));
                out.push(Output::Remove(assigned_ranks(&self.id, round, rank)));
            }
        }
        let round = self.state.round;
        for (info, assignment) in infos.iter().zip(assignments) {
            let rank = info.rank.0;
            for (key, value) in [
                (role_info(&self.id, round, rank), json(info)),
                (assigned_ranks(&self.id, round, rank), json(assignment)),
            ] {
                out.push(Output::Store { key, value });
            }
        }
        self.recorded = Some(Record {
            round,
            nodes: infos.len() as u32,
        });
    }
}

fn json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and texts are always JSON")
}
