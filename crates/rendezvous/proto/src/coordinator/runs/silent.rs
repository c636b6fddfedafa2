//! Rounds whose participants are all silent, and may still run workers.
//!
//! A round is *torn* if one of its participants will certainly never run its workers again. The
//! next round forms once this round is torn and has no participants left:
//!
//! | knowledge about a participant | torn |
//! |---|---|
//! | it has reported that it leaves or joins again | yes |
//! | its workers have succeeded | yes |
//! | its successor was started, or its launcher has removed it | yes |
//! | its process has certainly ended, as the end of its connection proves (`end.rs`) | yes |
//! | it is lost: it sends nothing, or its connection broke and it did not reattach | no |
//!
//! If all participants are lost and the round is not torn, they may be cut off together and still
//! run the round. With spares, another complete round could run at the same time. So the
//! coordinator waits for a message from one of them, and logs the agents that it waits for:
//!
//! * A participant that reattaches with the round is notified that the round is over, as the others
//!   were. It counts as a participant again until it reports that it leaves. Only then have its
//!   workers ended.
//! * A participant that no longer holds the round tears it.
//! * The user can confirm that all participants have exited.
//!
//! The record contains this state too, so that the next coordinator waits for the same agents. A
//! message from one agent is enough, because no other round forms before that agent has left. If
//! agents have a fence, silent workers are suspended, and the coordinator does not wait.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Run;
use super::round::{Formed, Recovery, Round, Search, SilentAgent};
use crate::coordinator::wire::HeldRound;
use crate::{NodeDesc, Rule};
use rdzv_core::escape::escape;
use rdzv_core::time::Now;

/// Time until the coordinator logs the wait.
///
/// Killed agents are usually restarted sooner.
const SAY_AFTER: Duration = Duration::from_millis(400);

impl Run {
    /// `true` if all members of the last round may still run it, although silent.
    fn may_be_whole(&self) -> bool {
        let is_torn = self.record.torn || self.record.succeeded;
        self.is_recoverable()
            && !is_torn
            && self.record.lease.is_zero()
            && self.origin.rules.has(Rule::SilenceIsNoEnd)
    }

    /// Registers that a participant leaves the round, and its workers have ended.
    pub(super) fn leaves_round(&mut self, node: &NodeDesc) {
        self.record.torn |= self.round.is_formed() && self.nodes.participants.contains_key(node);
    }

    /// Registers that a silent agent holds no round, or has certainly ended.
    pub(super) fn speaks(&mut self, instance: u64) {
        if let Some(formed) = self.round.formed() {
            let mut silent = formed.silent.values();
            self.record.torn |= silent.any(|silent| silent.instance == instance);
        }
    }

    /// Registers a participant that will be lost by silence.
    pub(super) fn falls_silent(&mut self, node: &NodeDesc) {
        let rank = self.nodes.participants.get(node).copied();
        let is_recorded = self.round.recovery().is_none_or(Recovery::is_recorded);
        let (Some(rank), Some(agent)) = (rank, self.agents.get(node)) else {
            return;
        };
        let is_last = self.nodes.participants.len() == 1;
        let Some(formed) = self.round.formed_mut() else {
            return;
        };
        if self.record.round != formed.number || !is_recorded {
            return;
        }
        self.record.torn |= formed.succeeded.contains(node);
        let silent = SilentAgent {
            instance: agent.join.instance,
            host: escape(&node.addr),
        };
        formed.silent.insert(rank, silent);
        if is_last && self.may_be_whole() {
            let search = self.round.search_mut();
            let missing = search.map(|search| std::mem::take(&mut search.missing));
            self.keep_silent(&missing.unwrap_or_default());
            self.record_silence();
        }
    }

    /// Marks missing participants as silent.
    pub(super) fn keep_silent(&mut self, missing: &BTreeMap<u32, u64>) {
        let Some(formed) = self.round.formed_mut() else {
            return;
        };
        for (rank, instance) in missing {
            let silent = formed.silent.entry(*rank);
            silent.or_insert_with(|| SilentAgent {
                instance: *instance,
                host: String::new(),
            });
        }
    }

    /// Records that all participants are lost, but may still run the round.
    ///
    /// The record is kept before any later effect.
    pub(super) fn record_silence(&mut self) {
        let silent = self.round.formed().into_iter().flat_map(|it| &it.silent);
        for (rank, silent) in silent {
            if let Some(member) = self.record.members.get_mut(*rank as usize) {
                *member = silent.instance;
            }
        }
        self.record.silent = true;
        self.note();
    }

    /// Waits until one of the participants sends a message.
    pub(super) fn await_word(&mut self, now: Now) {
        let is_confirmed = self.is_confirmed();
        let Some(formed) = self.round.take_formed() else {
            return;
        };
        let silent = formed.silent.iter();
        let missing = silent.map(|(rank, silent)| (*rank, silent.instance));
        let mut search = Search::new(now, SAY_AFTER, missing.collect());
        search.is_confirmed = is_confirmed;
        self.round = Round::Silent(formed, search);
    }

    /// `true` if the user has confirmed that the missing agents have exited.
    ///
    /// The confirmation is only about rounds of earlier coordinators.
    pub(super) fn is_confirmed(&self) -> bool {
        let is_ours = self.round.formed().is_some_and(|formed| formed.is_ours);
        self.origin.recover && !is_ours
    }

    /// Starts with a record of a silent round.
    pub(super) fn recover_silent(&mut self, now: Now) {
        self.round = Round::Over(Formed::new(self.record.round));
        self.keep_silent(&self.record.expected());
        self.await_word(now);
    }

    /// `true` if no participant holds the recovered round, but it may still run.
    pub(super) fn all_are_silent(&mut self, missing: &BTreeMap<u32, u64>) -> bool {
        let is_silent =
            self.nodes.participants.is_empty() && self.may_be_whole() && !self.is_confirmed();
        if is_silent {
            self.keep_silent(missing);
        }
        let formed = self.round.formed();
        is_silent && formed.is_some_and(|formed| !formed.silent.is_empty())
    }

    /// `true` if an earlier coordinator has removed a member from the record.
    ///
    /// That coordinator treated the member as lost.
    pub(super) fn was_silent(&self, held: &HeldRound) -> bool {
        let member = self.record.members.get(held.rank as usize);
        matches!(self.round, Round::Silent(..)) && member == Some(&0)
    }

    /// Handles the report of a waiting agent about its last round.
    ///
    /// The record may not contain the agent's instance.
    pub(super) fn has_left(&mut self, node: &NodeDesc, left: &HeldRound) {
        if let Round::Silent(_, search) = &mut self.round
            && self.record.round == left.round
        {
            self.record.torn = true;
            search.over.push(format!("node {node} joins again"));
        }
    }

    /// Returns the known hosts of silent participants.
    ///
    /// `None` if the round is not silent.
    pub(super) fn silent_hosts(&self) -> Option<BTreeMap<u32, String>> {
        let Round::Silent(formed, _) = &self.round else {
            return None;
        };
        let silent = formed.silent.iter();
        let known = silent.filter(|(_, silent)| !silent.host.is_empty());
        let hosts = known.map(|(rank, silent)| (*rank, silent.host.clone()));
        Some(hosts.collect())
    }
}
