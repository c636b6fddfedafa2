//! Virtual time, and its events.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdzv_consensus::membership::{self, Candidate, MemberStanding, MembershipStep, MembershipView};
use rdzv_consensus::{Consensus, ConsensusRule, Input, Output, Role, Settings, VoterId};
use rdzv_core::machine::Machine as _;
use rdzv_core::time::Mono;

use super::client::{Answer, Client, Current};
use super::counters::{Addition, Counters};
use super::ledger::Ledger;
use super::plan::Plan;
use super::process::{Packet, Process};
use crate::scheduler::{Scheduler, nanos};
use crate::trace::Trace;
use crate::{Result, broken};

/// Time after which a member with a silent machine is lost.
const LOST: u64 = 3_400_000_000;

/// Interval at which a process reviews the group and sends a message.
const REVIEW: u64 = 50_000_000;

/// Interval at which processes try to connect.
const CONNECT: u64 = 100_000_000;

#[derive(Debug)]
pub(super) enum Event {
    Act(usize),
    Start(usize),
    Wake(usize),
    Review(usize),
    Connect,
    Up(usize, usize, u64),
    /// A connection closes; `true` if the other end has certainly ended.
    Down(usize, usize, u64, bool),
    Reset(usize, usize),
    Heal(Vec<(usize, usize)>),
    /// The leader of this term was cut off for a long time.
    Isolated(usize, u64),
    Arrive(usize, usize, u64, Packet),
    Client(usize, u64),
    Asked(usize, usize, u64, Current),
    Answered(usize, u64, Answer),
}

/// Totals of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of events.
    pub events: u64,
    /// Number of operations of clients.
    pub operations: u64,
    /// Number of applied commands, at all members together.
    pub applied: u64,
    /// Number of terms with a leader.
    pub terms: u64,
    /// Number of processes that were killed or ended.
    pub deaths: u64,
    /// Number of configurations that came into force, at all members together.
    pub configurations: u64,
    /// Number of joint configurations among them.
    pub joint: u64,
    /// Number of states that a member received from another member.
    pub restored: u64,
    /// Number of handovers that a leader's review requested.
    pub handed_over: u64,
    /// Time from the last death of a leader to the next leader.
    pub fail_over: Duration,
    /// Digest of the committed states and the leaders.
    pub digest: u64,
    /// Virtual time that passed.
    pub elapsed: Duration,
}

/// World of one seed.
#[derive(Debug)]
pub struct World {
    pub(super) plan: Plan,
    pub(super) time: Scheduler<Event>,
    /// All processes by number, including those that have ended.
    pub(super) processes: Vec<Process>,
    pub(super) slots: Vec<Option<usize>>,
    /// Directions between slots that are cut, and how many times.
    pub(super) cuts: BTreeMap<(usize, usize), u32>,
    pub(super) held: Vec<(usize, usize, u64, Packet)>,
    pub(super) arrivals: BTreeMap<(usize, usize, u64), u64>,
    pub(super) connecting: BTreeSet<(usize, usize)>,
    pub(super) clients: Vec<Client>,
    pub(super) clients_end: bool,
    /// Last index of the log before a proposal.
    pub(super) proposing: Option<u64>,
    pub(super) is_calm: bool,
    pub(super) ledger: Ledger,
    pub(super) report: Report,
}

impl World {
    /// Creates a world in which nothing has happened yet.
    pub fn new(plan: Plan, seed: u64, trace: Trace) -> Self {
        if trace == Trace::All {
            println!("{plan:#?}");
        }
        Self {
            time: Scheduler::new(seed, trace),
            processes: Vec::new(),
            slots: vec![None; plan.processes],
            cuts: BTreeMap::new(),
            held: Vec::new(),
            arrivals: BTreeMap::new(),
            connecting: BTreeSet::new(),
            clients: (0..plan.clients).map(|_| Client::default()).collect(),
            clients_end: false,
            proposing: None,
            is_calm: false,
            ledger: Ledger::default(),
            report: Report::default(),
            plan,
        }
    }

    /// Runs all events, and checks the result.
    pub fn run(mut self) -> Result<Report> {
        self.begin();
        let end = nanos(self.plan.end);
        self.run_to(end, |_| false)?;
        self.calm_down()?;
        self.last_death()?;
        self.report.terms = self.ledger.terms() as u64;
        self.report.digest = self.ledger.digest();
        self.report.events = self.time.count;
        self.report.elapsed = Duration::from_nanos(self.time.now);
        Ok(self.report)
    }

    fn begin(&mut self) {
        let first: Vec<VoterId> = (0..self.plan.first).map(|_| self.new_id()).collect();
        for slot in 0..self.plan.processes {
            self.start(slot, first.get(slot).map(|_| &first[..]));
        }
        for at in 0..self.plan.acts.len() {
            let time = nanos(self.plan.acts[at].0);
            self.time.at(time, Event::Act(at));
        }
        for client in 0..self.clients.len() {
            let at = self.time.random.u64(0..500_000_000);
            self.time.at(at, Event::Client(client, 0));
        }
        self.connect();
        self.time.at(CONNECT, Event::Connect);
    }

    fn new_id(&mut self) -> VoterId {
        let number = self.time.random.u64(1..);
        VoterId::new(number).unwrap_or_else(|| self.new_id())
    }

    fn settings(&self) -> Settings {
        Settings {
            truncate_after: self.plan.truncate_after,
            // A state usually needs several parts.
            snapshot_part: 64,
            rules: self.plan.rules,
            ..Settings::default()
        }
    }

    /// Starts a process in an empty slot.
    ///
    /// `first` lists the first voters, if the process is one of them: the one at index `slot`.
    pub(super) fn start(&mut self, slot: usize, first: Option<&[VoterId]>) {
        if self.slots[slot].is_some() {
            return;
        }
        let last = self.processes.iter().rfind(|it| it.slot == slot);
        let reused = last
            .map(|it| (it.id, it.voter_index))
            .filter(|_| !self.plan.rules.has(ConsensusRule::IdsAreNew));
        let id = match first {
            Some(first) => first[slot],
            None => match reused {
                Some((id, _)) => id,
                None => self.new_id(),
            },
        };
        let number = self.processes.len();
        let offset = self.time.random.u64(0..1_000_000_000_000);
        let drawn = 0.95 + self.time.random.f64() * 0.1;
        let rate = if self.plan.waits_are_equal {
            [1.0, 0.95, 1.05][slot % 3]
        } else {
            drawn
        };
        let now = self.time.now;
        let mut process = Process::new(slot, id, (offset, rate), now);
        if let Some(first) = first {
            let state = Counters::default().write();
            let settings = self.settings();
            let clock = process.now(now);
            process.consensus = Some(Consensus::bootstrap(clock, settings, id, first, &state, 1));
            process.voter_index = slot as u8;
        } else if let Some((_, voter_index)) = reused {
            let settings = self.settings();
            let clock = process.now(now);
            process.consensus = Some(Consensus::join(clock, settings, id, voter_index));
            process.voter_index = voter_index;
        }
        self.time.log(id, || format!("starts at slot {slot}"));
        self.processes.push(process);
        self.slots[slot] = Some(number);
        self.schedule(number);
        let late = self.time.random.u64(0..REVIEW);
        self.time.at(now + late, Event::Review(number));
    }

    /// Returns the leader of the newest term.
    pub(super) fn leader(&self) -> Option<usize> {
        let processes = self.processes.iter().enumerate();
        let leaders = processes.filter(|(_, it)| it.leads());
        leaders.max_by_key(|(_, it)| it.term).map(|(it, _)| it)
    }

    pub(super) fn running(&self) -> Vec<usize> {
        let numbers = 0..self.processes.len();
        numbers.filter(|it| self.processes[*it].runs).collect()
    }

    pub(super) fn member(&self, id: VoterId) -> Option<&Process> {
        self.processes.iter().find(|it| it.runs && it.id == id)
    }

    /// Runs events until a time, or until a condition holds.
    ///
    /// Returns `true` if the condition holds.
    pub(super) fn run_to(&mut self, end: u64, enough: impl Fn(&Self) -> bool) -> Result<bool> {
        while let Some(event) = self.time.pop() {
            let over = self.time.now > end;
            self.happen(event)?;
            if enough(self) {
                return Ok(true);
            }
            if over {
                return Ok(false);
            }
            let seconds = self.time.now / 1_000_000_000 + 5;
            let bound = seconds * 20_000 * self.plan.processes as u64;
            if self.time.count > bound {
                return broken("the members do something all the time");
            }
        }
        Ok(false)
    }

    fn happen(&mut self, event: Event) -> Result {
        let of = match &event {
            Event::Wake(it)
            | Event::Review(it)
            | Event::Up(it, ..)
            | Event::Down(it, ..)
            | Event::Arrive(_, it, ..)
            | Event::Asked(it, ..) => Some(&self.processes[*it]),
            _ => None,
        };
        if let Some(end) = of.map(|it| it.stall_end).filter(|end| *end > self.time.now) {
            self.time.at(end, event);
            return Ok(());
        }
        match event {
            Event::Wake(it)
            | Event::Review(it)
            | Event::Up(it, ..)
            | Event::Down(it, ..)
            | Event::Asked(it, ..)
                if !self.processes[it].runs => {}
            Event::Act(at) => self.act(self.plan.acts[at].1.clone())?,
            Event::Start(slot) => self.start(slot, None),
            Event::Wake(it) => self.wake(it)?,
            Event::Review(it) => {
                let process = &self.processes[it];
                let ends = process.ends.is_some();
                for peer in process.peers.keys().copied().collect::<Vec<_>>() {
                    self.send(it, peer, Packet::Ping(ends));
                }
                self.time.after(REVIEW, Event::Review(it));
                self.review(it)?;
            }
            Event::Connect => {
                self.connect();
                self.time.after(CONNECT, Event::Connect);
            }
            Event::Up(it, other, number) => self.up(it, other, number)?,
            Event::Down(it, other, number, ended) => self.down(it, other, number, ended)?,
            Event::Reset(one, two) if self.is_cut(one, two) || self.is_cut(two, one) => {
                self.reset(one, two, 500_000_000);
            }
            Event::Reset(..) => {}
            Event::Heal(directions) => self.heal(&directions),
            Event::Isolated(it, term) => self.isolated(it, term)?,
            Event::Arrive(from, to, number, packet) => self.arrive(from, to, number, packet)?,
            Event::Client(number, sequence) => self.client_wakes(number, sequence),
            Event::Asked(it, client, sequence, current) => {
                self.asked(it, client, sequence, current)?;
            }
            Event::Answered(client, sequence, answer) => self.answered(client, sequence, answer),
        }
        Ok(())
    }

    fn wake(&mut self, it: usize) -> Result {
        let now = self.time.now;
        let process = &mut self.processes[it];
        process.wake = None;
        let due = process.consensus.as_ref().and_then(|it| it.deadline());
        match due.map(|due| process.time(due)) {
            Some(due) if due <= now => self.handle(it, Input::Tick),
            _ => {
                self.schedule(it);
                Ok(())
            }
        }
    }

    fn schedule(&mut self, it: usize) {
        let process = &mut self.processes[it];
        let due = process.consensus.as_ref().and_then(|it| it.deadline());
        let due = due.map(|due| process.time(due));
        self.time.wake(&mut process.wake, due, Event::Wake(it));
    }

    /// Passes an input to a process's machine, applies its outputs, and checks it.
    pub(super) fn handle(&mut self, it: usize, input: Input<'_>) -> Result {
        let now = self.time.now;
        let process = &mut self.processes[it];
        let clock = process.now(now);
        let Some(consensus) = &mut process.consensus else {
            return Ok(());
        };
        consensus.handle(clock, input);
        if let Some(before) = self.proposing.take()
            && consensus.last().0 > before
        {
            // A leader appends only its proposals.
            self.ledger.proposes(before + 1, consensus.role().term, now);
        }
        let mut takes = false;
        loop {
            let process = &mut self.processes[it];
            if !process.runs {
                // The process was killed between two outputs.
                return Ok(());
            }
            if let Some((left, with_machine)) = process.dies.take() {
                if left == 0 {
                    self.kill(it, with_machine);
                    continue;
                }
                process.dies = Some((left - 1, with_machine));
            }
            let output = process.consensus.as_mut().and_then(|it| it.poll_output());
            let Some(output) = output else {
                break;
            };
            takes |= output == Output::TakeSnapshot;
            self.apply(it, output)?;
        }
        self.inspect(it)?;
        if takes {
            let state = self.processes[it].counters.write();
            self.handle(it, Input::Snapshot(&state))?;
        }
        self.schedule(it);
        Ok(())
    }

    fn apply(&mut self, it: usize, output: Output) -> Result {
        let now = self.time.now;
        let process = &mut self.processes[it];
        let id = process.id;
        if !matches!(output, Output::Send { .. }) {
            self.time.log(id, || format!("{output:?}"));
        }
        match output {
            Output::Send { to, frame } => {
                let peer = process.peers.iter().filter(|(_, peer)| peer.id == to);
                let number = peer.map(|(number, _)| *number).max();
                if let Some(number) = number {
                    self.send(it, number, Packet::Frame(frame));
                }
            }
            Output::Apply { index, at, command } => {
                self.report.applied += 1;
                let term = process.consensus.as_ref().and_then(|it| it.term_at(index));
                self.ledger.applies(id, index, term, at, &command)?;
                if let Some(addition) = Addition::read(&command) {
                    let value = process.counters.apply(addition);
                    self.applied(it, addition, value);
                }
            }
            Output::Restore { state, .. } => {
                process.counters = Counters::read(&state);
                self.report.restored += 1;
            }
            Output::TakeSnapshot | Output::Note(_) => {}
            Output::Configuration(configuration) => {
                self.report.configurations += 1;
                self.report.joint += u64::from(configuration.is_joint());
            }
            Output::Role(role) => return self.role(it, role),
            Output::Confirmed(token) => {
                if let Some((client, sequence, key)) = process.reads.remove(&token) {
                    let value = process.counters.value(key);
                    self.answer(client, sequence, Answer::Value(value));
                }
            }
            Output::Unconfirmed(token) => {
                if let Some((client, sequence, _)) = process.reads.remove(&token) {
                    self.answer(client, sequence, Answer::Elsewhere(None));
                }
            }
            Output::Dropped(token) => {
                if let Some(proposal) = process.proposals.remove(&token) {
                    let Addition {
                        client, sequence, ..
                    } = proposal.addition;
                    self.answer(client as usize, sequence, Answer::Elsewhere(None));
                }
            }
            Output::Unchanged(_) => {}
            Output::Close { peer, reason } => {
                return broken(format!("at {now}, {id} refuses {peer}'s message: {reason}"));
            }
        }
        Ok(())
    }

    /// Answers the clients that wait for an addition at this process.
    fn applied(&mut self, it: usize, addition: Addition, value: Option<u64>) {
        let process = &mut self.processes[it];
        let waiting = process.proposals.iter();
        let waiting = waiting.filter(|(_, other)| other.addition == addition);
        let tokens: Vec<u64> = waiting.map(|(token, _)| *token).collect();
        for token in &tokens {
            process.proposals.remove(token);
        }
        if let (false, Some(value)) = (tokens.is_empty(), value) {
            let client = addition.client as usize;
            self.answer(client, addition.sequence, Answer::Value(value));
        }
    }

    fn role(&mut self, it: usize, role: Role) -> Result {
        let now = self.time.now;
        let process = &mut self.processes[it];
        process.term = role.term;
        if !role.leads {
            process.proposals.clear();
            return Ok(());
        }
        process.leads_since = now;
        let id = process.id;
        if !self.ledger.leads(role.term, id)? {
            return Ok(());
        }
        if let Some(consensus) = &process.consensus {
            let last = consensus.last().0;
            self.ledger
                .has_all(id, role.term, last, |index| consensus.term_at(index))?;
        }
        // A leader whose term is already over does not count.
        if self.ledger.is_over(role.term) {
            return Ok(());
        }
        self.silence(it, role)
    }

    /// Checks the silence that a new leader reports.
    ///
    /// It must not be longer than that of a majority of the voters.
    fn silence(&self, it: usize, role: Role) -> Result {
        let process = &self.processes[it];
        let Some(consensus) = &process.consensus else {
            return Ok(());
        };
        let configuration = consensus.configuration();
        let heard = |id: &VoterId| {
            let other = self.member(*id)?;
            other.heard.or((other.leads_since > 0).then_some(0))
        };
        let mut times: Vec<u64> = configuration
            .voters
            .iter()
            .map(|id| heard(id).unwrap_or(0))
            .collect();
        times.sort_unstable();
        let least = times[times.len() / 2];
        let said = role.heard.map_or(0, |heard| process.time(heard));
        let tolerance = self.time.now.saturating_sub(least) / 8 + 20_000_000;
        if said + tolerance < least && !configuration.is_joint() {
            return broken(format!(
                "INV-Q6: {} leads and reports no contact since {said}; most had contact at {least}",
                process.id
            ));
        }
        Ok(())
    }

    /// Checks a process after each step.
    fn inspect(&mut self, it: usize) -> Result {
        let process = &mut self.processes[it];
        let Some(consensus) = &process.consensus else {
            return Ok(());
        };
        let id = process.id;
        for index in process.committed + 1..=consensus.committed() {
            if let Some(term) = consensus.term_at(index) {
                let known_in = consensus.role().term;
                self.ledger.commits(id, index, term, known_in)?;
            }
        }
        process.committed = process.committed.max(consensus.committed());
        let applied = consensus.applied();
        if applied > process.inspected {
            process.inspected = applied;
            let digest = process.counters.digest();
            self.ledger
                .state(id, applied, digest, consensus.configuration())?;
        }
        if consensus.role().leads && !consensus.configuration().is_voter(id) {
            return broken(format!(
                "INV-Q1: {id} leads and is no voter of {:?}",
                consensus.configuration()
            ));
        }
        Ok(())
    }

    /// Ends an ending process if it may, or reviews the group at its leader.
    pub(super) fn review(&mut self, it: usize) -> Result {
        let now = self.time.now;
        let process = &self.processes[it];
        let Some(consensus) = &process.consensus else {
            if process.ends.is_some() {
                self.kill(it, false);
            }
            return Ok(());
        };
        let id = process.id;
        let is_voter = consensus.configuration().is_voter(id);
        let may_end =
            |limit: u64| !process.leads() && (!is_voter || self.may_die(it)) || now > limit;
        if process.ends.is_some_and(may_end) && self.kill(it, false) {
            return Ok(());
        }
        let process = &mut self.processes[it];
        // The end took too long and the others need the process, so it stays.
        process.ends = process.ends.filter(|limit| now <= *limit);
        let process = &self.processes[it];
        let Some(consensus) = process.consensus.as_ref().filter(|it| !it.is_changing()) else {
            return Ok(());
        };
        if !process.leads() {
            return Ok(());
        }
        let candidates = self.candidates(it);
        let members = candidates.iter().map(|candidate| candidate.id);
        let caught_up: BTreeSet<VoterId> =
            members.filter(|id| consensus.is_caught_up(*id)).collect();
        let view = MembershipView {
            leader: id,
            leader_ends: process.ends.is_some(),
            configuration: consensus.configuration(),
            candidates: &candidates,
            caught_up: &caught_up,
            most: self.plan.most,
        };
        match membership::next(&view) {
            MembershipStep::Nothing(_) => {
                self.invite_again(it);
                Ok(())
            }
            MembershipStep::HandOver(to) => {
                self.report.handed_over += 1;
                self.handle(it, Input::Transfer(Some(to)))
            }
            MembershipStep::Change(change) => {
                let configuration = consensus.configuration().clone();
                let after = configuration.after(&change);
                let members = self.processes.iter();
                let members = members.filter(|it| it.consensus.is_some()).map(|it| it.id);
                if !after.is_majority(&members.collect()) {
                    // A group cannot recover if its future voters die before it notices.
                    return Ok(());
                }
                for (member, voter_index) in change.added() {
                    self.has_log(it, member, after.is_voter(member))?;
                    if !configuration.has(member) {
                        self.invite(it, member, voter_index);
                    }
                }
                self.handle(it, Input::Change(&change))
            }
        }
    }

    fn invite(&mut self, it: usize, member: VoterId, voter_index: u8) {
        let peers = self.processes[it].peers.iter();
        let numbers = peers.filter(|(_, peer)| peer.id == member);
        if let Some(number) = numbers.map(|(number, _)| *number).max() {
            self.send(it, number, Packet::Invite(voter_index));
        }
    }

    /// Repeats invitations, which may be lost with a connection.
    fn invite_again(&mut self, it: usize) {
        let Some(consensus) = &self.processes[it].consensus else {
            return;
        };
        let last = consensus.last().0;
        let voter_indices = consensus.configuration().voter_indices.iter();
        let silent = voter_indices.filter(|(member, _)| consensus.lag(**member) == Some(last));
        for (member, voter_index) in silent
            .map(|(member, voter_index)| (*member, *voter_index))
            .collect::<Vec<_>>()
        {
            self.invite(it, member, voter_index);
        }
    }

    /// Fails if a future voter lacks many entries of the log.
    fn has_log(&self, it: usize, member: VoterId, votes: bool) -> Result {
        let last = self.processes[it].last().unwrap_or(0);
        let has = self.member(member).and_then(Process::last);
        match has.filter(|has| votes && has + 64 < last) {
            Some(has) => broken(format!(
                "INV-Q7: {member} is to vote, and has {has} entries of {last}"
            )),
            None => Ok(()),
        }
    }

    fn candidates(&self, it: usize) -> Vec<Candidate> {
        let now = self.time.now;
        let process = &self.processes[it];
        let candidate = |id: VoterId, slot: usize, standing, since: u64| Candidate {
            position: u8::try_from(slot).ok(),
            id,
            standing,
            is_store: slot % 3 == 1,
            has_workers: slot.is_multiple_of(2),
            machine: slot as u64,
            network: slot as u64 / 2,
            since: Mono::from_origin(Duration::from_nanos(since)),
        };
        let own = candidate(
            process.id,
            process.slot,
            MemberStanding::Present,
            process.since,
        );
        let mut candidates = vec![own];
        // The newest process of an id comes first.
        for peer in process.peers.values().rev() {
            if candidates.iter().any(|other| other.id == peer.id) {
                continue;
            }
            let silent = now.saturating_sub(peer.heard);
            let standing = match peer.ended {
                Some(ended) => MemberStanding::Gone(Duration::from_nanos(now - ended)),
                None if silent > LOST => MemberStanding::Gone(Duration::from_nanos(silent - LOST)),
                None if peer.connection.is_some() && silent < 1_000_000_000 => {
                    MemberStanding::Present
                }
                None => MemberStanding::Silent,
            };
            candidates.push(candidate(peer.id, peer.slot, standing, peer.since));
        }
        if let Some(consensus) = &process.consensus {
            let led = now - process.leads_since;
            for member in consensus.configuration().members() {
                if candidates.iter().all(|other| other.id != member) && led > LOST {
                    let standing = MemberStanding::Gone(Duration::from_nanos(led - LOST));
                    candidates.push(candidate(member, 0, standing, 0));
                }
            }
        }
        candidates
    }

    pub(super) fn invited(&mut self, it: usize, voter_index: u8) -> Result {
        let now = self.time.now;
        let settings = self.settings();
        let process = &mut self.processes[it];
        if process.consensus.is_none() {
            let clock = process.now(now);
            process.consensus = Some(Consensus::join(clock, settings, process.id, voter_index));
            process.voter_index = voter_index;
            process.committed = 1;
            self.schedule(it);
        } else if process.voter_index != voter_index {
            // A voter index cannot change, so the process returns as another member.
            let slot = process.slot;
            if self.kill(it, false) {
                self.time.at(now, Event::Start(slot));
            }
        }
        Ok(())
    }
}
