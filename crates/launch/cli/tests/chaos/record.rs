//! What was seen of a run.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rdzv_testing::Marker;
use rustix::process::Signal;
use serde_json::Value;

use crate::observer::{Process, Seen};
use crate::plan::What;

/// Everything that was seen of a run.
pub(crate) struct Record {
    pub(crate) began: Instant,
    /// What was wrong already while it ran: hangs and what was left behind.
    pub(crate) complaints: Vec<String>,
    /// In the kernel's order.
    pub(crate) seen: Vec<Seen>,
    /// What was broken, in this order; without faults that met nobody.
    pub(crate) fired: Vec<Fired>,
    pub(crate) nodes: Vec<Node>,
}

/// A fault that came about, or the end of the run for a node.
#[derive(Debug, Clone)]
pub(crate) struct Fired {
    pub(crate) at: Instant,
    pub(crate) what: What,
    /// Who was hit, and by which signal.
    pub(crate) pid: Option<(i32, Signal)>,
}

/// One node of the run.
pub(crate) struct Node {
    pub(crate) marker: Marker,
    /// Of the launcher.
    pub(crate) status: ExitStatus,
    pub(crate) ended: Instant,
    pub(crate) stderr: String,
    /// What it wrote to the file of `--report`.
    pub(crate) report: Option<Value>,
}

impl Node {
    /// The exit code; minus the signal if one ended it.
    pub(crate) fn code(&self) -> i32 {
        let signal = self.status.signal().map(|signal| -signal);
        signal.or(self.status.code()).unwrap()
    }
}

/// A worker from its beginning to its end.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    pub(crate) process: Process,
    pub(crate) node: usize,
    pub(crate) began: Instant,
    /// When, and as which of all that was seen.
    pub(crate) ended: Option<(usize, Instant)>,
}

impl Record {
    /// All workers in the order in which they began.
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

    /// Signals that were sent to the keeper or the agent of a node, its loss of power, and when.
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

    /// Whether anything but workers and their children was broken before the launchers ended.
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
            // Floods tell nothing.
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
    /// Whether both are the same one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.process.pid == other.process.pid && self.began == other.began
    }
}
