//! Control group (v2) for each worker, if this process may divide its group.
//!
//! ```text
//!   the group that we were started in          keeper, guard and agent stay here
//!     └─ rdzv-agent-PID (the keeper's)         killed as a whole, and removed at the end
//!          ├─ worker-0                         a worker and all that it ever starts
//!          └─ worker-1
//! ```
//!
//! Killing a group ends all its processes at the same time. This includes processes in other
//! sessions, orphans, and processes that fork faster than a program can list them.
//!
//! Most containers have no such group, or only one that is not writable. The agent then kills
//! process groups and adopts orphans, which is less direct. This module is therefore optional: its
//! errors stop nothing, and it logs them at level DEBUG.
//!
//! A worker enters its group before it runs the user's code, so it has no child outside. The root
//! group of a machine is never divided: it belongs to the system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rdzv_agent_proto::topology::cgroup::{Version, directories};
use rdzv_core::rank::LocalRank;
use rustix::process::Pid;
use tracing::debug;

#[derive(Debug, Clone)]
pub(crate) struct ControlGroup {
    directory: PathBuf,
}

impl ControlGroup {
    /// Creates the group of the agent of a launch.
    /// Returns `None` if this process may not divide its own group.
    pub(crate) fn make(launcher: Pid) -> Option<Self> {
        let own = own_directory()?;
        match Self::make_in(&own, launcher) {
            Ok(group) => Some(group),
            Err(error) => {
                debug!(
                    "cannot create a control group below {}: {error}",
                    own.display()
                );
                None
            }
        }
    }

    fn make_in(own: &Path, launcher: Pid) -> io::Result<Self> {
        // Every group except the root group has `cgroup.kill`.
        fs::metadata(own.join("cgroup.kill"))?;
        // To move a process, we must also be able to write this file.
        OpenOptions::new()
            .write(true)
            .open(own.join("cgroup.procs"))?;
        let group = Self::named(own, launcher);
        // An earlier launch with the same process id may have left it, if it was killed with all
        // its processes.
        group.remove();
        fs::create_dir(&group.directory)?;
        Ok(group)
    }

    /// Returns the group that the agent of a launch made, if it exists.
    pub(crate) fn of_launcher(launcher: Pid) -> Option<Self> {
        let group = Self::named(&own_directory()?, launcher);
        group.directory.is_dir().then_some(group)
    }

    fn named(own: &Path, launcher: Pid) -> Self {
        Self {
            directory: own.join(format!("rdzv-agent-{}", launcher.as_raw_nonzero())),
        }
    }

    /// Opens the directory of the group in which a worker starts.
    /// If the group of the previous attempt is empty, a new one replaces it, because the kernel
    /// could treat the old one as a group that is being killed.
    pub(crate) fn entrance(&self, worker: LocalRank) -> Option<File> {
        let directory = self.of_worker(worker);
        let _ = fs::remove_dir(&directory);
        let made = match fs::create_dir(&directory) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        };
        made.and_then(|()| File::open(&directory))
            .inspect_err(|error| {
                debug!(
                    "cannot create control group {}: {error}",
                    directory.display()
                );
            })
            .ok()
    }

    pub(crate) fn kill_worker(&self, worker: LocalRank) {
        kill(&self.of_worker(worker));
    }

    pub(crate) fn kill_all(&self) {
        kill(&self.directory);
    }

    pub(crate) fn memory_events(&self, worker: LocalRank) -> PathBuf {
        self.of_worker(worker).join("memory.events")
    }

    /// Removes the groups, except those with a process that does not exit.
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
            debug!(
                "cannot remove control group {}: {error}",
                self.directory.display()
            );
        }
    }

    fn of_worker(&self, worker: LocalRank) -> PathBuf {
        self.directory.join(format!("worker-{worker}"))
    }
}

fn kill(directory: &Path) {
    if let Err(error) = fs::write(directory.join("cgroup.kill"), "1") {
        debug!("cannot kill control group {}: {error}", directory.display());
    }
}

/// Returns the groups of this process that count memory, and their ancestors.
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
        // Without `cgroup.kill`, this looks like the root group.
        fs::write(own.path().join("cgroup.procs"), "").unwrap();
        assert!(ControlGroup::make_in(own.path(), agent).is_err());
        assert_eq!(fs::read_dir(own.path()).unwrap().count(), 1);
    }
}
