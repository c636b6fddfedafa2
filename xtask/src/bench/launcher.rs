//! The two launchers under comparison, and the workers that they start.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{release_binary, this_program, worker};

/// One side of the comparison: a program with its first arguments.
pub(super) struct Launcher {
    words: Vec<PathBuf>,
}

impl Launcher {
    /// Returns the optimised `rdzv run`, and the `torchrun` beside `python`.
    pub(super) fn both(python: &Path) -> anyhow::Result<[Self; 2]> {
        let ours = Self {
            words: vec![release_binary()?, PathBuf::from("run")],
        };
        let theirs = Self {
            words: vec![python.with_file_name("torchrun")],
        };
        Ok([ours, theirs])
    }

    /// Returns a launch with these flags. The caller adds the worker program.
    pub(super) fn launch<F: AsRef<OsStr>>(&self, flags: &[F]) -> Command {
        let mut command = Command::new(&self.words[0]);
        command
            .args(&self.words[1..])
            .args(flags)
            .arg("--no-python")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// Returns a launch of workers that run this part of [`worker`].
    pub(super) fn play<F: AsRef<OsStr>>(&self, flags: &[F], part: &str) -> anyhow::Result<Command> {
        let mut command = self.launch(flags);
        command
            .arg(this_program()?)
            .args(["bench", worker::NAME, part]);
        Ok(command)
    }
}

/// Returns the flags for labelled output of `workers`, with logs in `folder`.
pub(super) fn labelled(workers: u32, folder: &Path) -> [OsString; 6] {
    [
        "--nproc-per-node".into(),
        workers.to_string().into(),
        "-t".into(),
        "3".into(),
        "--log-dir".into(),
        folder.join("logs").into(),
    ]
}

/// Child process that is killed when this value is dropped.
pub(super) struct Running(pub(super) Child);

impl Running {
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command.spawn();
        child
            .map(Self)
            .with_context(|| format!("failed to start {:?}", command.get_program()))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Sends SIGTERM, so that the launcher stops its workers, and waits.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        signal(self.pid(), Signal::SIGTERM)?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only if the process has exited. Workers detect the death of their parent.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn signal(pid: u32, signal: Signal) -> anyhow::Result<()> {
    kill(Pid::from_raw(i32::try_from(pid)?), signal)
        .with_context(|| format!("failed to send {signal} to process {pid}"))
}
