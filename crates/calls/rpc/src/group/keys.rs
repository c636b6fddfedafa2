//! Keys of a group in its store, under the prefix of the store.
//!
//! | key | value |
//! |---|---|
//! | `rdzv/rpc/round` | the current [`Round`] |
//! | `rdzv/rpc/{epoch}/member/{rank}` | static: a [`Note`], usually the worker |
//! | `rdzv/rpc/{epoch}/ready/{rank}`, `…/ready` | static: workers that know all members, their count |
//! | `rdzv/rpc/{epoch}/go` | static: the note that ends the forming |
//! | `rdzv/rpc/{epoch}/told`, `…/told/{count}` | static: count of workers that have read the refusal |
//! | `rdzv/rpc/{epoch}/drained/{rank}`, `…/drained`, `…/verdict` | static: drained workers, their count, result of the shutdown |
//! | `rdzv/rpc/{epoch}/waits/{rank}` | static: workers that must answer before this one can end |
//! | `rdzv/rpc/{epoch}/departed`, `…/gone` | static: count of workers that have read the verdict; farewell |
//! | `rdzv/rpc/{epoch}/members` | dynamic: the [`Membership`] |
//! | `rdzv/rpc/{epoch}/changed/{version}` | dynamic: this version exists |
//! | `rdzv/rpc/{epoch}/beat/{incarnation}` | dynamic: number that a live member increments |
//! | `rdzv/rpc/{epoch}/known/{newcomer}/{incarnation}` | dynamic: a member has seen a newcomer |
//!
//! [`Round`]: rdzv_rpc_proto::directory::DirectoryRound
//! [`Membership`]: rdzv_rpc_proto::directory::Membership
//! [`Note`]: super::note::Note

use std::fmt::Display;

use rdzv_rpc_proto::worker::WorkerId;

pub(super) const ROUND: &str = "rdzv/rpc/round";

/// Keys of the round with this epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys(pub(super) u64);

impl Keys {
    fn of(self, what: impl Display) -> String {
        format!("rdzv/rpc/{}/{what}", self.0)
    }

    pub(super) fn member(self, id: WorkerId) -> String {
        self.of(format_args!("member/{id}"))
    }

    pub(super) fn ready(self) -> String {
        self.of("ready")
    }

    pub(super) fn ready_by(self, id: WorkerId) -> String {
        self.of(format_args!("ready/{id}"))
    }

    pub(super) fn informed(self) -> String {
        self.of("told")
    }

    pub(super) fn informed_count(self, count: i64) -> String {
        self.of(format_args!("told/{count}"))
    }

    pub(super) fn go(self) -> String {
        self.of("go")
    }

    pub(super) fn drained(self) -> String {
        self.of("drained")
    }

    pub(super) fn drained_by(self, id: WorkerId) -> String {
        self.of(format_args!("drained/{id}"))
    }

    pub(super) fn waits(self, id: WorkerId) -> String {
        self.of(format_args!("waits/{id}"))
    }

    pub(super) fn verdict(self) -> String {
        self.of("verdict")
    }

    pub(super) fn departed(self) -> String {
        self.of("departed")
    }

    pub(super) fn gone(self) -> String {
        self.of("gone")
    }

    pub(super) fn members(self) -> String {
        self.of("members")
    }

    pub(super) fn changed(self, version: u64) -> String {
        self.of(format_args!("changed/{version}"))
    }

    pub(super) fn beat(self, incarnation: u64) -> String {
        self.of(format_args!("beat/{incarnation:016x}"))
    }

    pub(super) fn known(self, newcomer: u64, by: u64) -> String {
        self.of(format_args!("known/{newcomer:016x}/{by:016x}"))
    }
}
