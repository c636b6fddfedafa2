//! Texts and records about workers that hang.

use std::fmt;
use std::time::Duration;

use rdzv_agent_proto::hang::stacks::{WorkerStack, describe_all};
use serde_json::{Value, json};

use super::HangAction;
use crate::worker::WorkerIdentity;
use rdzv_agent_proto::group::Cause;

/// Action of the watchdog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WatchdogAction {
    /// The watchdog started.
    Started,
    /// The watchdog stopped.
    Stopped,
    /// A timer of a worker expired.
    TimerExpired,
    /// The watchdog had a worker killed.
    WorkerKilled,
}

impl WatchdogAction {
    /// Returns the name of the action in the events of PyTorch.
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "watchdog started",
            Self::Stopped => "watchdog stopped",
            Self::TimerExpired => "timer expired",
            Self::WorkerKilled => "kill worker process",
        }
    }
}

/// Timer that a worker, or a process that it has started, set for itself.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchdogTimer {
    /// Process that set the timer: the worker, or a process that it has started.
    pub pid: i64,
    /// Name that the worker gave to the timed work.
    pub scope: String,
    /// Time of the expiry, in seconds since the Unix epoch.
    pub expiration: f64,
    /// Signal that the worker then receives; 0 or less for none.
    pub signal: i32,
}

/// Workers that hang, and the stacks of all workers of the node.
#[derive(Debug, Clone)]
pub struct HangReport {
    /// Workers that hang, and the cause.
    pub found: Vec<(WorkerIdentity, Cause)>,
    /// Stack of each running worker of this node.
    pub stacks: Vec<WorkerStack>,
    /// Stacks of the other nodes; only on node 0.
    pub elsewhere: Vec<WorkerStack>,
    /// One sentence about workers that differ from the others, if that is clear.
    pub odd: Option<String>,
    /// Sentences about collective calls that differ or are missing.
    pub collectives: Vec<String>,
    /// `true` if the agent stops no worker although the user requested it.
    /// The reason is that all workers here may be waiting for one on another node.
    pub spared: bool,
    /// Action that follows.
    /// An expired watchdog timer with a signal stops its worker, whatever the action is.
    pub action: HangAction,
}

impl HangReport {
    /// Returns the report in a form for programs.
    ///
    /// The keys are `found` (workers and causes), `odd` (a sentence or null),
    /// `collectives` (sentences), `spared`, `places` (by worker; `node` is null for this node) and
    /// `action`.
    pub(crate) fn record(&self) -> Value {
        let found = self.found.iter().map(|(worker, cause)| {
            json!({
                "rank": worker.rank.0,
                "local_rank": worker.local_rank.0,
                "pid": worker.pid,
                "cause": { "kind": cause.kind(), "text": cause.to_string() },
            })
        });
        let stacks = self.stacks.iter().chain(&self.elsewhere).map(|stack| {
            let frames = stack.frames.iter();
            json!({
                "node": Some(&stack.node).filter(|node| !node.is_empty()),
                "rank": stack.rank.0,
                "local_rank": stack.local_rank.0,
                "pid": stack.pid,
                "python": frames
                    .map(|frame| json!({
                        "function": frame.function,
                        "file": frame.file,
                        "line": frame.line,
                    }))
                    .collect::<Vec<_>>(),
                "state": stack.kernel.state.map(String::from),
                "wait_channel": stack.kernel.wait_channel,
                "syscall": stack.kernel.syscall,
                "flight_recorder": stack.recorder.as_ref().and_then(|it| it.file.as_ref()),
            })
        });
        json!({
            "found": found.collect::<Vec<_>>(),
            "odd": self.odd,
            "collectives": self.collectives,
            "spared": self.spared,
            "places": stacks.collect::<Vec<_>>(),
            "action": self.action.name(),
        })
    }
}

impl fmt::Display for HangReport {
    /// Writes several lines, without a final newline.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (worker, cause) in &self.found {
            writeln!(
                formatter,
                "rank {} (local rank {}, pid {}) hangs: {cause}",
                worker.rank, worker.local_rank, worker.pid
            )?;
        }
        for sentence in self.odd.iter().chain(&self.collectives) {
            writeln!(formatter, "{sentence}")?;
        }
        if self.spared {
            writeln!(
                formatter,
                "No worker on this node is stopped, because all of them may be waiting for another \
                 node"
            )?;
        }
        if !self.elsewhere.is_empty() {
            writeln!(formatter, "Locations of the workers on other nodes:")?;
            for line in describe_all(&self.elsewhere) {
                writeln!(formatter, "  ranks {line}")?;
            }
        }
        write!(formatter, "Locations of the workers on this node:")?;
        for stack in &self.stacks {
            write!(
                formatter,
                "\n  rank {} (pid {}): {}",
                stack.rank,
                stack.pid,
                stack.describe()
            )?;
            if let Some(reason) = &stack.without_frames {
                write!(formatter, " (no Python stack: {reason})")?;
            }
            if !stack.threads.is_empty() {
                let threads: Vec<String> = stack
                    .threads
                    .iter()
                    .map(|(thread, count)| match count {
                        1 => thread.clone(),
                        _ => format!("{count} x {thread}"),
                    })
                    .collect();
                write!(formatter, "\n    other threads: {}", threads.join(", "))?;
            }
            if let Some(file) = stack.recorder.as_ref().and_then(|it| it.file.as_ref()) {
                write!(formatter, "\n    flight recorder: {file}")?;
            }
        }
        Ok(())
    }
}

/// Returns the message about a group that makes progress again.
/// `silent` is the time without progress.
pub(crate) fn resumed(silent: Duration) -> String {
    format!(
        "workers make progress again after {:.1} s without progress",
        silent.as_secs_f64()
    )
}
