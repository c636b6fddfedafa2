//! One agent, around its machine.

use std::time::Duration;

use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::coordinator::wire::Program;
use rdzv_rendezvous_proto::native_client::{self, NativeClient};
use rdzv_rendezvous_proto::{NodeDesc, Participant, RendezvousState, participant};

use super::plan::{Place, Plan};
use crate::scheduler::due;

/// Where the coordinator is.
pub const ADDRESS: &str = "10.0.0.1:29400";

/// The place of the agent's end of a connection, as its machine says.
pub fn place(connection: u32) -> String {
    format!("10.0.1.1:{connection}")
}

/// What an agent is doing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Doing {
    /// Its process does not run, or it has ended with the run.
    Nothing,
    /// It waits for a round.
    Joining,
    /// Its workers run in this round.
    Working(u64),
    /// It stops its workers, to join again then.
    Stopping,
}

/// Its machine.
#[derive(Debug)]
pub enum Make {
    /// Speaks to the coordinator.
    Native(Box<NativeClient>),
    /// Knows only the key.
    Stock(Box<Participant>),
}

/// Something that happens to its machine.
#[derive(Debug)]
pub enum Input<'a> {
    /// To a native one.
    Native(native_client::Input<'a>),
    /// To a torchrun agent.
    Stock(participant::Input),
    /// To either.
    Join,
    /// To either.
    Leave,
    /// To either.
    Close,
    /// To either.
    Tick,
}

/// An output of its machine.
#[derive(Debug)]
pub enum Output {
    /// Of a native one.
    Native(native_client::Output),
    /// Of a torchrun agent.
    Stock(participant::Output),
}

/// One agent.
#[derive(Debug)]
pub struct Agent {
    /// Who it is: the process id changes with every start.
    pub me: NodeDesc,
    /// What it is doing.
    pub doing: Doing,
    /// The round in which its workers have ended, because they have succeeded.
    pub succeeded: Option<u64>,
    /// It ends, whatever happens.
    pub finishes: bool,
    /// Whether it shall take part.
    pub wanted: bool,
    /// Whether the round that it is in outlives its coordinator.
    pub is_recoverable: bool,
    /// The number by which the coordinator tells its process from others.
    pub instance: u64,
    /// Those of the processes in whose place its keeper has started it.
    pub predecessors: Vec<u64>,
    /// Whether its process has been in a round, and can tell of it.
    pub knows: bool,
    /// Its machine, if its process runs.
    pub machine: Option<Make>,
    /// Tells its processes apart.
    pub process: u64,
    /// Its connection, if it has one.
    pub connection: Option<u32>,
    /// Nothing happens in it before this time.
    pub stalled_until: u64,
    /// It has no network before this time.
    pub cut_until: u64,
    /// How far its wall clock is ahead, in microseconds.
    pub skew: i64,
    /// The version of the state that it saw last.
    pub version: u64,
    /// Numbers its questions; older answers are of no interest.
    pub asked: u64,
    /// Whether the question that waits for an answer is a write.
    pub writing: bool,
    torchrun: bool,
    /// How long it takes to stop its workers.
    pub stop_takes: Duration,
}

impl Agent {
    /// An agent whose process does not run yet.
    pub fn new(number: usize, plan: &Plan, instance: u64, stop_takes: Duration) -> Self {
        Self {
            me: NodeDesc {
                addr: format!("node{number:05}"),
                pid: 0,
                local_id: 0,
            },
            doing: Doing::Nothing,
            succeeded: None,
            finishes: false,
            wanted: false,
            is_recoverable: false,
            instance,
            predecessors: Vec::new(),
            knows: false,
            machine: None,
            process: 0,
            connection: None,
            stalled_until: 0,
            cut_until: 0,
            skew: (plan.skew[number] * 1e6) as i64,
            version: 0,
            asked: 0,
            writing: false,
            torchrun: plan.torchrun[number],
            stop_takes,
        }
    }

    /// Starts its process; a native one has a connection by now, whose own end is there.
    pub fn start(&mut self, now: Now, plan: &Plan, seed: u64, from: String) {
        self.process += 1;
        self.me.pid += 1;
        self.doing = Doing::Joining;
        self.finishes = false;
        self.version = 0;
        let settings = plan.settings;
        self.machine = Some(match self.torchrun {
            true => {
                let participant = Participant::new(self.me.clone(), settings, seed);
                Make::Stock(Box::new(match plan.notifies {
                    true => participant,
                    false => participant.polling(Duration::from_secs(1)),
                }))
            }
            false => {
                let (me, instance) = (self.me.clone(), self.instance);
                let client = NativeClient::new(now, instance, "run", me, settings)
                    .replacing(self.predecessors.clone())
                    .at(ADDRESS.to_owned())
                    .from(Some(from))
                    .with_rules(plan.rules);
                // Only agents that say their program can come back to a coordinator.
                let program = Program::new("train.py", b"", true);
                let says = plan.place == Place::Restartable;
                Make::Native(Box::new(client.running(says.then_some(program))))
            }
        });
    }

    /// Ends its process at once; the next one has this number.
    pub fn stop(&mut self, instance: u64) {
        self.process += 1;
        self.instance = instance;
        self.predecessors.clear();
        self.knows = false;
        self.doing = Doing::Nothing;
        self.machine = None;
    }

    /// Whether it is one that knows only the key.
    pub fn is_stock(&self) -> bool {
        self.torchrun
    }

    /// When its machine wants to be called again.
    pub fn deadline(&self) -> Option<u64> {
        let deadline = match self.machine.as_ref()? {
            Make::Native(client) => client.deadline(),
            Make::Stock(participant) => participant.deadline(),
        };
        due(deadline)
    }

    /// The state as it has read it, if it knows only that.
    pub fn state(&self) -> Option<&RendezvousState> {
        match self.machine.as_ref()? {
            Make::Native(_) => None,
            Make::Stock(participant) => participant.state(),
        }
    }

    /// Why its machine decided as it did, for traces.
    pub fn reason(&self) -> &'static str {
        match &self.machine {
            Some(Make::Stock(participant)) => participant.reason().unwrap_or_default(),
            _ => "",
        }
    }

    /// Hands something to its machine, and returns what that wants done.
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

    /// Its process ends with the run, or because nobody needs it.
    pub fn end(&mut self) {
        self.wanted = false;
        self.doing = Doing::Nothing;
    }

    /// Whether it has workers that may be started again.
    pub fn has_workers(&self) -> bool {
        matches!(self.doing, Doing::Working(_)) && !self.finishes
    }

    /// Whether its workers have ended in this round, which it is in, because they have succeeded.
    pub fn has_succeeded(&self, round: u64) -> bool {
        self.doing == Doing::Working(round) && self.succeeded == Some(round)
    }
}
