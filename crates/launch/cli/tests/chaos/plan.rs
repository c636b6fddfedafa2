//! What a run will be.

use std::fmt;
use std::time::Duration;

use rustix::process::Signal;

/// Everything about a run that is decided beforehand.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) rendezvous: Rendezvous,
    /// How many workers each node has.
    pub(crate) nodes: Vec<u32>,
    /// Whether the job may go on with fewer nodes.
    pub(crate) elastic: bool,
    pub(crate) max_restarts: u32,
    /// Seconds.
    pub(crate) shutdown_timeout: u32,
    pub(crate) tee: bool,
    /// Whether the console is a pipe that nobody reads.
    pub(crate) stalled_console: bool,
    pub(crate) acts: Vec<Act>,
    pub(crate) faults: Vec<Fault>,
    /// When everything that still runs is told to end with SIGTERM, counted from the start.
    pub(crate) end: Duration,
}

/// How the nodes find one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rendezvous {
    /// One node, `--standalone`.
    Standalone,
    /// `--master-port`; the first node hosts the store.
    Static,
    /// c10d; whichever agent comes first hosts the store.
    FirstAgent,
    /// c10d over a store that belongs to no agent; every node has a link of its own to it.
    OwnStore,
}

impl Rendezvous {
    /// Whether nodes may come and go.
    pub(crate) fn is_dynamic(self) -> bool {
        matches!(self, Self::FirstAgent | Self::OwnStore)
    }
}

/// What one worker does in one generation of its group.
#[derive(Debug)]
pub(crate) struct Act {
    /// The restart count; of a dynamic rendezvous the round.
    pub(crate) generation: u32,
    pub(crate) rank: u32,
    /// Steps before it comes to an end, without those that every worker does.
    pub(crate) before: Vec<String>,
    /// Milliseconds before the end.
    pub(crate) pause: u32,
    pub(crate) end: End,
}

/// How a worker ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Code(i32),
    Signal(i32),
    /// A recorded exception, exit code 1.
    Exception,
    /// An error file that is none, exit code 6.
    BadErrorFile,
    /// A Rust panic, exit code 101.
    Panic,
    /// Not at all.
    Hang,
    /// Stopped by itself; not at all.
    Stop,
}

impl End {
    /// The exit code, or minus the signal, of an end that is a failure.
    pub(crate) fn failure(self) -> Option<i64> {
        match self {
            Self::Success | Self::Hang | Self::Stop => None,
            Self::Code(code) => Some(code.into()),
            Self::Signal(signal) => Some(i64::from(-signal)),
            Self::Exception => Some(1),
            Self::BadErrorFile => Some(6),
            Self::Panic => Some(101),
        }
    }
}

/// Something that breaks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) after: After,
    pub(crate) millis: u32,
    pub(crate) what: What,
}

/// What the time of a fault is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Launch,
    /// The moment at which all workers of the first generation had begun.
    AllBegan,
}

/// What breaks. A `pick` chooses among those who are alive at that time.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    Worker {
        pick: u32,
        signal: Signal,
    },
    Child {
        pick: u32,
        signal: Signal,
    },
    Agent {
        node: usize,
        signal: Signal,
    },
    Keeper {
        node: usize,
        signal: Signal,
    },
    /// Power is lost: everything of the node is gone at once.
    Node {
        node: usize,
    },
    /// SIGSTOP, and SIGCONT after so long.
    PauseWorker {
        pick: u32,
        millis: u32,
    },
    PauseAgent {
        node: usize,
        millis: u32,
    },
    PauseKeeper {
        node: usize,
        millis: u32,
    },
    /// All connections to the store end; new ones are possible.
    Cut {
        node: usize,
    },
    /// Nothing passes the link for so long.
    Stall {
        node: usize,
        millis: u32,
    },
}

impl What {
    /// The node that it happens to, if it is not about workers alone.
    pub(crate) fn node(self) -> Option<usize> {
        match self {
            Self::Worker { .. } | Self::Child { .. } | Self::PauseWorker { .. } => None,
            Self::Agent { node, .. }
            | Self::Keeper { node, .. }
            | Self::Node { node }
            | Self::PauseAgent { node, .. }
            | Self::PauseKeeper { node, .. }
            | Self::Cut { node }
            | Self::Stall { node, .. } => Some(node),
        }
    }
}

impl Plan {
    /// What a worker was meant to do; `None` beyond what was planned, where it succeeds.
    pub(crate) fn act(&self, generation: u32, rank: u32) -> Option<&Act> {
        self.acts
            .iter()
            .find(|act| act.generation == generation && act.rank == rank)
    }

    /// The steps of all workers; conditions sort out whose they are.
    pub(crate) fn steps(&self, socket: &str) -> Vec<String> {
        let counter = if self.rendezvous.is_dynamic() {
            "round"
        } else {
            "attempt"
        };
        let mut steps = vec![format!("hello:{socket}:worker")];
        for act in &self.acts {
            let condition = format!("{counter}={}?rank={}?", act.generation, act.rank);
            let before = act.before.iter().map(|step| step.replace("SOCKET", socket));
            let end: &[&str] = match act.end {
                End::Success => &["exit:0"],
                End::Code(code) => &[&format!("exit:{code}")],
                End::Signal(signal) => &[&format!("signal:{signal}")],
                End::Exception => &["error:ValueError: chaos", "exit:1"],
                End::BadErrorFile => &["error-file:{\"mess", "exit:6"],
                End::Panic => &["panic:chaos"],
                End::Hang => &["hang"],
                End::Stop => &["stop", "hang"],
            };
            let steps_of_act = before
                .chain([format!("pause:{}", act.pause)])
                .chain(end.iter().map(|step| (*step).to_owned()));
            steps.extend(steps_of_act.map(|step| format!("{condition}{step}")));
        }
        // Beyond what was planned.
        steps.extend(["pause:50".to_owned(), "exit:0".to_owned()]);
        steps
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?}, workers {:?}, elastic {}, max-restarts {}, shutdown-timeout {}, tee {}, stalled \
             console {}, SIGTERM to all after {:?}",
            self.rendezvous,
            self.nodes,
            self.elastic,
            self.max_restarts,
            self.shutdown_timeout,
            self.tee,
            self.stalled_console,
            self.end
        )?;
        for act in &self.acts {
            writeln!(
                f,
                "  generation {} rank {}: {} pause {} ms, {:?}",
                act.generation,
                act.rank,
                act.before.join(" "),
                act.pause,
                act.end
            )?;
        }
        for fault in &self.faults {
            writeln!(
                f,
                "  {} ms after {:?}: {:?}",
                fault.millis, fault.after, fault.what
            )?;
        }
        Ok(())
    }
}
