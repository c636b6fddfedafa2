//! What is said of workers that hang.

use std::fmt;
use std::time::Duration;

use rdzv_agent_proto::hang::stacks::WorkerStack;
use serde_json::{Value, json};

use super::HangAction;
use crate::Cause;
use crate::worker::WorkerIdentity;

/// What the watchdog did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchdogAction {
    /// It listens.
    Started,
    /// It has ended.
    Stopped,
    /// A timer of a worker ran out.
    TimerExpired,
    /// It had a worker killed.
    WorkerKilled,
}

impl WatchdogAction {
    /// Its name in the events of PyTorch.
    pub fn name(self) -> &'static str {
        match self {
            Self::Started => "watchdog started",
            Self::Stopped => "watchdog stopped",
            Self::TimerExpired => "timer expired",
            Self::WorkerKilled => "kill worker process",
        }
    }
}

/// A timer that a worker set itself.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchdogTimer {
    /// The worker's process id.
    pub pid: i64,
    /// What it times, as the worker calls it.
    pub scope: String,
    /// When it runs out: seconds since the Unix epoch.
    pub expiration: f64,
    /// What the worker is then sent; 0 or less: nothing.
    pub signal: i32,
}

/// Workers that hang, and where all workers of the node are.
#[derive(Debug, Clone)]
pub struct HangReport {
    /// Who hangs, and how that was noticed.
    pub found: Vec<(WorkerIdentity, Cause)>,
    /// Where each running worker of this node is.
    pub places: Vec<WorkerStack>,
    /// Who is not where the others are, in one sentence, if that is clear.
    pub odd: Option<String>,
    /// True if nobody is ended although that was asked for, because all workers here may be waiting
    /// for one of another node.
    pub spared: bool,
    /// What follows; an expired timer of the watchdog ends its worker whatever stands here.
    pub action: HangAction,
}

impl HangReport {
    /// For programs: `found` (who and why), `odd` (a sentence or null), `spared`, `places` (by
    /// worker) and `action`.
    pub(crate) fn record(&self) -> Value {
        let found = self.found.iter().map(|(worker, cause)| {
            json!({
                "rank": worker.rank.0,
                "local_rank": worker.local_rank.0,
                "pid": worker.pid,
                "cause": { "kind": cause.kind(), "text": cause.to_string() },
            })
        });
        let places = self.places.iter().map(|place| {
            let frames = place.frames.iter();
            json!({
                "rank": place.rank.0,
                "local_rank": place.local_rank.0,
                "pid": place.pid,
                "python": frames
                    .map(|frame| json!({
                        "function": frame.function,
                        "file": frame.file,
                        "line": frame.line,
                    }))
                    .collect::<Vec<_>>(),
                "state": place.kernel.state.map(String::from),
                "wait_channel": place.kernel.wait_channel,
                "syscall": place.kernel.syscall,
            })
        });
        json!({
            "found": found.collect::<Vec<_>>(),
            "odd": self.odd,
            "spared": self.spared,
            "places": places.collect::<Vec<_>>(),
            "action": self.action.name(),
        })
    }
}

impl fmt::Display for HangReport {
    /// Several lines, without an end.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (worker, cause) in &self.found {
            writeln!(
                formatter,
                "rank {} (local rank {}, pid {}) hangs: {cause}",
                worker.rank, worker.local_rank, worker.pid
            )?;
        }
        if let Some(odd) = &self.odd {
            writeln!(formatter, "{odd}")?;
        }
        if self.spared {
            writeln!(
                formatter,
                "Nobody is ended here: the workers of this node may all be waiting for another node"
            )?;
        }
        write!(formatter, "Where the workers of this node are:")?;
        for place in &self.places {
            write!(
                formatter,
                "\n  rank {} (pid {}): {}",
                place.rank,
                place.pid,
                place.describe()
            )?;
            if let Some(reason) = &place.without_frames {
                write!(formatter, " (no Python stack: {reason})")?;
            }
            if !place.threads.is_empty() {
                let threads: Vec<String> = place
                    .threads
                    .iter()
                    .map(|(thread, count)| match count {
                        1 => thread.clone(),
                        _ => format!("{count} x {thread}"),
                    })
                    .collect();
                write!(formatter, "\n    other threads: {}", threads.join(", "))?;
            }
        }
        Ok(())
    }
}

/// How long a group made no progress that does now.
pub(crate) fn resumed(silent: Duration) -> String {
    format!(
        "workers make progress again after {:.1} s without",
        silent.as_secs_f64()
    )
}
