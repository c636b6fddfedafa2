//! `cargo xtask bench launch`: what it costs to start workers, to replace a dead one and to label
//! the output of a chatty one.
//!
//! | quantity | from | to |
//! |---|---|---|
//! | start | the launcher is started with two `/bin/true` | it has ended |
//! | memory | the same runs | largest resident size of any of its processes |
//! | replacement | the last instruction of a dying worker, of two | the first of its replacement |
//! | tee | a worker begins to write to its labelled stdout | the console has the last byte |

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};

use super::arguments;
use super::measure::measure;
use super::table::{self, Better, Comparison};
use super::{release_binary, this_program, worker};
use crate::venv;

const DEFAULT_RUNS: usize = 7;

/// Enough for both sides to be busy for a noticeable time: 60 MB.
const FLOOD_LINES: usize = 600_000;

pub(super) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let runs = arguments::runs("launch", arguments, DEFAULT_RUNS)?;
    let python = venv::torch_python()?;
    let ours = Launcher {
        words: vec![text(&release_binary()?)?, "run".into()],
    };
    let theirs = Launcher {
        words: vec![text(&python.with_file_name("torchrun"))?],
    };

    let mut wall = Comparison::new("start of two workers", "ms", Better::Less, 50.0);
    let mut memory = Comparison::new("peak memory", "MB", Better::Less, 25.0);
    let mut replacement = Comparison::new("death to replacement", "ms", Better::Less, 5.0);
    let mut tee = Comparison::new("tee", "MB/s", Better::More, 5.0);
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for (launcher, is_ours) in [(&ours, true), (&theirs, false)] {
            let side = |comparison: &mut Comparison, value| comparison.add(is_ours, value);
            let usage = launcher.start()?;
            side(&mut wall, usage.wall_seconds * 1e3);
            side(&mut memory, usage.peak_megabytes);
            side(&mut replacement, launcher.replace()?);
            side(&mut tee, launcher.tee()?);
        }
    }
    let met = table::print(
        &format!("bench launch, {runs} runs"),
        "torchrun",
        &[wall, memory, replacement, tee],
    );
    ensure!(met, "a target was missed");
    Ok(())
}

fn text(path: &Path) -> anyhow::Result<String> {
    Ok(path
        .to_str()
        .with_context(|| format!("{} is no UTF-8", path.display()))?
        .to_owned())
}

/// What either launcher puts before each line by default.
const LABEL: &str = "[default0]:";

/// One side.
struct Launcher {
    words: Vec<String>,
}

impl Launcher {
    fn line(&self, arguments: &[&str]) -> Vec<String> {
        let own = self.words.iter().cloned();
        own.chain(arguments.iter().map(|&word| word.to_owned()))
            .collect()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let line = self.line(arguments);
        let mut command = Command::new(&line[0]);
        command
            .args(&line[1..])
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn start(&self) -> anyhow::Result<super::measure::Usage> {
        measure(&self.line(&["--nproc-per-node", "2", "--no-python", "/bin/true"]))
    }

    /// Milliseconds from the death of a worker to the start of the next attempt.
    fn replace(&self) -> anyhow::Result<f64> {
        let (folder, notes) = notes()?;
        let program = text(&this_program()?)?;
        let arguments = [
            "--nproc-per-node",
            "2",
            "--max-restarts",
            "1",
            "--no-python",
            &program,
        ];
        let status = self
            .command(&arguments)
            .args(["bench", worker::NAME, "die-once"])
            .arg(&notes)
            .stdout(Stdio::null())
            .status()?;
        ensure!(
            status.success(),
            "{} did not replace a dead worker ({status})",
            self.words[0]
        );
        let nanoseconds = worker::noted(&notes, "replaced")? - worker::noted(&notes, "died")?;
        folder.close()?;
        Ok(nanoseconds as f64 / 1e6)
    }

    /// Megabytes of worker output per second that reach the console with a label.
    fn tee(&self) -> anyhow::Result<f64> {
        let (folder, notes) = notes()?;
        let program = text(&this_program()?)?;
        let logs = text(&folder.path().join("logs"))?;
        let arguments = ["--tee", "3", "--log-dir", &logs, "--no-python", &program];
        let mut child = self
            .command(&arguments)
            .args(["bench", worker::NAME, "flood"])
            .arg(&notes)
            .arg(FLOOD_LINES.to_string())
            .stdout(Stdio::piped())
            .spawn()?;
        let console = child.stdout.take().expect("stdout was asked for");
        let (bytes, last_byte) = drain(console)?;
        let status = child.wait()?;
        ensure!(
            status.success(),
            "{} failed to tee ({status})",
            self.words[0]
        );
        let expected = FLOOD_LINES * (LABEL.len() + worker::LINE);
        ensure!(
            bytes == expected,
            "{bytes} bytes of {expected} reached the console"
        );
        let nanoseconds = last_byte - worker::noted(&notes, "began")?;
        folder.close()?;
        Ok((FLOOD_LINES * worker::LINE) as f64 * 1e3 / nanoseconds as f64)
    }
}

fn notes() -> anyhow::Result<(tempfile::TempDir, PathBuf)> {
    let folder = tempfile::tempdir().context("failed to make a folder for the worker's notes")?;
    let notes = folder.path().join("notes");
    Ok((folder, notes))
}

/// Reads to the end: the number of bytes, and when the last one came, in nanoseconds since the
/// epoch. It does no more than that, because it shares the processor with what is measured.
fn drain(mut console: impl Read) -> anyhow::Result<(usize, u128)> {
    let mut buffer = vec![0; 1 << 18];
    let mut bytes = 0;
    let mut last_byte = 0;
    loop {
        let length = console
            .read(&mut buffer)
            .context("failed to read the console")?;
        if length == 0 {
            return Ok((bytes, last_byte));
        }
        bytes += length;
        last_byte = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    }
}
