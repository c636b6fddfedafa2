//! The plan of a run.

use std::fmt;
use std::time::Duration;

use rustix::process::Signal;

/// Plan of a run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) rendezvous: Rendezvous,
    /// Number of workers of each node.
    pub(crate) nodes: Vec<u32>,
    /// `true` if the job may continue with fewer nodes.
    pub(crate) elastic: bool,
    pub(crate) max_restarts: u32,
    /// Shutdown timeout in seconds.
    pub(crate) shutdown_timeout: u32,
    pub(crate) tee: bool,
    /// `true` if the console is a full pipe that no process reads.
    pub(crate) stalled_console: bool,
    pub(crate) acts: Vec<Act>,
    pub(crate) faults: Vec<Fault>,
    /// Time from the start until each running launcher receives SIGTERM.
    pub(crate) end: Duration,
}

/// Kind of the rendezvous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rendezvous {
    /// One node with `--standalone`.
    Standalone,
    /// `--master-port`; the first node hosts the store.
    Static,
    /// c10d; the first agent hosts the store.
    FirstAgent,
    /// c10d over a store that belongs to no agent; every node has a separate link.
    OwnStore,
}

impl Rendezvous {
    /// `true` if the membership may change.
    pub(crate) fn is_dynamic(self) -> bool {
        matches!(self, Self::FirstAgent | Self::OwnStore)
    }
}

/// Planned act of one worker in one generation of its group.
#[derive(Debug)]
pub(crate) struct Act {
    /// Restart count; with a dynamic rendezvous, the round.
    pub(crate) generation: u32,
    pub(crate) rank: u32,
    /// Steps before the worker's end, in addition to those of every worker.
    pub(crate) before: Vec<String>,
    /// Pause before the worker's end, in milliseconds.
    pub(crate) pause: u32,
    pub(crate) end: End,
}

/// Planned end of a worker that no fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Code(i32),
    Signal(i32),
    /// A recorded exception with exit code 1.
    Exception,
    /// An invalid error file with exit code 6.
    BadErrorFile,
    /// A Rust panic with exit code 101.
    Panic,
    /// No end: the worker hangs.
    Hang,
    /// No end: the worker stops itself.
    Stop,
}

impl End {
    /// Returns the exit code, or the negative signal, of a failure.
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

/// Fault with its time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) after: After,
    pub(crate) millis: u32,
    pub(crate) what: What,
}

/// Event from which the time of a fault counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Launch,
    /// The start of the last worker of the first generation.
    ///
    /// If a worker does not start, 1.5 s after the launch.
    AllBegan,
}

/// Kind of a fault; `pick` chooses among the processes alive at that time.
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
    /// Power is lost: all processes of the node end immediately.
    Node {
        node: usize,
    },
    /// SIGSTOP, and SIGCONT after the specified time.
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
    /// All connections to the store are closed; new ones are possible.
    Cut {
        node: usize,
    },
    /// The link passes no bytes for the specified time.
    Stall {
        node: usize,
        millis: u32,
    },
}

impl What {
    /// Returns the node of the fault, unless the fault concerns only workers.
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
    /// Returns the act of a worker; a worker without an act succeeds.
    pub(crate) fn act(&self, generation: u32, rank: u32) -> Option<&Act> {
        self.acts
            .iter()
            .find(|act| act.generation == generation && act.rank == rank)
    }

    /// Returns the steps of all workers; conditions select those of each worker.
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
        // Workers without an act succeed.
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
