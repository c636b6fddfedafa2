//! One of the agents that hold a round.

use rdzv_core::time::{Mono, Now, earliest};
use rdzv_rendezvous_proto::native_client::{Input, NativeClient, Output};
use rdzv_rendezvous_proto::{NodeDesc, Settings};

use crate::crowd::connected::{Connected, Crowd};

/// An agent that holds a round.
pub(super) struct Agent {
    number: u32,
    connected: Connected,
    lease: Option<Mono>,
    is_expired: bool,
    /// Round that the agent holds.
    pub(super) round: Option<u64>,
}

impl Agent {
    pub(super) fn new(
        number: u32,
        endpoints: &[String],
        run_id: &str,
        settings: Settings,
        now: Now,
    ) -> Self {
        let node = NodeDesc::new(format!("node-{number:05}"), 1);
        let instance = u64::from(number) + 1;
        let client = NativeClient::new(now, instance, run_id, node, settings);
        Self {
            number,
            connected: Connected::new(u64::from(number), endpoints, client),
            lease: None,
            is_expired: false,
            round: None,
        }
    }

    /// `true` if the workers of the agent would be suspended.
    pub(super) fn is_fenced(&self) -> bool {
        self.is_expired
    }

    /// `true` if no coordinator has answered over the current connection.
    pub(super) fn is_away(&self) -> bool {
        self.connected.is_away
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let lease = self.lease.filter(|_| !self.is_expired);
        let connected = self.connected.deadline();
        earliest([connected, lease])
    }

    /// Connects for the first time, and joins.
    pub(super) fn begin(&mut self, crowd: &mut Crowd) {
        self.connected.begin(crowd);
        self.join_again(crowd);
    }

    pub(super) fn join_again(&mut self, crowd: &mut Crowd) {
        self.join(crowd);
        self.look(crowd);
    }

    fn join(&mut self, crowd: &mut Crowd) {
        (self.round, self.lease, self.is_expired) = (None, None, false);
        let join = Input::Join {
            role: "default",
            local_world_size: 1,
            lost: &[],
        };
        self.connected.handle(crowd, join);
    }

    pub(super) fn tick(&mut self, crowd: &mut Crowd) {
        let now = crowd.now().mono;
        self.is_expired = self.lease.is_some_and(|deadline| deadline <= now);
        self.connected.tick(crowd);
        self.look(crowd);
    }

    /// Handles an event of the socket.
    pub(super) fn ready(&mut self, crowd: &mut Crowd) {
        self.connected.ready(crowd);
        self.look(crowd);
    }

    /// Handles the outputs of the state machine.
    fn look(&mut self, crowd: &mut Crowd) {
        while let Some(output) = self.connected.heard.pop_front() {
            match output {
                Output::Lead { round } => self.connected.publish(crowd, round),
                Output::Joined(joined) => self.round = Some(joined.round),
                Output::Lease { ends, .. } => {
                    self.lease = ends.max(self.lease.filter(|_| ends.is_some()));
                    self.is_expired = false;
                }
                Output::Changed(_) => self.join(crowd),
                // One agent reports it for all.
                Output::NotJoined(failure) if self.number == 0 => {
                    eprintln!("agent 0 did not join: {failure:?}");
                }
                _ => {}
            }
        }
    }
}
