//! Kills by the kernel for lack of memory: its counters before and after.
//!
//! | counter | counts |
//! |---|---|
//! | `memory.events` of the worker's own control group | that worker and what it started |
//! | `memory.events` (v2) or `memory.oom_control` (v1) of the group that we are in | the whole job on this node, and whatever is in the same container |
//! | `/proc/vmstat` | the whole machine |
//!
//! A worker that SIGKILL ended, while a counter rose, was killed for its memory; the counter rises
//! before the process ends. Only the counter of the whole machine may be about another process.

use std::fs;
use std::path::PathBuf;

use rdzv_agent_proto::group::Exit;
use rdzv_agent_proto::topology::cgroup::{Version, counter};

use rustix::process::Signal;

use crate::control_group::memory_directories;

/// The counters that count more than one worker, as they were before an attempt.
#[derive(Debug)]
pub(crate) struct OutOfMemoryCounters {
    files: Vec<PathBuf>,
    before: Vec<(PathBuf, u64)>,
}

impl OutOfMemoryCounters {
    /// Finds those of this process, the narrowest first.
    pub(crate) fn find() -> Self {
        // Our own group only: those around it count what happens in others.
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

    /// Reads them, before the first worker of an attempt: for each worker it would take long, since the kernel makes up
    /// the whole `/proc/vmstat` for one line of it.
    pub(crate) fn read(&mut self) {
        let files = self.files.iter().cloned();
        self.before = files.filter_map(kills).collect();
    }

    /// Those that count a worker that is about to be started: before the ones that were read, its own.
    pub(crate) fn of_worker(&self, own: Option<PathBuf>) -> OutOfMemoryKills {
        let own = own.and_then(kills);
        OutOfMemoryKills(own.into_iter().chain(self.before.iter().cloned()).collect())
    }
}

fn kills(file: PathBuf) -> Option<(PathBuf, u64)> {
    let count = counter(&fs::read_to_string(&file).ok()?, "oom_kill")?;
    Some((file, count))
}

/// The counters as they were at some time.
#[derive(Debug)]
pub(crate) struct OutOfMemoryKills(Vec<(PathBuf, u64)>);

impl OutOfMemoryKills {
    /// The counter that has risen since, in words for the report, if that explains this end.
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
