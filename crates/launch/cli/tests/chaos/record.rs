//! The observations of a run.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rdzv_testing::Marker;
use rustix::process::Signal;
use serde_json::Value;

use crate::observer::{Process, Seen};
use crate::plan::What;

/// All observations of a run.
pub(crate) struct Record {
    pub(crate) began: Instant,
    /// Violations during the run: hangs and remaining processes.
    pub(crate) complaints: Vec<String>,
    /// Starts and exits, in the kernel's order.
    pub(crate) seen: Vec<Seen>,
    /// Faults in their order, without those that hit no process.
    pub(crate) fired: Vec<Fired>,
    pub(crate) nodes: Vec<Node>,
}

/// Fault that happened, or the end signal for a node.
#[derive(Debug, Clone)]
pub(crate) struct Fired {
    pub(crate) at: Instant,
    pub(crate) what: What,
    /// Process that was hit, and the signal; `None` for a node or its link.
    pub(crate) pid: Option<(i32, Signal)>,
}

/// Node of the run.
pub(crate) struct Node {
    pub(crate) marker: Marker,
    /// Exit status of the launcher.
    pub(crate) status: ExitStatus,
    pub(crate) ended: Instant,
    pub(crate) stderr: String,
    /// Content of the `--report` file.
    pub(crate) report: Option<Value>,
}

impl Node {
    /// Returns the exit code, or the negative signal that ended the launcher.
    pub(crate) fn code(&self) -> i32 {
        let signal = self.status.signal().map(|signal| -signal);
        signal.or(self.status.code()).unwrap()
    }
}

/// Life of a worker from its start to its exit.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) process: Process,
    pub(crate) node: usize,
    pub(crate) began: Instant,
    /// Index in the observations and time of the exit.
    pub(crate) ended: Option<(usize, Instant)>,
}

impl Record {
    /// Returns all workers in the order in which they started.
    pub(crate) fn workers(&self) -> Vec<Life> {
        let mut lives: Vec<Life> = Vec::new();
        for (position, seen) in self.seen.iter().enumerate() {
            match seen {
                Seen::Began(process, at) if process.is_worker => lives.push(Life {
                    process: process.clone(),
                    node: self.node_of(&process.marker),
                    began: *at,
                    ended: None,
                }),
                Seen::Began(..) => {}
                Seen::Ended(pid, at) => {
                    let life = lives
                        .iter_mut()
                        .find(|life| life.process.pid == *pid && life.ended.is_none());
                    if let Some(life) = life {
                        life.ended = Some((position, *at));
                    }
                }
            }
        }
        lives
    }

    /// Returns time and signal of each fault of a node's keeper, agent or power.
    pub(crate) fn fatal_signals(&self, node: usize) -> Vec<(Instant, Signal)> {
        let fatal = |fired: &Fired| match fired.what {
            What::Agent { node: hit, signal } | What::Keeper { node: hit, signal } => {
                (hit == node).then_some((fired.at, signal))
            }
            What::Node { node: hit } => (hit == node).then_some((fired.at, Signal::KILL)),
            _ => None,
        };
        self.fired.iter().filter_map(fatal).collect()
    }

    /// `true` if a fault hit more than workers and their children.
    pub(crate) fn infrastructure_broke(&self) -> bool {
        self.fired.iter().any(|fired| fired.what.node().is_some())
    }

    fn node_of(&self, marker: &Marker) -> usize {
        self.nodes
            .iter()
            .position(|node| node.marker == *marker)
            .unwrap()
    }

    fn millis(&self, at: Instant) -> u128 {
        at.saturating_duration_since(self.began).as_millis()
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<(Duration, String)> = Vec::new();
        for seen in &self.seen {
            let (at, text) = match seen {
                Seen::Began(process, at) => {
                    let node = self.node_of(&process.marker);
                    let kind = if process.is_worker { "worker" } else { "child" };
                    let Process {
                        pid,
                        rank,
                        attempt,
                        round,
                        ..
                    } = process;
                    let text = format!(
                        "node {node}: {kind} {pid} of rank {rank} begins, attempt {attempt}, \
                         round {round}"
                    );
                    (*at, text)
                }
                Seen::Ended(pid, at) => (*at, format!("{pid} ends")),
            };
            lines.push((at.saturating_duration_since(self.began), text));
        }
        for fired in &self.fired {
            let text = format!("FAULT {:?} {:?}", fired.what, fired.pid);
            lines.push((fired.at.saturating_duration_since(self.began), text));
        }
        lines.sort_by_key(|(at, _)| *at);
        for (at, line) in lines {
            writeln!(f, "{:6} ms  {line}", at.as_millis())?;
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let ended = self.millis(node.ended);
            writeln!(f, "---- node {index} ({}) after {ended} ms", node.status)?;
            // The output omits the lines of a flood.
            for line in node
                .stderr
                .lines()
                .filter(|line| !line.contains("abcdefghij"))
            {
                writeln!(f, "  | {line}")?;
            }
            if let Some(report) = &node.report {
                writeln!(f, "  report: {report}")?;
            }
        }
        Ok(())
    }
}

impl Life {
    /// `true` if both are the same worker.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.process.pid == other.process.pid && self.began == other.began
    }
}
