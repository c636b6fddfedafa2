//! One agent of a client, from its first join in one run until its end.

use std::time::Duration;

use rdzv_core::time::{Mono, earliest};
use rdzv_rendezvous_proto::coordinator::wire::{AgentRefusal, Program};
use rdzv_rendezvous_proto::native_client::{
    Input, NativeClient, NativeFailure, Output, RoundChange,
};
use rdzv_rendezvous_proto::{NodeDesc, Settings};

use super::LATE;
use super::recorder::Recorder;
use crate::crowd::connected::{Connected, Crowd};

/// State of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// The agent waits for a round.
    Joining,
    /// The agent holds this round; `true` if the round may outlive its coordinator.
    Holding(u64, bool),
    /// The workers of the agent have succeeded in this round.
    Succeeding(u64),
    /// The workers of all agents have succeeded.
    Succeeded,
    /// The round is over.
    Over,
    Leaving,
    Closing,
    /// The run refused the agent, but has not ended.
    Refused,
    /// The run is over.
    Closed,
    /// The agent is no longer part of the run.
    Gone,
}

/// An agent of a client.
pub(super) struct Agent {
    connected: Connected,
    run: String,
    number: u64,
    pub(super) doing: Doing,
    asks: bool,
    /// Time since which the agent has no connection.
    away_since: Option<Mono>,
    is_late: bool,
}

impl Agent {
    /// Creates an agent and starts its join.
    pub(super) fn begin(
        token: u64,
        endpoints: &[String],
        run: String,
        settings: Settings,
        crowd: &mut Crowd,
        recorder: &mut Recorder,
    ) -> Self {
        let number = recorder.another();
        let node = NodeDesc::new(format!("client-{number:07}"), 1);
        // Only agents that report their program can return to a coordinator.
        let program = Program::new("train.py", b"", true);
        let client = NativeClient::new(crowd.now(), number, &run, node, settings)
            .running(Some(program))
            .among_voters();
        let mut agent = Self {
            connected: Connected::new(token, endpoints, client),
            run,
            number,
            doing: Doing::Joining,
            asks: false,
            away_since: None,
            is_late: false,
        };
        agent.connected.begin(crowd);
        agent.join(crowd, recorder);
        agent
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let late = self.away_since.filter(|_| !self.is_late);
        let late = late.map(|since| since + LATE);
        let connected = self.connected.deadline();
        earliest([connected, late])
    }

    pub(super) fn join(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        self.doing = Doing::Joining;
        self.write(crowd, recorder, "joins");
        let join = Input::Join {
            role: "default",
            local_world_size: 1,
            lost: &[],
        };
        self.handle(crowd, recorder, join);
    }

    pub(super) fn leave(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        self.doing = Doing::Leaving;
        self.write(crowd, recorder, "leaves");
        self.handle(crowd, recorder, Input::Leave);
    }

    pub(super) fn close(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        self.doing = Doing::Closing;
        self.write(crowd, recorder, "closes");
        self.handle(crowd, recorder, Input::Close);
    }

    pub(super) fn succeed(&mut self, round: u64, crowd: &mut Crowd, recorder: &mut Recorder) {
        self.doing = Doing::Succeeding(round);
        self.write(crowd, recorder, &format!("succeeds {round}"));
        self.handle(crowd, recorder, Input::Succeeded(round));
    }

    /// Asks for the status of the run, if the agent has a connection.
    /// Without a connection, the state machine itself would answer.
    pub(super) fn ask(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        if self.connected.is_up() && !self.is_over() {
            self.asks = true;
            self.write(crowd, recorder, "asks");
            self.handle(crowd, recorder, Input::Ask);
        }
    }

    /// `true` if the state machine knows that the run is over.
    /// It would then answer a question itself.
    fn is_over(&self) -> bool {
        matches!(self.doing, Doing::Closed)
    }

    pub(super) fn tick(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        self.connected.tick(crowd);
        self.look(crowd, recorder);
        let now = crowd.now().mono;
        if self.away_since.is_some_and(|since| since + LATE <= now) {
            self.may_be_lost(crowd, recorder);
        }
    }

    pub(super) fn ready(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        self.connected.ready(crowd);
        self.look(crowd, recorder);
    }

    /// Records that the others may regard the agent as lost, because it was silent.
    pub(super) fn may_be_lost(&mut self, crowd: &Crowd, recorder: &mut Recorder) {
        if !std::mem::replace(&mut self.is_late, true) {
            self.write(crowd, recorder, "may-be-lost");
        }
    }

    fn write(&self, crowd: &Crowd, recorder: &mut Recorder, event: &str) {
        recorder.write(crowd, &self.run, self.number, event);
    }

    fn handle(&mut self, crowd: &mut Crowd, recorder: &mut Recorder, input: Input<'_>) {
        self.connected.handle(crowd, input);
        self.look(crowd, recorder);
    }

    /// Records the outputs of the state machine.
    fn look(&mut self, crowd: &mut Crowd, recorder: &mut Recorder) {
        while let Some(output) = self.connected.heard.pop_front() {
            self.heard(crowd, recorder, output);
        }
        let is_up = self.connected.is_up();
        if self.doing == Doing::Leaving && (!is_up || !self.connected.client.is_leaving()) {
            if is_up {
                self.write(crowd, recorder, "left");
            }
            self.doing = Doing::Gone;
        }
        self.away_since = if is_up {
            None
        } else {
            self.away_since.or(Some(crowd.now().mono))
        };
    }

    fn heard(&mut self, crowd: &mut Crowd, recorder: &mut Recorder, output: Output) {
        match output {
            Output::Lead { round } => self.connected.publish(crowd, round),
            Output::Joined(joined) => {
                let (round, rank, size) = (joined.round, joined.rank, joined.world_size);
                self.doing = Doing::Holding(round, joined.is_recoverable);
                self.write(crowd, recorder, &format!("joined {round} {rank} {size}"));
            }
            Output::NotJoined(NativeFailure::Refused(
                AgentRefusal::Closed | AgentRefusal::NotNeeded,
            )) => {
                self.write(crowd, recorder, "refused closed");
                // An agent that is closing the run gets this refusal too.
                if self.doing != Doing::Closing {
                    self.doing = Doing::Closed;
                }
            }
            Output::NotJoined(_) => {
                self.write(crowd, recorder, "refused other");
                if self.doing != Doing::Closing {
                    self.doing = Doing::Refused;
                }
            }
            Output::Changed(RoundChange::Membership { round, .. }) => {
                self.write(crowd, recorder, &format!("over {round}"));
                if !matches!(self.doing, Doing::Closing | Doing::Leaving) {
                    self.doing = Doing::Over;
                }
            }
            Output::Changed(RoundChange::Closed) | Output::Closed => {
                self.write(crowd, recorder, "closed");
                self.doing = Doing::Closed;
            }
            Output::Changed(RoundChange::Lost { .. }) | Output::NotClosed(_) => {
                self.doing = Doing::Gone;
            }
            Output::AllSucceeded(round) => {
                self.write(crowd, recorder, &format!("all-succeeded {round}"));
                if self.doing == Doing::Succeeding(round) {
                    self.doing = Doing::Succeeded;
                }
            }
            Output::Status { closed, .. } => {
                // Without a connection, the status is what the state machine knew before.
                if std::mem::take(&mut self.asks) && self.connected.is_up() {
                    let status = if closed { "closed" } else { "open" };
                    self.write(crowd, recorder, &format!("status {status}"));
                }
            }
            Output::Dial
            | Output::HangUp
            | Output::Send(_)
            | Output::Watch(_)
            | Output::Search
            | Output::Voters(_)
            | Output::Undecided(_)
            | Output::Waiting { .. }
            | Output::AwaitingMaster { .. }
            | Output::Lease { .. }
            | Output::Missing(_)
            | Output::LossesKnownWithin(_)
            | Output::Reports { .. }
            | Output::Changed(RoundChange::PeerFailed { .. }) => {}
        }
    }
}

/// Creates the settings of a run, which are the same for all its agents.
pub(super) fn settings(random: &mut fastrand::Rng, most: u32) -> Settings {
    let min = random.u32(1..=most);
    let mut settings = Settings::new(min, random.u32(min..=most));
    settings.last_call_timeout = Duration::from_millis(random.u64(100..1_000));
    settings
}
