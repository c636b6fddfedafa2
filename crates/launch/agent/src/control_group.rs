//! A control group (v2) per worker, where our own one is ours to divide.
//!
//! ```text
//!   the group that we were started in          keeper, guard and agent stay here
//!     └─ rdzv-agent-PID (the keeper's)         killed as a whole, and removed at the end
//!          ├─ worker-0                         a worker and all that it ever starts
//!          └─ worker-1
//! ```
//!
//! Killing a group reaches everything at once: processes in sessions of their own, orphans, and
//! those that fork faster than they can be listed. Without it (no such group, or not writable, as
//! in most containers) process groups and the adoption of orphans do the same less directly; so
//! nothing here is needed, nothing here fails, and what does not work is logged at level DEBUG.
//!
//! A worker begins in its group, so that it has no child outside. The root group of a machine is
//! not divided: it belongs to the system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rdzv_agent_proto::topology::cgroup::{Version, directories};
use rdzv_core::rank::LocalRank;
use rustix::process::Pid;
use tracing::debug;

/// The group of one agent.
#[derive(Debug, Clone)]
pub(crate) struct ControlGroup {
    directory: PathBuf,
}

impl ControlGroup {
    /// Makes the group of the agent of a launch; none if our own one is not ours to divide.
    pub(crate) fn make(launcher: Pid) -> Option<Self> {
        let own = own_directory()?;
        match Self::make_in(&own, launcher) {
            Ok(group) => Some(group),
            Err(error) => {
                debug!("no control group below {}: {error}", own.display());
                None
            }
        }
    }

    fn make_in(own: &Path, launcher: Pid) -> io::Result<Self> {
        // The root group has no `cgroup.kill`, unlike all others.
        fs::metadata(own.join("cgroup.kill"))?;
        // Moving a process needs the permission to write here as well.
        OpenOptions::new()
            .write(true)
            .open(own.join("cgroup.procs"))?;
        let group = Self::named(own, launcher);
        // From a launch that had this process id and was killed as a whole.
        group.remove();
        fs::create_dir(&group.directory)?;
        Ok(group)
    }

    /// The group that the agent of a launch has made, if it is there.
    pub(crate) fn of_launcher(launcher: Pid) -> Option<Self> {
        let group = Self::named(&own_directory()?, launcher);
        group.directory.is_dir().then_some(group)
    }

    fn named(own: &Path, launcher: Pid) -> Self {
        Self {
            directory: own.join(format!("rdzv-agent-{}", launcher.as_raw_nonzero())),
        }
    }

    /// The directory of the group that a worker begins in: a new one, where nothing is left in the one of the last attempt, so
    /// that the kernel does not take it for one that is being killed.
    pub(crate) fn entrance(&self, worker: LocalRank) -> Option<File> {
        let directory = self.of_worker(worker);
        let _ = fs::remove_dir(&directory);
        let made = match fs::create_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        };
        made.and_then(|()| File::open(&directory))
            .inspect_err(|error| debug!("no control group {}: {error}", directory.display()))
            .ok()
    }

    /// Kills a worker and all that it has started.
    pub(crate) fn kill_worker(&self, worker: LocalRank) {
        kill(&self.of_worker(worker));
    }

    /// Kills all workers and all that they have started.
    pub(crate) fn kill_all(&self) {
        kill(&self.directory);
    }

    /// The file with the memory events of one worker.
    pub(crate) fn memory_events(&self, worker: LocalRank) -> PathBuf {
        self.of_worker(worker).join("memory.events")
    }

    /// Removes the groups; those with a process that does not end stay.
    pub(crate) fn remove(&self) {
        let Ok(entries) = fs::read_dir(&self.directory) else {
            return;
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = fs::remove_dir(entry.path());
            }
        }
        if let Err(error) = fs::remove_dir(&self.directory) {
            debug!("remove control group {}: {error}", self.directory.display());
        }
    }

    fn of_worker(&self, worker: LocalRank) -> PathBuf {
        self.directory.join(format!("worker-{worker}"))
    }
}

fn kill(directory: &Path) {
    if let Err(error) = fs::write(directory.join("cgroup.kill"), "1") {
        debug!("kill control group {}: {error}", directory.display());
    }
}

/// The directories of our own groups that count memory, and their ancestors.
pub(crate) fn memory_directories() -> Vec<(Version, PathBuf)> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    directories(
        "memory",
        &read("/proc/self/cgroup"),
        &read("/proc/self/mountinfo"),
    )
}

fn own_directory() -> Option<PathBuf> {
    memory_directories()
        .into_iter()
        .find_map(|(version, directory)| (version == Version::V2).then_some(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the files that the kernel would make in a group.
    fn group_files(directory: &Path) {
        for file in ["cgroup.procs", "cgroup.kill"] {
            fs::write(directory.join(file), "").unwrap();
        }
    }

    #[test]
    fn a_group_is_made_killed_and_removed() {
        let own = tempfile::tempdir().unwrap();
        group_files(own.path());
        let agent = Pid::from_raw(77).unwrap();
        let group = ControlGroup::make_in(own.path(), agent).unwrap();
        let directory = own.path().join("rdzv-agent-77");
        assert!(directory.is_dir());
        group_files(&directory);
        assert!(group.entrance(LocalRank(1)).is_some());
        group_files(&directory.join("worker-1"));
        group.kill_worker(LocalRank(1));
        let killed = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
        assert_eq!(killed("worker-1/cgroup.kill"), "1");
        assert_eq!(killed("cgroup.kill"), "");
        group.kill_all();
        assert_eq!(killed("cgroup.kill"), "1");
        for directory in [directory.join("worker-1"), directory.clone()] {
            for file in ["cgroup.procs", "cgroup.kill"] {
                fs::remove_file(directory.join(file)).unwrap();
            }
        }
        group.remove();
        assert!(!directory.exists());
    }

    #[test]
    fn a_group_that_is_not_ours_is_left_alone() {
        let own = tempfile::tempdir().unwrap();
        let agent = Pid::from_raw(77).unwrap();
        // The root group: no `cgroup.kill`.
        fs::write(own.path().join("cgroup.procs"), "").unwrap();
        assert!(ControlGroup::make_in(own.path(), agent).is_err());
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 1);
    }
}
