//! Detection of kills by the kernel for lack of memory.
//!
//! The agent compares the kernel's counters before an attempt and after the exit of a worker.
//!
//! * `memory.events` of a worker's control group counts the kills of that worker and its
//!   descendants.
//! * `memory.events` (v2) or `memory.oom_control` (v1) of the agent's group counts the whole job on
//!   this node, and everything else in that group.
//! * `/proc/vmstat` counts the whole machine.
//!
//! If SIGKILL ended a worker while a counter rose, the agent concludes that the kernel killed the
//! worker for lack of memory. The counter rises before the process exits. A counter that covers
//! more than the worker may concern another process.

use std::fs;
use std::path::PathBuf;

use rdzv_agent_proto::group::Exit;
use rdzv_agent_proto::topology::cgroup::{Version, counter};

use rustix::process::Signal;

use crate::control_group::memory_directories;

/// Counters of more than one worker, and their values before an attempt.
#[derive(Debug)]
pub(crate) struct OutOfMemoryCounters {
    files: Vec<PathBuf>,
    before: Vec<(PathBuf, u64)>,
}

impl OutOfMemoryCounters {
    /// Finds the counters of this process, the narrowest first.
    pub(crate) fn find() -> Self {
        // Only our own group: the groups around it also count other groups.
        let own = [Version::V2, Version::V1].into_iter().filter_map(|wanted| {
            let (version, directory) = memory_directories()
                .into_iter()
                .find(|(version, _)| *version == wanted)?;
            Some(directory.join(match version {
                Version::V2 => "memory.events",
                Version::V1 => "memory.oom_control",
            }))
        });
        Self {
            files: own.chain(["/proc/vmstat".into()]).collect(),
            before: Vec::new(),
        }
    }

    /// Reads the counters before the workers of an attempt or a round.
    /// One reading serves all workers, because the kernel generates the whole `/proc/vmstat` even
    /// if only one line is needed.
    pub(crate) fn read(&mut self) {
        let files = self.files.iter().cloned();
        self.before = files.filter_map(kills).collect();
    }

    /// Returns the counters for a worker that is about to start.
    /// The worker's own counter comes first, then those that were read for all workers.
    pub(crate) fn of_worker(&self, own: Option<PathBuf>) -> OutOfMemoryKills {
        let own = own.and_then(kills);
        OutOfMemoryKills(own.into_iter().chain(self.before.iter().cloned()).collect())
    }
}

fn kills(file: PathBuf) -> Option<(PathBuf, u64)> {
    let count = counter(&fs::read_to_string(&file).ok()?, "oom_kill")?;
    Some((file, count))
}

#[derive(Debug)]
pub(crate) struct OutOfMemoryKills(Vec<(PathBuf, u64)>);

impl OutOfMemoryKills {
    /// Describes the counter that has risen, if that explains this exit.
    pub(crate) fn explain(&self, exit: Exit) -> Option<String> {
        if exit != Exit::Signal(Signal::KILL.as_raw()) {
            return None;
        }
        self.risen()
    }

    fn risen(&self) -> Option<String> {
        self.0.iter().find_map(|(file, before)| {
            let kills = kills(file.clone())?.1.checked_sub(*before)?;
            (kills > 0).then(|| {
                format!(
                    "killed by the kernel (oom_kill rose by {kills} in {})",
                    file.display()
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_that_has_risen_is_named_and_the_narrowest_one_first() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, kills: u32| {
            let path = directory.path().join(name);
            fs::write(&path, format!("low 0\noom 9\noom_kill {kills}\n")).unwrap();
            path
        };
        let worker = write("worker", 0);
        let absent = directory.path().join("absent");
        let mut counters = OutOfMemoryCounters {
            files: vec![absent, write("job", 4)],
            before: Vec::new(),
        };
        counters.read();
        let before = counters.of_worker(Some(worker));
        assert_eq!(before.0[1].1, 4);
        write("job", 6);
        let risen = before.risen().unwrap();
        assert!(risen.contains("rose by 2 in "), "{risen}");
        assert!(risen.ends_with("job)"), "{risen}");
        write("worker", 1);
        assert!(before.risen().unwrap().ends_with("worker)"));
        assert!(before.explain(Exit::Signal(9)).is_some());
        assert!(before.explain(Exit::Signal(15)).is_none());
        assert!(before.explain(Exit::Code(9)).is_none());
    }

    #[test]
    fn this_machine_has_a_counter() {
        let mut counters = OutOfMemoryCounters::find();
        counters.read();
        let last = counters.before.last().unwrap();
        assert_eq!(last.0.to_str(), Some("/proc/vmstat"));
    }
}
