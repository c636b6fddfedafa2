//! `cargo xtask budget`: costs that are the same on a busy machine, against their limits.
//!
//! | cost | counted by |
//! |---|---|
//! | system calls of `rdzv run /bin/true`, in all its processes | strace |
//! | instructions of a request to the store server | callgrind |
//!
//! Both are counted in the development build that the tests use. A launch is counted in system
//! calls, since valgrind 3.19 has no `pidfd_open`, without which no agent runs.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{succeeds, target_folder};
use crate::install::{apt_install, has};
use crate::test;

/// Limits: 5 % more than was counted on the day of the limit.
const LAUNCH: u64 = 1_104;
const REQUEST: u64 = 14_170;

/// Number of launches; the least count is taken.
const LAUNCHES: usize = 7;

/// Requests of the two runs whose difference is counted, so that the start drops out.
const REQUESTS: [u64; 2] = [1000, 3000];

/// Counts both, of programs that `cargo xtask test` builds.
pub(crate) fn run() -> anyhow::Result<()> {
    for program in ["valgrind", "strace"] {
        if !has(program) {
            apt_install(&[program])?;
        }
    }
    println!("\n==> budget");
    let built = target_folder()?.join("debug");
    let rdzv = built.join("rdzv");
    let client = test::programs(&built.join("rdzv-test-programs"), &["store_client"])?;
    // On a busy machine a launch waits more often; the least of some is always the same.
    let launches = (0..LAUNCHES).map(|_| system_calls(&rdzv));
    let launches = launches.collect::<anyhow::Result<Vec<_>>>()?;
    let launch = launches.into_iter().min().unwrap_or_default();
    let [few, many] = REQUESTS.map(|requests| instructions(&rdzv, &client[0], requests));
    let request = (many?).saturating_sub(few?) / (REQUESTS[1] - REQUESTS[0]);
    let mut exceeded = Vec::new();
    for (what, count, limit) in [
        ("system calls of a launch", launch, LAUNCH),
        ("instructions of a store request", request, REQUEST),
    ] {
        println!("    {count} {what}, at most {limit}");
        if count > limit {
            exceeded.push(format!("{count} {what}, at most {limit}"));
        }
    }
    ensure!(exceeded.is_empty(), "budget: {}", exceeded.join("; "));
    Ok(())
}

/// Returns the number of system calls of a launch, in all its processes.
fn system_calls(rdzv: &Path) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let summary = folder.path().join("summary");
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-c", "-U", "calls,name", "-o"])
        .arg(&summary);
    // cargo sets it for xtask, and the loader would search its folders in each process.
    strace.env_remove("LD_LIBRARY_PATH");
    strace
        .arg(rdzv)
        .args(["run", "--standalone", "--no-python", "/bin/true"]);
    ensure!(succeeds(&mut strace), "strace of rdzv run failed");
    let text = std::fs::read_to_string(summary)?;
    let total = text
        .lines()
        .find_map(|line| line.trim().strip_suffix("total"));
    Ok(total.context("strace printed no total")?.trim().parse()?)
}

/// A store server under callgrind, which writes its counts into files that begin as `file`.
fn callgrind(file: &Path, rdzv: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--trace-children=yes"])
        .arg(format!("--callgrind-out-file={}.%p", file.display()))
        .arg(rdzv)
        .args(["store", "--host", "127.0.0.1", "--port", "0"])
        .stderr(Stdio::null());
    command
}

/// Returns the instructions of a store server that one client sends `requests`, one at a time.
fn instructions(rdzv: &Path, client: &Path, requests: u64) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let mut server = callgrind(&folder.path().join("counts"), rdzv)
        .stdout(Stdio::piped())
        .spawn()?;
    let served = ask(&mut server, client, requests);
    kill_process(Pid::from_child(&server), Signal::TERM)?;
    server.wait()?;
    served?;
    let mut total = 0;
    for entry in folder.path().read_dir()? {
        let text = std::fs::read_to_string(entry?.path())?;
        let count = text.lines().find_map(|line| line.strip_prefix("totals: "));
        total += count
            .context("callgrind wrote no total")?
            .trim()
            .parse::<u64>()?;
    }
    ensure!(total > 0, "callgrind counted nothing");
    Ok(total)
}

fn ask(server: &mut Child, client: &Path, requests: u64) -> anyhow::Result<()> {
    let mut line = String::new();
    let output = server.stdout.take().context("the server has no output")?;
    BufReader::new(output).read_line(&mut line)?;
    let port = line.trim().rsplit(':').next().unwrap_or_default();
    let mut client = Command::new(client)
        .arg(format!("tcp://127.0.0.1:{port}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut questions = client.stdin.take().context("the client has no input")?;
    let answers = BufReader::new(client.stdout.take().context("the client has no output")?);
    let mut answers = answers.lines();
    ensure!(
        answers.next().transpose()?.as_deref() == Some("ready"),
        "the client did not connect"
    );
    for sum in 1..=requests {
        writeln!(questions, "add key 1")?;
        let answer = answers.next().transpose()?.unwrap_or_default();
        if answer != sum.to_string() {
            bail!("the store answered '{answer}' to request {sum}");
        }
    }
    drop(questions);
    client.wait()?;
    Ok(())
}
