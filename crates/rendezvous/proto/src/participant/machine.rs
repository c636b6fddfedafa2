//! The machine of one agent.

use std::time::Duration;

use crate::apply::{apply, sanitise};
use crate::decide::{self, Action, Decision, Ending, JoinPhase, Moment};
use crate::expected::{Expected, is_listed};
use crate::{NodeDesc, RendezvousState, Settings, ranks};
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now, Wall};

use self::schedule::{FRESH, Request, Task};
use super::membership::{Gone, Heard, Membership};
use super::pace::Pace;
use super::{Formed, Input, Output, ParticipantChange, ParticipantFailure};

mod schedule;

/// Maximum number of decisions in one write.
///
/// At most three decisions follow from one another.
const CHAIN: usize = 8;

/// The machine of one agent, as in the diagram of [the module](super).
#[derive(Debug, Default)]
pub struct Participant {
    me: NodeDesc,
    settings: Settings,
    /// Polling interval for a store that cannot report changes.
    poll: Option<Duration>,
    pace: Pace,
    task: Task,
    membership: Option<Membership>,
    expected: Expected,
    /// The last state that this node has read, without lost nodes.
    copy: Option<Copy>,
    /// `true` if the store has reported a change since the last request to it.
    changed: bool,
    /// `true` if the copy must not be used before a new read.
    outdated: bool,
    asked: Option<Asked>,
    /// Time until which the machine sends no request to the store.
    pause: Option<Mono>,
    /// The step before which the machine has already decided whether to pause.
    placed: Option<(u64, bool, Action)>,
    /// Time at which the heartbeat in the state was written.
    beaten: Option<Mono>,
    gone: Gone,
    heard: Heard,
    /// Deadline of the last call in the state, and its end on the local clock.
    last_call: Option<(Wall, Mono)>,
    reason: Option<&'static str>,
    wake: Option<Mono>,
    outbox: Outbox<Output>,
}

#[derive(Debug)]
struct Copy {
    state: RendezvousState,
    /// Oldest time at which the last heartbeat of another node was first seen.
    oldest: Option<Mono>,
    at: Mono,
}

#[derive(Debug)]
struct Asked {
    /// The heartbeat that the request writes, if it writes one.
    beat: Option<(Wall, Mono)>,
    /// Nodes that were lost before the request.
    gone: Vec<NodeDesc>,
}

impl Participant {
    /// Creates an agent that does not participate yet.
    ///
    /// `seed` determines its random pauses. The store must report changes ([`Input::Changed`]). If
    /// it cannot, use [`Participant::polling`].
    pub fn new(me: NodeDesc, settings: Settings, seed: u64) -> Self {
        Self {
            me,
            settings,
            pace: Pace::new(seed, settings.cas_backoff_max),
            ..Self::default()
        }
    }

    /// Polls the state at this interval, for a store that cannot report changes.
    ///
    /// A join with few nodes polls more often.
    pub fn polling(mut self, interval: Duration) -> Self {
        self.poll = Some(interval);
        self
    }

    /// Returns the reason for the last decision, for logs.
    pub fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// Returns the last state that this node has read, without lost nodes.
    pub fn state(&self) -> Option<&RendezvousState> {
        self.copy.as_ref().map(|copy| &copy.state)
    }

    fn begin(&mut self, now: Now, request: Request, time: Duration) {
        self.task = Task {
            request,
            since: now.mono,
            deadline: now.mono + time,
        };
        self.pause = None;
        self.placed = None;
        match &self.copy {
            Some(copy) => self.outdated |= now.mono.since(copy.at) >= FRESH,
            None => self.outdated = true,
        }
    }

    fn join(&mut self, now: Now) {
        let join = Request::Join {
            first_round: self.membership.take().map(|left| left.round() + 1),
            joined: None,
        };
        self.begin(now, join, self.settings.join_timeout);
        if self.copy.is_none() {
            let jitter = self.pace.first_join();
            self.pause_for(now, jitter);
        }
    }

    /// Begins a request to leave or to close the run.
    fn end(&mut self, now: Now, request: Request) {
        self.membership = None;
        self.begin(now, request, self.settings.close_timeout);
    }

    /// Pauses, and makes a new read necessary before the next step.
    fn pause_for(&mut self, now: Now, pause: Duration) {
        let deadline = now.mono + pause;
        let phase = self.task.next_phase(now.mono);
        self.pause = Some(phase.map_or(deadline, |at| at.min(deadline)));
        self.outdated = true;
    }

    /// Adopts the state from the store.
    fn adopt(&mut self, now: Now, state: Option<RendezvousState>) {
        let asked = self.asked.take();
        self.pace.answered(now.mono);
        let mut state = state.unwrap_or_default();
        if let Some(asked) = asked {
            self.gone.note_heartbeats(&state, asked.gone);
            let beat = asked
                .beat
                .filter(|(wall, _)| state.last_heartbeats.get(&self.me) == Some(wall));
            if let Some((_, at)) = beat {
                self.beaten = Some(at);
            }
        }
        if self.state().is_some_and(|old| state.round < old.round)
            && let Request::Join { first_round, .. } = &mut self.task.request
        {
            // This is another store; events in the previous one do not count.
            *first_round = None;
        }
        let was_listed = self.state().is_some_and(|old| is_listed(old, &self.me));
        if self.joins_in_time(now) && was_listed && !is_listed(&state, &self.me) {
            // The other nodes treat this one as lost: the clocks differ, or this process was
            // stopped.
            let pause = self.pace.expelled();
            self.pause_for(now, pause);
        }
        self.expected.see(&state, now.mono);
        self.heard.see(&state, now.mono);
        self.gone.retain(&state);
        let (gone, heard, lost_after) = (&self.gone, &self.heard, self.settings.lost_after());
        let lost = sanitise(&mut state, &self.me, &self.settings, |node, last| {
            let silent = heard.last(node).map(|heard| now.mono.since(heard));
            gone.since.get(node) == Some(&last) || silent.is_some_and(|time| time >= lost_after)
        });
        self.expected.forget(&lost);
        if state.deadline != self.last_call.map(|(deadline, _)| deadline) {
            let end = now.mono + self.settings.last_call_timeout;
            self.last_call = state.deadline.map(|deadline| (deadline, end));
        }
        let others = state.last_heartbeats.keys();
        self.copy = Some(Copy {
            oldest: others
                .filter(|node| **node != self.me)
                .filter_map(|node| self.heard.last(node))
                .min(),
            state,
            at: now.mono,
        });
        self.tell_changes();
    }

    fn tell_changes(&mut self) {
        let (Some(membership), Some(copy)) = (&mut self.membership, &self.copy) else {
            return;
        };
        for change in membership.changes(&copy.state, &self.me, &self.settings) {
            if change == ParticipantChange::Dropped {
                self.membership = None;
            }
            self.outbox.push(Output::Changed(change));
        }
    }

    fn is_active(&self) -> bool {
        self.membership.is_some() || !matches!(self.task.request, Request::Idle)
    }

    /// `true` during a join before its deadline.
    fn joins_in_time(&self, now: Now) -> bool {
        let in_time = self.task.phase(now.mono) == JoinPhase::InTime;
        in_time && matches!(self.task.request, Request::Join { .. })
    }

    /// Executes the next step that is due, and sets the time of the one after it.
    fn proceed(&mut self, now: Now) {
        // A heartbeat may follow an answer, so there is a second pass.
        for _ in 0..2 {
            self.wake = None;
            if self.asked.is_some() || !self.is_active() {
                return;
            }
            if let Some(pause) = self.pause {
                if now.mono < pause {
                    self.wake = Some(pause);
                    return;
                }
                self.pause = None;
            }
            if self.must_read(now) {
                self.ask(now, None, Output::Read);
                return;
            }
            self.act(now);
            if self.asked.is_some() || !self.is_active() {
                return;
            }
            self.wake = self.pause.or_else(|| self.next_wake(now));
            if self.wake.is_none_or(|wake| wake > now.mono) {
                return;
            }
        }
    }

    fn ask(&mut self, now: Now, beat: Option<Wall>, what: Output) {
        self.pace.asked(now.mono);
        self.changed = false;
        self.outdated = false;
        self.asked = Some(Asked {
            beat: beat.map(|wall| (wall, now.mono)),
            gone: std::mem::take(&mut self.gone.unread),
        });
        self.outbox.push(what);
    }

    /// Applies decisions to the copy, then writes it or answers the request.
    fn act(&mut self, now: Now) {
        let Some(copy) = self.copy.take() else {
            return;
        };
        let mut draft: Option<RendezvousState> = None;
        let mut first = None;
        let mut last = Action::Wait;
        for _ in 0..CHAIN {
            let state = draft.as_ref().unwrap_or(&copy.state);
            let Decision { action, reason } = self.decide(state, draft.is_some(), now);
            self.reason = Some(reason);
            last = action;
            if !action.is_change() {
                break;
            }
            first = first.or(Some(action));
            if action == Action::RemoveFromRedundancyList
                && let Request::Join { joined, .. } = &mut self.task.request
            {
                *joined = None;
                self.task.deadline = now.mono + self.settings.join_timeout;
            }
            let state = draft.get_or_insert_with(|| copy.state.clone());
            apply(state, &self.me, &self.settings, action, now.wall);
        }
        let step = first.map(|action| (copy.state.round, copy.state.complete, action));
        let writers = copy.state.participants.len() + copy.state.wait_list.len();
        self.copy = Some(copy);
        match (draft, step) {
            (Some(draft), Some(step)) => {
                // An agent that leaves permanently or stops waiting is usually the only one.
                let with_others = self.joins_in_time(now) && is_done_by_many(step.2);
                if with_others && self.placed != Some(step) {
                    self.placed = Some(step);
                    if let Some(pause) = self.pace.pause_before_write(writers) {
                        self.pause_for(now, pause);
                        return;
                    }
                }
                self.write(now, draft);
            }
            _ => self.conclude(now, last),
        }
    }

    fn write(&mut self, now: Now, mut state: RendezvousState) {
        let beat = is_listed(&state, &self.me).then_some(now.wall);
        if let Some(wall) = beat {
            let (me, settings) = (&self.me, &self.settings);
            apply(&mut state, me, settings, Action::KeepAlive, wall);
        }
        self.ask(now, beat, Output::Write(Box::new(state)));
    }

    /// Returns the next decision; `drafted` marks a `state` with unwritten changes.
    fn decide(&mut self, state: &RendezvousState, drafted: bool, now: Now) -> Decision {
        let phase = self.task.phase(now.mono);
        let moment = Moment {
            wall: now.wall,
            last_call_over: self.last_call_end(state).is_some_and(|end| end <= now.mono),
            phase,
            all_here: self.expected.are_here(state, now.mono),
        };
        let (me, settings) = (&self.me, &self.settings);
        let decision = match &mut self.task.request {
            Request::Idle => decide::keep_alive(state, me, settings, now.wall),
            Request::Leave => return decide::leave(state, me, moment),
            Request::Close => return decide::close(state, moment),
            Request::Join {
                first_round,
                joined,
            } => {
                if phase != JoinPhase::InTime && joined.is_none() {
                    *joined = Some(who_came(state));
                }
                let in_round = state.complete && state.participants.contains_key(me);
                let first = *first_round.get_or_insert(state.round + u64::from(in_round));
                let exit = decide::exit(state, me, moment);
                let must_leave = state.complete && state.round < first && !state.closed;
                if must_leave && exit.action != Action::Finish {
                    exit
                } else {
                    decide::join(state, me, settings, moment)
                }
            }
        };
        // The heartbeat is on time even if the wall clock was set back. One write needs only one.
        let idle = decision.action == Action::Wait || matches!(self.task.request, Request::Idle);
        if idle && !drafted && self.next_beat(state).is_some_and(|at| at <= now.mono) {
            return Action::KeepAlive.because(decide::HEARTBEAT_DUE);
        }
        decision
    }

    fn conclude(&mut self, now: Now, action: Action) {
        let elapsed = now.mono.since(self.task.since);
        match (action, &mut self.task.request) {
            (Action::Finish, Request::Join { .. }) => self.joined(),
            (Action::Finish, Request::Leave) => self.answer(Output::Left),
            (Action::Finish, Request::Close) => self.answer(Output::Closed),
            (Action::Fail(Ending::Closed), _) => self.fail(ParticipantFailure::Closed),
            (Action::Fail(Ending::NotNeeded), _) => self.fail(ParticipantFailure::NotNeeded),
            (Action::Fail(Ending::Timeout), Request::Join { joined, .. }) => {
                let joined = joined.take().unwrap_or_default();
                self.fail(ParticipantFailure::JoinTimeout { joined, elapsed });
            }
            (Action::Fail(Ending::Timeout), Request::Leave | Request::Close) => {
                self.fail(ParticipantFailure::WriteTimeout { elapsed });
            }
            _ => {}
        }
    }

    fn answer(&mut self, output: Output) {
        self.task.request = Request::Idle;
        self.outbox.push(output);
    }

    fn fail(&mut self, failure: ParticipantFailure) {
        self.answer(Output::Failed(failure));
    }

    fn joined(&mut self) {
        let Some(state) = self.copy.as_ref().map(|copy| &copy.state) else {
            return;
        };
        let formed = Formed {
            round: state.round,
            rank: state.participants.get(&self.me).copied().unwrap_or(0),
            participants: ranks::in_order(&state.participants),
        };
        self.membership = Some(Membership::new(formed.clone()));
        self.pace.joined();
        self.answer(Output::Joined(formed));
        self.tell_changes();
    }
}

/// Returns the participants, or the waiting nodes once the round is complete.
fn who_came(state: &RendezvousState) -> Vec<NodeDesc> {
    if state.complete {
        state.wait_list.iter().cloned().collect()
    } else {
        state.participants.keys().cloned().collect()
    }
}

/// `true` if all other nodes are likely to do the same now.
fn is_done_by_many(action: Action) -> bool {
    matches!(
        action,
        Action::AddToParticipants
            | Action::AddToWaitList
            | Action::RemoveFromParticipants
            | Action::RemoveFromRedundancyList
            | Action::MarkComplete
    )
}

impl Machine for Participant {
    type Input<'a> = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        self.outbox.assert_drained();
        match input {
            Input::Join => self.join(now),
            Input::Leave => self.end(now, Request::Leave),
            Input::Close => self.end(now, Request::Close),
            Input::Read(state) => self.adopt(now, state),
            Input::Written { state, won } => {
                self.adopt(now, state);
                if won {
                    self.pace.won();
                } else {
                    // The answer replaces a read if few agents write, or if the write is urgent.
                    let outdated = self.outdated;
                    let urgent = self.is_beat_late(now.mono);
                    let pause = self.pace.lost(urgent);
                    self.pause_for(now, pause);
                    self.outdated = outdated || (self.pace.is_crowded() && !urgent);
                }
            }
            Input::Changed => {
                self.changed = true;
                if self.only_reads_sooner(now) {
                    return;
                }
            }
            Input::Gone(nodes) => {
                self.gone.unread.extend(nodes);
                self.outdated = true;
            }
            Input::Tick => {}
        }
        self.proceed(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        self.wake
    }
}
