//! The phases of a worker group, and the precedence of reasons to stop.

use std::collections::VecDeque;

use super::{Finality, GroupEnding, GroupState, StartRequest, StopStep, WorkerExit};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;

#[derive(Debug)]
pub(super) enum Phase {
    New,
    Joining,
    Assigning,
    /// Starts one worker at a time, so that a failure prevents the next start.
    Starting {
        waiting: VecDeque<StartRequest>,
    },
    Healthy,
    /// Workers leave their function and keep their process.
    Recovering {
        why: StopReason,
        deadline: Mono,
        step: StopStep,
    },
    Stopping {
        why: StopReason,
        signal: i32,
        deadline: Mono,
        step: StopStep,
    },
    /// Waits for leftover processes; `then` is `None` after a success.
    Clearing {
        then: Option<StopReason>,
        deadline: Mono,
    },
    /// Waits for an explanation of the last failure, after the clean-up.
    AwaitingExplanation,
    /// Waits before the next rendezvous; no worker is running its function.
    Delayed {
        deadline: Mono,
    },
    Barrier,
    Over(GroupState),
}

impl Phase {
    pub(super) fn state(&self) -> GroupState {
        match self {
            Self::New | Self::Joining | Self::Assigning | Self::Starting { .. } => GroupState::Init,
            Self::Healthy => GroupState::Healthy,
            Self::Clearing { then: None, .. } | Self::Barrier => GroupState::Succeeded,
            Self::Recovering { .. }
            | Self::Stopping { .. }
            | Self::Clearing { .. }
            | Self::AwaitingExplanation
            | Self::Delayed { .. } => GroupState::Stopped,
            Self::Over(state) => *state,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StopReason {
    WorkersFailed,
    /// The node will participate in the next round.
    MembershipChanged {
        reason: String,
    },
    PeerFailed {
        node: String,
        reason: String,
    },
    RunClosed,
    Broken,
    Signalled(i32),
    /// The scheduler announced with this signal that it will take the node away.
    Preempted(i32),
    KeeperLost,
}

/// Replaces the current reason to stop if the new one takes precedence.
///
/// The loss of the keeper always takes precedence. A final failure of this node stays, because
/// users need to know it (*INV-G3*). A change of membership yields to every other reason. A failure
/// with restarts left yields to a signal, to a preemption notice, to an error of this agent and to
/// the final failure of another node. This last rule also holds if the run was closed before that
/// failure arrived, so all nodes report the same failure.
pub(super) fn overrule(current: &mut StopReason, again: StopReason, failure: Option<Finality>) {
    let counts = match (&*current, &again) {
        (_, StopReason::KeeperLost) => true,
        (_, StopReason::MembershipChanged { .. }) => false,
        (StopReason::MembershipChanged { .. }, _)
        | (StopReason::RunClosed, StopReason::PeerFailed { .. }) => true,
        (StopReason::WorkersFailed, StopReason::PeerFailed { .. }) => {
            failure.is_none_or(|finality| finality == Finality::RunEnded)
        }
        (
            StopReason::WorkersFailed,
            StopReason::Broken | StopReason::Signalled(_) | StopReason::Preempted(_),
        ) => failure.is_none(),
        _ => false,
    };
    if counts {
        *current = again;
    }
}

/// Returns the ending of a run that was stopped for this reason.
/// Panics after a change of membership, because another attempt follows.
pub(super) fn ending(
    why: StopReason,
    exits: Vec<WorkerExit>,
    unhealthy: Vec<LocalRank>,
    finality: Option<Finality>,
    workers_started: bool,
) -> GroupEnding {
    match why {
        StopReason::WorkersFailed => GroupEnding::Failed {
            exits,
            unhealthy,
            finality: finality.expect("a failure that is not final leads to another attempt"),
        },
        StopReason::PeerFailed { node, reason } => GroupEnding::PeerFailed { node, reason },
        StopReason::RunClosed => GroupEnding::RunClosed,
        StopReason::MembershipChanged { .. } => {
            unreachable!("after a change of membership the group joins again")
        }
        StopReason::Broken => GroupEnding::Broken,
        StopReason::Signalled(signal) => GroupEnding::Signalled {
            signal,
            workers_started,
        },
        StopReason::Preempted(signal) => GroupEnding::Preempted { signal, exits },
        StopReason::KeeperLost => GroupEnding::KeeperLost,
    }
}
