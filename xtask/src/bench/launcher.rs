//! Launchers that are compared, and the workers that they start.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{release_binary, this_program, worker};

/// One side of the comparison.
pub(super) struct Launcher {
    words: Vec<PathBuf>,
}

impl Launcher {
    /// Returns an optimised `rdzv run`, and the torchrun of this interpreter.
    pub(super) fn both(python: &Path) -> anyhow::Result<[Self; 2]> {
        let ours = Self {
            words: vec![release_binary()?, PathBuf::from("run")],
        };
        let theirs = Self {
            words: vec![python.with_file_name("torchrun")],
        };
        Ok([ours, theirs])
    }

    /// Returns a launch of workers with these flags, without the program.
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

    /// Returns a launch of workers that play this part (see [`worker`]).
    pub(super) fn play<F: AsRef<OsStr>>(&self, flags: &[F], part: &str) -> anyhow::Result<Command> {
        let mut command = self.launch(flags);
        command
            .arg(this_program()?)
            .args(["bench", worker::NAME, part]);
        Ok(command)
    }
}

/// Returns flags for workers with labelled output, and logs in `folder`.
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

/// Process that is killed at the drop.
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

    /// Sends SIGTERM, so that no worker stays, and waits for the process.
    pub(super) fn end(mut self) -> anyhow::Result<()> {
        signal(self.pid(), Signal::SIGTERM)?;
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has already ended. Workers detect that their parent has
        // ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn signal(pid: u32, signal: Signal) -> anyhow::Result<()> {
    kill(Pid::from_raw(i32::try_from(pid)?), signal)
        .with_context(|| format!("failed to send {signal} to process {pid}"))
}
