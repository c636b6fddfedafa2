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
use super::{Change, Failure, Formed, Input, Output};

mod schedule;

/// Most decisions that go into one write. More than three do not follow from one another.
const CHAIN: usize = 8;

/// One agent's part in a rendezvous. The drawing is in [the module](super).
#[derive(Debug)]
pub struct Participant {
    me: NodeDesc,
    settings: Settings,
    /// How often to ask a store that cannot tell of changes.
    poll: Option<Duration>,
    pace: Pace,
    task: Task,
    membership: Option<Membership>,
    expected: Expected,
    /// The state as last seen, without the nodes that are lost.
    copy: Option<Copy>,
    /// Whether the store has said since the copy was asked for that it changed.
    changed: bool,
    /// Whether the copy must not be used without asking again.
    outdated: bool,
    /// What was asked and is not answered yet.
    asked: Option<Asked>,
    /// Nothing is asked or written before this time.
    pause: Option<Mono>,
    /// The step for which a random place among many writers was taken.
    placed: Option<(u64, bool, Action)>,
    /// When the heartbeat in the state was written.
    beaten: Option<Mono>,
    gone: Gone,
    heard: Heard,
    /// The end of a last call that was seen in the state, and when it is over by our clock.
    last_call: Option<(Wall, Mono)>,
    reason: Option<&'static str>,
    wake: Option<Mono>,
    outbox: Outbox<Output>,
}

#[derive(Debug)]
struct Copy {
    state: RendezvousState,
    /// When that other node was heard of which has not been heard of for longest.
    oldest: Option<Mono>,
    at: Mono,
}

/// What was asked of the store.
#[derive(Debug)]
struct Asked {
    /// The heartbeat that was written, if one was.
    beat: Option<(Wall, Mono)>,
    /// Nodes that were known to be gone before.
    gone: Vec<NodeDesc>,
}

impl Participant {
    /// An agent that does not take part yet; `seed` decides its random pauses. The store is expected
    /// to tell of changes ([`Input::Changed`]); if it cannot, see [`Participant::polling`].
    pub fn new(me: NodeDesc, settings: Settings, seed: u64) -> Self {
        Self {
            me,
            settings,
            poll: None,
            pace: Pace::new(seed, settings.cas_backoff_max),
            task: Task {
                request: Request::Idle,
                since: Mono::ZERO,
                until: Mono::ZERO,
            },
            membership: None,
            expected: Expected::default(),
            copy: None,
            changed: false,
            outdated: false,
            asked: None,
            pause: None,
            placed: None,
            beaten: None,
            gone: Gone::default(),
            heard: Heard::default(),
            last_call: None,
            reason: None,
            wake: None,
            outbox: Outbox::default(),
        }
    }

    /// Reads the state at least so often, because the store cannot tell of changes; more often while a
    /// round is awaited with few nodes.
    pub fn polling(mut self, interval: Duration) -> Self {
        self.poll = Some(interval);
        self
    }

    /// Why the last decision was made, for logs.
    pub fn reason(&self) -> Option<&'static str> {
        self.reason
    }

    /// The state as this node last saw it, without the nodes that are lost.
    pub fn state(&self) -> Option<&RendezvousState> {
        self.copy.as_ref().map(|copy| &copy.state)
    }

    fn begin(&mut self, now: Now, request: Request, time: Duration) {
        self.task = Task {
            request,
            since: now.mono,
            until: now.mono + time,
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

    /// The agent leaves, or ends the run.
    fn end(&mut self, now: Now, request: Request) {
        self.membership = None;
        self.begin(now, request, self.settings.close_timeout);
    }

    /// Does nothing for a while, and looks again before it does something.
    fn pause_for(&mut self, now: Now, pause: Duration) {
        let until = now.mono + pause;
        let phase = self.task.next_phase(now.mono);
        self.pause = Some(phase.map_or(until, |at| at.min(until)));
        self.outdated = true;
    }

    /// Takes in what the store holds.
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
            // Another store; what happened in the one before does not count.
            *first_round = None;
        }
        let was_listed = self.state().is_some_and(|old| is_listed(old, &self.me));
        if self.joins_in_time(now) && was_listed && !is_listed(&state, &self.me) {
            // The others count us as lost: their clocks are far from ours, or we stood still.
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
            if change == Change::Dropped {
                self.membership = None;
            }
            self.outbox.push(Output::Changed(change));
        }
    }

    fn is_active(&self) -> bool {
        self.membership.is_some() || !matches!(self.task.request, Request::Idle)
    }

    /// `true` if it joins, and its time is not over.
    fn joins_in_time(&self, now: Now) -> bool {
        let in_time = self.task.phase(now.mono) == JoinPhase::InTime;
        in_time && matches!(self.task.request, Request::Join { .. })
    }

    /// Asks, writes or answers whatever is due, and notes when to look again.
    fn proceed(&mut self, now: Now) {
        // A second time after an answer, which may be followed by a heartbeat.
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

    /// Decides on the copy until nothing more follows, then writes it or answers the request.
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
                self.task.until = now.mono + self.settings.join_timeout;
            }
            let state = draft.get_or_insert_with(|| copy.state.clone());
            apply(state, &self.me, &self.settings, action, now.wall);
        }
        let step = first.map(|action| (copy.state.round, copy.state.complete, action));
        let writers = copy.state.participants.len() + copy.state.wait_list.len();
        self.copy = Some(copy);
        match (draft, step) {
            (Some(draft), Some(step)) => {
                // Who leaves for good or gives up is alone with that.
                let with_others = self.joins_in_time(now) && is_done_by_many(step.2);
                if with_others && self.placed != Some(step) {
                    self.placed = Some(step);
                    if let Some(pause) = self.pace.place_among(writers) {
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

    /// `drafted`: whether `state` has been changed already and not been written yet.
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
        // On time even if the wall clock was set back; and once in one write.
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
            (Action::Fail(Ending::Closed), _) => self.answer(Output::Failed(Failure::Closed)),
            (Action::Fail(Ending::NotNeeded), _) => {
                self.answer(Output::Failed(Failure::NotNeeded));
            }
            (Action::Fail(Ending::Timeout), Request::Join { joined, .. }) => {
                let joined = joined.take().unwrap_or_default();
                let failure = Failure::JoinTimeout { joined, elapsed };
                self.answer(Output::Failed(failure));
            }
            (Action::Fail(Ending::Timeout), Request::Leave | Request::Close) => {
                self.answer(Output::Failed(Failure::WriteTimeout { elapsed }));
            }
            _ => {}
        }
    }

    fn answer(&mut self, output: Output) {
        self.task.request = Request::Idle;
        self.outbox.push(output);
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

/// Who had come: those who take part in the round that is forming, or else wait for the next.
fn who_came(state: &RendezvousState) -> Vec<NodeDesc> {
    if state.complete {
        state.wait_list.iter().cloned().collect()
    } else {
        state.participants.keys().cloned().collect()
    }
}

/// Whether all others are likely to do the same now.
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
                    // The answer is as good as a read, if few want to write or nothing is waited
                    // for.
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
