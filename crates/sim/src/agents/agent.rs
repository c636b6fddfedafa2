//! One agent, around its machine.

use std::time::Duration;

use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::coordinator::wire::Program;
use rdzv_rendezvous_proto::native_client::{self, NativeClient};
use rdzv_rendezvous_proto::{NodeDesc, Participant, RendezvousState, participant};

use super::plan::{Medium, Plan};
use crate::scheduler::due;

/// Endpoint of the coordinator.
pub const ADDRESS: &str = "10.0.0.1:29400";

/// Returns the endpoint of the agent's end of a connection.
pub fn peer_address(connection: u32) -> String {
    format!("10.0.1.1:{connection}")
}

/// Activity of an agent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Doing {
    /// The process does not run, or it leaves or has ended.
    #[default]
    Nothing,
    /// The agent waits for a round.
    Joining,
    /// The workers run in this round.
    Working(u64),
    /// The agent stops its workers, and joins again afterwards.
    Stopping,
}

/// Machine of an agent.
#[derive(Debug)]
pub enum Make {
    /// Machine that uses the coordinator.
    Native(Box<NativeClient>),
    /// Machine that uses only the state in the store.
    Stock(Box<Participant>),
}

/// Input of an agent's machine.
#[derive(Debug)]
pub enum Input<'a> {
    /// Input of a native agent.
    Native(native_client::Input<'a>),
    /// Input of a torchrun agent.
    Stock(participant::Input),
    /// Join; for both kinds of agents.
    Join,
    /// Leave; for both kinds of agents.
    Leave,
    /// Close the run; for both kinds of agents.
    Close,
    /// Tick; for both kinds of agents.
    Tick,
}

/// Output of an agent's machine.
#[derive(Debug)]
pub enum Output {
    /// Output of a native agent.
    Native(native_client::Output),
    /// Output of a torchrun agent.
    Stock(participant::Output),
}

/// One agent.
#[derive(Debug, Default)]
pub struct Agent {
    /// Identity of the agent; the process id changes with every start.
    pub me: NodeDesc,
    /// Current activity.
    pub doing: Doing,
    /// Round in which its workers have succeeded, and thus ended.
    pub succeeded: Option<u64>,
    /// `true` if the agent ends in any case.
    pub finishes: bool,
    /// `true` if the agent should participate.
    pub wanted: bool,
    /// `true` if its round outlives its coordinator.
    pub is_recoverable: bool,
    /// Number that distinguishes its process from others at the coordinator.
    pub instance: u64,
    /// Instances of earlier processes that its keeper has replaced.
    pub predecessors: Vec<u64>,
    /// `true` if its process has been in a round and can report it.
    pub knows: bool,
    /// Machine of the agent; `None` if its process does not run.
    pub machine: Option<Make>,
    /// Number that distinguishes its successive processes.
    pub process: u64,
    /// Connection of the agent; `None` if it has none.
    pub connection: Option<u32>,
    /// Time until which the agent is stopped.
    pub stall_end: u64,
    /// Time until which the agent has no network.
    pub cut_end: u64,
    /// Offset of its wall clock, in microseconds ahead.
    pub skew: i64,
    /// Version of the state that the agent saw last.
    pub version: u64,
    /// Number of its last question; answers to earlier questions are ignored.
    pub asked: u64,
    /// `true` if the unanswered question is a write.
    pub writing: bool,
    /// `true` if it is an agent of `torchrun`.
    pub is_stock: bool,
    /// Time that the agent takes to stop its workers.
    pub stop_takes: Duration,
}

impl Agent {
    /// Creates an agent whose process does not run yet.
    pub fn new(number: usize, plan: &Plan, instance: u64, stop_takes: Duration) -> Self {
        Self {
            me: NodeDesc {
                addr: format!("node{number:05}"),
                ..NodeDesc::default()
            },
            instance,
            skew: (plan.skew[number] * 1e6) as i64,
            is_stock: plan.torchrun[number],
            stop_takes,
            ..Self::default()
        }
    }

    /// Starts the process of the agent.
    ///
    /// A native agent then connects, and `from` is its end of that connection.
    pub fn start(&mut self, now: Now, plan: &Plan, seed: u64, from: String) {
        self.process += 1;
        self.me.pid += 1;
        self.doing = Doing::Joining;
        self.finishes = false;
        self.version = 0;
        let settings = plan.settings;
        self.machine = Some(if self.is_stock {
            let participant = Participant::new(self.me.clone(), settings, seed);
            Make::Stock(Box::new(if plan.notifies {
                participant
            } else {
                participant.polling(Duration::from_secs(1))
            }))
        } else {
            let (me, instance) = (self.me.clone(), self.instance);
            let client = NativeClient::new(now, instance, "run", me, settings)
                .replacing(self.predecessors.clone())
                .at(ADDRESS.to_owned())
                .from(Some(from))
                .with_rules(plan.rules);
            // Only agents that report their program can reattach to a coordinator.
            let program = Program::new("train.py", b"", true);
            let says = plan.medium == Medium::Restartable;
            Make::Native(Box::new(client.running(says.then_some(program))))
        });
    }

    /// Ends the process immediately; the next process has this instance number.
    pub fn stop(&mut self, instance: u64) {
        self.process += 1;
        self.instance = instance;
        self.predecessors.clear();
        self.knows = false;
        self.doing = Doing::Nothing;
        self.machine = None;
    }

    /// Returns the time at which its machine wants the next call.
    pub fn deadline(&self) -> Option<u64> {
        let deadline = match self.machine.as_ref()? {
            Make::Native(client) => client.deadline(),
            Make::Stock(participant) => participant.deadline(),
        };
        due(deadline)
    }

    /// Returns the state that a torchrun agent has read; `None` if native.
    pub fn state(&self) -> Option<&RendezvousState> {
        match self.machine.as_ref()? {
            Make::Native(_) => None,
            Make::Stock(participant) => participant.state(),
        }
    }

    /// Returns the reason of the machine's last decision, for traces.
    pub fn reason(&self) -> &'static str {
        match &self.machine {
            Some(Make::Stock(participant)) => participant.reason().unwrap_or_default(),
            _ => "",
        }
    }

    /// Passes an input to the machine, and returns the outputs.
    pub fn handle(&mut self, now: Now, input: Input<'_>) -> Vec<Output> {
        match &mut self.machine {
            None => Vec::new(),
            Some(Make::Native(client)) => {
                client.handle(
                    now,
                    match input {
                        Input::Native(input) => input,
                        Input::Join => native_client::Input::Join {
                            role: "default",
                            local_world_size: 2,
                            lost: &[],
                        },
                        Input::Leave => native_client::Input::Leave,
                        Input::Close => native_client::Input::Close,
                        Input::Tick | Input::Stock(_) => native_client::Input::Tick,
                    },
                );
                let outputs = std::iter::from_fn(|| client.poll_output());
                outputs.map(Output::Native).collect()
            }
            Some(Make::Stock(participant)) => {
                participant.handle(
                    now,
                    match input {
                        Input::Stock(input) => input,
                        Input::Join => participant::Input::Join,
                        Input::Leave => participant::Input::Leave,
                        Input::Close => participant::Input::Close,
                        Input::Tick | Input::Native(_) => participant::Input::Tick,
                    },
                );
                let outputs = std::iter::from_fn(|| participant.poll_output());
                outputs.map(Output::Stock).collect()
            }
        }
    }

    /// Ends the activity of the agent, which is no longer wanted.
    pub fn end(&mut self) {
        self.wanted = false;
        self.doing = Doing::Nothing;
    }

    /// `true` if the agent has workers that may be restarted.
    pub fn has_workers(&self) -> bool {
        matches!(self.doing, Doing::Working(_)) && !self.finishes
    }

    /// `true` if the agent is in this round and its workers have succeeded there.
    pub fn has_succeeded(&self, round: u64) -> bool {
        self.doing == Doing::Working(round) && self.succeeded == Some(round)
    }
}
