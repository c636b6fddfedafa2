//! State recovery: a restarted coordinator learns the last round from members.
//!
//! The record contains the last announced round, and the instances of its participants. A
//! participant is accounted for when it reattaches, with the round or without it. It is also
//! accounted for when its successor on the same node reports that it has ended. The coordinator
//! decides nothing until the recovery is over:
//!
//! | accounted for | then |
//! |---|---|
//! | all, and all hold the round | it holds, unless a node waits to join |
//! | all, and some no longer hold it | it is over, and the next one forms |
//! | at the end of the window: more than half | it is over; missing participants are lost |
//! | at the end of the window: one that no longer holds it | it is over; missing participants are lost |
//! | half or fewer, and all of them hold it | the coordinator waits, and logs the missing agents |
//!
//! Without voters, the window is [`WINDOW`] plus 0.2 ms for each participant, or longer if the
//! record has a lease. With voters, it ends at the earliest 1.05 times `node_timeout` plus 0.25 s
//! after the last message of the previous coordinator. A coordinator with voters has a majority, so
//! it also declares missing participants lost in the last case. If all are missing, this holds only
//! if they have a fence, or if one of them had left. If the user confirms that the missing
//! participants have exited, they are lost at the end of the window in any case.
//!
//! This guarantees that two complete rounds never overlap. The round of the record is the last one
//! that was announced, so every agent of earlier rounds has left them. The next round forms only
//! after every connected member has left this one explicitly. A coordinator that starts in the
//! wrong part of a cut network stops no worker.
//!
//! Without a record, the round is the last one that any agent reports, and no participant may be
//! missing, unless the user confirms its exit:
//!
//! | after [`UNNOTED`] at least | then |
//! |---|---|
//! | all are accounted for, and all hold the round | it holds |
//! | all are accounted for, and some no longer hold it | it is over, and the next one forms |
//! | a participant is missing | the coordinator waits, and logs the missing agents |
//!
//! The agent that hosted the previous coordinator has certainly ended too. If that coordinator was
//! at another address, it may still be running, and this one decides nothing (`elsewhere.rs`).

use std::time::Duration;

use super::record::HIGHEST;
use super::round::{Formed, Forming, Recovery, Round, Search};
use super::{Effect, Output, Phase, Run};
use crate::coordinator::note::RunNote;
use crate::coordinator::wire::{HeldRound, LastCoordinator};
use crate::{NodeDesc, Rule, fence, recovering::Recovering, silence};
use rdzv_core::reminder;
use rdzv_core::time::{Mono, Now};

/// Time in which missing participants can reattach if more than half are back.
pub const WINDOW: Duration = Duration::from_secs(3);

/// Time in which members of an older round find the coordinator.
///
/// Members usually try to connect at least once a second.
pub(super) const UNNOTED: Duration = Duration::from_millis(1500);

/// Additional time for each participant.
///
/// This keeps a large number of simultaneous connections from making participants late.
const WINDOW_EACH: Duration = Duration::from_micros(200);

/// Time between two messages about missing participants.
const REMIND: Duration = Duration::from_secs(10);

/// Time until the log names a coordinator elsewhere that may still be running.
///
/// By then, more members have attached.
const SAY_UNDECIDED_AFTER: Duration = Duration::from_millis(500);

/// Maximum number of participants that a coordinator without a record accepts.
const MOST: u32 = 1 << 20;

impl Run {
    /// Begins with the record of the previous coordinator.
    pub(in crate::coordinator) fn recover(&mut self, now: Now, record: RunNote) {
        let is_held = record.is_held();
        self.record = record;
        let number = self.record.round;
        self.torchrun.outdate();
        if is_held && self.record.silent {
            return self.recover_silent(now);
        }
        if !is_held {
            self.round = if self.record.closed {
                Round::Closed {
                    number: number + 1,
                    was_formed: false,
                }
            } else {
                Round::Forming(Forming {
                    number: number + 1,
                    last: Some(number),
                    ..Forming::default()
                })
            };
            return;
        }
        let each = WINDOW_EACH * u32::try_from(self.record.members.len()).unwrap_or(u32::MAX);
        let window_ends = match self.origin.electors_heard {
            None => now.mono + self.fence().max(WINDOW + each),
            Some(heard) => self.silence_ends(now.mono, heard),
        };
        let mut search = Search::new(now, reminder::FIRST, self.record.expected());
        search.at = window_ends.min(search.say_at);
        search.is_confirmed = self.origin.recover;
        let recovery = Recovery {
            search,
            window_ends: Some(window_ends),
            ..Recovery::default()
        };
        self.round = Round::Recovering(Formed::new(number), recovery);
    }

    /// Returns the deadline for participants of an elected coordinator to reattach.
    ///
    /// `heard` is the last contact with the previous coordinator. Since then, agents have searched
    /// for another one. With a fence, the workers of an agent that is cut off are suspended by this
    /// deadline.
    fn silence_ends(&self, now: Mono, heard: Mono) -> Mono {
        let heard = if self.origin.rules.has(Rule::ElectorsCount) {
            heard
        } else {
            Mono::ZERO
        };
        let members = u32::try_from(self.record.members.len()).unwrap_or(u32::MAX);
        let timeout = self.origin.node_timeout;
        let lease = fence::lease(timeout.unwrap_or(silence::NODE_TIMEOUT), members);
        let lost_after = fence::lost_after(lease, self.origin.rules);
        let silent = heard + lost_after.max(self.fence());
        // After a long election, agents reattach as soon as they find the coordinator.
        silent.max(now + lease / 2)
    }

    /// `true` if this coordinator knows no round of the run, and searches for none.
    pub(super) fn knows_no_round(&self) -> bool {
        let forming = self.round.forming();
        forming.is_some_and(|forming| forming.last.is_none()) && self.record.members.is_empty()
    }

    /// Recovers a round that an agent reports, without a record.
    ///
    /// The coordinator of the round may still be running `elsewhere`.
    pub(in crate::coordinator) fn recover_unnoted(
        &mut self,
        now: Now,
        known: &HeldRound,
        elsewhere: Option<&LastCoordinator>,
    ) {
        let (is_first, older_ends) = match &self.round {
            Round::Forming(forming) => (self.knows_no_round(), forming.older_ends),
            Round::Recovering(formed, recovery) => {
                let is_newer = formed.number < known.round;
                (!recovery.is_recorded() && is_newer, recovery.older_ends)
            }
            _ => (false, None),
        };
        let is_sensible = known.rank < known.size && known.size <= MOST && known.round < HIGHEST;
        if !is_first || !is_sensible {
            return;
        }
        // New agents wait; agents that hold an older round are in no round.
        let older = self.round.number();
        for node in std::mem::take(&mut self.nodes.participants).into_keys() {
            if let Some(agent) = self.agents.get_mut(&node)
                && let Phase::Member { .. } = agent.phase
            {
                agent.phase = Phase::Dropped;
                self.dismiss(&node, older);
            }
        }
        self.nodes.waiting.clear();
        self.nodes.surplus.clear();
        self.torchrun.outdate();
        self.record = RunNote {
            round: known.round,
            members: vec![0; known.size as usize],
            ..RunNote::default()
        };
        let missing = (0..known.size).map(|rank| (rank, 0)).collect();
        let mut search = Search::new(now, reminder::FIRST, missing);
        search.at = match elsewhere {
            None => older_ends.unwrap_or(now.mono).max(now.mono),
            Some(_) => now.mono + SAY_UNDECIDED_AFTER,
        };
        search.is_confirmed = self.origin.recover;
        let recovery = Recovery {
            search,
            elsewhere: elsewhere.cloned(),
            older_ends,
            ..Recovery::default()
        };
        let next = match &self.round {
            Round::Forming(forming) => forming.number,
            other => other.formed().map_or(0, |formed| formed.next),
        };
        let mut formed = Formed::new(known.round);
        formed.next = formed.next.max(next);
        self.round = Round::Recovering(formed, recovery);
        if let Some(host) = known.host.filter(|_| elsewhere.is_none()) {
            self.account(host, || {
                "the agent that hosted the rendezvous has exited".to_owned()
            });
        }
    }

    /// Accounts for a missing participant that no longer holds the round.
    ///
    /// The coordinator does not wait for it.
    pub(super) fn account(&mut self, rank: u32, why: impl FnOnce() -> String) {
        if let Some(search) = self.round.search_mut()
            && search.missing.remove(&rank).is_some()
        {
            self.record.torn = true;
            search.over.push(why());
        }
    }

    /// Returns the rank of the missing participant with this instance.
    ///
    /// Instance 0 finds a participant whose instance is unknown.
    pub(super) fn missing_rank(&self, instance: u64) -> Option<u32> {
        let mut missing = self.round.search()?.missing.iter();
        let found = missing.find(|(_, known)| **known == instance);
        found.map(|(rank, _)| *rank)
    }

    /// Marks a lost participant as missing again, in a recovery without a record.
    ///
    /// The participant may still be running.
    pub(super) fn await_again(&mut self, node: &NodeDesc) {
        let rank = self.nodes.participants.get(node).copied();
        let agent = self.agents.get(node);
        let instance = agent.map_or(0, |agent| agent.join.instance);
        if let Some(rank) = rank
            && let Round::Recovering(_, recovery) = &mut self.round
            && !recovery.is_recorded()
        {
            recovery.search.missing.insert(rank, instance);
        }
    }

    /// Handles a reattached participant that leaves during the search.
    pub(super) fn left_while_searching(
        &mut self,
        now: Now,
        rank: u32,
        why: impl FnOnce() -> String,
    ) {
        if let Some(search) = self.round.search_mut()
            && !search.missing.contains_key(&rank)
        {
            search.over.push(why());
            self.end_search_if_due(now);
        }
    }

    /// Handles an agent without a round that joins during the search.
    pub(super) fn account_for(&mut self, now: Now, node: &NodeDesc) {
        let agent = self.agents.get(node);
        let instance = agent.map_or(0, |agent| agent.join.instance);
        if let Some(rank) = self.missing_rank(instance).filter(|_| instance != 0) {
            self.account(rank, || format!("node {node} joins again"));
            // Agents of the last round have priority.
            self.former.insert(node.clone(), self.seat(node, rank));
        }
        self.end_search_if_due(now);
    }

    /// Ends the search if enough is known, and continues with its result.
    pub(super) fn end_search_if_due(&mut self, now: Now) {
        if self.is_undecided() {
            let search = self.round.search_mut();
            if let Some(search) = search.filter(|search| search.at <= now.mono) {
                search.at = now.mono + REMIND;
                self.say_undecided(now);
            }
            return;
        }
        if !self.is_decided(now.mono) {
            return self.say_missing(now);
        }
        let is_silent = matches!(self.round, Round::Silent(..));
        let is_recorded = self.round.recovery().is_none_or(Recovery::is_recorded);
        let Some(search) = self.round.search_mut() else {
            return;
        };
        let over = std::mem::take(&mut search.over);
        let lost = std::mem::take(&mut search.missing);
        if !is_silent && self.all_are_silent(&lost) {
            self.record_silence();
            return self.await_word(now);
        }
        let ended = self.recovering(now);
        if is_silent {
            self.record.silent = false;
            self.keep_silent(&lost);
            // This record is necessary even if no participant is missing.
            self.note();
        }
        for instance in lost.values() {
            self.record_departure(*instance);
        }
        if !is_recorded {
            self.note();
        }
        if let Some(ended) = ended {
            self.log_recovery(ended);
        }
        let size = self.record.members.len();
        let is_whole = self.record.is_whole(self.nodes.participants.len());
        let reason = match (over.into_iter().next(), lost.len()) {
            _ if !is_silent && is_whole => None,
            (Some(reason), _) => Some(reason),
            (None, _) if is_silent => Some("all its nodes were silent".to_owned()),
            (None, 0) => Some("a node has left".to_owned()),
            (None, lost) => Some(format!(
                "{lost} of {size} nodes did not reattach to the new coordinator of the rendezvous"
            )),
        };
        self.restore(now, reason);
    }

    /// `true` if a search has found enough to end.
    fn is_decided(&self, now: Mono) -> bool {
        match &self.round {
            Round::Silent(_, search) => {
                let is_heard = !self.nodes.participants.is_empty();
                is_heard || !search.over.is_empty() || search.is_confirmed
            }
            Round::Recovering(_, recovery) => {
                // Until `older_ends`, an agent with a later round may attach.
                let is_early = recovery.older_ends.is_some_and(|at| now < at);
                let is_lost = self.lost_at(recovery).is_some_and(|at| at <= now);
                let has_come = recovery.search.missing.is_empty();
                !is_early && (has_come || is_lost)
            }
            _ => false,
        }
    }

    /// Returns the time at which missing participants are lost.
    ///
    /// `None` while the coordinator waits for them without a limit.
    fn lost_at(&self, recovery: &Recovery) -> Option<Mono> {
        let rules = &self.origin.rules;
        let search = &recovery.search;
        let Some(ends) = recovery.window_ends else {
            return if rules.has(Rule::MissingAreAwaited) {
                search.is_confirmed.then_some(search.began + WINDOW)
            } else {
                Some(search.began)
            };
        };
        let (missing, size) = (search.missing.len(), self.record.members.len());
        let is_half = missing * 2 == size && !rules.has(Rule::MostRestore);
        let is_most = missing * 2 < size || is_half;
        // A majority of voters has elected this coordinator, so missing participants are cut off or
        // have ended. If all are missing, they may still run the round. They do not if they have a
        // fence, which has suspended their workers, or if one of them had left.
        let may_run = self.record.lease.is_zero() && !self.record.torn;
        let is_elected = self.origin.electors_heard.is_some() && (missing < size || !may_run);
        let are_lost = is_most || is_elected || !search.over.is_empty() || search.is_confirmed;
        are_lost.then_some(if rules.has(Rule::WindowIsKept) {
            ends
        } else {
            search.began
        })
    }

    /// Logs the missing participants, if a message is due.
    fn say_missing(&mut self, now: Now) {
        let ends = |it: &Recovery| it.window_ends.unwrap_or(it.search.began + WINDOW);
        let ends = self.round.recovery().map(ends);
        let Some(search) = self.round.search_mut() else {
            return;
        };
        let decides_at = ends.unwrap_or(search.began);
        if search.at > now.mono {
            return;
        }
        let is_due = search.say_at <= now.mono;
        if is_due {
            search.say_at = now.mono + REMIND;
        }
        let decides_at = Some(decides_at).filter(|at| *at > now.mono);
        search.at = decides_at.map_or(search.say_at, |at| at.min(search.say_at));
        if is_due && let Some(recovering) = self.recovering(now) {
            self.log_recovery(recovering);
        }
    }

    /// Logs the progress of the recovery.
    pub(super) fn log_recovery(&mut self, recovering: Recovering) {
        let run = self.id.clone();
        self.effects
            .push(Effect::Output(Output::Recovering { run, recovering }));
    }

    /// Returns the next deadline of the search.
    pub(super) fn search_deadline(&self) -> Option<Mono> {
        let older_ends = self.round.recovery().and_then(|it| it.older_ends);
        let at = self.round.search()?.at;
        Some(older_ends.map_or(at, |older| older.min(at)))
    }

    /// Returns the progress of the current search; `None` if there is none.
    pub(in crate::coordinator) fn recovering(&self, now: Now) -> Option<Recovering> {
        let search = self.round.search()?;
        let recovery = self.round.recovery();
        let lost_at = recovery.and_then(|recovery| self.lost_at(recovery));
        Some(Recovering {
            round: self.record.round,
            size: self.record.members.len() as u32,
            missing: search.missing.keys().copied().collect(),
            elapsed: now.mono.since(search.began),
            left: lost_at.map(|at| at.since(now.mono)),
            is_noted: recovery.is_none_or(Recovery::is_recorded),
            silent: self.silent_hosts(),
            elsewhere: self.elsewhere().map(|last| last.address.clone()),
        })
    }

    /// Ends the search with the participants that hold the round.
    ///
    /// The round is over if its members already know so, if there is a `reason`, or if a node waits
    /// to join. Otherwise it holds.
    fn restore(&mut self, now: Now, reason: Option<String>) {
        let participants: Vec<NodeDesc> = self.nodes.participants.keys().cloned().collect();
        self.former_size = self.record.members.len() as u32;
        let is_ended = self.round.is_ended();
        let Some(mut formed) = self.round.take_formed() else {
            return;
        };
        formed.awaited = participants.into_iter().collect();
        formed.programs = self.programs_of(&formed.awaited);
        self.round = if is_ended {
            Round::Over(formed)
        } else {
            Round::Held(formed)
        };
        let joining = self.agents.keys().filter(|node| self.is_joining(node));
        for node in joining.cloned().collect::<Vec<_>>() {
            self.admit(now, &node);
        }
        let is_whole = reason.is_none();
        if let Some(reason) = reason {
            self.break_round(&reason);
        }
        if self.nodes.participants.is_empty() {
            self.begin_next(now);
        }
        if is_whole {
            if let Some((addr, port)) = self.known_master() {
                self.store_master(addr, port);
            }
            self.announce_success();
            if !self.nodes.waiting.is_empty() {
                self.break_round("a node waits to join");
            }
        }
        self.review_fence();
        self.torchrun.outdate();
        self.advance(now);
    }
}
