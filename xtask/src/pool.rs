//! Test programs that run side by side, and a second try, alone, for tests that failed.
//!
//! Most tests here wait: for processes, for deadlines, for one another. So there are two programs more at
//! work than there are processors, the longest first, and what a program prints is shown when it has
//! ended. A program that takes far longer than any of them is killed with all that it has started, and fails
//! the run at once, with the last lines that it printed. On a machine that stands still for seconds a test misses its bound by no fault of the code. A
//! test that fails twice fails the run, and a test that needed its second try is named at the end, so
//! that it is looked at.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::fstat;

use crate::command::{line, step};

/// More failures than this are not the machine's: no second try follows.
const MOST: usize = 48;

/// A program that takes longer hangs: the longest takes a quarter of it on two processors.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A program that runs tests.
pub(crate) struct Job {
    /// Name in the output.
    pub(crate) title: String,
    pub(crate) command: Command,
    /// Finds the names of the tests that failed among the lines that were printed.
    pub(crate) failures: fn(&[String]) -> Vec<String>,
    pub(crate) again: Again,
}

/// The command that runs the tests of these names, alone; all tests of the job if there is no name.
pub(crate) type Again = Box<dyn Fn(&[String]) -> Command + Send>;

/// A job that failed, with the names of the tests.
struct Failed {
    job: Job,
    tests: Vec<String>,
}

/// Runs `jobs` side by side, in this order, and a second time what failed.
pub(crate) fn run(jobs: Vec<Job>) -> anyhow::Result<()> {
    run_within(LIMIT, jobs)
}

/// The same, where each job may take so long.
fn run_within(limit: Duration, jobs: Vec<Job>) -> anyhow::Result<()> {
    let start = Instant::now();
    let slots = thread::available_parallelism().map_or(3, |processors| processors.get() + 2);
    println!("\n==> {} test programs, {slots} at a time", jobs.len());
    let waiting = Mutex::new(jobs.into_iter());
    let next = || waiting.lock().expect("no thread panics with it").next();
    let failed = Mutex::new(Vec::new());
    let result: anyhow::Result<()> = thread::scope(|scope| {
        let work = || -> anyhow::Result<()> {
            while let Some(mut job) = next() {
                if let Some(tests) = run_one(&mut job, limit)? {
                    let mut failed = failed.lock().expect("no thread panics with it");
                    failed.push(Failed { job, tests });
                }
            }
            Ok(())
        };
        let threads: Vec<_> = (0..slots).map(|_| scope.spawn(work)).collect();
        let ends = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        ends.collect::<Vec<_>>().into_iter().collect()
    });
    result?;
    let failed = failed.into_inner().expect("no thread panics with it");
    println!(
        "\n    test programs: done in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    try_again(&failed)
}

/// Runs the job. The names of the tests that failed, unless it succeeds.
fn run_one(job: &mut Job, limit: Duration) -> anyhow::Result<Option<Vec<String>>> {
    let text = line(&job.command);
    let start = Instant::now();
    let (status, lines) = run_and_read(&job.title, &mut job.command, limit)?;
    let took = start.elapsed().as_secs_f64();
    let mut console = std::io::stdout().lock();
    // A console that is gone does not end the tests.
    let _ = writeln!(console, "\n==> {}, {took:.1} s\n    {text}", job.title);
    for line in &lines {
        let _ = writeln!(console, "{line}");
    }
    if status.success() {
        return Ok(None);
    }
    let _ = writeln!(console, "    {} failed ({status})", job.title);
    Ok(Some((job.failures)(&lines)))
}

fn try_again(failed: &[Failed]) -> anyhow::Result<()> {
    let count: usize = failed.iter().map(|failed| failed.tests.len().max(1)).sum();
    if count > MOST {
        bail!(
            "{count} tests failed, in {}",
            failed
                .iter()
                .map(|failed| failed.job.title.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    // All of them, so that one run tells everything.
    let failed_again: Vec<String> = failed
        .iter()
        .filter_map(|failed| {
            let title = format!("{}, second try, alone", failed.job.title);
            let again = step(&title, &mut (failed.job.again)(&failed.tests));
            again.err().map(|error| format!("{error:#}"))
        })
        .collect();
    if count > 0 {
        println!("    These failed at the first try:");
    }
    for failed in failed {
        println!("      {} {}", failed.job.title, failed.tests.join(" "));
    }
    if !failed_again.is_empty() {
        bail!("{}", failed_again.join("\n"));
    }
    Ok(())
}

/// Runs `command` and returns the lines that it prints. Those that tell of a test that takes long are
/// shown at once. A command that takes longer than the limit is killed, which is an error.
fn run_and_read(
    title: &str,
    command: &mut Command,
    limit: Duration,
) -> anyhow::Result<(ExitStatus, Vec<String>)> {
    let text = line(command);
    let (reader, writer) = std::io::pipe().context("failed to make a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("failed to copy a pipe's end")?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("failed to start `{text}`"))?;
    // The command holds the ends to write into until it is given others.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let pipe = fstat(&reader).context("failed to look at a pipe")?;
    let pipe = PathBuf::from(format!("pipe:[{}]", pipe.st_ino));
    let program = Pid::from_raw(child.id().cast_signed());
    let (end, ended) = mpsc::channel::<()>();
    let (lines, hung) = thread::scope(|scope| {
        let watch = scope.spawn(move || {
            let hangs = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if hangs {
                kill_all(program, &pipe);
            }
            hangs
        });
        let lines = read_lines(title, BufReader::new(reader));
        drop(end);
        let hung = watch.join();
        (
            lines,
            hung.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        )
    });
    let lines = lines.with_context(|| format!("failed to read what `{text}` prints"))?;
    let status = child
        .wait()
        .with_context(|| format!("failed to wait for `{text}`"))?;
    if hung {
        let last = lines.len().saturating_sub(40);
        bail!(
            "{title} was killed: it had not ended after {} s. Its last lines:\n{}\n`{text}` runs it alone",
            limit.as_secs_f64(),
            lines[last..].join("\n")
        );
    }
    Ok((status, lines))
}

/// The lines that come until nobody can print any more.
fn read_lines(title: &str, mut reader: impl BufRead) -> std::io::Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        if line.contains(" has been running for over ") {
            let _ = writeln!(std::io::stdout(), "    {title}: {line}");
        }
        lines.push(line);
        bytes.clear();
    }
    Ok(lines)
}

/// Kills a program, and the processes that have the end of its pipe into which it prints.
fn kill_all(program: Pid, pipe: &Path) {
    // A process that has ended meanwhile needs no signal.
    let _ = kill(program, Signal::SIGKILL);
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let name = process.file_name();
        let pid = name.to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(pid) = pid.filter(|pid| *pid != std::process::id().cast_signed()) else {
            continue;
        };
        let files = std::fs::read_dir(process.path().join("fd"));
        let mut files = files.into_iter().flatten().flatten();
        if files.any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target == pipe)) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

/// The failures that a test program of Rust prints.
pub(crate) fn rust_failures(lines: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    let mut listing = false;
    for line in lines {
        if line == "failures:" {
            // The second of two such headings stands over the names.
            names.clear();
            listing = true;
        } else if line.starts_with("test result: ") {
            listing = false;
        } else if listing && line.starts_with("    ") {
            names.push(line.trim().to_owned());
        }
    }
    names
}

/// The failures that `pytest -rA` or `-ra` lists.
pub(crate) fn pytest_failures(lines: &[String]) -> Vec<String> {
    let mut tests: Vec<String> = lines
        .iter()
        .filter_map(|line| {
            let rest = line
                .strip_prefix("FAILED ")
                .or_else(|| line.strip_prefix("ERROR "))?;
            let name = rest.split(" - ").next().unwrap_or(rest);
            name.contains("::").then(|| name.to_owned())
        })
        .collect();
    tests.sort();
    tests.dedup();
    tests
}

/// A job whose tests are not told apart: all of it is run again.
pub(crate) fn no_names(_: &[String]) -> Vec<String> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Duration, Job, no_names, pytest_failures, run, run_within, rust_failures};

    fn lines(text: &str) -> Vec<String> {
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn failures_of_a_rust_program_are_those_of_the_last_list() {
        let printed = lines(
            "test a::b ... FAILED\n\
             \n\
             failures:\n\
             \n\
             ---- a::b stdout ----\n\
             \x20   indented output\n\
             \n\
             failures:\n\
             \x20   a::b\n\
             \x20   c\n\
             \n\
             test result: FAILED. 1 passed; 2 failed\n",
        );
        assert_eq!(rust_failures(&printed), ["a::b", "c"]);
    }

    #[test]
    fn a_program_that_dies_has_no_names() {
        assert!(rust_failures(&lines("running 3 tests\ntest a ... ok\n")).is_empty());
    }

    #[test]
    fn failures_of_pytest_are_found_once() {
        let printed = lines(
            "FAILED interop/test_a.py::test_x[1-2] - AssertionError: a - b\n\
             ERROR interop/test_a.py::test_y\n\
             FAILED interop/test_a.py::test_x[1-2] - again\n\
             ERROR: usage\n",
        );
        assert_eq!(
            pytest_failures(&printed),
            [
                "interop/test_a.py::test_x[1-2]",
                "interop/test_a.py::test_y"
            ]
        );
    }

    fn job(first: &str, again: &'static str) -> Job {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        Job {
            title: first.to_owned(),
            command: shell(first),
            failures: no_names,
            again: Box::new(move |_| shell(again)),
        }
    }

    #[test]
    fn a_job_may_fail_once_but_not_twice() {
        run(vec![job("true", "false"), job("exit 3", "true")]).unwrap();
        let error = run(vec![job("false", "false"), job("true", "false")]).unwrap_err();
        assert!(error.to_string().contains("second try"), "{error:#}");
    }

    #[test]
    fn a_job_that_hangs_is_killed_with_what_it_has_started_and_named() {
        let marker = format!("3600.{}", std::process::id());
        let script: &'static str = format!("echo begun; sleep {marker} & wait").leak();
        let error = run_within(Duration::from_millis(500), vec![job(script, "true")]).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("had not ended after 0.5 s"), "{text}");
        assert!(text.contains("begun"), "{text}");
        let pattern = format!("^sleep {marker}");
        let left = Command::new("pgrep").args(["-f", &pattern]).status();
        assert!(!left.unwrap().success(), "it left a process");
    }

    #[test]
    fn many_failures_get_no_second_try() {
        let jobs = (0..=super::MOST).map(|_| job("false", "true")).collect();
        let error = run(jobs).unwrap_err();
        assert!(error.to_string().contains("49 tests failed"), "{error:#}");
    }
}
