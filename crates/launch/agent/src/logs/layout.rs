//! Directories and files of a run.
//!
//! ```text
//! ⟨log directory, or TMPDIR/torchelastic_⟨8⟩⟩/
//!   ⟨run id⟩_⟨8⟩/                 one per agent; mode 0700
//!     attempt_⟨restart count⟩/    never removed during the run
//!       filtered_stdout.log  filtered_stderr.log
//!       ⟨local rank⟩/stdout.log  stderr.log  error.json
//!                    kept_stdout.log  kept_stderr.log    hidden by --local-ranks-filter
//! ```

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rdzv_core::rank::LocalRank;
use tracing::debug;

use super::console::Target;
use super::filter::FilteredLog;
use crate::AgentError;
use crate::config::LogBase;
use crate::private_directory::unique;

#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    /// Directory that was created only for this run.
    temporary: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct AttemptDirectory {
    path: PathBuf,
}

impl RunDirectory {
    pub(super) fn create(base: &LogBase, run_id: &str) -> Result<Self, AgentError> {
        let (base, temporary) = match base {
            LogBase::Directory(base) => {
                fs::create_dir_all(base).map_err(failed(base))?;
                (base.clone(), None)
            }
            LogBase::Temporary(base) => {
                let made = unique(base, "torchelastic").map_err(failed(base))?;
                (made.clone(), Some(made))
            }
            LogBase::Discard => unreachable!("without a log directory nothing is made"),
        };
        // A run id is any text; as a name it must stay within the directory.
        let path = unique(&base, &run_id.replace('/', "_")).map_err(failed(&base))?;
        Ok(Self { path, temporary })
    }

    /// Creates the directory of an attempt.
    /// The directory of an earlier attempt is never touched. If one with the same count exists, the
    /// new one is named `attempt_⟨n⟩.r1` and so on.
    pub(super) fn attempt(&self, restart_count: u32) -> Result<AttemptDirectory, AgentError> {
        let mut path = self.path.join(format!("attempt_{restart_count}"));
        for again in 1.. {
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    path = self.path.join(format!("attempt_{restart_count}.r{again}"));
                }
                made => {
                    made.map_err(failed(&path))?;
                    break;
                }
            }
        }
        Ok(AttemptDirectory { path })
    }

    /// Removes the directory if it was created for this run and is empty.
    /// Empty files do not count. Retained output of hidden workers counts only if the run has
    /// failed.
    pub(super) fn tidy_up(self, succeeded: bool) {
        if let Some(temporary) = self.temporary
            && !holds_output(&temporary, !succeeded)
            && let Err(error) = fs::remove_dir_all(&temporary)
        {
            debug!("cannot remove {}: {error}", temporary.display());
        }
    }
}

impl AttemptDirectory {
    pub(super) fn worker(&self, local_rank: LocalRank) -> Result<PathBuf, AgentError> {
        let path = self.path.join(local_rank.to_string());
        match fs::create_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed(&path)(error)),
            _ => Ok(path),
        }
    }

    /// Opens one of the files that the workers of the attempt share.
    pub(super) fn filtered(&self, name: &str) -> Result<FilteredLog, AgentError> {
        let path = self.path.join(name);
        let file = create_log(&path)?;
        Ok(FilteredLog { path, file })
    }
}

/// Creates a log file in append mode.
/// A worker may open its own output again (as `/dev/stderr`, for example) and write there. Append
/// mode keeps later writes through the inherited descriptor from overwriting that text.
pub(super) fn create_log(path: &Path) -> Result<File, AgentError> {
    let mut options = OpenOptions::new();
    let opened = options.append(true).create(true).open(path);
    opened.map_err(failed(path))
}

fn holds_output(directory: &Path, retained_counts: bool) -> bool {
    let Ok(entries) = fs::read_dir(directory) else {
        return true;
    };
    let is_retained = |name: &OsStr| {
        [Target::Stdout, Target::Stderr]
            .iter()
            .any(|target| name == target.retained_name().as_str())
    };
    entries.flatten().any(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => holds_output(&entry.path(), retained_counts),
        Ok(metadata) => metadata.len() > 0 && (retained_counts || !is_retained(&entry.file_name())),
        Err(_) => true,
    })
}

pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> AgentError {
    move |source| AgentError::Logs {
        path: path.display().to_string(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_attempts_are_never_touched() {
        let directory = tempfile::tempdir().unwrap();
        let base = LogBase::Directory(directory.path().join("new/logs"));
        let run = RunDirectory::create(&base, "job/x").unwrap();
        let name = run.path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(name.starts_with("job_x_") && name.len() == "job_x_".len() + 8);
        let names: Vec<_> = [0, 0, 1, 0]
            .map(|count| {
                let attempt = run.attempt(count).unwrap();
                attempt.path.file_name().unwrap().to_owned()
            })
            .into();
        assert_eq!(
            names,
            ["attempt_0", "attempt_0.r1", "attempt_1", "attempt_0.r2"]
        );
    }

    #[test]
    fn a_temporary_directory_goes_only_if_it_holds_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let base = LogBase::Temporary(directory.path().to_owned());
        for (name, text, succeeded, stays) in [
            ("stdout.log", "", true, false),
            ("stdout.log", "x", true, true),
            ("kept_stdout.log", "x", true, false),
            ("kept_stdout.log", "x", false, true),
            ("error.json", "x", false, true),
        ] {
            let run = RunDirectory::create(&base, "none").unwrap();
            let temporary = run.temporary.clone().unwrap();
            let worker = run.attempt(0).unwrap().worker(LocalRank(0)).unwrap();
            fs::write(worker.join(name), text).unwrap();
            run.tidy_up(succeeded);
            assert_eq!(temporary.exists(), stays, "{name}");
        }
    }
}
