//! A client: one agent after another, in one run of its group after another.

use std::time::Duration;

use fastrand::Rng;
use rdzv_core::time::Mono;
use rdzv_rendezvous_proto::Settings;

use super::GROUP;
use super::agent::{Agent, Doing, settings};
use super::recorder::Recorder;
use crate::crowd::connected::Crowd;

/// Number of the last runs of a group that a client may visit after their end.
const LOOKED_BACK: u64 = 20;

/// Maximum number of runs that a group closes.
/// A coordinator remembers 1,024 unused runs, and there may be 40 groups.
const MOST_RUNS: u64 = 24;

/// Time after which the client abandons a visit, a success, a leave or a close.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// A client in a group.
pub(super) struct Client {
    token: u64,
    group: usize,
    endpoints: Vec<String>,
    /// Current run of the group.
    run: u64,
    agent: Option<Agent>,
    /// `true` if the agent visits a run that is over.
    visits: bool,
    /// Time of the next action, and the state when that time was chosen.
    acts_at: Mono,
    was: Doing,
}

impl Client {
    pub(super) fn new(token: u64, group: usize, endpoints: &[String], now: Mono) -> Self {
        Self {
            token,
            group,
            endpoints: endpoints.to_vec(),
            run: 0,
            agent: None,
            visits: false,
            acts_at: now,
            was: Doing::Gone,
        }
    }

    pub(super) fn deadline(&self) -> Mono {
        let agent = self.agent.as_ref().and_then(Agent::deadline);
        agent.map_or(self.acts_at, |at| at.min(self.acts_at))
    }

    /// Handles a long pause of this process.
    pub(super) fn is_late(&mut self, crowd: &Crowd, recorder: &mut Recorder) {
        if let Some(agent) = &mut self.agent {
            agent.may_be_lost(crowd, recorder);
        }
    }

    pub(super) fn ready(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        if let Some(agent) = &mut self.agent {
            agent.ready(crowd, recorder);
        }
        self.plan(crowd, recorder);
    }

    pub(super) fn tick(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        if let Some(agent) = &mut self.agent {
            agent.tick(crowd, recorder);
        }
        self.plan(crowd, recorder);
        if self.acts_at <= crowd.now().mono {
            self.act(crowd, recorder);
            self.was = self.doing();
            self.acts_at = crowd.now().mono + self.pause(recorder);
        }
    }

    fn doing(&self) -> Doing {
        self.agent.as_ref().map_or(Doing::Gone, |agent| agent.doing)
    }

    /// Chooses the time of the next action if the state has changed.
    fn plan(&mut self, crowd: &Crowd, recorder: &mut Recorder) {
        if self.doing() != self.was {
            self.was = self.doing();
            self.acts_at = crowd.now().mono + self.pause(recorder);
        }
    }

    fn pause(&self, recorder: &mut Recorder) -> Duration {
        match self.doing() {
            Doing::Joining if !self.visits => {
                Duration::from_millis(recorder.random.u64(1_000..5_000))
            }
            Doing::Joining | Doing::Leaving | Doing::Closing | Doing::Succeeding(_) => LONGEST_WAIT,
            Doing::Holding(..) => Duration::from_millis(recorder.random.u64(20..3_000)),
            _ => Duration::from_millis(recorder.random.u64(1..500)),
        }
    }

    fn act(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        let draw = recorder.random.u32(0..100);
        let closes = self.run < MOST_RUNS && recorder.random.u32(0..6) == 0;
        let doing = self.doing();
        let Some(agent) = &mut self.agent else {
            return self.enter(crowd, recorder);
        };
        match doing {
            Doing::Joining if self.visits => self.agent = None,
            Doing::Joining => match draw {
                0..60 => {}
                60..80 => agent.leave(crowd, recorder),
                95.. if closes => agent.close(crowd, recorder),
                _ => agent.ask(crowd, recorder),
            },
            Doing::Holding(round, true) if is_last(self.group, self.run, round) => {
                agent.succeed(round, crowd, recorder);
            }
            Doing::Holding(round, is_recoverable) => match draw {
                0..45 => agent.join(crowd, recorder),
                45..60 => agent.leave(crowd, recorder),
                60..70 if is_recoverable => agent.succeed(round, crowd, recorder),
                95.. if closes => agent.close(crowd, recorder),
                _ => agent.ask(crowd, recorder),
            },
            Doing::Succeeded => match draw {
                0..30 if closes => agent.close(crowd, recorder),
                0..60 => agent.leave(crowd, recorder),
                _ => agent.join(crowd, recorder),
            },
            Doing::Succeeding(_) | Doing::Over => agent.join(crowd, recorder),
            // The visit is over: the client returns to the current run of its group.
            Doing::Closed if draw < 50 && self.visits => {
                self.agent = None;
                self.visits = false;
            }
            Doing::Closed => {
                self.agent = None;
                if !self.visits {
                    self.run += 1;
                }
                self.visits = draw < 75;
                if self.visits {
                    self.visit(crowd, recorder);
                }
            }
            Doing::Refused | Doing::Gone | Doing::Leaving | Doing::Closing => {
                self.agent = None;
                self.visits = false;
            }
        }
    }

    /// Joins the current run of the group.
    fn enter(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        self.visits = false;
        let mut drawn = Rng::with_seed((self.group as u64) << 32 | self.run);
        let settings = settings(&mut drawn, GROUP as u32);
        self.begin(self.run, settings, crowd, recorder);
    }

    /// Joins a run that is over, alone: the run refuses the agent.
    fn visit(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        let back = recorder.random.u64(1..=LOOKED_BACK.min(self.run));
        self.begin(self.run - back, Settings::new(1, 1), crowd, recorder);
    }

    fn begin(&mut self, run: u64, settings: Settings, crowd: &mut Crowd, recorder: &mut Recorder) {
        let run = format!("run-{}-{run}", self.group);
        let endpoints = &self.endpoints;
        let agent = Agent::begin(self.token, endpoints, run, settings, crowd, recorder);
        self.agent = Some(agent);
    }
}

/// `true` if the workers of all agents succeed in this round.
fn is_last(group: usize, run: u64, round: u64) -> bool {
    Rng::with_seed((group as u64) << 40 ^ run << 8 ^ round).u32(0..4) == 0
}
