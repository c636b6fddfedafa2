//! `cargo xtask bench terminal`: what a run costs that somebody looks at.
//!
//! | quantity | what | allowed |
//! |---|---|---|
//! | start | `rdzv run` with two `/bin/true`, on a terminal beside into a pipe; and with two workers that print a line | 3 ms more, by the median of the pairs |
//! | throughput | two workers, one of which writes as fast as it can, through its pseudo-terminal and ours; beside a process that copies between two such terminals | half of the copy |
//! | lag | two workers that write 100,000 lines a second together: the age of lines when they are on the terminal | 0.5 s |
//! | idle | eight workers that do nothing, from ten seconds after their start on | 0.00 % of a processor, 9 MiB |
//!
//! There is no other side: `torchrun` gives its workers the terminal itself.

mod pty;

use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use self::pty::{Pty, read_all};
use super::launcher::{Launcher, Running};
use super::processes::{launcher_processes, processor_time, proportional_size};
use super::table::{figure, median, spread};
use super::worker::{self, LINE, Starts};
use super::{arguments, this_program};

const DEFAULT_RUNS: usize = 10;

/// Starts for each run: they are short.
const STARTS: usize = 3;

const MOST_MORE: f64 = 3.0;

const LEAST_OF_A_COPY: f64 = 0.5;

const MOST_LAG: f64 = 0.5;

/// Largest figure that is printed as `0.00`.
const MOST_IDLE: f64 = 0.005;

const MOST_MEBIBYTES: f64 = 9.0;

/// 60 MB.
const FLOOD_LINES: usize = 600_000;

/// Lines of each of two workers, a second.
const PACE: usize = 50_000;

const SECONDS_OF_LINES: usize = 4;

const IDLE_WORKERS: usize = 8;

/// After that the row of the state changes every ten seconds.
const SETTLE: Duration = Duration::from_secs(12);

const WATCHED: Duration = Duration::from_secs(20);

pub(super) fn run(words: &[String]) -> anyhow::Result<()> {
    let runs = arguments::runs("terminal", words, DEFAULT_RUNS)?;
    let launcher = Launcher::ours()?;
    let mut starts = [
        Start::new("two `/bin/true`"),
        Start::new("two that print a line"),
    ];
    let (mut copies, mut views, mut lags) = (Vec::new(), Vec::new(), Vec::new());
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for _ in 0..STARTS {
            starts[0].measure(|| Ok(two(&launcher, &["/bin/true"])))?;
            starts[1].measure(|| Ok(two(&launcher, &["/bin/sh", "-c", "echo I am $RANK"])))?;
        }
        copies.push(raw_copy()?);
        views.push(through_view(&launcher)?);
        lags.push(lag(&launcher)?);
    }
    let idle = idle(&launcher)?;
    println!("\nbench terminal, {runs} runs: median (lowest to highest)\n");
    println!("| quantity | figures | allowed | met |");
    println!("|---|---|---|---|");
    let mut met = true;
    let mut row = |quantity: &str, figures: String, allowed: String, is_met: bool| {
        met &= is_met;
        println!(
            "| {quantity} | {figures} | {allowed} | {} |",
            if is_met { "yes" } else { "NO" }
        );
    };
    for start in &starts {
        let more = start.more();
        row(
            &format!("start of {}, ms", start.what),
            format!(
                "terminal {}, pipe {}, {} more",
                spread(&start.terminal),
                spread(&start.pipe),
                spread(&more)
            ),
            format!("{MOST_MORE} more"),
            median(&more) <= MOST_MORE,
        );
    }
    let shares: Vec<f64> = views
        .iter()
        .zip(&copies)
        .map(|(view, copy)| view / copy)
        .collect();
    row(
        "throughput, MB/s",
        format!(
            "view {}, copy {}, {} of it",
            spread(&views),
            spread(&copies),
            spread(&shares)
        ),
        format!("{LEAST_OF_A_COPY} of a copy"),
        median(&shares) >= LEAST_OF_A_COPY,
    );
    let worst = lags.iter().copied().fold(0.0, f64::max);
    row(
        "largest lag at 100,000 lines/s, s",
        spread(&lags),
        figure(MOST_LAG),
        worst <= MOST_LAG,
    );
    row(
        "idle processor time, % of one",
        format!("{:.4}", idle.0),
        "0.00".to_owned(),
        idle.0 < MOST_IDLE,
    );
    row(
        "idle memory, MiB",
        figure(idle.1),
        figure(MOST_MEBIBYTES),
        idle.1 <= MOST_MEBIBYTES,
    );
    ensure!(met, "a limit was passed");
    Ok(())
}

fn two(launcher: &Launcher, program: &[&str]) -> Command {
    let mut command = launcher.launch(&["--nproc-per-node", "2"]);
    command.args(program);
    command
}

/// Starts on a terminal and into a pipe, in pairs; milliseconds.
struct Start {
    what: &'static str,
    pipe: Vec<f64>,
    terminal: Vec<f64>,
}

impl Start {
    fn new(what: &'static str) -> Self {
        Self {
            what,
            pipe: Vec::new(),
            terminal: Vec::new(),
        }
    }

    fn measure(&mut self, launch: impl Fn() -> anyhow::Result<Command>) -> anyhow::Result<()> {
        let mut command = launch()?;
        let began = Instant::now();
        let output = command.stdout(Stdio::piped()).output()?;
        self.pipe.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(output.status.success(), "it ended with {}", output.status);

        let mut command = launch()?;
        let terminal = Pty::open(false)?.give(&mut command)?;
        let began = Instant::now();
        let mut launch = Running::start(&mut command)?;
        drop(command);
        read_all(terminal, |_| {})?;
        let status = launch.0.wait()?;
        self.terminal.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }

    fn more(&self) -> Vec<f64> {
        let pairs = self.terminal.iter().zip(&self.pipe);
        pairs.map(|(terminal, pipe)| terminal - pipe).collect()
    }
}

/// The part of a line of the flood that nothing else on the terminal has.
const MARK: &[u8] = b"step ";

/// Megabytes a second that arrive of the flood: from its begin to its last line.
fn rate(terminal: std::fs::File, notes: &std::path::Path) -> anyhow::Result<f64> {
    let mut last = 0;
    read_all(terminal, |bytes| {
        if bytes.windows(MARK.len()).any(|window| window == MARK) {
            last = worker::now();
        }
    })?;
    ensure!(last > 0, "no line of the flood arrived");
    let nanoseconds = last.saturating_sub(worker::noted(notes, "began")?);
    Ok((FLOOD_LINES * LINE) as f64 * 1e3 / nanoseconds as f64)
}

/// A worker, a process that copies what it writes, and this one, with a terminal between each two.
fn raw_copy() -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    let (inner, outer) = (Pty::open(true)?, Pty::open(true)?);
    let part = |part: &str, input: OwnedFd, output: OwnedFd| -> anyhow::Result<Running> {
        let mut command = Command::new(this_program()?);
        command.args(["bench", worker::NAME, part]);
        if part == "flood" {
            command.arg(&notes).arg(FLOOD_LINES.to_string());
        }
        Running::start(command.stdin(input).stdout(output))
    };
    let null = std::fs::File::open("/dev/null")?;
    let mut copy = part("copy", inner.reader.into(), outer.writer)?;
    let mut writer = part("flood", null.into(), inner.writer)?;
    let rate = rate(outer.reader, &notes)?;
    ensure!(writer.0.wait()?.success() && copy.0.wait()?.success());
    Ok(rate)
}

fn through_view(launcher: &Launcher) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    let mut command = launcher.play(&["--nproc-per-node", "2"], "flood-of-one")?;
    command.arg(&notes).arg(FLOOD_LINES.to_string());
    let terminal = Pty::open(true)?.give(&mut command)?;
    let mut launch = Running::start(&mut command)?;
    drop(command);
    let rate = rate(terminal, &notes)?;
    let status = launch.0.wait()?;
    ensure!(status.success(), "the flood ended with {status}");
    Ok(rate)
}

/// The largest age of a line when it was read, in seconds.
fn lag(launcher: &Launcher) -> anyhow::Result<f64> {
    let mut command = launcher.play(&["--nproc-per-node", "2"], "paced")?;
    command.args([PACE, PACE * SECONDS_OF_LINES].map(|number| number.to_string()));
    let terminal = Pty::open(true)?.give(&mut command)?;
    let mut launch = Running::start(&mut command)?;
    drop(command);
    let (mut largest, mut lines, mut rest) = (0, 0, Vec::new());
    read_all(terminal, |bytes| {
        let now = worker::now();
        rest.extend_from_slice(bytes);
        let end = rest
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        for line in rest[..end].split(|byte| *byte == b'\n') {
            if let Some(written) = written_at(line) {
                lines += 1;
                largest = largest.max(now.saturating_sub(written));
            }
        }
        rest.drain(..end);
    })?;
    let status = launch.0.wait()?;
    ensure!(status.success(), "the workers ended with {status}");
    ensure!(
        lines == 2 * PACE * SECONDS_OF_LINES,
        "{lines} lines arrived of {}",
        2 * PACE * SECONDS_OF_LINES
    );
    Ok(largest as f64 / 1e9)
}

/// When a line `… written ⟨time⟩ …` was written, in nanoseconds since the epoch.
fn written_at(line: &[u8]) -> Option<u128> {
    let (_, rest) = str::from_utf8(line).ok()?.split_once("written ")?;
    rest.split(' ').next()?.trim_end().parse().ok()
}

/// Processor time in per cent of one processor, and memory in MiB.
fn idle(launcher: &Launcher) -> anyhow::Result<(f64, f64)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("starts");
    let starts = Starts::bind(&path)?;
    let workers = IDLE_WORKERS.to_string();
    let mut command = launcher.play(&["--nproc-per-node", &workers], "stay")?;
    let terminal = Pty::open(false)?.give(command.arg(&path))?;
    let launch = Running::start(&mut command)?;
    drop(command);
    let reader = thread::spawn(move || read_all(terminal, |_| {}));
    let started = starts.of_all(IDLE_WORKERS, 0)?;
    let pids = started.values().map(|start| start.pid).collect();
    // The time that passes is what is measured.
    thread::sleep(SETTLE);
    let processes = launcher_processes(launch.pid(), &pids);
    let (before, start) = (processor_time(&processes)?, Instant::now());
    thread::sleep(WATCHED);
    let used = processor_time(&processes)? - before;
    let per_cent = used as f64 / start.elapsed().as_nanos() as f64 * 100.0;
    let mebibytes = proportional_size(&processes)?;
    launch.end()?;
    let read = reader.join().ok().context("the reader has panicked")?;
    read?;
    Ok((per_cent, mebibytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_when_it_was_written() {
        assert_eq!(written_at(b"[0] line 7 written 12 ...\r"), Some(12));
        assert_eq!(written_at(b"[0] line 7 written 12\r"), Some(12));
        assert_eq!(written_at(b"running"), None);
    }
}
