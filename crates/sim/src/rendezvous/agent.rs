//! One agent: its machine, its clock, and what it makes of what the machine says.

use std::time::Duration;

use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::participant::{Change, Failure, Formed, Input, Output};
use rdzv_rendezvous_proto::{NodeDesc, Participant, RendezvousState, Settings};

use crate::scheduler::due;

/// What an agent is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Doing {
    /// Its process does not run.
    Nothing,
    /// It waits for a round.
    Joining,
    /// Its workers run in this round.
    Working(Formed),
    /// It stops its workers, to join again then.
    Stopping,
    /// It is on its way out.
    Ending,
}

/// Something to be asked of the store.
#[derive(Debug, Clone)]
pub enum Ask {
    /// What it holds.
    Read,
    /// To hold this instead of the version last seen.
    Write(Box<RendezvousState>, u64),
}

/// What an agent wants from the world after something happened to it.
#[derive(Debug, Default)]
pub struct Actions {
    /// A question for the store.
    pub ask: Option<Ask>,
    /// To be woken after this time to join again.
    pub join_again: Option<Duration>,
    /// The round that it has joined.
    pub joined: Option<Formed>,
    /// Who is said to be lost.
    pub lost: Vec<NodeDesc>,
    /// Whether it was told that the others count it as lost.
    pub dropped: bool,
    /// Whether its time to join was over.
    pub timed_out: bool,
}

/// One agent.
#[derive(Debug)]
pub struct Agent {
    /// Who it is: the process id changes with every start.
    pub me: NodeDesc,
    /// What it is doing.
    pub doing: Doing,
    machine: Participant,
    /// How far its wall clock is ahead, in microseconds.
    pub skew: i64,
    /// Tells its processes apart.
    pub process: u64,
    /// Nothing happens in it before this time.
    pub stalled_until: u64,
    /// Nothing comes or goes before this time.
    pub cut_until: u64,
    /// The version of the state that it saw last.
    pub version: u64,
    /// Numbers its questions; older answers are of no interest.
    pub asked: u64,
    /// Whether the question under way is a write.
    pub writing: bool,
    /// Writes that it tried, and that won; reads.
    pub tried: u64,
    /// Writes that won.
    pub won: u64,
    /// Questions that are no writes.
    pub reads: u64,
    /// Whether it is told to stop before it has stopped its workers.
    stop_takes: Duration,
}

impl Agent {
    /// An agent whose process does not run yet.
    pub fn new(number: usize, settings: Settings, skew: f64, stop_takes: Duration) -> Self {
        let me = NodeDesc {
            addr: format!("node{number:04}"),
            pid: 0,
            local_id: 0,
        };
        Self {
            machine: Participant::new(me.clone(), settings, 0),
            me,
            doing: Doing::Nothing,
            skew: (skew * 1e6) as i64,
            process: 0,
            stalled_until: 0,
            cut_until: 0,
            version: 0,
            asked: 0,
            writing: false,
            tried: 0,
            won: 0,
            reads: 0,
            stop_takes,
        }
    }

    /// Starts its process. It joins at once.
    pub fn start(
        &mut self,
        now: Now,
        settings: Settings,
        poll: Option<Duration>,
        seed: u64,
    ) -> Actions {
        self.process += 1;
        self.me.pid += 1;
        self.version = 0;
        let machine = Participant::new(self.me.clone(), settings, seed);
        self.machine = match poll {
            Some(interval) => machine.polling(interval),
            None => machine,
        };
        self.doing = Doing::Joining;
        self.handle(now, Input::Join)
    }

    /// Ends its process at once.
    pub fn crash(&mut self) {
        self.process += 1;
        self.doing = Doing::Nothing;
    }

    /// When its machine wants to be called again.
    pub fn deadline(&self) -> Option<u64> {
        due(self.machine.deadline())
    }

    /// The state as it sees it.
    pub fn state(&self) -> Option<&RendezvousState> {
        self.machine.state()
    }

    /// Why its machine decided as it did, for traces.
    pub fn reason(&self) -> String {
        self.machine
            .reason()
            .map(|reason| reason.to_string())
            .unwrap_or_default()
    }

    /// Hands something to its machine and does what it says.
    pub fn handle(&mut self, now: Now, input: Input) -> Actions {
        self.machine.handle(now, input);
        let mut actions = Actions::default();
        while let Some(output) = self.machine.poll_output() {
            self.apply(output, &mut actions);
        }
        actions
    }

    fn apply(&mut self, output: Output, actions: &mut Actions) {
        match output {
            Output::Read => {
                self.reads += 1;
                actions.ask = Some(Ask::Read);
            }
            Output::Write(state) => {
                self.tried += 1;
                actions.ask = Some(Ask::Write(state, self.version));
            }
            Output::Joined(formed) => {
                self.doing = Doing::Working(formed.clone());
                actions.joined = Some(formed);
            }
            Output::Changed(Change::Closed) => self.doing = Doing::Ending,
            Output::Changed(change) => {
                match change {
                    Change::NodesLost(nodes) => actions.lost = nodes,
                    Change::Dropped => actions.dropped = true,
                    Change::NodesWaiting(_) | Change::Closed => {}
                }
                if matches!(self.doing, Doing::Working(_)) {
                    self.doing = Doing::Stopping;
                    actions.join_again = Some(self.stop_takes);
                }
            }
            Output::Failed(Failure::JoinTimeout { .. }) => {
                actions.timed_out = true;
                self.doing = Doing::Stopping;
                actions.join_again = Some(Duration::from_secs(1));
            }
            Output::Left | Output::Closed | Output::Failed(_) => self.doing = Doing::Nothing,
        }
    }
}
