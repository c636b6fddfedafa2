//! The state of a run's round.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::master::Master;
use crate::NodeDesc;
use crate::coordinator::wire::{LastCoordinator, Program};
use rdzv_core::time::{Mono, Now, Wall};

/// State of the round that forms or was formed last.
///
/// | from | transition | to | file |
/// |---|---|---|---|
/// | `Forming` | `complete`: enough nodes have joined | `Held` | `forming.rs` |
/// | `Forming` | `recover`: there is a record of a held round | `Recovering` | `recovering.rs` |
/// | `Forming` | `recover`: there is a record of a silent round | `Silent` | `silent.rs` |
/// | `Forming` | `recover_unnoted`: a member reports it | `Recovering` | `recovering.rs` |
/// | `Held` | `break_round`: a node leaves, is lost or waits | `Over` | `held.rs` |
/// | `Over` | `begin_next`: the last participant has left | `Forming` | `forming.rs` |
/// | `Over` | `await_word`: all participants may still run it | `Silent` | `silent.rs` |
/// | `Silent` | `restore`: a message, or the user's confirmation | `Over`, `Forming` | `recovering.rs` |
/// | `Recovering` | `restore`: all participants hold the round | `Held` | `recovering.rs` |
/// | `Recovering` | `restore`: a participant is lost | `Over`, `Forming` | `recovering.rs` |
/// | `Recovering` | `await_word`: all participants are missing | `Silent` | `silent.rs` |
/// | any | `close`: the run is over | `Closed` | `mod.rs` |
///
/// `await_word` means that all participants are silent and may still run the round. `restore` from
/// `Silent` follows the message of a participant, or the user's confirmation that all have exited.
/// A participant that no longer holds the round counts as lost.
///
/// An agent of torchrun can also change `Held` or `Over` to `Forming`, and `Forming` to `Held`
/// (`torchrun.rs`).
#[derive(Debug)]
pub(super) enum Round {
    /// Nodes join the round.
    Forming(Forming),
    /// The participants know the round, and it holds.
    Held(Formed),
    /// The participants were notified that the round is over, and leave it.
    Over(Formed),
    /// The round is over, and every participant is silent.
    ///
    /// Its workers may still be running.
    Silent(Formed, Search),
    /// This coordinator does not know yet whether the round holds.
    Recovering(Formed, Recovery),
    /// The run is over.
    Closed {
        /// Number of the last round, or of the round that would have been next.
        number: u64,
        was_formed: bool,
    },
}

#[derive(Debug, Default)]
pub(super) struct Forming {
    pub(super) number: u64,
    /// The last round that was announced; `None` if this coordinator knows none.
    pub(super) last: Option<u64>,
    /// Nodes of the last round that may join this one.
    pub(super) awaited: BTreeSet<NodeDesc>,
    /// `true` if a spare node of the last round was to join this one.
    pub(super) had_spare: bool,
    /// End of the wait for agents of torchrun in `awaited`.
    pub(super) awaited_ends: Option<Mono>,
    /// `true` if the expected nodes at the beginning are enough for a round.
    pub(super) is_enough: bool,
    pub(super) last_call: Option<LastCallEnd>,
    /// `true` if the last call has been logged; it is logged once per round.
    pub(super) is_logged: bool,
    /// Number of nodes in the last report to waiting agents.
    pub(super) reported: usize,
    pub(super) report_at: Option<Mono>,
    /// Time until which members of an unknown older round may reattach.
    pub(super) older_ends: Option<Mono>,
}

/// End of the last call, on the clock of this process and for torchrun.
#[derive(Debug, Clone, Copy)]
pub(super) struct LastCallEnd {
    pub(super) at: Mono,
    pub(super) deadline: Wall,
}

#[derive(Debug, Default)]
pub(super) struct Formed {
    pub(super) number: u64,
    /// `true` if this coordinator has announced the round.
    pub(super) is_ours: bool,
    /// Minimum number of the next round.
    pub(super) next: u64,
    /// Programs of the participants; empty unless each has sent one.
    pub(super) programs: Vec<Program>,
    pub(super) master: Master,
    /// Ranks of workers whose node was not in the last round.
    pub(super) replaced: Vec<u32>,
    /// Participants that may join the next round.
    pub(super) awaited: BTreeSet<NodeDesc>,
    /// `true` if a spare node is to join the next round.
    pub(super) had_spare: bool,
    /// Number of nodes whose ranks are in the store.
    pub(super) stored_ranks: u32,
    /// Participants whose workers have succeeded.
    pub(super) succeeded: BTreeSet<NodeDesc>,
    /// Nodes that have left the round after the success of their workers.
    pub(super) left: BTreeSet<NodeDesc>,
    /// Reason for the end of the round; empty while it holds.
    pub(super) reason: String,
    /// Participants in `succeeded` that know whether to join again or to end.
    pub(super) answered: BTreeSet<NodeDesc>,
    /// Time at which the participants in `succeeded` end, if no node joins again.
    pub(super) ends: Option<Mono>,
    /// Agents that have failed permanently.
    pub(super) failed: BTreeSet<NodeDesc>,
    /// Participants that were lost by silence, by rank.
    pub(super) silent: BTreeMap<u32, SilentAgent>,
}

/// A participant that was lost by silence.
#[derive(Debug, Clone)]
pub(super) struct SilentAgent {
    pub(super) instance: u64,
    /// Host of the participant; empty if it is unknown.
    pub(super) host: String,
}

/// A search for the participants of a round.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) began: Mono,
    /// Time of the next check.
    pub(super) at: Mono,
    /// Time of the next message about missing participants.
    pub(super) say_at: Mono,
    /// Ranks of the missing participants, and their instances.
    ///
    /// The instance is 0 if it is unknown.
    pub(super) missing: BTreeMap<u32, u64>,
    /// Reasons why the round is over.
    ///
    /// Each is a sentence about a participant that no longer holds the round.
    pub(super) over: Vec<String>,
    /// `true` if the user has confirmed that all missing participants have exited.
    pub(super) is_confirmed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Recovery {
    pub(super) search: Search,
    /// Time from which missing participants are lost, unless there are too many.
    ///
    /// `None` without a record. Missing participants are then lost only if the user confirms their
    /// exit.
    pub(super) window_ends: Option<Mono>,
    /// `true` if the reattached participants were notified that the round is over.
    pub(super) is_ended: bool,
    /// Coordinator of the round, if it may still be running.
    pub(super) elsewhere: Option<LastCoordinator>,
    /// Time until which members of an older round may reattach.
    pub(super) older_ends: Option<Mono>,
}

impl Recovery {
    pub(super) fn is_recorded(&self) -> bool {
        self.window_ends.is_some()
    }
}

impl Search {
    /// Creates a search whose first message comes after `say_after`.
    pub(super) fn new(now: Now, say_after: Duration, missing: BTreeMap<u32, u64>) -> Self {
        Self {
            began: now.mono,
            at: now.mono + say_after,
            say_at: now.mono + say_after,
            missing,
            ..Self::default()
        }
    }
}

impl Formed {
    pub(super) fn new(number: u64) -> Self {
        Self {
            number,
            next: number + 1,
            ..Self::default()
        }
    }
}

impl Default for Round {
    fn default() -> Self {
        Self::Forming(Forming::default())
    }
}

impl Round {
    /// Returns the number of the round that forms or was formed last.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Forming(forming) => forming.number,
            Self::Closed { number, .. } => *number,
            other => other.formed().map_or(0, |formed| formed.number),
        }
    }

    pub(super) fn is_formed(&self) -> bool {
        match self {
            Self::Forming(_) => false,
            Self::Closed { was_formed, .. } => *was_formed,
            Self::Held(_) | Self::Over(_) | Self::Silent(..) | Self::Recovering(..) => true,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Self::Closed { .. })
    }

    /// Returns the last announced round; `None` if unknown or the run is over.
    pub(super) fn announced(&self) -> Option<u64> {
        match self {
            Self::Forming(forming) => forming.last,
            other => other.formed().map(|formed| formed.number),
        }
    }

    pub(super) fn formed(&self) -> Option<&Formed> {
        match self {
            Self::Forming(_) | Self::Closed { .. } => None,
            Self::Held(formed)
            | Self::Over(formed)
            | Self::Silent(formed, _)
            | Self::Recovering(formed, _) => Some(formed),
        }
    }

    pub(super) fn formed_mut(&mut self) -> Option<&mut Formed> {
        match self {
            Self::Forming(_) | Self::Closed { .. } => None,
            Self::Held(formed)
            | Self::Over(formed)
            | Self::Silent(formed, _)
            | Self::Recovering(formed, _) => Some(formed),
        }
    }

    pub(super) fn forming(&self) -> Option<&Forming> {
        match self {
            Self::Forming(forming) => Some(forming),
            _ => None,
        }
    }

    pub(super) fn recovery(&self) -> Option<&Recovery> {
        match self {
            Self::Recovering(_, recovery) => Some(recovery),
            _ => None,
        }
    }

    pub(super) fn search(&self) -> Option<&Search> {
        match self {
            Self::Silent(_, search) => Some(search),
            Self::Recovering(_, recovery) => Some(&recovery.search),
            _ => None,
        }
    }

    pub(super) fn search_mut(&mut self) -> Option<&mut Search> {
        match self {
            Self::Silent(_, search) => Some(search),
            Self::Recovering(_, recovery) => Some(&mut recovery.search),
            _ => None,
        }
    }

    /// `true` if the participants were notified that the round is over.
    pub(super) fn is_ended(&self) -> bool {
        match self {
            Self::Over(_) | Self::Silent(..) => true,
            Self::Recovering(_, recovery) => recovery.is_ended,
            Self::Forming(_) | Self::Held(_) | Self::Closed { .. } => false,
        }
    }

    /// Registers that a spare node is to join the next round.
    pub(super) fn expect_spare(&mut self) {
        if let Self::Forming(forming) = self {
            forming.had_spare = true;
        } else if let Some(formed) = self.formed_mut() {
            formed.had_spare = true;
        }
    }

    /// Takes the formed round; the caller then sets the next state.
    pub(super) fn take_formed(&mut self) -> Option<Formed> {
        self.formed_mut().map(std::mem::take)
    }
}
