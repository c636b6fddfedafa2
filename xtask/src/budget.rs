//! `cargo xtask budget`: costs that do not depend on other load.
//!
//! | cost | counted by |
//! |---|---|
//! | system calls of `rdzv run /bin/true`, in all its processes | strace |
//! | instructions of a request to the store server | callgrind |
//!
//! Both tools measure the development build that the tests use. The cost of a launch is its number
//! of system calls, because valgrind 3.19 does not support `pidfd_open`, which every agent needs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use crate::bench::peer::{Peer, Server};
use crate::command::{succeeds, target_folder};
use crate::install::{apt_install, has};
use crate::test;

/// Maximum system calls of a launch: 5 % more than when the limit was set.
const LAUNCH: u64 = 1_170;

/// Maximum instructions of a request, with the same margin.
const REQUEST: u64 = 14_170;

/// Number of launches; the lowest count is the result.
const LAUNCHES: usize = 7;

/// Number of measurements of a request; the lowest count is the result.
const MEASUREMENTS: usize = 3;

/// Requests of two runs, whose difference excludes the start of the server.
const REQUESTS: [u64; 2] = [1000, 3000];

/// Measures both costs, with programs that `cargo xtask test` builds.
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
    // On a busy machine a launch waits more often, but the lowest of several counts is stable.
    let launches = (0..LAUNCHES).map(|_| system_calls(&rdzv));
    let launches = launches.collect::<anyhow::Result<Vec<_>>>()?;
    let launch = launches.into_iter().min().unwrap_or_default();
    // On a busy machine the server's timers expire more often.
    let requests = (0..MEASUREMENTS).map(|_| {
        let [few, many] = REQUESTS.map(|requests| instructions(&rdzv, &client[0], requests));
        Ok((many?).saturating_sub(few?) / (REQUESTS[1] - REQUESTS[0]))
    });
    let requests = requests.collect::<anyhow::Result<Vec<_>>>()?;
    let request = requests.into_iter().min().unwrap_or_default();
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
    // cargo sets this variable for xtask, and the loader would search its folders in each process.
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

/// Returns the command of a store server under callgrind.
///
/// callgrind writes its counts into files whose names begin with `file`.
fn callgrind(file: &Path, rdzv: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--trace-children=yes"])
        .arg(format!("--callgrind-out-file={}.%p", file.display()))
        .arg(rdzv)
        .args(["store", "--host", "127.0.0.1", "--port", "0"]);
    command
}

/// Returns the instructions of a store server for `requests`, one at a time.
fn instructions(rdzv: &Path, client: &Path, requests: u64) -> anyhow::Result<u64> {
    let folder = tempfile::tempdir()?;
    let server = Server::start(&mut callgrind(&folder.path().join("counts"), rdzv))?;
    ask(&server, client, requests)?;
    // callgrind writes its counts when the server exits normally.
    server.end()?;
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

/// Sends `requests` requests from one client.
fn ask(server: &Server, client: &Path, requests: u64) -> anyhow::Result<()> {
    let url = format!("tcp://{}", server.address());
    let mut client = Peer::start(Command::new(client).arg(url))?;
    let greeting = client.line()?;
    ensure!(greeting == "ready\n", "the client did not connect");
    for sum in 1..=requests {
        let answer = client.ask("add key 1")?;
        ensure!(
            answer == sum,
            "the store answered '{answer}' to request {sum}"
        );
    }
    Ok(())
}
